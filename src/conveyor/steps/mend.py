"""Mend: what is owed and does not move is made to move again.

Lists and copies on their way to rows, completions, deletes, exports: live work, of which there is
never much, and which is looked at in every round of the sweeper.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import msgspec

from conveyor.domain import export as export_life
from conveyor.domain import lost
from conveyor.domain.batch import Batch, ingest_message
from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.deletion import TOMBSTONE_LIFE, Deletion, purge_message
from conveyor.domain.export import Export, ExportStatus, export_message, files_of
from conveyor.domain.ids import RunId
from conveyor.domain.job import Job
from conveyor.domain.run import Run
from conveyor.errors import Stale
from conveyor.ports.blobs import Blobs
from conveyor.ports.clock import Clock
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.metadata import Metadata, Removed
from conveyor.steps.check import YOUNG, Broken, Check, Entry, Found, Over

BITE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    metadata: Metadata
    control_queue: ControlQueue
    blobs: Blobs
    clock: Clock
    is_due: Callable[[RunId], Awaitable[bool]]
    check: Callable[[RunId], Awaitable[bool]]

    def checks(self) -> Sequence[Check]:
        return (
            Check(name="batches", listing=self._batches),
            Check(name="completions", listing=self._completions),
            Check(name="deletions", listing=self._deletions),
            Check(name="exports", listing=self._exports),
        )

    async def _batches(self, after: str, limit: int) -> Sequence[Entry]:
        run_id, _, first = after.partition("/")
        page = await self.metadata.page(Batch, limit=limit, after=(run_id, int(first or -1)))
        return [(f"{one.run_id}/{one.first}", partial(self._batch, one)) for one in page]

    async def _batch(self, batch: Batch, patient: bool) -> Found | None:
        """A list or a copy that has waited long, and that no message is about."""
        if patient and self._is_recent(batch.created_at):
            return None
        if await self._is_live(ingest_message(batch, None)):
            return None
        return Broken(lost.unfinished_ingest(batch), partial(self._ingest_again, batch))

    async def _ingest_again(self, batch: Batch) -> int:
        run = await self.metadata.get(Run, batch.run_id)
        return int(
            await self.control_queue.send(ingest_message(batch, run.caller if run else None))
        )

    async def _is_live(self, message: ControlMessage) -> bool:
        """Whether a message waits or is held: a second would only get in the way of the first."""
        return await self.control_queue.is_live(message.kind, message.subject)

    async def _completions(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.metadata.live_runs(limit=limit, after=after)
        return [(run.id, partial(self._completion, run)) for run, _ in page]

    async def _completion(self, run: Run, _patient: bool) -> Found | None:
        if not await self.is_due(run.id):
            return None
        return Broken(lost.missed_completion(run), partial(self._complete, run.id))

    async def _complete(self, run_id: RunId) -> int:
        return int(await self.check(run_id))

    async def _deletions(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.metadata.page(Deletion, limit=limit, after=after)
        return [(deletion.id, partial(self._deletion, deletion)) for deletion in page]

    async def _deletion(self, deletion: Deletion, patient: bool) -> Found | None:
        """What was deleted, is not cleared, and has not been told to anyone for long."""
        if deletion.done_at is None:
            if patient and self._is_recent(deletion.sent_at):
                return None
            if await self._is_live(purge_message(deletion, None)):
                return None
            return Broken(lost.unfinished_purge(deletion), partial(self._purge_again, deletion))
        if deletion.done_at + TOMBSTONE_LIFE <= self.clock.now():
            return Over("tombstone", partial(self._remove_tombstone, deletion))
        return None

    async def _purge_again(self, deletion: Deletion) -> int:
        try:
            await self.metadata.commit(msgspec.structs.replace(deletion, sent_at=self.clock.now()))
        except Stale:
            return 0  # it has just been done, or another sweeper saw it too
        job = await self.metadata.get(Job, deletion.job_id)
        return int(
            await self.control_queue.send(purge_message(deletion, job.caller if job else None))
        )

    async def _remove_tombstone(self, deletion: Deletion) -> int:
        if deletion.run_id:
            stone = await self.metadata.get(Run, deletion.run_id)
            await self.metadata.commit(Removed(deletion), *([Removed(stone)] if stone else []))
        else:
            job = await self.metadata.get(Job, deletion.job_id)
            await self.metadata.commit(Removed(deletion), *([Removed(job)] if job else []))
        return 1

    async def _exports(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.metadata.page(Export, limit=limit, after=after)
        return [(export.id, partial(self._export, export)) for export in page]

    async def _export(self, export: Export, patient: bool) -> Found | None:
        """One that is over goes; one that nobody has begun, and that no message is about, has its
        message sent again. One that was begun has its message, which outlives its maker.
        """
        if export_life.is_over(export, self.clock.now()):
            return Over("export", partial(self._remove_export, export))
        is_begun = export.status is not ExportStatus.PENDING
        if is_begun or (patient and self._is_recent(export.sent_at)):
            return None
        if await self._is_live(export_message(export)):
            return None
        return Broken(lost.unfinished_export(export), partial(self._export_again, export))

    async def _export_again(self, export: Export) -> int:
        try:
            await self.metadata.commit(msgspec.structs.replace(export, sent_at=self.clock.now()))
        except Stale:
            return 0  # it has moved, or another sweeper saw it too
        return int(await self.control_queue.send(export_message(export)))

    async def _remove_export(self, export: Export) -> int:
        """The file first: whoever dies in between finds the row again."""
        mine = files_of(export)
        while keys := await self.blobs.keys(mine, limit=BITE):
            await self.blobs.delete(keys)
        await self.metadata.commit(Removed(export))
        return 1

    def _is_recent(self, moment: datetime | None) -> bool:
        # A moment in the future was written before the clock was set back: no reason to wait for it.
        return moment is not None and abs(self.clock.now() - moment) < YOUNG
