"""Delete old runs of scheduled jobs.

A schedule makes runs for as long as it exists, and no caller deletes them one by one. A run is
deleted `run_life` after its end, but not before its results have expired by the job's
`result_ttl_days`. The latest run stays, and so does a run whose results a newer run shows.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from conveyor.domain.ids import CallerId, JobId, RunId, ulid
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.run import ENDED, Run
from conveyor.errors import NotFound, RunHasDescendants
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata
from conveyor.steps.shared.pagination import runs_of
from conveyor.steps.sweep.checks import Entry, Removal, SweepAction, SweepCheck

MOST_RUNS = 20  # of one job in one round: each delete reads all runs of the job

DeleteRun = Callable[[CallerId, JobId, RunId], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireRuns:
    metadata: Metadata
    clock: Clock
    run_life: timedelta  # zero: runs are kept
    delete_run: DeleteRun

    def checks(self) -> Sequence[SweepCheck]:
        if not self.run_life:
            return ()
        return (SweepCheck(name="scheduled_runs", listing=self._jobs, long=True),)

    async def _jobs(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.metadata.page(Job, limit=limit, after=after)
        return [(job.id, partial(self._job, job)) for job in page]

    async def _job(self, job: Job, _patient: bool) -> SweepAction | None:
        if job.type is not JobType.SCHEDULED or job.status is JobStatus.DELETED:
            return None
        old = await self._old_runs(job)
        return Removal("scheduled_run", partial(self._delete, job, old)) if old else None

    async def _old_runs(self, job: Job) -> list[Run]:
        """The runs to delete in this round, in an order in which each can be deleted."""
        latest_end = self.clock.now() - max(self.run_life, timedelta(days=job.result_ttl_days))
        before = ulid(int(latest_end.timestamp() * 1000) + 1, 0)
        if not await self.metadata.runs(job.id, limit=1, before=before):
            return []
        runs = [run async for run in runs_of(self.metadata, job.id)]
        old = [
            run
            for run in runs
            if run.status in ENDED and run.updated_at <= latest_end and run.id != job.latest_run_id
        ]
        return _deletable(old, runs)

    async def _delete(self, job: Job, runs: Sequence[Run]) -> int:
        deleted = 0
        for run in runs:
            try:
                await self.delete_run(job.caller, job.id, run.id)
            except (NotFound, RunHasDescendants):
                continue  # its job was deleted meanwhile, or a new run shows its results
            deleted += 1
        return deleted


def _deletable(old: Sequence[Run], runs: Sequence[Run]) -> list[Run]:
    """Up to `MOST_RUNS` old runs, the oldest first, each without descendants once its turn comes.

    Runs that a remaining run inherits from are left out. If they were counted, 20 of them would
    keep all newer runs of the job from ever being deleted.
    """
    heirs: dict[RunId, set[RunId]] = {run.id: set() for run in runs}
    for run in runs:
        for source in run.inherited.sources:
            heirs.setdefault(source, set()).add(run.id)
    chosen: dict[RunId, Run] = {}
    oldest_first = sorted(old, key=lambda run: run.id)
    while len(chosen) < MOST_RUNS:
        free = (r for r in oldest_first if r.id not in chosen and heirs[r.id] <= chosen.keys())
        if (found := next(free, None)) is None:
            break
        chosen[found.id] = found
    return list(chosen.values())
