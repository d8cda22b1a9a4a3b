"""Deliver: send the events of the outbox until each one is delivered, dropped or failed.

There is one sender for all channels. For each channel it repeats these steps:

1. Read the events that are due.
2. Lease those that may be sent now, by a conditional write that postpones them. The others wait in
   memory, and are postponed in storage too: otherwise the next read would return them again, and
   not the events after them.
3. Send each leased event once.
4. Record the result by a conditional write.

A process that dies after 2 or 3 leaves an event that is due again when its lease ends. It is then
sent again, with the same id. A channel (channels.py) knows how to prepare, send and judge a
delivery.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog

from conveyor.domain import outbox
from conveyor.domain.delivery_queue import DeliveryQueue
from conveyor.domain.outbox import Channel, Delivery, DeliveryResult, EventStatus, OutboxEvent
from conveyor.errors import Stale, Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import MOST_CHANGES, Change, Metadata, Removed

PAGE = 500  # due events that are looked at together
IDLE = timedelta(seconds=1)
BUG = DeliveryResult(error="transport_error:something went wrong here")

log = structlog.get_logger()

Prepared = TypeVar("Prepared")


class DeliveryChannel(Protocol[Prepared]):
    """How the events of one channel are sent."""

    @property
    def name(self) -> Channel: ...

    async def origins(self, events: Sequence[OutboxEvent]) -> Sequence[str | None]:
        """The receiver of each event; None for an event that nothing waits for any more."""
        ...

    def lease(self, event: OutboxEvent) -> timedelta:
        """How long a lease of the event lasts; longer than a delivery can take."""
        ...

    async def prepare(self, event: OutboxEvent) -> Prepared | None:
        """What the delivery needs, as of now; None when nothing waits for it any more."""
        ...

    async def send(self, event: OutboxEvent, prepared: Prepared) -> DeliveryResult: ...

    async def judge(
        self, event: OutboxEvent, prepared: Prepared, result: DeliveryResult, delivery: Delivery
    ) -> Sequence[Change]:
        """The changes that record the result: the event first, then rows that change with it."""
        ...

    def unwanted(self, event: OutboxEvent) -> OutboxEvent | Removed:
        """The change that ends an event which nothing waits for."""
        ...

    async def recorded(self, event: OutboxEvent, changes: Sequence[Change]) -> Sequence[Change]:
        """Further changes to commit after those of `judge`, if any."""
        ...


@dataclass(slots=True, kw_only=True)
class ChannelSender(Generic[Prepared]):
    """The loop over one channel. Many deliveries are in flight, as its queue allows."""

    metadata: Metadata
    clock: Clock
    channel: DeliveryChannel[Prepared]
    queue: DeliveryQueue
    idle: timedelta = IDLE
    rng: Random = field(default_factory=Random)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    is_stopping: bool = False

    def wake(self) -> None:
        """An event may be due."""
        self.woken.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Send what is due until `stopping` is set, then wait for the deliveries in flight."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stop_with(stopping))
            while not self.is_stopping:
                self.woken.clear()
                try:
                    found = await self.round(group)
                except Unavailable as error:
                    log.warning("step.unavailable", step="deliver", why=str(error))
                    found = 0
                except Exception:
                    log.exception("step.bug", step="deliver")
                    found = 0
                if not found:
                    await self._rest()

    async def step(self) -> int:
        """Send what is due now, and wait for it; return how many events were due."""
        found, away = 0, None
        async with asyncio.TaskGroup() as group:
            try:
                found = await self.round(group)
            except Unavailable as error:
                away = error  # raised below, not as part of an exception group
        if away:
            raise away
        return found

    async def round(self, group: asyncio.TaskGroup) -> int:
        """Send the due events that have a place, let the others wait; return how many were due."""
        limit = PAGE if self.queue.most_waiting else self.queue.places - self.queue.in_flight
        due: Sequence[OutboxEvent] = ()
        if limit:
            name = self.channel.name
            due = await self.metadata.due(OutboxEvent, channel=name, limit=limit)
        wanted: list[tuple[str, OutboxEvent]] = []
        for event, origin in zip(due, await self.channel.origins(due), strict=True):
            if origin is None:
                await self._drop(event)
            else:
                wanted.append((origin, event))
        begun = [
            (origin, event) for origin, event in wanted if self.queue.begin(origin, event.caller)
        ]
        started = {event.id for _, event in begun}
        await self._start(group, begun)
        await self._let_wait([(at, event) for at, event in wanted if event.id not in started])
        # A place may have become free before the events above were in the queue.
        await self._start_waiting(group)
        return len(due)

    async def _stop_with(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self.is_stopping = True
        self.woken.set()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self.idle.total_seconds()):
                await self.woken.wait()
        except TimeoutError:
            return

    async def _start(
        self, group: asyncio.TaskGroup, begun: Sequence[tuple[str, OutboxEvent]]
    ) -> None:
        """Lease events that have a place, and send those that no other sender has leased."""
        now = self.clock.now()
        leases = [
            (origin, outbox.lease(event, now + self.channel.lease(event)))
            for origin, event in begun
        ]
        ours: list[tuple[str, OutboxEvent]] = []
        try:
            ours = await self._lease(leases)
        finally:
            kept = {event.id for _, event in ours}
            for origin, event in begun:
                if event.id not in kept:
                    self.queue.cancel(origin, event.caller)
        for origin, event in ours:
            group.create_task(self._deliver(group, origin, event))

    async def _let_wait(self, waiting: Sequence[tuple[str, OutboxEvent]]) -> None:
        now = self.clock.now()
        delayed = [
            (origin, outbox.lease(event, now + self.queue.delay(origin)))
            for origin, event in waiting
        ]
        for origin, event in await self._lease(delayed):
            self.queue.add(origin, event)

    async def _start_waiting(self, group: asyncio.TaskGroup) -> None:
        """Send the events that wait in memory, as far as there are places."""
        try:
            while not self.is_stopping and (turn := self.queue.next()):
                await self._start(group, [turn])
        except Unavailable as error:
            # An event that has left the queue is read from storage when it is due again.
            log.warning("step.unavailable", step="deliver", why=str(error))
        except Exception:
            log.exception("step.bug", step="deliver")

    async def _lease(
        self, changed: Sequence[tuple[str, OutboxEvent]]
    ) -> list[tuple[str, OutboxEvent]]:
        """Write events, a few in a commit; return those that were written, as they are stored now.

        Senders of several processes read the same events when they are due. So each begins with
        other ones, and leaves those to the others that they have changed.
        """
        written: list[tuple[str, OutboxEvent]] = []
        starts = list(range(0, len(changed), MOST_CHANGES))
        self.rng.shuffle(starts)
        for start in starts:
            some = changed[start : start + MOST_CHANGES]
            if not await self._commit(*(event for _, event in some)):
                some = [pair for pair in some if await self._is_unchanged(pair[1])]
                # A second commit that fails meets another sender at the same events.
                if not (some and await self._commit(*(event for _, event in some))):
                    continue
            written += [(origin, _stored(event)) for origin, event in some]
        return written

    async def _is_unchanged(self, event: OutboxEvent) -> bool:
        found = await self.metadata.get(OutboxEvent, (event.job_id, event.id))
        return found is not None and found.version == event.version

    async def _deliver(self, group: asyncio.TaskGroup, origin: str, event: OutboxEvent) -> None:
        started, succeeded = self.clock.monotonic(), False
        try:
            succeeded = await self._attempt(origin, event)
        except Unavailable as error:
            # Nothing is recorded: the lease ends, and the event is sent again.
            log.warning("outbox.unavailable", why=str(error), **ids_of(event))
        except Exception:
            log.exception("outbox.bug", **ids_of(event))
        finally:
            seconds = self.clock.monotonic() - started
            self.queue.end(origin, event.caller, seconds=seconds, succeeded=succeeded)
        if not self.queue.most_waiting:
            self.wake()  # events that wait for this place are in storage only
        await self._start_waiting(group)

    async def _attempt(self, origin: str, event: OutboxEvent) -> bool:
        """Send a leased event and record the result; return whether its receiver is healthy."""
        prepared = await self.channel.prepare(event)
        if prepared is None:
            await self._drop(event)
            return True
        started_at, started = self.clock.now(), self.clock.monotonic()
        try:
            result = await self.channel.send(event, prepared)
        except Unavailable:
            raise
        except Exception:
            # A bug that one event triggers counts as a failed attempt, so that retries end.
            log.exception("outbox.bug", **ids_of(event))
            result = BUG
        delivery = Delivery(
            attempt=outbox.next_attempt(event),
            started_at=started_at,
            elapsed_ms=round((self.clock.monotonic() - started) * 1000),
            status_code=result.status_code,
            error=result.error,
        )
        await self._record(origin, event, prepared, result, delivery)
        return result.error is None

    async def _record(
        self,
        origin: str,
        leased: OutboxEvent,
        prepared: Prepared,
        result: DeliveryResult,
        delivery: Delivery,
    ) -> None:
        """Commit the result, on the latest version of every row that it changes.

        A caller may have asked for a redelivery meanwhile, or another sender may have leased the
        event because the lease has ended. Then only the delivery is recorded.
        """
        event = leased
        while True:
            delivery = msgspec.structs.replace(delivery, attempt=outbox.next_attempt(event))
            is_ours = event.due_at == leased.due_at
            changes: Sequence[Change] = [outbox.noted(event, delivery)]
            if is_ours:
                changes = await self.channel.judge(event, prepared, result, delivery)
            if await self._commit(*changes):
                break
            found = await self.metadata.get(OutboxEvent, (event.job_id, event.id))
            if found is None or found.status is not EventStatus.OWED:
                return
            event = found
        if is_ours:
            _log(changes[0], delivery, origin)
            if more := await self.channel.recorded(event, changes):
                await self._commit(*more)

    async def _drop(self, event: OutboxEvent) -> None:
        change = self.channel.unwanted(event)
        if await self._commit(change) and isinstance(change, OutboxEvent):
            log.info("outbox.dropped", **ids_of(event))

    async def _commit(self, *changes: Change) -> bool:
        try:
            await self.metadata.commit(*changes)
        except Stale:
            return False
        return True


@dataclass(frozen=True, slots=True)
class OutboxSender:
    """The loops over all channels, side by side."""

    channels: Sequence[ChannelSender[Any]]

    def wake(self) -> None:
        """Events were committed: send them at once."""
        for channel in self.channels:
            channel.wake()

    async def run(self, stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for channel in self.channels:
                group.create_task(channel.run(stopping))

    async def step(self) -> int:
        """Send what is due now, and wait for it; return how many events were due."""
        return sum([await channel.step() for channel in self.channels])


def _stored(event: OutboxEvent) -> OutboxEvent:
    """The event in the version that it has once it is committed."""
    return msgspec.structs.replace(event, version=event.version + 1)


def ids_of(event: OutboxEvent) -> dict[str, str]:
    """The fields that every log line about an event has."""
    return {
        "channel": event.channel,
        "event_id": event.id,
        "job_id": event.job_id,
        "run_id": event.run_id,
    }


def _log(change: Change, delivery: Delivery, origin: str) -> None:
    event = change.row if isinstance(change, Removed) else change
    assert isinstance(event, OutboxEvent)
    about = {**ids_of(event), "attempt": delivery.attempt} | ({"origin": origin} if origin else {})
    if event.status is EventStatus.DELIVERED:
        log.info("outbox.delivered", **about)
    elif event.status is EventStatus.DROPPED:
        log.warning("outbox.closed", why=delivery.error, **about)
    elif event.status is EventStatus.FAILED:
        log.warning("outbox.failed", why=delivery.error, **about)
    elif delivery.error:
        log.warning("outbox.retry", why=delivery.error, **about)
