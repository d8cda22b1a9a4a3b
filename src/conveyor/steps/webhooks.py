"""ManageWebhooks: where a job's news go, what came of them, and whether a receiver is there at all.

Whoever changes where they go commits the live run as well: an end that read the job before is
stale then, and tells whoever is to be told now.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from weakref import WeakValueDictionary

import msgspec
import structlog

from conveyor.domain import notice
from conveyor.domain import outbox as life
from conveyor.domain.ids import CallerId, EventId, JobId
from conveyor.domain.job import Job
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.domain.signing import SigningKeys
from conveyor.domain.webhook import Webhook
from conveyor.errors import Conflict, NotFound, Overloaded, SigningRequiresActiveKey, Stale
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.metadata import Metadata
from conveyor.ports.webhooks import Webhooks
from conveyor.steps.courier import Courier, Parcel
from conveyor.steps.shared.ownership import latest_run, own_job

MOST_TRIES = 20  # at a change that other changes of the job come before
MOST_TESTS = 10  # at a time: they take connections that deliveries need
TESTS_OF_CALLER = 2
PATIENCE = timedelta(seconds=1)  # for a test to have its turn

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Turns:
    """Of tests: few at a time, and fewer of one caller, whose receivers may keep silent for long."""

    patience: timedelta = PATIENCE
    _all: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_TESTS))
    # Each is there for as long as somebody has it or waits for it.
    _of_caller: WeakValueDictionary[CallerId, asyncio.Semaphore] = field(
        default_factory=WeakValueDictionary
    )

    @asynccontextmanager
    async def turn(self, caller: CallerId) -> AsyncIterator[None]:
        """Raises `Overloaded` when none comes in time."""
        own = self._of_caller.setdefault(caller, asyncio.Semaphore(TESTS_OF_CALLER))
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(self.patience.total_seconds()):
                    await held.enter_async_context(own)
                    await held.enter_async_context(self._all)
            except TimeoutError:
                why = "Too many tests of webhooks are under way: try again later"
                raise Overloaded(why) from None
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class ManageWebhooks:
    metadata: Metadata
    webhooks: Webhooks
    courier: Courier
    clock: Clock
    ids: Ids
    wake: Callable[[], None]
    turns: Turns = field(default_factory=Turns)

    async def vet(self, caller: CallerId, url: str, *, signature: bool) -> Webhook:
        """A webhook that can be delivered to, as things stand. Raises `InvalidArgument`."""
        await self.webhooks.check(url)
        if signature:
            keys = await self.metadata.get(SigningKeys, caller)
            if keys is None or keys.active is None:
                raise SigningRequiresActiveKey(
                    "There is no key to sign with", extras={"field": "webhook.signature"}
                )
        return Webhook(url=url, signature=signature)

    async def get(self, caller: CallerId, job_id: JobId) -> Webhook:
        job = await own_job(self.metadata, caller, job_id)
        if job.webhook is None:
            raise NotFound("The job has no webhook")
        return job.webhook

    async def put(self, caller: CallerId, job_id: JobId, url: str, *, signature: bool) -> Webhook:
        """Replace it; one that was disabled is in use again."""
        await own_job(self.metadata, caller, job_id)
        webhook = await self.vet(caller, url, signature=signature)
        await self._change(caller, job_id, webhook)
        log.info("webhook.set", job_id=job_id)
        return webhook

    async def clear(self, caller: CallerId, job_id: JobId) -> None:
        """What is still owed to it is dropped when its turn comes."""
        await self._change(caller, job_id, None)
        log.info("webhook.cleared", job_id=job_id)

    async def deliveries(
        self, caller: CallerId, job_id: JobId, *, limit: int, before: str | None
    ) -> tuple[Sequence[OutboxEvent], str | None]:
        """Events of a job for its webhook, newest first, and where the next page begins."""
        await own_job(self.metadata, caller, job_id)
        found: list[OutboxEvent] = []
        while len(found) <= limit:
            page = await self.metadata.events(job_id, limit=limit + 1, before=before)
            found += [event for event in page if event.channel is Channel.WEBHOOK]
            if len(page) <= limit:
                break
            before = page[-1].id
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    async def redeliver(self, caller: CallerId, job_id: JobId, event_id: EventId) -> OutboxEvent:
        """Have an event sent again, whatever came of it: now, and as if it were new."""
        while True:
            job = await own_job(self.metadata, caller, job_id)
            event = await self.metadata.get(OutboxEvent, (job.id, event_id))
            if event is None or event.channel is not Channel.WEBHOOK:
                raise NotFound("No such event")
            if job.webhook is None or not job.webhook.is_on:
                raise Conflict("The job has no webhook in use: set one first")
            again = life.owed_again(event, self.clock.now())
            try:
                await self.metadata.commit(again)
            except Stale:
                continue
            log.info("webhook.redelivery", job_id=job_id, event_id=event_id)
            self.wake()
            return again

    async def test(
        self, caller: CallerId, url: str, *, signature: bool
    ) -> tuple[EventId, life.Delivery]:
        """Tell a receiver of nothing, once, and say what came of it.

        Raises `Overloaded` while too many of the caller's, or of all, are under way.
        """
        webhook = await self.vet(caller, url, signature=signature)
        event_id = EventId(self.ids.new())
        content = notice.of_nothing(event_id, self.clock.now()).encode()
        async with self.turns.turn(caller):
            parcel = Parcel(caller=caller, event_id=event_id, content=content)
            carried = await self.courier.carry(parcel, webhook)
        return event_id, carried.delivery

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
