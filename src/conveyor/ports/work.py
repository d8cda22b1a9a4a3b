"""What the pump sees of an engine: take tasks, keep them, settle them."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Settlement, Task


class Held(msgspec.Struct, frozen=True, gc=False):
    """Which claim a worker holds."""

    run_id: RunId
    task_id: TaskId
    claim_no: int


class Work(Protocol):
    """Claims of tasks, as the domain's `claim`, `renew` and `settle` describe them.

    Raises `Unavailable`; a call that raised may be repeated. The lease's length is the
    engine's, given when it is opened.
    """

    async def open(self, run_id: RunId) -> None:
        """Let the run's tasks be claimed. Repeating it changes nothing."""
        ...

    async def close(self, run_id: RunId) -> None:
        """Let none of the run's tasks be claimed from now on. Claims that stand may settle."""
        ...

    async def offer(self, run_id: RunId, task_ids: Sequence[TaskId]) -> None:
        """Say that rows exist and may be due, after they were added or released.

        An engine whose rows are its queue has nothing to do. Repeating it does no harm.
        """
        ...

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        """Take up to so many due tasks of each open run, the longest due first.

        No two callers get the same claim. A task whose lease lapsed is due too. A task that
        has lost too many workers is failed and counted instead of given. May give fewer than
        there are.
        """
        ...

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        """Lengthen the leases of claims that still stand; give back those that do not."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        """End claims with their verdicts, each with its history line and its run's counts.

        One atomic step for each task. False where the claim no longer held its task, and then
        nothing was written for it. Repeating a settle that took effect gives False and changes
        nothing.
        """
        ...

    async def release_lapsed(self, *, overdue: timedelta, limit: int) -> int:
        """Make tasks claimable whose lease ran out at least `overdue` ago and that nobody took.

        As the domain's `release`, with its history line and, for a task failed by it, its
        count. Says how many. For the sweeper: a pump that is alive takes them over by itself.
        """
        ...
