"""Export: all of a run as one file, made by a control message, kept for half a day.

The row first, then the message. Whoever makes the file claims the export, writes the file under the
claim's number, and then says in the row that it is there. A maker that died is followed by
another, which begins anew; one that is merely slow finds that it was followed, and leaves.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import structlog

from conveyor.domain import export as life
from conveyor.domain.export import (
    Export,
    ExportStatus,
    Unmade,
    export_blob,
    export_message,
    files_of,
)
from conveyor.domain.ids import CallerId, ExportId, JobId, RunId
from conveyor.domain.job import Job, JobStatus
from conveyor.domain.run import Run, RunStatus
from conveyor.errors import NotFound, Stale, StorageFull, Unavailable
from conveyor.ports.blobs import Blobs
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.metadata import Metadata, Removed
from conveyor.steps.shared.ownership import own_job, own_run
from conveyor.steps.shared.pagination import every_of_run
from conveyor.steps.shared.quotas import Check, QuotaDemand, unlimited

PAGE = 100

log = structlog.get_logger()

Wanted = Callable[[], Awaitable[bool]]
Make = Callable[[Export, Job, Wanted], Awaitable[int | Unmade]]


class Download(msgspec.Struct, frozen=True):
    """A file that is ready; `mark` is another for each that was ever made."""

    name: str
    mark: str
    length: int
    read: Callable[[int], AsyncIterator[bytes]]  # from a byte on


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRuns:
    metadata: Metadata
    blobs: Blobs
    control_queue: ControlQueue
    clock: Clock
    ids: Ids
    make: Make
    quota: Check = unlimited

    async def start(self, caller: CallerId, job_id: JobId, run_id: RunId) -> Export:
        """Promise an export of a run as it will be found; a live one is exported as it stands.

        While one is being made, that one.
        """
        job = await own_job(self.metadata, caller, job_id)
        run = await own_run(self.metadata, job, run_id)
        now = self.clock.now()
        async for begun in every_of_run(self.metadata, Export, run.id):
            if not (begun.has_ended or life.is_over(begun, now)):
                return begun  # one at a time is enough: it is as good as another
        await self.quota(QuotaDemand(caller=caller, exports=1))
        export = Export(
            id=ExportId(self.ids.new()),
            job_id=job.id,
            run_id=run.id,
            caller=caller,
            created_at=now,
            sent_at=now,
        )
        await self.metadata.commit(export)
        log.info("export.started", export_id=export.id, job_id=job.id, run_id=run.id)
        with suppress(Unavailable):  # then the sweeper sends it
            await self.control_queue.send(export_message(export))
        return export

    async def find(
        self, caller: CallerId, job_id: JobId, run_id: RunId, export_id: ExportId
    ) -> Export:
        job = await own_job(self.metadata, caller, job_id)
        run = await own_run(self.metadata, job, run_id)
        export = await self.metadata.get(Export, export_id)
        if export is None or export.run_id != run.id or life.is_over(export, self.clock.now()):
            raise NotFound("No such export")
        return export

    async def open(self, export_id: ExportId) -> Download:
        """The file that a signed link names; the link is the authority."""
        export = await self.metadata.get(Export, export_id)
        if export is None or export.status is not ExportStatus.COMPLETED:
            raise NotFound("No such export")
        key = export_blob(export)
        length = await self.blobs.length(key) if await self._job_of(export) else None
        if length is None:
            raise NotFound("The export is gone: start another")
        return Download(
            name=f"{export.run_id}.zip",
            mark=f"{export.id}.{export.claim_no}",
            length=length,
            read=lambda offset: self.blobs.read(key, offset=offset),
        )

    async def run(self, export_id: ExportId) -> None:
        """Make an export, unless it is made, or nobody can have it any more."""
        export = await self._claimed(export_id)
        job = await self._job_of(export) if export else None
        if export and job:
            await self._finish(export, await self._made(export, job))
        elif export:
            await self._drop(export)

    async def abandon(self, export_id: ExportId) -> None:
        """Give an export up that cannot be made."""
        while (export := await self.metadata.get(Export, export_id)) and not export.has_ended:
            with suppress(Stale):
                await self.metadata.commit(life.failed(export, life.GAVE_UP))
                _say(life.failed(export, life.GAVE_UP))
        if export and export.status is ExportStatus.FAILED:
            await self._clear(export)

    async def _claimed(self, export_id: ExportId) -> Export | None:
        """The export under a new claim, with nothing left of those before; None if it is over."""
        while (export := await self.metadata.get(Export, export_id)) and not export.has_ended:
            if life.is_over(export, self.clock.now()):
                return None
            claimed = life.begun(export)
            with suppress(Stale):
                await self.metadata.commit(claimed)
                if export.claim_no:
                    await self._clear(export)
                return claimed
        return None

    async def _made(self, export: Export, job: Job) -> int | Unmade:
        try:
            return await self.make(export, job, lambda: self._is_wanted(export))
        except StorageFull:
            await self._clear(export)
            return Unmade(life.NO_ROOM)
        except NotFound:
            if await self._is_wanted(export):
                raise
            return Unmade()  # the next claim has cleared away what was begun here

    async def _finish(self, export: Export, made: int | Unmade) -> None:
        if isinstance(made, int):
            is_told = await self._tell(export, lambda row: life.completed(row, made))
        else:
            why = made.error
            is_told = why is not None and await self._tell(
                export, lambda row: life.failed(row, why)
            )
        if not is_told:
            await self.blobs.delete([export_blob(export)])
        # After the row: a delete of the run finds the file from now on.
        if await self._job_of(export) is None:
            await self._drop(export)

    async def _tell(self, export: Export, move: Callable[[Export], Export]) -> bool:
        """Write how it ended, if this claim is still the one to say so."""
        while await self._is_wanted(export) and (row := await self.metadata.get(Export, export.id)):
            ended = move(row)
            with suppress(Stale):
                await self.metadata.commit(ended)
                _say(ended)
                return True
        return False

    async def _is_wanted(self, export: Export) -> bool:
        """Whether this claim is to go on."""
        row = await self.metadata.get(Export, export.id)
        is_held = row is not None and not row.has_ended and row.claim_no == export.claim_no
        return is_held and await self._job_of(export) is not None

    async def _job_of(self, export: Export) -> Job | None:
        """The job, as long as somebody can have this export of it."""
        job = await self.metadata.get(Job, export.job_id)
        run = await self.metadata.get(Run, export.run_id)
        is_gone = (
            job is None
            or job.status is JobStatus.DELETED
            or run is None
            or run.status is RunStatus.DELETED
            or life.is_over(export, self.clock.now())
        )
        return None if is_gone else job

    async def _drop(self, export: Export) -> None:
        await self._clear(export)
        with suppress(Stale):  # the purge of its run was first
            await self.metadata.commit(Removed(export))

    async def _clear(self, export: Export) -> None:
        while keys := await self.blobs.keys(files_of(export), limit=PAGE):
            await self.blobs.delete(keys)


def _say(export: Export) -> None:
    ids = {"export_id": export.id, "job_id": export.job_id, "run_id": export.run_id}
    if export.status is ExportStatus.COMPLETED:
        log.info("export.completed", length=export.length, **ids)
    else:
        log.warning("export.failed", why=export.error, **ids)
