"""Pause and resume: the pump takes up no more of a run, or goes on. What is running finishes."""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from conveyor.domain import run as life
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.run import PauseState, Run
from conveyor.errors import Conflict, Stale
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata
from conveyor.steps.shared.ownership import latest_run, own_job
from conveyor.steps.shared.standing import CheckJob, any_job

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    metadata: Metadata
    clock: Clock
    wake: Callable[[RunId], None]
    standing: CheckJob = any_job

    async def turn(self, caller: CallerId, job_id: JobId, state: PauseState) -> Run:
        """Bring the live run of a job into a pause state; if it is in it, nothing changes."""
        while True:
            job = await own_job(self.metadata, caller, job_id)
            if state is PauseState.ACTIVE:
                await self.standing(job)
            run = await latest_run(self.metadata, job)
            if run is None or not run.is_live:
                state_now = f"is {run.status}" if run else "is deleted"
                raise Conflict(f"The run {state_now}: there is nothing to pause or resume")
            if run.pause_state is state:
                self.wake(run.id)
                return run
            try:
                await self.metadata.commit(life.pause(run, state, self.clock.now()))
            except Stale:
                continue
            log.info("run.turned", job_id=run.job_id, run_id=run.id, pause_state=state)
