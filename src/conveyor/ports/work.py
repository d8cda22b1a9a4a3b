"""Work: the dispatcher claims tasks under leases, renews the leases and settles the tasks."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Settlement, Task

# Bytes of texts (`size_of`) that one claim returns: other calls of the engine wait meanwhile.
CLAIM_BYTES = 4 * 1024 * 1024


class Held(msgspec.Struct, frozen=True, gc=False):
    """A claim that a worker holds."""

    run_id: RunId
    task_id: TaskId
    claim_no: int


class Work(Protocol):
    """Claims of tasks, as the domain's `claim`, `renew` and `settle` describe them.

    A run is open from its first row until it is closed. The engine is opened with the length of a
    lease. Raises `Unavailable`; a call that raised may be repeated.
    """

    async def open(self, run_id: RunId) -> None:
        """Allow claims of a closed run again. Repeating it changes nothing."""
        ...

    async def close(self, run_id: RunId) -> None:
        """Allow no further claims of the run. Claims that stand may still be settled."""
        ...

    async def enqueue(self, run_id: RunId, task_ids: Sequence[TaskId]) -> None:
        """Put messages for rows that were added on the run's queue.

        An engine whose rows are its queue has nothing to do. Repeating it does no harm.
        """
        ...

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        """Claim up to the given number of due tasks of each open run, longest due first.

        No two callers get the same claim. A task whose lease lapsed is due too. The result may
        include final tasks: a task that lost too many workers, which this call failed and counted,
        or a task whose message was delivered again. For these the dispatcher only checks whether
        the run is complete, and calls `ack`. Tasks are `as_claimed`. The call may return fewer
        tasks than are due: at most twice `CLAIM_BYTES`, besides the first task of each run, which
        may have any size.
        """
        ...

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        """Extend the leases of claims that still stand; return those that do not."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        """End claims with their decisions, each with its history line and its run's counts.

        One atomic step for each task. False where the claim no longer held its task: then nothing
        was written for it. Repeating a settle that took effect returns False and changes nothing.
        Messages of tasks that are final now stay until `ack`.
        """
        ...

    async def ack(self, final: Sequence[Held]) -> None:
        """Delete the messages of final tasks, after their runs were checked for completion.

        This comes last: a worker that dies before it leaves a message, and the worker that
        receives it makes the check. An engine whose rows are its queue has nothing to do.
        """
        ...

    async def release_lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Held]:
        """Release claims whose lease ended at least `overdue` ago; return the released claims.

        As the domain's `release`, with its history line and, for a task failed by it, its count.
        Tasks of closed runs are released too, though they cannot be claimed. For the sweeper: a
        live dispatcher takes lapsed claims over by itself. A negative `overdue` also ends leases
        that have not lapsed, for a process that knows their holders to be dead.
        """
        ...
