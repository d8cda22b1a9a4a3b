"""Tasks in memory."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from conveyor.domain.counts import MOST_OPEN, Counts, OpenCounts
from conveyor.domain.failure_groups import FailureGroup, listed
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.job import RunPlace
from conveyor.domain.task import Attempt, NewRow, Task, TaskStatus, as_listed, in_brief, size_of
from conveyor.ports.tasks import PAGE_BYTES, TaskPage
from conveyor.testing.memory.rows import Rows


class MemoryTasks:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def lay_out(self, run_id: RunId, place: RunPlace) -> None:
        self._rows.lay_out(run_id, place)

    async def add(self, run_id: RunId, tasks: Sequence[NewRow]) -> int:
        return sum(self._rows.add(run_id, task) for task in tasks)

    async def get(self, run_id: RunId, task_id: TaskId) -> Task | None:
        task = self._rows.get(run_id, task_id)
        return as_listed(task) if task else None

    async def page(
        self,
        run_id: RunId,
        *,
        limit: int,
        after: int = -1,
        statuses: frozenset[TaskStatus] | None = None,
        whole: bool = False,
        lagging: bool = False,
    ) -> TaskPage:
        del lagging  # rows are never late
        wanted = frozenset(TaskStatus) if statuses is None else statuses
        rest = (task for task in self._rows.of_run(run_id) if task.index > after)
        found = (task for task in rest if task.status in wanted)
        return _page((task if whole else as_listed(task) for task in found), limit)

    async def history(self, run_id: RunId, task_id: TaskId) -> Sequence[Attempt]:
        return self._rows.history(run_id, task_id)

    async def histories(
        self, run_id: RunId, *, after: int, up_to: int
    ) -> Mapping[TaskId, Sequence[Attempt]]:
        return {
            task.id: [in_brief(line) for line in lines]
            for task in self._rows.of_run(run_id)
            if after < task.index <= up_to
            if (lines := self._rows.history(run_id, task.id))
        }

    async def counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, Counts]:
        return {run_id: self._rows.counts(run_id) for run_id in run_ids}

    async def open_counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, OpenCounts]:
        return {run_id: self._open_counts(run_id) for run_id in run_ids}

    async def failure_groups(self, run_id: RunId) -> Sequence[FailureGroup]:
        return listed(self._rows.failures(run_id))

    async def tally(self, run_id: RunId) -> Mapping[TaskStatus, int]:
        return Counter(task.status for task in self._rows.of_run(run_id))

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[RunId]:
        return sorted(run_id for run_id in self._rows.run_ids() if run_id > after)[:limit]

    async def discard(self, run_id: RunId, *, limit: int) -> int:
        doomed = _page(self._rows.of_run(run_id), limit).tasks
        for task in doomed:
            self._rows.discard(task)
        return len(doomed)

    def _open_counts(self, run_id: RunId) -> OpenCounts:
        tasks, now = self._rows.of_run(run_id), self._rows.clock.now()
        held = sum(task.status is TaskStatus.PROCESSING for task in tasks)
        waiting = sum(
            task.status is TaskStatus.PENDING and task.due_at is not None and task.due_at > now
            for task in tasks
        )
        return OpenCounts(min(held, MOST_OPEN), min(waiting, MOST_OPEN))


def _page(tasks: Iterable[Task], limit: int) -> TaskPage:
    """The first tasks, as many as fit into a page."""
    near, room = list(islice(tasks, limit)), PAGE_BYTES
    for count, task in enumerate(near):
        room -= size_of(task)
        if count and room < 0:
            return TaskPage(near[:count], near[count - 1].index)
    return TaskPage(near, near[-1].index if len(near) == limit else None)
