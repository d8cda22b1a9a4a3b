"""Tasks in memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

from conveyor.adapters.memory.rows import Rows
from conveyor.domain.counts import Counts
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Attempt, Task, TaskStatus
from conveyor.ports.tasks import NewTask


class MemoryTasks:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def add(self, run_id: RunId, tasks: Sequence[NewTask]) -> int:
        return sum(self._rows.add(run_id, task) for task in tasks)

    async def get(self, run_id: RunId, task_id: TaskId) -> Task | None:
        return self._rows.get(run_id, task_id)

    async def page(
        self,
        run_id: RunId,
        *,
        limit: int,
        after: int = -1,
        statuses: frozenset[TaskStatus] | None = None,
    ) -> Sequence[Task]:
        wanted = frozenset(TaskStatus) if statuses is None else statuses
        rest = (task for task in self._rows.of_run(run_id) if task.index > after)
        return list(islice((task for task in rest if task.status in wanted), limit))

    async def history(self, run_id: RunId, task_id: TaskId) -> Sequence[Attempt]:
        return self._rows.history(run_id, task_id)

    async def counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, Counts]:
        return {run_id: self._rows.counts(run_id) for run_id in run_ids}

    async def tally(self, run_id: RunId) -> Mapping[TaskStatus, int]:
        return Counter(task.status for task in self._rows.of_run(run_id))

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[RunId]:
        return sorted(run_id for run_id in self._rows.run_ids() if run_id > after)[:limit]

    async def discard(self, run_id: RunId, *, limit: int) -> int:
        doomed = self._rows.of_run(run_id)[:limit]
        for task in doomed:
            self._rows.discard(task)
        return len(doomed)
