"""An export: all of a run in one file, made once, kept for half a day.

pending → running → completed | failed
running → pending is no move: whoever finds one that died begins it again
"""

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from conveyor.domain.ids import CallerId, ExportId, JobId, RunId
from conveyor.errors import IllegalMove

EXPORT = "export"  # the duty that makes it
EXPORT_LIFE = timedelta(hours=12)


class ExportStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


ENDED = frozenset({ExportStatus.COMPLETED, ExportStatus.FAILED})


class Export(msgspec.Struct, frozen=True, kw_only=True):
    id: ExportId
    job_id: JobId
    run_id: RunId
    caller: CallerId
    created_at: datetime
    sent_at: datetime  # when its duty was last sent
    status: ExportStatus = ExportStatus.PENDING
    length: int = 0  # of the file, once there is one
    error: str | None = None
    version: int = 0

    @property
    def expires_at(self) -> datetime:
        return self.created_at + EXPORT_LIFE

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


def is_over(export: Export, now: datetime) -> bool:
    """Whether it is gone for its caller, and may be cleared away."""
    return now >= export.expires_at


def begun(export: Export) -> Export:
    return _moved(export, ExportStatus.RUNNING)


def completed(export: Export, length: int) -> Export:
    return _moved(export, ExportStatus.COMPLETED, length=length)


def failed(export: Export, error: str) -> Export:
    return _moved(export, ExportStatus.FAILED, error=error)


def export_blob(export: Export) -> str:
    return f"{exports_of(export.job_id, export.run_id)}{export.id}.zip"


def exports_of(job_id: JobId, run_id: RunId) -> str:
    """Where all exports of a run are kept."""
    return f"exports/{job_id}/{run_id}/"


def export_duty(export: Export) -> tuple[str, dict[str, str]]:
    """The duty that makes an export."""
    return EXPORT, {"id": export.id}


def _moved(export: Export, status: ExportStatus, **changes: object) -> Export:
    if export.has_ended:
        raise IllegalMove(f"export {export.id}: {export.status} -> {status}")
    return msgspec.structs.replace(export, status=status, **changes)
