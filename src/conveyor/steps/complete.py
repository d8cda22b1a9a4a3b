"""Complete: one conditional transition, tried by whoever may have done the last thing."""

from dataclasses import dataclass

import structlog

from conveyor.domain import run as life
from conveyor.domain.ids import RunId
from conveyor.domain.job import Job
from conveyor.domain.run import Run
from conveyor.errors import Stale
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Work
from conveyor.steps.shared.owing import Owing

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    metadata: Metadata
    tasks: Tasks
    work: Work
    clock: Clock
    owing: Owing

    async def check(self, run_id: RunId) -> bool:
        """Complete the run if nothing is left to do; say whether this call did it.

        Called after the write that may have been the last: a settle, a latch, a close. Of two
        callers at once one commits, and the other reads again and finds the run ended. What is
        owed to the outside is in the same commit.
        """
        while (run := await self.metadata.get(Run, run_id)) and run.is_live:
            settled = (await self.tasks.counts([run_id]))[run_id]
            if not life.is_complete(run, settled):
                return False
            done = life.complete(run, settled, self.clock.now())
            owed = self.owing.at_end(await self.metadata.get(Job, run.job_id), done, settled)
            try:
                await self.metadata.commit(done, *owed)
            except Stale:
                continue
            self.owing.announce(owed)
            log.info("run.completed", job_id=run.job_id, run_id=run_id, tasks=run.total)
            await self.work.close(run_id)
            return True
        return False

    async def is_due(self, run_id: RunId) -> bool:
        """Whether a live run stands complete and nobody has said so yet."""
        run = await self.metadata.get(Run, run_id)
        if run is None:
            return False
        return life.is_complete(run, (await self.tasks.counts([run_id]))[run_id])
