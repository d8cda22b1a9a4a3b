"""Complete: end a run whose tasks are all done, by one conditional write.

Settle, ingest, close and rerun check after their own write whether it was the last one that the run
needed. If a process dies between the two, the sweeper makes the check.
"""

from dataclasses import dataclass

import structlog

from conveyor.domain import run as run_rules
from conveyor.domain.ids import RunId
from conveyor.domain.job import Job
from conveyor.domain.outbox import events_at_end
from conveyor.domain.run import Run, RunStatus
from conveyor.errors import Stale
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Work
from conveyor.steps.shared.notifier import Notifier

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    metadata: Metadata
    tasks: Tasks
    work: Work
    clock: Clock
    ids: Ids
    notifier: Notifier

    async def check_completion(self, run_id: RunId) -> bool:
        """Complete the run if nothing is left to do; return whether this call did it.

        Of two concurrent calls one commits. The other finds its run stale, reads it again and sees
        that it has ended. The outbox events of the end are in the same commit.
        """
        while run := await self.metadata.get(Run, run_id):
            if not run.is_live:
                # An earlier call may have failed between its commit and the close below. Runs that
                # ended in another way are closed by the step that ended them.
                if run.status is RunStatus.COMPLETED:
                    await self.work.close(run_id)
                return False
            settled = (await self.tasks.counts([run_id]))[run_id]
            if not run_rules.is_complete(run, settled):
                return False
            done = run_rules.complete(run, settled, self.clock.now())
            job = await self.metadata.get(Job, run.job_id)
            events = events_at_end(done, self.ids.new, job=job, settled=settled)
            try:
                await self.metadata.commit(done, *events)
            except Stale:
                continue
            if events:
                self.notifier.events_due()
            log.info("run.completed", job_id=run.job_id, run_id=run_id, tasks=run.total)
            # Last, and not repaired after a crash: dispatchers claim for live runs only.
            await self.work.close(run_id)
            return True
        return False

    async def is_due(self, run_id: RunId) -> bool:
        """Whether a live run could be completed: the check after its last write was lost."""
        run = await self.metadata.get(Run, run_id)
        if run is None:
            return False
        return run_rules.is_complete(run, (await self.tasks.counts([run_id]))[run_id])
