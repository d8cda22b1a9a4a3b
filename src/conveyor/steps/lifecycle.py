"""Lifecycle: close a job to further tasks; stop, pause or resume its run.

Each is one conditional commit, repeated from a fresh read when job or run changed in between.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from conveyor.domain import job as job_rules
from conveyor.domain import run as run_rules
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.outbox import events_at_end
from conveyor.domain.run import PauseState, Run, RunStatus
from conveyor.errors import Conflict, RunNotStoppable, Stale
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.metadata import Metadata
from conveyor.ports.work import Work
from conveyor.steps.shared.gateway_key_check import CheckJobKey, any_job_key
from conveyor.steps.shared.notifier import Notifier
from conveyor.steps.shared.ownership import latest_run, own_job

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    metadata: Metadata
    work: Work
    clock: Clock
    ids: Ids
    check_completion: Callable[[RunId], Awaitable[bool]]
    notifier: Notifier
    check_job_key: CheckJobKey = any_job_key

    async def close(self, caller: CallerId, job_id: JobId) -> None:
        """Close an open job; if all its tasks are done, its run completes at once."""
        while True:
            job, run = await self._load(caller, job_id)
            if job.type is JobType.SCHEDULED:
                raise Conflict("A scheduled job is never open: stop its run, or pause its schedule")
            if job.status is JobStatus.OPEN:
                try:
                    await self._close_both(job, run)
                    log.info("job.closed", job_id=job.id, run_id=job.latest_run_id)
                except Stale:
                    continue
            if run:
                await self.check_completion(run.id)
            return

    async def stop(self, caller: CallerId, job_id: JobId) -> Run:
        """End the live run: no more tasks are claimed; tasks in flight may finish, and count."""
        while True:
            _, run = await self._load(caller, job_id)
            if run is None:
                raise RunNotStoppable("The job has no run: there is nothing to stop")
            if run.status is RunStatus.STOPPED:
                await self.work.close(run.id)
                self.notifier.run_changed(run.id)
                return run
            if not run.is_live:
                raise RunNotStoppable(f"The run is {run.status}: there is nothing to stop")
            stopped = run_rules.stop(run, self.clock.now())
            events = events_at_end(stopped, self.ids.new)
            try:
                await self.metadata.commit(stopped, *events)
            except Stale:
                continue
            if events:
                self.notifier.events_due()
            log.info("run.stopped", job_id=run.job_id, run_id=run.id)
            # The next pass reads the run as stopped and closes its work. A call that is repeated
            # after a failed close begins there.

    async def set_pause(self, caller: CallerId, job_id: JobId, state: PauseState) -> Run:
        """Pause or resume the live run of a job. A run already in `state` is left unchanged.

        Tasks in flight finish; the dispatcher claims no more of a paused run.
        """
        while True:
            job, run = await self._load(caller, job_id)
            if state is PauseState.ACTIVE:
                await self.check_job_key(job)
            if run is None or not run.is_live:
                state_now = f"is {run.status}" if run else "is deleted"
                raise Conflict(f"The run {state_now}: there is nothing to pause or resume")
            if run.pause_state is state:
                self.notifier.run_changed(run.id)
                return run
            try:
                await self.metadata.commit(run_rules.pause(run, state, self.clock.now()))
            except Stale:
                continue
            log.info("run.turned", job_id=run.job_id, run_id=run.id, pause_state=state)
            # The next pass reads the run in its new state and wakes the dispatcher, as a call does
            # that is repeated.

    async def _close_both(self, job: Job, run: Run | None) -> None:
        now = self.clock.now()
        closed = job_rules.close(job, now)
        if run and run.is_live:
            await self.metadata.commit(closed, run_rules.latch(run, now))
        else:
            await self.metadata.commit(closed)

    async def _load(self, caller: CallerId, job_id: JobId) -> tuple[Job, Run | None]:
        job = await own_job(self.metadata, caller, job_id)
        return job, await latest_run(self.metadata, job)
