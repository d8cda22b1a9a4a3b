"""Retire: old runs of scheduled jobs are deleted.

A schedule makes runs for as long as it stands, and nobody deletes them by hand. A run goes once it
ended `run_life` ago, and its results have expired with their job's `result_ttl_days`. The latest
run stays, and so does one whose results a newer run shows.
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
from conveyor.steps.check import Check, Entry, Found, Over

MOST = 20  # runs of one job in one round: each delete looks at all the job's runs
PAGE = 100

DeleteRun = Callable[[CallerId, JobId, RunId], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    metadata: Metadata
    clock: Clock
    run_life: timedelta  # zero: runs are kept
    delete_run: DeleteRun

    def checks(self) -> Sequence[Check]:
        if not self.run_life:
            return ()
        return (Check(name="scheduled_runs", listing=self._jobs, long=True),)

    async def _jobs(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.metadata.page(Job, limit=limit, after=after)
        return [(job.id, partial(self._job, job)) for job in page]

    async def _job(self, job: Job, _patient: bool) -> Found | None:
        if job.type is not JobType.SCHEDULED or job.status is JobStatus.DELETED:
            return None
        old = await self._old_runs(job)
        return Over("scheduled_run", partial(self._delete, job, old)) if old else None

    async def _old_runs(self, job: Job) -> list[Run]:
        """Newest first: one that shows another's results goes before that other."""
        latest_end = self.clock.now() - max(self.run_life, timedelta(days=job.result_ttl_days))
        before = ulid(int(latest_end.timestamp() * 1000) + 1, 0)
        old: list[Run] = []
        while page := await self.metadata.runs(job.id, limit=PAGE, before=before):
            old += [
                run
                for run in page
                if run.status in ENDED
                and run.updated_at <= latest_end
                and run.id != job.latest_run_id
            ]
            before = page[-1].id
        return old[-MOST:]

    async def _delete(self, job: Job, runs: Sequence[Run]) -> int:
        deleted = 0
        for run in runs:
            try:
                await self.delete_run(job.caller, job.id, run.id)
            except (NotFound, RunHasDescendants):
                continue  # its job was deleted meanwhile, or a newer run shows its results
            deleted += 1
        return deleted
