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
    claimed, renewed, settled or released in one atomic step. The engine is opened with the name of
    the process, the holder of its claims. Every method raises `Unavailable`; a call that raised may
    be repeated.
    """

    async def stamp(self, run_id: RunId) -> str:
        """Return what messages of a run carry, so that a claim needs not look up its place.

        Only the engine reads it. It never changes once the run is laid out.
        """
        ...

    async def take(
        self, run_id: RunId, task_ids: Sequence[TaskId], *, stamp: str = ""
    ) -> Sequence[Task]:
        """Claim those of the named tasks that are due; return all that exist, as they are now.

        Tasks that this process holds are returned `as_claimed`, the others `as_listed`. Those that
        it held before the call are among them, also by a claim whose answer was lost: the caller
        knows the numbers of the claims that it has. A task that lost too many workers is failed and
        counted by this call, and returned as failed, with this process as its holder. Once
        `CLAIM_BYTES` are claimed, the remaining tasks stay unclaimed.

        `stamp` is that of the messages; if it is empty, the engine looks the place of the run up.
        """
        ...

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        """Extend leases, as `Work.renew` does."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        """End claims, as `Work.settle` does."""
        ...

    async def release_lapsed(
        self, run_id: RunId, *, overdue: timedelta, limit: int
    ) -> Sequence[Released]:
        """Release claims of a run whose lease has lapsed, as `Work.release_lapsed` does."""
        ...
