"""The failures of runs by group, with an example of each group."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from conveyor.domain.failure_groups import FailureExample, FailureGroup, failure_example
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.run import Run
from conveyor.ports.tasks import Tasks
from conveyor.steps.shared.shared_readings import SharedReadings
from conveyor.steps.shared.task_reads import tasks_by_id

FoundFailures = tuple[Sequence[FailureGroup], Mapping[TaskId, FailureExample]]
FindFailures = Callable[[Run, int], Awaitable[FoundFailures]]
SHARED_FOR = timedelta(seconds=1)
MOST_SHARED = 20  # readings: one may take a megabyte, and they are kept until the next request


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReader:
    """Reads the groups of a run and the examples of the first of them.

    One reading takes a read for each example, and pages that show a live run ask for it again and
    again. So all who ask for a live run within a second share one. A run that ends has another
    version: its last failures are never missing.
    """

    tasks: Tasks
    count: Callable[[int], None]  # rows that were read
    shared: SharedReadings[FoundFailures]

    async def find(self, run: Run, limit: int) -> FoundFailures:
        """Return the groups of a run, with the examples of the first `limit` groups."""
        if not run.is_live:
            return await self._read(run.id, limit)
        key = run.id, run.version, limit
        return await self.shared.find(key, partial(self._read, run.id, limit), life=SHARED_FOR)

    async def _read(self, run_id: RunId, limit: int) -> FoundFailures:
        groups = await self.tasks.failure_groups(run_id)
        ids = [group.example for group in groups[:limit]]
        examples = dict[TaskId, FailureExample]()
        async for some in tasks_by_id(self.tasks, run_id, ids):
            examples |= {task.id: failure_example(task.spec.url, task.problem) for task in some}
        self.count(len(examples))
        return groups, examples
