"""One message queue for each run, for engines whose queue is separate from their rows.

A message says that a task may be due. Messages may be lost, late or delivered twice: the row of the
task decides.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from conveyor.domain.ids import RunId, TaskId

MOST_RECEIVES = 1_000  # the largest `maxReceiveCount` of SQS


class TaskMessage(msgspec.Struct, frozen=True):
    """A received message. `receipt` names this delivery and is valid until its visibility ends."""

    task_id: TaskId
    receipt: str
    receives: int = 1  # how often it was received, this time included; approximate


class Queues(Protocol):
    """Queues as SQS has them: at least once, in any order, possibly again after an ack.

    The engine is opened with a visibility timeout. It may move a message to a dead-letter queue,
    but not before the message was received `MOST_RECEIVES` times. Except for `receive`, a call for
    a queue that does not exist does nothing. Every method raises `Unavailable`.
    """

    async def open(self, run_id: RunId) -> None:
        """Create the run's queue. An existing queue keeps its messages."""
        ...

    async def close(self, run_id: RunId) -> None:
        """Remove the run's queue with its messages, if it exists."""
        ...

    async def send(
        self, run_id: RunId, task_ids: Sequence[TaskId], *, delay: timedelta = timedelta()
    ) -> None:
        """Send a message for each task, visible after `delay`.

        When the call returns, all messages are sent. When it raises, some of them may be sent; the
        call may be repeated.
        """
        ...

    async def receive(self, run_id: RunId, limit: int) -> Sequence[TaskMessage] | None:
        """Receive up to `limit` messages, of which there may be at most 10.

        They are hidden from other receivers for the visibility timeout. The result may be empty
        although messages wait. None means that the queue does not exist.
        """
        ...

    async def ack(self, run_id: RunId, receipts: Sequence[str]) -> None:
        """Delete received messages.

        A receipt whose visibility has ended is ignored: the message belongs to its next receiver.
        """
        ...

    async def postpone(self, run_id: RunId, receipts: Sequence[str], *, delay: timedelta) -> None:
        """Hide received messages for `delay` from now on. A zero delay makes them visible."""
        ...
