"""Everything in memory, seen without touching it."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from conveyor.adapters.memory.metadata import MemoryMetadata, within
from conveyor.adapters.memory.rows import Rows
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.job import Job
from conveyor.domain.task import Attempt, in_brief
from conveyor.ports.work import Held


class MemorySurvey:
    def __init__(self, metadata: MemoryMetadata, rows: Rows) -> None:
        self._metadata = metadata
        self._rows = rows

    async def jobs(self, *, limit: int, after: str = "") -> Sequence[Job]:
        return within([job for job in self._metadata.every_job() if job.id > after][:limit])

    async def lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Held]:
        lapsed = self._rows.lapsed(overdue)[:limit]
        return [Held(task.run_id, task.id, task.claim_no) for task in lapsed]

    async def histories(
        self, run_id: RunId, *, after: int, up_to: int
    ) -> Mapping[TaskId, Sequence[Attempt]]:
        return {
            task.id: [in_brief(line) for line in lines]
            for task in self._rows.of_run(run_id)
            if after < task.index <= up_to
            if (lines := self._rows.history(run_id, task.id))
        }
