"""Queues of task messages in memory that misbehave like SQS, as often as a test wants."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count, islice
from random import Random

import msgspec

from conveyor.domain.ids import RunId, TaskId
from conveyor.ports.clock import Clock
from conveyor.ports.queues import MOST_RECEIVES, TASK_MESSAGE_VERSION, TaskMessage

MOST_RECEIVED = 10
LONGEST_DELAY = timedelta(minutes=15)
LONGEST_HIDING = timedelta(hours=12)


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """How often, from 0 to 1, the queue does what the documentation of SQS warns of."""

    doubled: float = 0.0  # a message is delivered and stays visible
    late: float = 0.0  # a visible message is passed over
    empty: float = 0.0  # a receive finds nothing at all
    undead: float = 0.0  # an acked message comes back
    lost: float = 0.0  # a message is accepted and never delivered


CALM = Habits()
NASTY = Habits(doubled=0.2, late=0.3, empty=0.2, undead=0.2)


class MemoryQueues:
    def __init__(
        self,
        clock: Clock,
        *,
        visibility: timedelta,
        random: Random,
        habits: Habits = CALM,
        most_receives: int = MOST_RECEIVES,
    ) -> None:
        self._clock = clock
        self._visibility = visibility
        self._random = random
        self.habits = habits
        self._numbers = count(1)
        self._most_receives = most_receives
        self._queues: dict[RunId, list[_Queued]] = {}
        self._dead: dict[RunId, list[TaskId]] = {}

    async def open(self, run_id: RunId) -> None:
        self._queues.setdefault(run_id, [])

    async def close(self, run_id: RunId) -> None:
        self._queues.pop(run_id, None)

    async def opened(self, *, limit: int, after: str = "") -> Sequence[RunId]:
        return sorted(run_id for run_id in self._queues if run_id > after)[:limit]

    async def send(
        self, run_id: RunId, entries: Sequence[tuple[TaskId, timedelta]], *, stamp: str = ""
    ) -> None:
        now = self._clock.now()
        for _, delay in entries:
            _check_delay(delay, LONGEST_DELAY)
        messages = [
            _Queued(task_id, now + delay, stamp)
            for task_id, delay in entries
            if not (self.habits.lost and self._happens(self.habits.lost))
        ]
        # A queue that is gone belongs to a closed run, which needs no messages.
        self._queues.get(run_id, []).extend(messages)

    async def receive(self, run_id: RunId, limit: int) -> Sequence[TaskMessage] | None:
        if not 1 <= limit <= MOST_RECEIVED:
            raise ValueError(f"limit must be from 1 to {MOST_RECEIVED}, got {limit}")
        if run_id not in self._queues:
            return None
        if self._happens(self.habits.empty):
            return []
        return [self._deliver(message) for message in islice(self._visible(run_id), limit)]

    async def ack(self, run_id: RunId, receipts: Sequence[str]) -> None:
        for message in self._received(run_id, receipts):
            if not self._happens(self.habits.undead):
                self._queues[run_id].remove(message)

    async def postpone(self, run_id: RunId, delays: Mapping[str, timedelta]) -> None:
        for delay in delays.values():
            _check_delay(delay, LONGEST_HIDING)
        for message in self._received(run_id, delays):
            message.visible_at = self._clock.now() + delays[message.receipt]

    def waiting(self, run_id: RunId) -> int:
        """The number of messages in a queue, hidden ones included; for tests."""
        return len(self._queues.get(run_id, []))

    def dead(self, run_id: RunId) -> list[TaskId]:
        """The tasks whose messages were received too often, and are no longer delivered; for tests."""
        return list(self._dead.get(run_id, []))

    def _visible(self, run_id: RunId) -> Iterable["_Queued"]:
        now = self._clock.now()
        messages = [message for message in self._queues[run_id] if message.visible_at <= now]
        for message in [one for one in messages if one.receives >= self._most_receives]:
            messages.remove(message)
            self._queues[run_id].remove(message)
            self._dead.setdefault(run_id, []).append(message.task_id)
        self._random.shuffle(messages)
        return (message for message in messages if not self._happens(self.habits.late))

    def _deliver(self, message: "_Queued") -> TaskMessage:
        message.receipt = str(next(self._numbers))
        message.receives += 1
        if not self._happens(self.habits.doubled):
            message.visible_at = self._clock.now() + self._visibility
        return TaskMessage(
            message.task_id, message.receipt, message.receives, message.stamp, message.v
        )

    def _received(self, run_id: RunId, receipts: Collection[str]) -> list["_Queued"]:
        """The messages whose receipts are still valid."""
        now = self._clock.now()
        return [
            message
            for message in self._queues.get(run_id, [])
            if message.receipt in receipts and message.visible_at > now
        ]

    def _happens(self, chance: float) -> bool:
        return self._random.random() < chance


class _Queued(msgspec.Struct, eq=False):
    task_id: TaskId
    visible_at: datetime
    stamp: str = ""
    receipt: str = ""
    receives: int = 0
    v: int = TASK_MESSAGE_VERSION


def _check_delay(delay: timedelta, longest: timedelta) -> None:
    if not timedelta() <= delay <= longest:
        raise ValueError(f"delay must be from 0 to {longest}, got {delay}")
