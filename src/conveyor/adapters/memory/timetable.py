"""Scheduled jobs in memory."""

from collections.abc import Sequence
from datetime import datetime

from conveyor.adapters.memory.metadata import MemoryMetadata, within
from conveyor.domain.job import Job
from conveyor.ports.clock import Clock


class MemoryTimetable:
    def __init__(self, metadata: MemoryMetadata, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock

    async def due(self, *, limit: int) -> Sequence[Job]:
        now = self._clock.now()
        waiting: list[tuple[datetime, str, Job]] = [
            (job.fires_at, job.id, job)
            for job in self._metadata.every_job()
            if job.fires_at is not None and job.fires_at <= now
        ]
        return within([job for _, _, job in sorted(waiting, key=lambda one: one[:2])[:limit]])
