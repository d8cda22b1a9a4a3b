"""Stalled work: continue ingests, completions, deletions and exports that make no progress.

They are live work, of which there is never much. Every round of the sweeper looks at all of it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import msgspec

from conveyor.domain.audit import MissedStep
from conveyor.domain.batch import Batch, ingest_message
from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.export import Export, export_message, files_of
from conveyor.domain.ids import RunId
from conveyor.domain.job import TOMBSTONE_LIFE, Deletion, Job, purge_message
from conveyor.domain.run import Run
from conveyor.errors import Stale
from conveyor.ports.blobs import Blobs
from conveyor.ports.clock import Clock
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.metadata import Metadata, Removed
from conveyor.steps.sweep.checks import YOUNG, Entry, Removal, Repair, SweepAction, SweepCheck

CHUNK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledWork:
    metadata: Metadata
    control_queue: ControlQueue
    blobs: Blobs
    clock: Clock
    is_due: Callable[[RunId], Awaitable[bool]]
    check_completion: Callable[[RunId], Awaitable[bool]]
    # The control queue is in the memory of this process: messages end with it, and one that is not
    # live now never will be.
    forgets: bool = False

    def checks(self) -> Sequence[SweepCheck]:
        return (
            SweepCheck(name="batches", listing=self._batches),
            SweepCheck(name="completions", listing=self._completions),
            SweepCheck(name="deletions", listing=self._deletions),
            SweepCheck(name="exports", listing=self._exports),
        )

    async def _batches(self, after: str, limit: int) -> Sequence[Entry]:
        run_id, _, first = after.partition("/")
        page = await self.metadata.page(Batch, limit=limit, after=(run_id, int(first or -1)))
        return [(f"{batch.run_id}/{batch.first}", partial(self._batch, batch)) for batch in page]

    async def _batch(self, batch: Batch, patient: bool) -> SweepAction | None:
        """A batch that has waited for 10 minutes without a message for it."""
        if patient and self._is_recent(batch.created_at):
            return None
        if await self._is_live(ingest_message(batch, None)):
            return None
        return Repair(_unfinished_ingest(batch), partial(self._ingest_again, batch))

    async def _ingest_again(self, batch: Batch) -> int:
        run = await self.metadata.get(Run, batch.run_id)
        message = ingest_message(batch, run.caller if run else None)
        return int(await self.control_queue.send(message))

    async def _is_live(self, message: ControlMessage) -> bool:
        return await self.control_queue.is_live(message.kind, message.subject)

    async def _completions(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.metadata.live_runs(limit=limit, after=after)
        return [(run.id, partial(self._completion, run)) for run in page]

    async def _completion(self, run: Run, _patient: bool) -> SweepAction | None:
        if not await self.is_due(run.id):
            return None
        missed = MissedStep(
            action="missed_completion",
            key=f"run {run.id}",
            what=f"all its tasks are done, and its status is still {run.status}",
            job_id=run.job_id,
            run_id=run.id,
        )
        return Repair(missed, partial(self._complete, run.id))

    async def _complete(self, run_id: RunId) -> int:
        return int(await self.check_completion(run_id))

    async def _deletions(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.metadata.page(Deletion, limit=limit, after=after)
        return [(deletion.id, partial(self._deletion, deletion)) for deletion in page]

    async def _deletion(self, deletion: Deletion, patient: bool) -> SweepAction | None:
        """A deletion not purged whose message was lost; or one whose tombstone has expired."""
        if deletion.done_at is None:
            if patient and self._is_recent(deletion.sent_at):
                return None
            if await self._is_live(purge_message(deletion, None)):
                return None
            missed = MissedStep(
                action="unfinished_purge",
                key=f"deletion {deletion.id}",
                what="it is deleted and not purged; its message was last sent at "
                f"{deletion.sent_at:%Y-%m-%d %H:%M:%S}",
                job_id=deletion.job_id,
                run_id=deletion.run_id,
            )
            return Repair(missed, partial(self._purge_again, deletion))
        if deletion.done_at + TOMBSTONE_LIFE <= self.clock.now():
            return Removal("tombstone", partial(self._remove_tombstone, deletion))
        return None

    async def _purge_again(self, deletion: Deletion) -> int:
        try:
            await self.metadata.commit(msgspec.structs.replace(deletion, sent_at=self.clock.now()))
        except Stale:
            return 0  # it has just been purged, or another sweeper repairs it too
        job = await self.metadata.get(Job, deletion.job_id)
        message = purge_message(deletion, job.caller if job else None)
        return int(await self.control_queue.send(message))

    async def _remove_tombstone(self, deletion: Deletion) -> int:
        tombstone: Run | Job | None
        if deletion.run_id:
            tombstone = await self.metadata.get(Run, deletion.run_id)
        else:
            tombstone = await self.metadata.get(Job, deletion.job_id)
        await self.metadata.commit(Removed(deletion), *([Removed(tombstone)] if tombstone else []))
        return 1

    async def _exports(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.metadata.page(Export, limit=limit, after=after)
        return [(export.id, partial(self._export, export)) for export in page]

    async def _export(self, export: Export, patient: bool) -> SweepAction | None:
        """An export that is kept no longer; or one that has not ended and whose message was lost.

        If a worker is writing it all the same, that worker gives up: the next one claims the export.
        """
        if self.clock.now() >= export.kept_until:
            return Removal("export", partial(self._remove_export, export))
        if export.has_ended or (patient and self._is_recent(export.sent_at)):
            return None
        if await self._is_live(export_message(export)):
            return None
        missed = MissedStep(
            action="unfinished_export",
            key=f"export {export.id} {export.version}",
            what=f"its export {export.id} is {export.status}; its message was last sent at "
            f"{export.sent_at:%Y-%m-%d %H:%M:%S}",
            job_id=export.job_id,
            run_id=export.run_id,
        )
        return Repair(missed, partial(self._export_again, export))

    async def _export_again(self, export: Export) -> int:
        try:
            await self.metadata.commit(msgspec.structs.replace(export, sent_at=self.clock.now()))
        except Stale:
            return 0  # a worker has begun or ended it, or another sweeper repairs it too
        return int(await self.control_queue.send(export_message(export)))

    async def _remove_export(self, export: Export) -> int:
        # Files first: after a crash in between, the row leads the next round here again.
        while keys := await self.blobs.keys(files_of(export), limit=CHUNK):
            await self.blobs.delete(keys)
        await self.metadata.commit(Removed(export))
        return 1

    def _is_recent(self, moment: datetime | None) -> bool:
        # `abs`: a time in the future was written before the clock was set back.
        is_recent = moment is not None and abs(self.clock.now() - moment) < YOUNG
        return is_recent and not self.forgets


def _unfinished_ingest(batch: Batch) -> MissedStep:
    since = f"{batch.created_at:%Y-%m-%d %H:%M:%S}"
    if batch.source_list:  # how many rows its list holds is known only at its end
        what = f"its list has waited since {since}, and is read up to line {batch.position.line:,}"
    else:
        missing = batch.count - batch.written
        what = (
            f"{missing:,} of its rows, from index {batch.first:,}, have waited since {since} to be "
            "written"
        )
    return MissedStep(
        action="unfinished_ingest",
        key=f"batch {batch.run_id} {batch.first} {batch.version}",
        what=what,
        job_id=batch.job_id,
        run_id=batch.run_id,
    )
