"""Per-run message queues: hints that a task may be due. Lost, doubled or late, they do no harm."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from conveyor.domain.ids import RunId, TaskId

MOST_RECEIVES = 1_000  # as many as SQS can be told to wait for


class Message(msgspec.Struct, frozen=True):
    """A received hint; `receipt` is good until its visibility ends."""

    task_id: TaskId
    receipt: str
    receives: int = 1  # how often this hint was received, this time too: nearly right will do


class Queues(Protocol):
    """At least once, in any order, possibly again after an ack. Raises `Unavailable`.

    A queue may set a hint aside for good that was received too often, as a sign that nobody can
    deal with it. That must not be before it was received `MOST_RECEIVES` times.
    """

    async def open(self, run_id: RunId) -> None:
        """Make the run's queue; nothing if it is there."""
        ...

    async def close(self, run_id: RunId) -> None:
        """Remove the run's queue and what is in it; nothing if it is gone."""
        ...

    async def send(
        self, run_id: RunId, task_ids: Sequence[TaskId], *, delay: timedelta = timedelta()
    ) -> None:
        """Put hints on the queue, visible after `delay`. All are sent, or it raises."""
        ...

    async def receive(self, run_id: RunId, limit: int) -> Sequence[Message] | None:
        """Up to `limit` (at most 10) hints, hidden from others for a while.

        May be empty though hints wait. None when the queue is gone.
        """
        ...

    async def ack(self, run_id: RunId, receipts: Sequence[str]) -> None: ...

    async def postpone(self, run_id: RunId, receipts: Sequence[str], *, delay: timedelta) -> None:
        """Hide received hints for `delay` from now on."""
        ...
