"""One message queue for each run, for engines whose queue is separate from their rows.

A message says that a task may be due. Messages may be lost, late or delivered twice: the row of the
task decides.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from conveyor.domain.ids import RunId, TaskId

MOST_RECEIVES = 1_000  # the largest `maxReceiveCount` of SQS
TASK_MESSAGE_VERSION = 1  # of the messages that this release sends and understands


class TaskMessage(msgspec.Struct, frozen=True):
    """A received message. `receipt` names this delivery and is valid until its visibility ends."""

    task_id: TaskId
    receipt: str
    receives: int = 1  # how often it was received, this time included; approximate
    stamp: str = ""  # as it was sent
    v: int = TASK_MESSAGE_VERSION  # a newer one is left to processes of a newer release


class Queues(Protocol):
    """Queues as SQS has them: at least once, in any order, possibly again after an ack.

    The engine is opened with a visibility timeout, which is at least the length of a lease. It may
    move a message to a dead-letter queue, but not before the message was received `MOST_RECEIVES`
    times. Except for `receive`, a call for a queue that does not exist does nothing. A call with
    many messages that raises may have taken effect for some of them; it may be repeated. Every
    method raises `Unavailable`.
    """

    async def open(self, run_id: RunId) -> None:
        """Create the run's queue. An existing queue keeps its messages."""
        ...

    async def close(self, run_id: RunId) -> None:
        """Remove the run's queue with its messages, if it exists. It is never opened again."""
        ...

    async def opened(self, *, limit: int, after: str = "") -> Sequence[RunId]:
        """List at most `limit` runs that have a queue, in order, beginning above `after`.

        The list may lag by a minute.
        """
        ...

    async def send(
        self, run_id: RunId, entries: Sequence[tuple[TaskId, timedelta]], *, stamp: str = ""
    ) -> None:
        """Send a message for each task, visible after its delay. Each carries the `stamp`."""
        ...

    async def receive(self, run_id: RunId, limit: int) -> Sequence[TaskMessage] | None:
        """Receive up to `limit` messages, of which there may be at most 10.

        They are hidden from other receivers for the visibility timeout. The result may be empty
        although messages wait. None means that the queue does not exist.
        """
        ...

    async def ack(self, run_id: RunId, receipts: Sequence[str]) -> None:
        """Delete received messages. A receipt whose visibility has ended may be ignored."""
        ...

    async def postpone(self, run_id: RunId, delays: Mapping[str, timedelta]) -> None:
        """Hide received messages, each for its delay from now on. A zero delay makes it visible.

        A receipt whose visibility has ended may be ignored.
        """
        ...
