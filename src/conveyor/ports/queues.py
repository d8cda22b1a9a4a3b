"""One message queue for each run. A message says that a task may be due.

Messages may be lost, delivered twice or late: the row of the task decides.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from conveyor.domain.ids import RunId, TaskId

MOST_RECEIVES = 1_000  # the largest `maxReceiveCount` of SQS


class TaskMessage(msgspec.Struct, frozen=True):
    """A received message; `receipt` is good until its visibility ends."""

    task_id: TaskId
    receipt: str
    receives: int = 1  # how often it was received, this time included; approximate


class Queues(Protocol):
    """At least once, in any order, possibly again after an ack. Raises `Unavailable`.

    A queue may move a message that was received too often to its dead letters, but not before it
    was received `MOST_RECEIVES` times.
    """

    async def open(self, run_id: RunId) -> None:
        """Create the run's queue unless it exists."""
        ...

    async def close(self, run_id: RunId) -> None:
        """Remove the run's queue with its messages, if it exists."""
        ...

    async def send(
        self, run_id: RunId, task_ids: Sequence[TaskId], *, delay: timedelta = timedelta()
    ) -> None:
        """Put messages on the queue, visible after `delay`. Sends all of them or raises."""
        ...

    async def receive(self, run_id: RunId, limit: int) -> Sequence[TaskMessage] | None:
        """Up to `limit` (at most 10) messages, hidden from other receivers for the visibility timeout.

        May be empty though messages wait. None when the queue is gone.
        """
        ...

    async def ack(self, run_id: RunId, receipts: Sequence[str]) -> None: ...

    async def postpone(self, run_id: RunId, receipts: Sequence[str], *, delay: timedelta) -> None:
        """Hide received messages for `delay` from now on."""
        ...
