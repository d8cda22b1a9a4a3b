"""Delete: mark a job or a run as deleted, and have its data purged by a control message.

One transaction marks it and stores the deletion, from which the sweeper repairs a lost message.
Callers and dispatchers do not see it from then on. Every change of a job's runs raises the job's
version, so of a concurrent delete and rerun only one commits.
"""

from contextlib import suppress
from dataclasses import dataclass

import structlog

from conveyor.domain import job as job_rules
from conveyor.domain import run as run_rules
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import Deletion, Job, JobStatus, purge_message
from conveyor.domain.outbox import events_at_end
from conveyor.domain.run import Run, RunStatus
from conveyor.errors import NotFound, RunHasDescendants, Stale, Unavailable
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.metadata import Metadata
from conveyor.ports.work import Work
from conveyor.steps.shared.notifier import Notifier
from conveyor.steps.shared.ownership import latest_run, own_job
from conveyor.steps.shared.pagination import runs_of

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    metadata: Metadata
    work: Work
    control_queue: ControlQueue
    clock: Clock
    ids: Ids
    notifier: Notifier

    async def job(self, caller: CallerId, job_id: JobId) -> None:
        """Delete a job with all its runs. Repeating it changes nothing."""
        while True:
            job = await self.metadata.get(Job, job_id)
            if job is None or job.caller != caller:
                raise NotFound("No such job")
            if job.status is JobStatus.DELETED:
                return None
            run = await latest_run(self.metadata, job)
            with suppress(Stale):
                return await self._delete_job(job, run)

    async def run(self, caller: CallerId, job_id: JobId, run_id: RunId) -> None:
        """Delete one run; the newest that is left is then the job's latest."""
        while True:
            job = await own_job(self.metadata, caller, job_id)
            run = await self.metadata.get(Run, run_id)
            if run is None or run.job_id != job.id:
                raise NotFound("No such run")
            if run.status is RunStatus.DELETED:
                return None
            with suppress(Stale):
                return await self._delete_run(job, run)

    async def _delete_job(self, job: Job, run: Run | None) -> None:
        now = self.clock.now()
        ended = [run_rules.delete(run, now)] if run and run.is_live else []
        events = events_at_end(ended[0], self.ids.new) if ended else []
        deletion = Deletion(id=job.id, job_id=job.id, sent_at=now)
        await self.metadata.commit(job_rules.delete(job, now), *ended, *events, deletion)
        if events:
            self.notifier.events_due()
        log.info("job.deleted", job_id=job.id)
        await self._follow_up(deletion, run, job.caller)

    async def _delete_run(self, job: Job, run: Run) -> None:
        now = self.clock.now()
        newest = None
        # Newest first. Other runs may show results of this one, whose bodies the purge removes.
        async for other in runs_of(self.metadata, job.id):
            if other.id == run.id:
                continue
            if run.id in other.inherited.sources:
                raise RunHasDescendants(
                    f"Run {other.id} shows results of this one: delete it first"
                )
            newest = newest or other.id
        deletion = Deletion(id=run.id, job_id=job.id, run_id=run.id, sent_at=now)
        pointed = job_rules.point_at(job, newest, now)
        deleted = run_rules.delete(run, now)
        events = events_at_end(deleted, self.ids.new) if run.is_live else []
        await self.metadata.commit(pointed, deleted, *events, deletion)
        if events:
            self.notifier.events_due()
        log.info("run.deleted", job_id=job.id, run_id=run.id)
        await self._follow_up(deletion, run, job.caller)

    async def _follow_up(self, deletion: Deletion, run: Run | None, caller: CallerId) -> None:
        """Stop claims of the run and send the message; the sweeper repairs what fails here."""
        with suppress(Unavailable):
            if run and run.is_live:
                await self.work.close(run.id)
            await self.control_queue.send(purge_message(deletion, caller))
            self.notifier.message_sent()
        if run:
            self.notifier.run_changed(run.id)
