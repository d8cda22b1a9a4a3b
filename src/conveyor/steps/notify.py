"""Notify: what is owed to webhooks is sent, until it is taken, unwanted or hopeless.

A sender first takes an event by a conditional write that moves its due time on by a lease, then
sends it, then notes what came of it. Whoever dies in between leaves an event that is due again:
it is sent once more, with the same id. Where it goes is read anew at each attempt.

Many are under way at once, few for one receiver and not all for one caller. What finds no place is
put off in storage and stands in line, so that the listing of what is due always shows others.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

import msgspec
import structlog

from conveyor.domain import outbox as life
from conveyor.domain.delivery_queue import DeliveryQueue
from conveyor.domain.ids import JobId
from conveyor.domain.job import Job, JobStatus
from conveyor.domain.outbox import Channel, Delivery, EventStatus, OutboxEvent
from conveyor.domain.webhook import Webhook, next_wait
from conveyor.errors import Stale, Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import MOST_CHANGES, Metadata, Row
from conveyor.ports.webhooks import Webhooks
from conveyor.steps.courier import Carried, Courier, Parcel

PAGE = 500  # that are looked at together
IDLE = timedelta(seconds=1)

log = structlog.get_logger()

Turn = tuple[str, OutboxEvent]  # with its receiver
Outcome = Callable[[OutboxEvent, Delivery], OutboxEvent]


@dataclass(slots=True, kw_only=True)
class Notify:
    metadata: Metadata
    webhooks: Webhooks
    clock: Clock
    courier: Courier
    lines: DeliveryQueue
    lease: timedelta  # longer than a delivery can take
    idle: timedelta = IDLE
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    is_stopping: bool = False

    def wake(self) -> None:
        """Something has come to be owed."""
        self.stirred.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Send what is due until told to stop; then let what is under way end."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stop_with(stopping))
            while not self.is_stopping:
                self.stirred.clear()
                try:
                    found = await self.round(group)
                except Unavailable as error:
                    log.warning("step.unavailable", step="notify", why=str(error))
                    found = 0
                except Exception:
                    log.exception("step.bug", step="notify")
                    found = 0
                if not found:
                    await self._rest()

    async def step(self) -> int:
        """Send what is due now, to the end of it; how much that was."""
        found, away = 0, None
        async with asyncio.TaskGroup() as group:
            try:
                found = await self.round(group)
            except Unavailable as error:
                away = error  # as itself, once what has begun is over
        if away:
            raise away
        return found

    async def round(self, group: asyncio.TaskGroup) -> int:
        """Begin what can begin of what is due, put off the rest; how much was due."""
        due = await self.metadata.due(OutboxEvent, channel=Channel.WEBHOOK, limit=PAGE)
        begun: list[Turn] = []
        waiting: list[Turn] = []
        for event, webhook in await self._wanted(due):
            host = self.webhooks.host(webhook.url)
            (begun if self.lines.begin(host, event.caller) else waiting).append((host, event))
        for host, event in await self._taken(begun):
            group.create_task(self._send(group, host, event))
        await self._put_in_line(waiting)
        await self._go_on(group)  # a place may have come free before its line was there
        return len(due)

    async def _wanted(self, due: Sequence[OutboxEvent]) -> list[tuple[OutboxEvent, Webhook]]:
        """Those that somebody still wants, and where; the others are dropped."""
        webhooks: dict[JobId, Webhook | None] = {}
        wanted = []
        for event in due:
            if event.job_id not in webhooks:
                webhooks[event.job_id] = await self._webhook(event)
            webhook = webhooks[event.job_id]
            if webhook is None:
                await self._drop(event)
            else:
                wanted.append((event, webhook))
        return wanted

    async def _stop_with(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self.is_stopping = True
        self.stirred.set()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self.idle.total_seconds()):
                await self.stirred.wait()
        except TimeoutError:
            return

    async def _webhook(self, event: OutboxEvent) -> Webhook | None:
        """Where it is wanted now, if it still is."""
        return _in_use(await self.metadata.get(Job, event.job_id))

    async def _put_in_line(self, waiting: Sequence[Turn]) -> None:
        now = self.clock.now()
        put_off = [
            (host, life.put_off(event, now + self.lines.wait(host))) for host, event in waiting
        ]
        for host, event in await self._written(put_off):
            self.lines.join(host, event)

    async def _taken(self, begun: Sequence[Turn]) -> list[Turn]:
        """Those that this sender has now, each with its place; the places of others are free."""
        until = self.clock.now() + self.lease
        try:
            ours = await self._written([(host, life.taken(one, until)) for host, one in begun])
        except BaseException:
            self._give_back(begun)
            raise
        kept = {event.id for _, event in ours}
        self._give_back([turn for turn in begun if turn[1].id not in kept])
        return ours

    def _give_back(self, turns: Sequence[Turn]) -> None:
        for host, event in turns:
            self.lines.give_back(host, event.caller)

    async def _written(self, changed: Sequence[Turn]) -> list[Turn]:
        """Write many at once; where another sender has changed one, each by itself. Return those
        that were written.
        """
        written: list[Turn] = []
        for start in range(0, len(changed), MOST_CHANGES):
            some = changed[start : start + MOST_CHANGES]
            if not await self._commit(*(event for _, event in some)):
                some = [turn for turn in some if await self._commit(turn[1])]
            written += [
                (host, msgspec.structs.replace(event, version=event.version + 1))
                for host, event in some
            ]
        return written

    async def _commit(self, *rows: Row) -> bool:
        try:
            await self.metadata.commit(*rows)
        except Stale:
            return False
        return True

    async def _send(self, group: asyncio.TaskGroup, host: str, event: OutboxEvent) -> None:
        started, well = self.clock.monotonic(), False
        try:
            well = await self._delivered(host, event)
        except Unavailable as error:
            # Nothing is noted: its lease lapses, and it is sent again.
            log.warning("webhook.unavailable", event_id=event.id, why=str(error))
        except Exception:
            log.exception("webhook.bug", event_id=event.id)
        finally:
            took = self.clock.monotonic() - started
            self.lines.end(host, event.caller, seconds=took, well=well)
        await self._go_on(group)

    async def _go_on(self, group: asyncio.TaskGroup) -> None:
        """Begin whatever has its turn in a line."""
        try:
            while not self.is_stopping and (turn := self.lines.next()):
                for host, event in await self._taken([turn]):
                    group.create_task(self._send(group, host, event))
        except Unavailable as error:
            # What was taken out of its line comes by again when it is due.
            log.warning("step.unavailable", step="notify", why=str(error))
        except Exception:
            log.exception("step.bug", step="notify")

    async def _delivered(self, host: str, event: OutboxEvent) -> bool:
        webhook = await self._webhook(event)
        if webhook is None:
            await self._drop(event)
            return True
        parcel = Parcel(
            caller=event.caller,
            event_id=event.id,
            content=event.payload.encode(),
            attempt=life.next_attempt(event),
        )
        carried = await self._carried(parcel, webhook)
        await self._note(event, webhook, carried, host)
        return carried.is_taken

    async def _carried(self, parcel: Parcel, webhook: Webhook) -> Carried:
        started_at = self.clock.now()
        try:
            return await self.courier.carry(parcel, webhook)
        except Unavailable:
            raise
        except Exception:
            # A bug that one event brings out must not keep all others, nor be met without end.
            log.exception("webhook.bug", event_id=parcel.event_id)
            error = "transport_error:something went wrong here"
            return Carried(
                Delivery(attempt=parcel.attempt, started_at=started_at, elapsed_ms=0, error=error)
            )

    async def _note(
        self, event: OutboxEvent, webhook: Webhook, carried: Carried, host: str
    ) -> None:
        delivery = carried.delivery
        ids = {"event_id": event.id, "job_id": event.job_id, "run_id": event.run_id, "host": host}
        if carried.is_taken:
            if await self._noted(event, delivery, life.delivered):
                log.info("webhook.delivered", attempt=delivery.attempt, **ids)
        elif carried.is_gone:
            if await self._disable(event, webhook, delivery):
                log.warning("webhook.disabled", attempt=delivery.attempt, **ids)
        else:
            wait = next_wait(event.tries + 1, self.lines.chance(), carried.retry_after)
            again_at = self.clock.now() + wait if wait else None
            await self._noted(event, delivery, partial(life.failed, again_at=again_at))
            if again_at:
                log.warning("webhook.refused", attempt=delivery.attempt, why=delivery.error, **ids)
            else:
                log.warning("webhook.given_up", attempt=delivery.attempt, why=delivery.error, **ids)

    async def _disable(self, event: OutboxEvent, webhook: Webhook, delivery: Delivery) -> bool:
        """The receiver is gone for good: nothing more goes there, unless it is set anew.

        Whether that was done. If another was set meanwhile, that one is told instead, as if the
        event were new.
        """
        ended = life.failed(event, delivery, None)
        job = await self.metadata.get(Job, event.job_id)
        while job and job.webhook == webhook:
            off = msgspec.structs.replace(webhook, disabled_at=self.clock.now())
            if await self._commit(msgspec.structs.replace(job, webhook=off), ended):
                return True
            before, job = job, await self.metadata.get(Job, event.job_id)
            if job == before:  # it is the event that somebody else has by now
                await self._noted(event, delivery, partial(life.failed, again_at=None))
                return False
        now = self.clock.now() if _in_use(job) else None
        if await self._noted(event, delivery, partial(_gone, again_at=now)):
            self.wake()
        return False

    async def _noted(self, event: OutboxEvent, delivery: Delivery, after: Outcome) -> bool:
        """Whether what came of it counts. If the event was to be sent again meanwhile, or is in
        other hands, it does not; then the attempt is on record, and no more than that.
        """
        now = event
        while not await self._commit(after(now, delivery)):
            found = await self.metadata.get(OutboxEvent, (event.job_id, event.id))
            if found is None or found.status is not EventStatus.OWED:
                return False
            now = found
            if now.due_at != event.due_at:  # the lease is not ours any more
                after = life.noted
            delivery = msgspec.structs.replace(delivery, attempt=life.next_attempt(now))
        return after is not life.noted

    async def _drop(self, event: OutboxEvent) -> None:
        if await self._commit(life.dropped(event)):
            log.info("webhook.dropped", event_id=event.id, job_id=event.job_id)


def _in_use(job: Job | None) -> Webhook | None:
    if job is None or job.status is JobStatus.DELETED:
        return None
    return job.webhook if job.webhook and job.webhook.is_on else None


def _gone(event: OutboxEvent, delivery: Delivery, again_at: datetime | None) -> OutboxEvent:
    """Not wanted there; if it is wanted elsewhere, it is as if nothing had been tried."""
    ended = life.failed(event, delivery, None)
    return life.owed_again(ended, again_at) if again_at else ended
