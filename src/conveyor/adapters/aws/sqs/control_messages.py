"""The messages of the control queue: pointers to records, in a queue for each kind.

A poll waits in its queue until messages arrive, and goes on while no `receive` asks. So a worker that
looks for work every second makes a call for each queue every 20 s, and has a message at once.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import structlog

from conveyor.adapters.aws.sqs.address import SqsAddress
from conveyor.adapters.aws.sqs.calls import (
    MOST_ENTRIES,
    MissingQueue,
    OutgoingMessage,
    SqsCalls,
    SqsDelivery,
)
from conveyor.adapters.aws.sqs.queues import DEAD, as_ascii
from conveyor.domain.control_queue import MESSAGE_VERSION, MessageGroup
from conveyor.domain.retry import backoff
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock

CONTROL = "control-"
OTHER = "other"  # the queue of kinds without one of their own
LONG_POLL = timedelta(seconds=20)  # the longest that SQS has
COLLECT = 0.05  # seconds in which a receive waits for polls under way
HELD_FOR = 5.0  # seconds after which polled messages that nobody collects go back
REPLACE_AFTER = 500  # receives of a message, which its queue gives up after 1,000
SHORTEST_HIDING = timedelta(seconds=2)  # of a message that is not wanted now
LONGEST_WAIT = timedelta(minutes=1)
DEAD_HIDING = timedelta(minutes=5)  # in which dead messages are made dead letters
GROUP_SIZE = 128  # characters that the name of a message group may have

log = structlog.get_logger()


class MessagePointer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a message: which record it is about, and what is needed to choose."""

    kind: str
    subject: str
    caller: str = ""
    at: int  # when it was sent
    v: int = MESSAGE_VERSION

    @property
    def group(self) -> MessageGroup:
        return self.kind, self.caller


POINTER = msgspec.json.Decoder(MessagePointer)


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A received message, and where it came from."""

    pointer: MessagePointer
    queue: str
    delivery: SqsDelivery
    received_at: float  # monotonic


class PointerQueues:
    """`kinds` are those with a queue of their own. Without `poll` a receive does not wait."""

    def __init__(
        self,
        calls: SqsCalls,
        address: SqsAddress,
        clock: Clock,
        *,
        kinds: Sequence[str],
        poll: timedelta = LONG_POLL,
        shortest_hiding: timedelta = SHORTEST_HIDING,
    ) -> None:
        self._calls, self._address, self._clock, self._kinds = calls, address, clock, kinds
        self._poll, self._shortest_hiding = poll, shortest_hiding
        self._urls: dict[str, str] = {}
        self._polls: dict[str, asyncio.Task[list[Arrival]]] = {}  # by queue

    async def send(self, pointer: MessagePointer, delay: timedelta = timedelta()) -> None:
        queue = self._queue_of(pointer.kind)
        try:
            await self._calls.send(await self._url(queue), [_outgoing(pointer, delay)])
        except MissingQueue:
            raise self._missing(queue) from None

    async def delete(self, arrival: Arrival) -> None:
        """Delete a message. If that fails, the next delivery finds its record settled."""
        with suppress(Unavailable, MissingQueue):
            await self._calls.acknowledge(await self._url(arrival.queue), [arrival.delivery.handle])

    async def put_back(self, delays: Mapping[Arrival, timedelta]) -> None:
        """Hide messages, each for its delay. One that was received often is sent again instead."""
        by_queue: dict[str, dict[str, timedelta]] = {}
        for one, delay in delays.items():
            if one.delivery.receives >= REPLACE_AFTER:
                with suppress(Unavailable):
                    await self.send(one.pointer, delay)
                    await self.delete(one)
            else:
                by_queue.setdefault(one.queue, {})[one.delivery.handle] = delay
        for queue, hidings in by_queue.items():
            with suppress(Unavailable, MissingQueue):
                await self._calls.hide(await self._url(queue), hidings)

    def bounce(self, arrival: Arrival) -> timedelta:
        """How long to hide a message that is not wanted now."""
        if not self._shortest_hiding:
            return timedelta()
        return backoff(arrival.delivery.receives, first=self._shortest_hiding, longest=LONGEST_WAIT)

    async def receive(self, kinds: Collection[str] | None, lease: timedelta) -> list[Arrival]:
        """What has arrived in the queues of the kinds; None: in all of them."""
        named = [*self._kinds, OTHER] if kinds is None else kinds
        queues = sorted(set(map(self._queue_of, named)))
        for queue in queues:
            if queue not in self._polls:
                name = f"poll {queue}"
                self._polls[queue] = asyncio.create_task(self._polled(queue, lease), name=name)
        polls = [self._polls[queue] for queue in queues]
        if not polls:
            return []
        await asyncio.wait(
            polls,
            timeout=COLLECT if self._poll else None,
            return_when=asyncio.FIRST_COMPLETED if self._poll else asyncio.ALL_COMPLETED,
        )
        ended = [self._polls.pop(queue) for queue in queues if self._polls[queue].done()]
        failures = [error for poll in ended if (error := poll.exception())]
        arrived = [one for poll in ended if not poll.exception() for one in poll.result()]
        if failures and not arrived:
            raise failures[0]
        return arrived

    async def dead(self) -> list[SqsDelivery]:
        """Messages that SQS gave up. They must be deleted with `delete_dead`."""
        url = await self._url(DEAD)
        try:
            return await self._calls.receive(url, MOST_ENTRIES, visibility=DEAD_HIDING)
        except MissingQueue:
            raise self._missing(DEAD) from None

    async def delete_dead(self, deliveries: Iterable[SqsDelivery]) -> None:
        with suppress(MissingQueue):
            await self._calls.acknowledge(
                await self._url(DEAD), [delivery.handle for delivery in deliveries]
            )

    async def close(self) -> None:
        """End the polls under way. What they received by then is delivered again after its lease."""
        polls = list(self._polls.values())
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    async def _polled(self, queue: str, lease: timedelta) -> list[Arrival]:
        try:
            found = await self._calls.receive(
                await self._url(queue), MOST_ENTRIES, visibility=lease, wait=self._poll
            )
        except MissingQueue:
            raise self._missing(queue) from None
        now = self._clock.monotonic()
        arrived = [
            Arrival(pointer, queue, one, now) for one in found if (pointer := pointer_of(one))
        ]
        if self._poll and arrived:
            asyncio.get_running_loop().call_later(HELD_FOR, self._expire, queue, arrived)
        return arrived

    def _expire(self, queue: str, arrived: list[Arrival]) -> None:
        """Give polled messages back if no slot became free for them."""
        poll = self._polls.get(queue)
        if poll and poll.done() and not poll.exception() and poll.result() is arrived:
            returning = self._give_back(dict.fromkeys(arrived, timedelta()))
            self._polls[queue] = asyncio.create_task(returning, name=f"return {queue}")

    async def _give_back(self, delays: Mapping[Arrival, timedelta]) -> list[Arrival]:
        await self.put_back(delays)
        return []

    def _queue_of(self, kind: str) -> str:
        return f"{CONTROL}{kind if kind in self._kinds else OTHER}"

    async def _url(self, queue: str) -> str:
        if queue not in self._urls:
            try:
                self._urls[queue] = await self._calls.url(self._address.queue(queue))
            except MissingQueue:
                raise self._missing(queue) from None
        return self._urls[queue]

    def _missing(self, queue: str) -> Unavailable:
        name = self._address.queue(queue)
        return Unavailable(f"the queue {name} does not exist: run `conveyor migrate`")


def control_queues(kinds: Iterable[str]) -> list[str]:
    """The names of the queues, without the prefix."""
    return [f"{CONTROL}{kind}" for kind in (*kinds, OTHER)]


def pointer_of(delivery: SqsDelivery) -> MessagePointer | None:
    """What a message points to; None if it is not one of the control queue."""
    try:
        return POINTER.decode(delivery.body)
    except msgspec.DecodeError:
        log.warning("control.unreadable_message", receives=delivery.receives)
        return None


def _outgoing(pointer: MessagePointer, delay: timedelta) -> OutgoingMessage:
    # A caller as the name of a message group, which takes fewer characters.
    group = "".join(char for char in pointer.caller if char.isascii() and char.isalnum())
    return OutgoingMessage(as_ascii(pointer), delay, group[:GROUP_SIZE])
