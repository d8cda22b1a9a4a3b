"""Scrub: clear away all that a deleted job or run left, in bites that hold nobody up.

For each run: what is owed to it, then its rows, then its bodies, exports and lists; at last what
the job's webhook was told. Rows go before bodies, so that a worker which settles late finds no row,
and removes the body it brought. Beginning again after a death finds less to do. What a task token
is still to be told of the end itself stays until it is sent, and goes then. At the end a tombstone
stays for a day, that says no more than
whose it was: a repeated delete is answered like the first.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass

import msgspec
import structlog

from conveyor.domain import job as life
from conveyor.domain.batch import Scrub as Owed
from conveyor.domain.batch import lists_of, pinned_key
from conveyor.domain.export import exports_of
from conveyor.domain.file_input import is_over, let_go
from conveyor.domain.ids import InputId, JobId, RunId
from conveyor.domain.outbox import Channel, EventStatus, OutboxEvent
from conveyor.domain.pinned_reader import reports_of
from conveyor.errors import Stale
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies
from conveyor.ports.clock import Clock
from conveyor.ports.exports import Exports
from conveyor.ports.inputs import Inputs
from conveyor.ports.metadata import Metadata, Removed
from conveyor.ports.outbox import Outbox
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Work
from conveyor.steps.shared.turn import ENDLESS, Turn

BITE = 1_000
PAGE = 100
SIBLINGS = 32  # ids that differ in their last character only

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrub:
    metadata: Metadata
    inputs: Inputs
    exports: Exports
    outbox: Outbox
    tasks: Tasks
    work: Work
    bodies: Bodies
    blobs: Blobs
    clock: Clock

    async def run(self, name: str, turn: Turn = ENDLESS) -> bool:
        """Clear what is owed under this id, if it is not cleared yet.

        False when the turn was over before all was cleared.
        """
        owed = await self._find(name)
        if owed is None or owed.done_at:
            return True
        await self._drop_events(owed)
        bites = self._clear(owed.job_id, owed.run_id) if owed.run_id else self._clear_job(owed)
        async with aclosing(bites):
            async for _ in bites:
                if turn.is_over:
                    return False
        await self._leave_tombstone(owed)
        log.info("scrub.done", job_id=owed.job_id, run_id=owed.run_id)
        return True

    async def _find(self, name: str) -> Owed | None:
        near = await self.metadata.scrubs(limit=SIBLINGS, after=name[:-1])
        return next((scrub for scrub in near if scrub.id == name), None)

    async def _clear_job(self, owed: Owed) -> AsyncGenerator[None, None]:
        """Clear a job, and stop after each bite."""
        job_id = owed.job_id
        while runs := await self.metadata.runs(job_id, limit=PAGE, deleted=True):
            for run in runs:
                async for _ in self._clear(job_id, run.id):
                    yield
                await self.metadata.commit(Removed(run))
                yield
        job = await self.metadata.job(job_id)
        if job and job.pinned and job.pinned.input_id:
            await self._let_go(job.pinned.input_id, job_id)
        else:
            await self.blobs.delete([pinned_key(job_id)])

    async def _let_go(self, slot_id: InputId, job_id: JobId) -> None:
        """The list goes with the last job that reads it, once no other can name it.

        The slot is let go of first: a job that named it in its last moment is seen here, or sees
        that the slot has moved on. Whoever dies in between leaves a slot for the sweeper.
        """
        while (slot := await self.inputs.find(slot_id)) and job_id in slot.jobs:
            free = let_go(slot, job_id)
            goes = is_over(free, self.clock.now())
            with suppress(Stale):
                await self.metadata.commit(free)
                if goes:
                    await self.blobs.delete([slot.blob] if slot.blob else [])
                    await self.metadata.commit(Removed(free))

    async def _clear(self, job_id: JobId, run_id: RunId) -> AsyncGenerator[None, None]:
        """Clear a run, and stop after each bite."""
        await self.work.close(run_id)
        await self._drop_batches(run_id)
        while await self.tasks.discard(run_id, limit=BITE):
            yield
        while await self.bodies.delete_run(job_id, run_id, limit=BITE) == BITE:
            yield
        # Rows before files: a file without its row is found below, and no export is shown as
        # ready whose file is gone.
        while exports := await self.exports.of_run(run_id):
            with suppress(Stale):  # its maker has moved it meanwhile
                await self.metadata.commit(*(Removed(export) for export in exports[:PAGE]))
            yield
        for prefixes in (lists_of, reports_of, exports_of):
            while keys := await self.blobs.keys(prefixes(job_id, run_id), limit=BITE):
                await self.blobs.delete(keys)
                yield

    async def _drop_batches(self, run_id: RunId) -> None:
        while batches := [
            batch
            for batch in await self.metadata.batches(limit=PAGE, after=(run_id, -1))
            if batch.run_id == run_id
        ]:
            await self.metadata.commit(*(Removed(batch) for batch in batches))

    async def _drop_events(self, owed: Owed) -> None:
        before = None
        while page := await self.outbox.of_job(owed.job_id, limit=PAGE, before=before):
            gone = [
                event
                for event in page
                if owed.run_id in {None, event.run_id} and not _is_still_told(event, owed)
            ]
            if gone:
                await self.metadata.commit(*(Removed(event) for event in gone))
            before = page[-1].id

    async def _leave_tombstone(self, owed: Owed) -> None:
        job = None if owed.run_id else await self.metadata.job(owed.job_id)
        done = msgspec.structs.replace(owed, done_at=self.clock.now())
        await self.metadata.commit(done, *([life.tombstone(job)] if job else []))


def _is_still_told(event: OutboxEvent, owed: Owed) -> bool:
    """A state that waits hears of any end; a webhook hears of its run unless the job is gone."""
    told = {Channel.TASK_TOKEN} if owed.run_id is None else {Channel.TASK_TOKEN, Channel.WEBHOOK}
    return event.channel in told and event.status is EventStatus.OWED
