"""Calls about a job's webhook and schedule, and about the keys that sign webhook deliveries."""

from collections.abc import AsyncGenerator, Mapping
from typing import TypeVar

import msgspec

from conveyor.client.models import (
    Job,
    JobPage,
    NewSigningKey,
    RunPage,
    SigningKeyInUse,
    SigningKeys,
    Webhook,
    WebhookEvent,
    WebhookEventPage,
    WebhookTest,
)
from conveyor.client.transport import Query, Transport, decoded, path_of

PageT = TypeVar("PageT", JobPage, RunPage, WebhookEventPage)

PAGE = 100  # jobs, runs or events


class SettingCalls:
    """The part of `Calls` that changes what a job does by itself."""

    _transport: Transport

    async def webhook(self, job_id: str) -> Webhook:
        """The webhook of a job; `NotFoundError` if it has none."""
        return await self._transport.read(Webhook, path_of("jobs", job_id, "webhook"))

    async def set_webhook(self, job_id: str, url: str, *, signature: bool = False) -> Webhook:
        """Send the events of a job to this URL, from now on, also those that are still owed."""
        body = msgspec.json.encode({"url": url, "signature": signature})
        path = path_of("jobs", job_id, "webhook")
        return decoded(await self._transport.call("PUT", path, body), Webhook)

    async def clear_webhook(self, job_id: str) -> None:
        """Send no more events of a job."""
        await self._transport.call("DELETE", path_of("jobs", job_id, "webhook"))

    async def test_webhook(self, url: str, *, signature: bool = False) -> WebhookTest:
        """Send one test event to a URL, and return the result."""
        body = msgspec.json.encode({"url": url, "signature": signature})
        raw = await self._transport.call("POST", path_of("webhook", "test"), body)
        return decoded(raw, WebhookTest)

    async def deliveries(self, job_id: str) -> AsyncGenerator[WebhookEvent, None]:
        """The events of a job, the newest first, each with its deliveries."""
        async for page in self._pages(WebhookEventPage, "jobs", job_id, "webhook", "deliveries"):
            for event in page.events:
                yield event

    async def redeliver(self, job_id: str, event_id: str) -> WebhookEvent:
        """Send an event again now, whatever its status."""
        path = path_of("jobs", job_id, "webhook", "deliveries", event_id, "redeliver")
        return decoded(await self._transport.call("POST", path), WebhookEvent)

    async def set_schedule(self, job_id: str, schedule: Mapping[str, object]) -> Job:
        """Replace the schedule of a job from now on; a paused one stays paused."""
        path = path_of("jobs", job_id, "schedule")
        return decoded(await self._transport.call("PUT", path, msgspec.json.encode(schedule)), Job)

    async def pause_schedule(self, job_id: str) -> Job:
        """Let a schedule start no more runs; a live run continues."""
        return await self._turn_schedule(job_id, "paused")

    async def resume_schedule(self, job_id: str) -> Job:
        """Let a paused schedule start runs again, from its next fire on."""
        return await self._turn_schedule(job_id, "active")

    async def _pages(
        self, kind: type[PageT], *path: str, **filters: str | None
    ) -> AsyncGenerator[PageT, None]:
        cursor: str | None = None
        while True:
            query: Query = {**filters, "limit": PAGE, "cursor": cursor}
            page = await self._transport.read(kind, path_of(*path, query=query))
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _turn_schedule(self, job_id: str, state: str) -> Job:
        body = msgspec.json.encode({"schedule_state": state})
        path = path_of("jobs", job_id, "schedule", "state")
        return decoded(await self._transport.call("POST", path, body), Job)

    async def signing_keys(self) -> SigningKeys:
        """The keys that sign deliveries, without their secrets: the active one and a candidate."""
        return await self._transport.read(SigningKeys, path_of("hmac", "keys"))

    async def rotate_signing_key(self) -> NewSigningKey:
        """Create a signing key, whose secret is returned only here.

        The first key is active at once. A later one is a candidate until `finish_rotation`. If the
        response is lost, so is the secret: the repeated call raises `ConflictError`, and
        `cancel_rotation` removes the candidate.
        """
        raw = await self._transport.call("POST", path_of("hmac", "keys", "rotate"))
        return decoded(raw, NewSigningKey)

    async def finish_rotation(self) -> SigningKeyInUse:
        """Make the candidate the active key, and remove the old one."""
        path = path_of("hmac", "keys", "rotate", "finalize")
        return decoded(await self._transport.call("POST", path), SigningKeyInUse)

    async def cancel_rotation(self) -> None:
        """Remove the candidate; the active key stays."""
        await self._transport.call("DELETE", path_of("hmac", "keys", "rotate"))
