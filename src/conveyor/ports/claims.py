"""Claims of named tasks, for engines whose queue is separate from their rows."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Settlement, Task
from conveyor.ports.work import Held, Released


class Claims(Protocol):
    """The part of `Work` that writes rows, for tasks that the caller names.

    `QueuedWork` receives messages from `Queues` and claims the tasks that they name. Each task is
    claimed, renewed, settled or released in one atomic step. Every method raises `Unavailable`; a
    call that raised may be repeated.
    """

    async def take(self, run_id: RunId, task_ids: Sequence[TaskId]) -> Sequence[Task]:
        """Claim those of the named tasks that are due, and return them `as_claimed`.

        Tasks that are unknown, final or not due are left out. A task that lost too many workers is
        failed and counted by this call, and returned as failed. Once `CLAIM_BYTES` are claimed, the
        remaining tasks stay unclaimed.
        """
        ...

    async def look(self, run_id: RunId, task_ids: Sequence[TaskId]) -> Sequence[Task]:
        """Read the named tasks that exist, in any state, `as_listed`. Nothing is changed."""
        ...

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        """Extend leases, as `Work.renew` does."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        """End claims, as `Work.settle` does."""
        ...

    async def release_lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Released]:
        """Release claims whose lease has lapsed, as `Work.release_lapsed` does."""
        ...
