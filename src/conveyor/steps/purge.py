"""Purge: remove all data of a deleted job or run, a chunk at a time.

For each run: its batches, then its rows, then its bodies, exports and lists. Rows are removed before
bodies: a worker that settles late then finds no row and removes the body it wrote. Outbox events are
removed first, except those that must still be sent to a task token, or to the webhook of a job that
stays; these are removed once sent. A purge that is repeated after a crash finds less to do. At the
end a tombstone stays for a day, so that a repeated delete is answered like the first.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass

import msgspec
import structlog

from conveyor.domain import job as job_rules
from conveyor.domain.batch import Batch, lists_of, source_list_key
from conveyor.domain.export import Export, exports_of
from conveyor.domain.file_input import FileInput, is_over, released_by
from conveyor.domain.ids import InputId, JobId, RunId
from conveyor.domain.job import Deletion, Job
from conveyor.domain.outbox import Channel, EventStatus, OutboxEvent
from conveyor.domain.task_list.reader import error_reports
from conveyor.errors import Stale
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import MOST_CHANGES, Metadata, Removed
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Work
from conveyor.steps.shared.work_limits import ENDLESS, Turn

CHUNK = 1_000
PAGE = 100

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    metadata: Metadata
    tasks: Tasks
    work: Work
    bodies: Bodies
    blobs: Blobs
    clock: Clock

    async def run(self, deletion_id: str, turn: Turn = ENDLESS) -> bool:
        """Purge the deletion with this id, unless it is done.

        Return False when the turn ended before everything was removed.
        """
        deletion = await self.metadata.get(Deletion, deletion_id)
        if deletion is None or deletion.done_at:
            return True
        await self._drop_events(deletion)
        chunks = (
            self._purge_run(deletion.job_id, deletion.run_id)
            if deletion.run_id
            else self._purge_job(deletion.job_id)
        )
        async with aclosing(chunks):
            async for _ in chunks:
                if turn.is_over:
                    return False
        await self._leave_tombstone(deletion)
        log.info("purge.done", job_id=deletion.job_id, run_id=deletion.run_id)
        return True

    async def _purge_job(self, job_id: JobId) -> AsyncGenerator[None, None]:
        """Purge a job, yielding after each chunk."""
        while runs := await self.metadata.runs(job_id, limit=PAGE, deleted=True):
            for run in runs:
                async for _ in self._purge_run(job_id, run.id):
                    yield
                await self.metadata.commit(Removed(run))
                yield
        job = await self.metadata.get(Job, job_id)
        if job and job.source_list and job.source_list.file_input_id:
            await self._release_input(job.source_list.file_input_id, job_id)
        else:
            await self.blobs.delete([source_list_key(job_id)])

    async def _release_input(self, file_input_id: InputId, job_id: JobId) -> None:
        """Release a file input; the last job to release it removes it, once no other can name it.

        The input is released first. A submit that names it at that moment is either seen here, or
        its commit is stale because the input has changed. A crash in between leaves the input to
        the sweeper.
        """
        while (
            file_input := await self.metadata.get(FileInput, file_input_id)
        ) and job_id in file_input.jobs:
            released = released_by(file_input, job_id)
            is_unused = is_over(released, self.clock.now())
            with suppress(Stale):
                await self.metadata.commit(released)
                if is_unused:
                    await self.blobs.delete([file_input.key] if file_input.key else [])
                    await self.metadata.commit(Removed(released))

    async def _purge_run(self, job_id: JobId, run_id: RunId) -> AsyncGenerator[None, None]:
        """Purge a run, yielding after each chunk."""
        await self.work.close(run_id)
        await self._drop_batches(run_id)
        while await self.tasks.discard(run_id, limit=CHUNK):
            yield
        while await self.bodies.delete_run(job_id, run_id, limit=CHUNK):
            yield
        # Rows before files: a file without its row is found below, whereas a row without its file
        # would show an export as ready that cannot be downloaded.
        while exports := await self.metadata.of_run(Export, run_id, limit=MOST_CHANGES):
            with suppress(Stale):  # its worker has changed it meanwhile
                await self.metadata.commit(*(Removed(export) for export in exports))
            yield
        for prefixes in (lists_of, error_reports, exports_of):
            while keys := await self.blobs.keys(prefixes(job_id, run_id), limit=CHUNK):
                await self.blobs.delete(keys)
                yield

    async def _drop_batches(self, run_id: RunId) -> None:
        while batches := await self.metadata.of_run(Batch, run_id, limit=MOST_CHANGES):
            await self.metadata.commit(*(Removed(batch) for batch in batches))

    async def _drop_events(self, deletion: Deletion) -> None:
        before = None
        while page := await self.metadata.events(
            deletion.job_id, limit=MOST_CHANGES, before=before
        ):
            gone = [
                event
                for event in page
                if deletion.run_id in {None, event.run_id} and not _must_be_sent(event, deletion)
            ]
            if gone:
                await self.metadata.commit(*(Removed(event) for event in gone))
            before = page[-1].id

    async def _leave_tombstone(self, deletion: Deletion) -> None:
        job = None if deletion.run_id else await self.metadata.get(Job, deletion.job_id)
        done = msgspec.structs.replace(deletion, done_at=self.clock.now())
        await self.metadata.commit(done, *([job_rules.tombstone(job)] if job else []))


def _must_be_sent(event: OutboxEvent, deletion: Deletion) -> bool:
    """A waiting state learns of every end; a webhook does unless its job is deleted."""
    channels = {Channel.STEP_FUNCTIONS} | ({Channel.WEBHOOK} if deletion.run_id else set())
    return event.channel in channels and event.status is EventStatus.OWED
