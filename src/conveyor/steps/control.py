"""The control worker: handles messages of the control queue under leases that it extends.

Work that takes longer than a turn is done in several turns. In between, the message goes back on the
queue, behind those of other callers. That is no failure, and the number of deliveries starts again.

Where processes share coordination, the slots of a caller are permits, so its bound holds over all of
them. A message whose caller has no slot left goes back as well, and the process leaves the messages of
that caller alone for a second. That delivery does not count, but those before it do: the message may be
what ended its workers.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import structlog

from conveyor.domain.control_queue import ControlSlots, MessageGroup, SlotLimits
from conveyor.domain.retry import backoff
from conveyor.errors import CallerFault, ConveyorError, Stale, Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.control_queue import ControlQueue, ReceivedMessage
from conveyor.ports.coordination import Coordination, PermitRequest
from conveyor.steps.shared.work_limits import Turn

LEASE = timedelta(seconds=60)
MOST_DELIVERIES = 10
FIRST_DELAY = timedelta(seconds=1)
LONGEST_DELAY = timedelta(minutes=5)
UNAVAILABLE_SINCE = "unavailable_since"  # in a payload, next to what the handler put there

SLOT_WAIT = 1.0  # seconds for which a caller without a free slot is left alone

ONE_SLOT = SlotLimits(slots=1, per_caller=1)

log = structlog.get_logger()

Payload = Mapping[str, str]


class WorkStatus(msgspec.Struct, frozen=True):
    """The progress of work whose message was delivered often and never acknowledged."""

    is_done: bool = False  # by another worker
    resend: Payload | None = None  # it made progress: the payload to send the message with


async def _no_progress(_: Payload) -> WorkStatus:
    return WorkStatus()


@dataclass(frozen=True, slots=True)
class Handler:
    """How one kind of message is handled.

    `handle` returns the payload to continue with if its turn ended before the work did. `give_up`
    leaves stored state consistent before the message becomes a dead letter. `status` is called
    before that: if the work has progressed since the message was sent, workers died for other
    reasons than this message, and it is sent again. A message that fails because an engine is
    unavailable is given up only after `longest_outage`.
    """

    handle: Callable[[Payload, Turn], Awaitable[Payload | None]]
    give_up: Callable[[Payload], Awaitable[None]]
    status: Callable[[Payload], Awaitable[WorkStatus]] = _no_progress
    limits: SlotLimits = ONE_SLOT
    longest_outage: timedelta = timedelta()


class SharedSlots:
    """The slots of callers, over all processes that share coordination."""

    def __init__(self, coordination: Coordination, *, lease: timedelta) -> None:
        self._coordination = coordination
        self._renewal = lease.total_seconds() / 3

    @asynccontextmanager
    async def held(self, group: MessageGroup, cap: int) -> AsyncIterator[bool]:
        """Hold a slot of a group, if one is free. Without coordination no slot is refused."""
        name = f"control:{group[0]}/{group[1]}"
        try:
            reserved = await self._coordination.reserve({name: PermitRequest(1, cap)})
        except Unavailable:
            yield True
            return
        if not (ids := reserved.get(name)):
            yield False
            return
        ended = asyncio.Event()
        renewing = asyncio.create_task(self._renew({name: ids}, ended), name=f"slot {name}")
        try:
            yield True
        finally:
            # Not cancelled: a renewal under way could arrive after the release, and take the slot
            # again.
            ended.set()
            await asyncio.wait([renewing])
            with suppress(Unavailable):  # without a renewal it lapses
                await self._coordination.release({name: ids})

    async def _renew(self, permits: Mapping[str, Sequence[str]], ended: asyncio.Event) -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._renewal):
                    await ended.wait()
                    return
            with suppress(Unavailable):
                await self._coordination.renew(permits)


class ControlWorker:
    """Handles one message in each `step`; up to `slots.count` steps may run concurrently."""

    def __init__(
        self,
        control_queue: ControlQueue,
        handlers: Mapping[str, Handler],
        clock: Clock,
        wake_next: Callable[[], None] = lambda: None,  # a message was received: there may be more
        *,
        shared_slots: SharedSlots | None = None,
    ) -> None:
        self.control_queue = control_queue
        self.handlers = handlers
        self.slots = ControlSlots({kind: handler.limits for kind, handler in handlers.items()})
        self._clock = clock
        self._wake_next = wake_next
        self._receiving = asyncio.Lock()
        self._shared_slots = shared_slots
        self._full_until: dict[MessageGroup, float] = {}  # groups without a free slot anywhere

    async def step(self) -> int:
        """Handle a message, if one is due whose caller has a free slot; return how many."""
        received = await self._receive()
        for message in received:
            try:
                await self._process_if_free(message)
            except Stale:
                log.warning("control.lease_lost", message_id=message.id, kind=message.kind)
            except Unavailable:
                raise
            except Exception:
                # A bug outside of the handler, such as in a driver: the lease lapses, and the
                # message is delivered again.
                log.exception("control.bug", **_fields(message))
            finally:
                self.slots.free(message.group)
        return len(received)

    async def _receive(self) -> Sequence[ReceivedMessage]:
        async with self._receiving:  # two concurrent receives would both see the same slot free
            received = await self.control_queue.receive(
                1,
                lease=LEASE,
                kinds=self.slots.open_kinds(),
                excluded=self.slots.full_groups() | self._full_elsewhere(),
                served=self.slots.served,
            )
            for message in received:
                self.slots.take(message.group)
                self._wake_next()
            return received

    def _full_elsewhere(self) -> frozenset[MessageGroup]:
        now = self._clock.monotonic()
        self._full_until = {
            group: until for group, until in self._full_until.items() if until > now
        }
        return frozenset(self._full_until)

    async def _process_if_free(self, message: ReceivedMessage) -> None:
        cap = self.slots.per_caller(message.kind)
        if self._shared_slots is None or cap is None:
            await self._process(message)
            return
        async with self._shared_slots.held(message.group, cap) as is_held:
            if is_held:
                await self._process(message)
                return
        self._full_until[message.group] = self._clock.monotonic() + SLOT_WAIT
        # Not `retry_later`: that would count towards the deliveries after which it is given up.
        await self.control_queue.resend(message, message.payload, deliveries=message.deliveries - 1)

    async def _process(self, message: ReceivedMessage) -> None:
        handler = self.handlers.get(message.kind)
        if handler is None:
            await self._dead_letter(message, f"unknown kind of message: {message.kind!r}")
        elif message.deliveries > MOST_DELIVERIES:
            reason = f"it was received {MOST_DELIVERIES} times and never acknowledged"
            await self._give_up(message, handler, reason)
        else:
            await self._try(message, handler)

    async def _try(self, message: ReceivedMessage, handler: Handler) -> None:
        outcome = await self._handle(message, handler)
        if outcome is None:
            await self.control_queue.ack(message)
        elif not isinstance(outcome, Exception):
            await self.control_queue.resend(message, _without_outage(outcome))
        elif isinstance(outcome, CallerFault):
            await self._end(message, handler, _reason(outcome))  # trying again cannot help
        elif message.deliveries >= MOST_DELIVERIES:
            since = self._unavailable_since(message, outcome)
            if since and self._clock.now() - since < handler.longest_outage:
                payload = {**message.payload, UNAVAILABLE_SINCE: since.isoformat()}
                await self.control_queue.resend(message, payload)
            else:
                await self._give_up(message, handler, _reason(outcome))
        else:
            delay = backoff(message.deliveries, first=FIRST_DELAY, longest=LONGEST_DELAY)
            await self.control_queue.retry_later(message, delay=delay)

    def _unavailable_since(self, message: ReceivedMessage, failure: Exception) -> datetime | None:
        """Since when an engine that the message needs is unavailable; None if it failed otherwise."""
        if not isinstance(failure, Unavailable):
            return None
        since = message.payload.get(UNAVAILABLE_SINCE)
        return datetime.fromisoformat(since) if since else self._clock.now()

    async def _give_up(self, message: ReceivedMessage, handler: Handler, reason: str) -> None:
        """End a message that was delivered too often, unless its work has progressed."""
        status = await handler.status(message.payload)
        if status.resend:
            await self.control_queue.resend(message, status.resend)
        elif status.is_done:
            await self.control_queue.ack(message)
        else:
            await self._end(message, handler, reason)

    async def _end(self, message: ReceivedMessage, handler: Handler, reason: str) -> None:
        # State first, dead letter second: after a crash in between, the message is delivered again
        # and both are repeated.
        try:
            await handler.give_up(message.payload)
        except ConveyorError:
            raise
        except Exception:
            # Dead-letter it all the same: otherwise it would be delivered forever.
            log.exception("control.bug", **_fields(message))
        await self._dead_letter(message, reason)

    async def _handle(
        self, message: ReceivedMessage, handler: Handler
    ) -> Payload | Exception | None:
        """Run the handler while extending the lease; return what is left to do, or its exception.

        A bug counts as a failed delivery. If it ended the process, each redelivery would end
        another one.
        """
        async with asyncio.TaskGroup() as group:
            extending = group.create_task(self._keep_lease(message), name=f"lease {message.id}")
            try:
                return await handler.handle(message.payload, Turn(self._clock))
            except ConveyorError as error:
                why = str(error)
                log.warning("control.failed", message_id=message.id, kind=message.kind, why=why)
                return error
            except Exception as error:
                log.exception("control.bug", **_fields(message))
                return error
            finally:
                extending.cancel()

    async def _keep_lease(self, message: ReceivedMessage) -> None:
        while True:
            await asyncio.sleep(LEASE.total_seconds() / 3)
            try:
                await self.control_queue.extend(message, lease=LEASE)
            except (Stale, Unavailable) as error:
                # Go on: handlers are safe to repeat, so a second worker does no harm.
                log.warning("control.lease", message_id=message.id, why=str(error))
            except Exception:
                log.exception("control.bug", **_fields(message))

    async def _dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        log.error(
            "control.dead_lettered",
            message_id=message.id,
            kind=message.kind,
            payload=dict(message.payload),
            why=reason,
        )
        # Redriven, it starts over: the outage that ended it does not count again.
        payload = _without_outage(message.payload)
        await self.control_queue.dead_letter(
            msgspec.structs.replace(message, payload=payload), reason
        )


def _without_outage(payload: Payload) -> Payload:
    return {name: value for name, value in payload.items() if name != UNAVAILABLE_SINCE}


def _fields(message: ReceivedMessage) -> dict[str, object]:
    return {
        "message_id": message.id,
        "kind": message.kind,
        "deliveries": message.deliveries,
    }


def _reason(failure: Exception) -> str:
    """Why a message is dead-lettered. The text of a bug may hold a caller's data: log only."""
    if isinstance(failure, ConveyorError):
        return f"{failure.code}: {failure}"
    return f"bug: {type(failure).__name__}, logged as control.bug"
