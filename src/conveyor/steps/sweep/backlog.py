"""The backlog of the service: how many tasks could run at once, for each worker.

A policy of scaling follows it. More workers help only with tasks that may run now, so a run counts
at most `max_inflight` of its job, however many tasks are open. Of all processes one measures: the
holder of the sweeper's permit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from conveyor.domain.job import Job
from conveyor.domain.run import Run, open_tasks
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.steps.shared.pagination import pages
from conveyor.steps.sweep.permit import SweeperPermit

MEASURE_EVERY = timedelta(seconds=30)  # CloudWatch keeps a value a minute
PAGE = 500


class Backlog(msgspec.Struct, frozen=True):
    open_tasks: int  # of live runs that are not paused
    runnable_tasks: int  # of them, those that `max_inflight` of their jobs lets run at once
    workers: int

    @property
    def per_worker(self) -> float:
        return self.runnable_tasks / max(self.workers, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureBacklog:
    metadata: Metadata
    tasks: Tasks
    permit: SweeperPermit | None  # None if no other process can measure
    workers: Callable[[], int]
    publish: Callable[[Backlog], None]

    async def step(self) -> None:
        """Measure and publish, in the process that holds the permit."""
        if self.permit is None or self.permit.is_held:
            self.publish(await self.measure())

    async def measure(self) -> Backlog:
        total = runnable = 0
        async for page in pages(self._live_runs, start="", key=lambda run: run.id):
            runs = [run for run in page if not run.is_paused]
            counts = await self.tasks.counts([run.id for run in runs]) if runs else {}
            for run in runs:
                if left := open_tasks(run, counts[run.id]):
                    job = await self.metadata.get(Job, run.job_id)
                    total += left
                    runnable += min(left, job.max_inflight) if job else 0
        return Backlog(total, runnable, self.workers())

    async def _live_runs(self, after: str) -> Sequence[Run]:
        return await self.metadata.live_runs(limit=PAGE, after=after)
