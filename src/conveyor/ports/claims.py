"""Claims of named tasks, for engines that hand out work through a queue beside the rows."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Settlement, Task
from conveyor.ports.work import Held


class Claims(Protocol):
    """As `Work`, for tasks that the caller names. Raises `Unavailable`."""

    async def take(self, run_id: RunId, task_ids: Sequence[TaskId]) -> Sequence[Task]:
        """Claim those of the named tasks that are due; a task that this fails is returned as failed.

        Tasks are `as_claimed`. Once `CLAIM_BYTES` are claimed, the other tasks stay unclaimed.
        """
        ...

    async def look(self, run_id: RunId, task_ids: Sequence[TaskId]) -> Sequence[Task]:
        """Read the named tasks that exist, `as_listed`."""
        ...

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        """As `Work.renew`."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        """As `Work.settle`."""
        ...

    async def release_lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Held]:
        """As `Work.release_lapsed`."""
        ...
