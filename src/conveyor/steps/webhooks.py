"""Webhooks: set, test and redeliver, and rotate the keys that deliveries are signed with.

Setting a webhook commits the live run as well. A completion that read the job before is then
stale, reads it again, and puts its event in the outbox for the new webhook.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from weakref import WeakValueDictionary

import msgspec
import structlog

from conveyor.domain import outbox, signing
from conveyor.domain.ids import CallerId, EventId, JobId
from conveyor.domain.job import Job
from conveyor.domain.outbox import Channel, Delivery, EventType, OutboxEvent
from conveyor.domain.signing import SigningKey, SigningKeys
from conveyor.domain.webhook import Webhook, payload_of_test
from conveyor.errors import Conflict, NotFound, Overloaded, SigningRequiresActiveKey, Stale
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata
from conveyor.steps.shared.notifier import Notifier
from conveyor.steps.shared.ownership import latest_run, own_job
from conveyor.steps.shared.webhook_sender import WebhookSender

MOST_TRIES = 20  # to change a job that other calls are changing
MOST_TESTS = 10  # at a time: each may take a connection for the whole time-out
TESTS_PER_CALLER = 2
PATIENCE = timedelta(seconds=1)  # how long a test waits for others to end

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WebhookTests:
    """Bounds the tests in flight, in all and of one caller: a receiver may never respond."""

    patience: timedelta = PATIENCE
    _all: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_TESTS))
    # A caller's semaphore exists while a test of theirs holds it or waits for it.
    _of_caller: WeakValueDictionary[CallerId, asyncio.Semaphore] = field(
        default_factory=WeakValueDictionary
    )

    @asynccontextmanager
    async def place(self, caller: CallerId) -> AsyncIterator[None]:
        """Raises `Overloaded` when no place comes free in time."""
        own = self._of_caller.setdefault(caller, asyncio.Semaphore(TESTS_PER_CALLER))
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(self.patience.total_seconds()):
                    await held.enter_async_context(own)
                    await held.enter_async_context(self._all)
            except TimeoutError:
                why = "Too many tests of webhooks are in flight: try again later"
                raise Overloaded(why) from None
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class ManageWebhooks:
    metadata: Metadata
    sender: WebhookSender
    clock: Clock
    ids: Ids
    notifier: Notifier
    tests: WebhookTests = field(default_factory=WebhookTests)

    async def check_webhook(self, caller: CallerId, url: str, *, signature: bool) -> Webhook:
        """Return the webhook if it can be delivered to. Raises `InvalidArgument`."""
        await self.sender.webhooks.check_url(url)
        if signature:
            keys = await self.metadata.get(SigningKeys, caller)
            if keys is None or keys.active is None:
                raise SigningRequiresActiveKey(
                    "`webhook.signature` must be false without an active signing key",
                    extras={"field": "webhook.signature"},
                )
        return Webhook(url=url, signature=signature)

    async def get(self, caller: CallerId, job_id: JobId) -> Webhook:
        job = await own_job(self.metadata, caller, job_id)
        if job.webhook is None:
            raise NotFound("The job has no webhook")
        return job.webhook

    async def put(self, caller: CallerId, job_id: JobId, url: str, *, signature: bool) -> Webhook:
        """Replace the webhook; one that was disabled is enabled again."""
        await own_job(self.metadata, caller, job_id)
        webhook = await self.check_webhook(caller, url, signature=signature)
        await self._change(caller, job_id, webhook)
        log.info("webhook.set", job_id=job_id)
        return webhook

    async def clear(self, caller: CallerId, job_id: JobId) -> None:
        """Remove the webhook. The sender drops its owed events when they are due."""
        await self._change(caller, job_id, None)
        log.info("webhook.cleared", job_id=job_id)

    async def deliveries(
        self, caller: CallerId, job_id: JobId, *, limit: int, before: str | None
    ) -> tuple[Sequence[OutboxEvent], str | None]:
        """The webhook events of a job, newest first, and where the next page begins."""
        await own_job(self.metadata, caller, job_id)
        found: list[OutboxEvent] = []
        # Only an empty page is the end: engines also bound the bytes of a page.
        while len(found) <= limit and (
            page := await self.metadata.events(job_id, limit=limit + 1, before=before)
        ):
            found += [event for event in page if event.channel is Channel.WEBHOOK]
            before = page[-1].id
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    async def redeliver(self, caller: CallerId, job_id: JobId, event_id: EventId) -> OutboxEvent:
        """Make an event due now, whatever its status, with all its retries ahead of it."""
        while True:
            job = await own_job(self.metadata, caller, job_id)
            event = await self.metadata.get(OutboxEvent, (job.id, event_id))
            if event is None or event.channel is not Channel.WEBHOOK:
                raise NotFound("No such event")
            if job.webhook is None or not job.webhook.is_on:
                raise Conflict("The job has no webhook in use: set one first")
            again = outbox.redelivered(event, self.clock.now())
            try:
                await self.metadata.commit(again)
            except Stale:
                continue
            log.info("webhook.redelivery", job_id=job_id, event_id=event_id)
            self.notifier.events_due()
            return again

    async def test(
        self, caller: CallerId, url: str, *, signature: bool
    ) -> tuple[EventId, Delivery]:
        """Send one test event to a webhook and return the result.

        Raises `Overloaded` while too many tests, of the caller or in all, are in flight.
        """
        webhook = await self.check_webhook(caller, url, signature=signature)
        event_id = EventId(self.ids.new())
        content = payload_of_test(event_id, EventType.WEBHOOK_TEST, self.clock.now()).encode()
        async with self.tests.place(caller):
            started_at, started = self.clock.now(), self.clock.monotonic()
            result = await self.sender.send(webhook, caller, event_id, content)
        return event_id, Delivery(
            attempt=1,
            started_at=started_at,
            elapsed_ms=round((self.clock.monotonic() - started) * 1000),
            status_code=result.status_code,
            error=result.error,
        )

    async def _change(self, caller: CallerId, job_id: JobId, webhook: Webhook | None) -> None:
        for _ in range(MOST_TRIES):
            job = await own_job(self.metadata, caller, job_id)
            if job.webhook == webhook:
                return None
            try:
                return await self._commit(job, webhook)
            except Stale:
                continue
        raise Conflict("The job is being changed by other calls at the same time: try again")

    async def _commit(self, job: Job, webhook: Webhook | None) -> None:
        run = await latest_run(self.metadata, job)
        changed = msgspec.structs.replace(job, webhook=webhook, updated_at=self.clock.now())
        await self.metadata.commit(changed, *([run] if run and run.is_live else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateSigningKeys:
    """A caller's signing keys: an active one and, during a rotation, a candidate."""

    metadata: Metadata
    encryption: KeyRing
    clock: Clock
    ids: Ids
    secret: Callable[[], bytes]  # random

    async def keys(self, caller: CallerId) -> SigningKeys:
        return await self.metadata.get(SigningKeys, caller) or SigningKeys(id=caller)

    async def begin(self, caller: CallerId) -> tuple[SigningKey, str]:
        """Make a key: the first is active at once, a later one is the candidate.

        Returns its secret, which is never shown again.
        """
        kid, secret = self.ids.new(), b64encode(self.secret()).decode()
        async with self.encryption.writing():
            new = SigningKey(
                kid=kid,
                encrypted_secret=self.encryption.encrypt(
                    secret, context=signing.context(caller, kid)
                ),
                created_at=self.clock.now(),
            )
            await self._change(caller, lambda keys: signing.rotated(keys, new))
        log.info("signing.begun", kid=kid)
        return new, secret

    async def finish(self, caller: CallerId) -> SigningKey:
        """Make the candidate the active key; the key before it is removed."""
        keys = await self._change(caller, signing.finished)
        assert keys.active is not None
        log.info("signing.finished", kid=keys.active.kid)
        return keys.active

    async def give_up(self, caller: CallerId) -> None:
        """Remove the candidate, if there is one."""
        if (await self.keys(caller)).candidate is None:
            return
        await self._change(caller, signing.given_up)
        log.info("signing.given_up")

    async def _change(
        self, caller: CallerId, change: Callable[[SigningKeys], SigningKeys]
    ) -> SigningKeys:
        while True:
            changed = change(await self.keys(caller))
            try:
                await self.metadata.commit(changed)
            except Stale:
                continue
            return changed
