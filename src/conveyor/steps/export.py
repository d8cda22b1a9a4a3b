"""Export: all results of a run in one file, written by the control worker.

The row is stored first, then the message is sent. A control worker claims the export, writes the
file under the number of its claim, and then completes the row. If the worker dies, the message is
delivered again and the next worker starts over under a new claim. A worker that is only slow finds
that its claim is no longer the latest, and stops.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import structlog

from conveyor.domain import export as export_rules
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
from conveyor.steps.shared.notifier import Notifier
from conveyor.steps.shared.ownership import own_job, own_run
from conveyor.steps.shared.pagination import every_of_run
from conveyor.steps.shared.quotas import CheckQuota, QuotaDemand, unlimited

PAGE = 100
ZIP = "application/zip"

log = structlog.get_logger()

Wanted = Callable[[], Awaitable[bool]]
Make = Callable[[Export, Job, Wanted], Awaitable[int | Unmade]]


class Download(msgspec.Struct, frozen=True):
    """A file that is ready. `mark` is unique for each file, and serves as its ETag."""

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
    notifier: Notifier
    make: Make
    check_quota: CheckQuota = unlimited

    async def start(self, caller: CallerId, job_id: JobId, run_id: RunId) -> Export:
        """Start an export of a run, or return the one that is under way.

        A live run is exported as the control worker finds it.
        """
        job = await own_job(self.metadata, caller, job_id)
        run = await own_run(self.metadata, job, run_id)
        now = self.clock.now()
        async for begun in every_of_run(self.metadata, Export, run.id):
            if not (begun.has_ended or export_rules.is_over(begun, now)):
                return begun
        await self.check_quota(QuotaDemand(caller=caller, exports=1))
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
        with suppress(Unavailable):  # the sweeper sends the message later
            await self.control_queue.send(export_message(export))
            self.notifier.message_sent()
        return export

    async def find(
        self, caller: CallerId, job_id: JobId, run_id: RunId, export_id: ExportId
    ) -> Export:
        job = await own_job(self.metadata, caller, job_id)
        run = await own_run(self.metadata, job, run_id)
        export = await self.metadata.get(Export, export_id)
        if (
            export is None
            or export.run_id != run.id
            or export_rules.is_over(export, self.clock.now())
        ):
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
            name=_file_name(export),
            mark=f"{export.id}.{export.claim_no}",
            length=length,
            read=lambda offset: self.blobs.read(key, offset=offset),
        )

    def storage_link(self, export: Export, *, life: timedelta) -> str | None:
        """A URL by which the storage itself serves the file; None if this service has to."""
        left = export.kept_until - self.clock.now()
        return self.blobs.sign_get(
            export_blob(export),
            life=min(life, left),
            content_type=ZIP,
            filename=_file_name(export),
        )

    async def run(self, export_id: ExportId) -> None:
        """Write an export, unless it has ended, or its run or job is deleted."""
        export = await self._claimed(export_id)
        job = await self._job_of(export) if export else None
        if export and job:
            await self._finish(export, await self._made(export, job))
        elif export:
            await self._drop(export)

    async def abandon(self, export_id: ExportId) -> None:
        """Fail an export that cannot be written."""
        while (export := await self.metadata.get(Export, export_id)) and not export.has_ended:
            with suppress(Stale):
                failed = export_rules.failed(export, export_rules.GAVE_UP)
                await self.metadata.commit(failed)
                _log_end(failed)
        if export and export.status is ExportStatus.FAILED:
            await self._clear(export)

    async def _claimed(self, export_id: ExportId) -> Export | None:
        """Claim the export and remove the files of earlier claims; None if it has ended or expired."""
        while (export := await self.metadata.get(Export, export_id)) and not export.has_ended:
            if export_rules.is_over(export, self.clock.now()):
                return None
            claimed = export_rules.begun(export)
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
            return Unmade(export_rules.NO_ROOM)
        except NotFound:
            if await self._is_wanted(export):
                raise
            return Unmade()  # the next claim has removed the files of this one

    async def _finish(self, export: Export, made: int | Unmade) -> None:
        if isinstance(made, int):
            is_recorded = await self._record(export, lambda row: export_rules.completed(row, made))
        else:
            why = made.error
            is_recorded = why is not None and await self._record(
                export, lambda row: export_rules.failed(row, why)
            )
        if not is_recorded:
            await self.blobs.delete([export_blob(export)])
        # A purge of the run that ended before the row was written has not seen the file.
        if await self._job_of(export) is None:
            await self._drop(export)

    async def _record(self, export: Export, move: Callable[[Export], Export]) -> bool:
        """Store how the export ended, if this claim is still the latest."""
        while await self._is_wanted(export) and (row := await self.metadata.get(Export, export.id)):
            ended = move(row)
            with suppress(Stale):
                await self.metadata.commit(ended)
                _log_end(ended)
                return True
        return False

    async def _is_wanted(self, export: Export) -> bool:
        """Whether this claim is still the latest, and its export can still be downloaded."""
        row = await self.metadata.get(Export, export.id)
        is_held = row is not None and not row.has_ended and row.claim_no == export.claim_no
        return is_held and await self._job_of(export) is not None

    async def _job_of(self, export: Export) -> Job | None:
        """The job; None once the caller cannot download the export any more."""
        job = await self.metadata.get(Job, export.job_id)
        run = await self.metadata.get(Run, export.run_id)
        is_gone = (
            job is None
            or job.status is JobStatus.DELETED
            or run is None
            or run.status is RunStatus.DELETED
            or self.clock.now() >= export.kept_until
        )
        return None if is_gone else job

    async def _drop(self, export: Export) -> None:
        await self._clear(export)
        with suppress(Stale):  # a purge has removed it
            await self.metadata.commit(Removed(export))

    async def _clear(self, export: Export) -> None:
        while keys := await self.blobs.keys(files_of(export), limit=PAGE):
            await self.blobs.delete(keys)


def _file_name(export: Export) -> str:
    return f"{export.run_id}.zip"


def _log_end(export: Export) -> None:
    ids = {"export_id": export.id, "job_id": export.job_id, "run_id": export.run_id}
    if export.status is ExportStatus.COMPLETED:
        log.info("export.completed", length=export.length, **ids)
    else:
        log.warning("export.failed", why=export.error, **ids)
