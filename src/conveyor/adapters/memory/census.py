"""What a caller has under way, in memory."""

from collections.abc import Sequence

from conveyor.adapters.memory.metadata import MemoryMetadata
from conveyor.domain.ids import CallerId
from conveyor.domain.job import JobStatus, JobType
from conveyor.domain.run import Run


class MemoryCensus:
    def __init__(self, metadata: MemoryMetadata) -> None:
        self._metadata = metadata

    async def live_runs(self, caller: CallerId) -> Sequence[Run]:
        live = await self._metadata.live(limit=1_000_000)
        return [run for run, _ in live if run.caller == caller]

    async def scheduled_jobs(self, caller: CallerId) -> int:
        return sum(
            job.caller == caller
            and job.type is JobType.SCHEDULED
            and job.status is not JobStatus.DELETED
            for job in self._metadata.every_job()
        )

    async def open_slots(self, caller: CallerId) -> int:
        return sum(
            slot.caller == caller and not slot.jobs for slot in self._metadata.inputs.values()
        )

    async def open_exports(self, caller: CallerId) -> int:
        return sum(
            export.caller == caller and not export.has_ended
            for export in self._metadata.exports.values()
        )
