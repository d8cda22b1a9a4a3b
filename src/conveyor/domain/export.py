"""Exports: all results of a run in one zip file.

A caller sees an export for 12 hours after it was started. Every look at a completed export gives a
new link to its file, and the file stays until the last of these links has expired.

    pending → running → completed | failed

The control worker that handles an export's message claims the export. If that worker dies, the
message is delivered again, and the next worker claims it. Each claim raises `claim_no`, and the
names of its files contain the number. So a worker that lost its claim writes to other files, and
only the latest claim can complete the export.
"""

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from conveyor.domain import media
from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.ids import CallerId, ExportId, JobId, RunId
from conveyor.domain.problem import problem
from conveyor.domain.task import Task, TaskStatus
from conveyor.errors import IllegalMove

EXPORT = "export"  # the kind of message that makes an export
EXPORT_LIFE = timedelta(hours=12)
LINK_LIFE = timedelta(hours=24)  # for which every link to a file is honoured
GIB = 1024**3
MANIFEST = "manifest.ndjson"
EXPIRED = "expired"
GAVE_UP = "the export could not be made: start another"
NO_ROOM = "there is no room for the export"


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
    sent_at: datetime  # when its message was last sent
    status: ExportStatus = ExportStatus.PENDING
    claim_no: int = 0
    length: int = 0  # of the file, once there is one
    error: str | None = None
    version: int = 0

    @property
    def expires_at(self) -> datetime:
        return self.created_at + EXPORT_LIFE

    @property
    def kept_until(self) -> datetime:
        """When its row and file may be removed: no link to the file is valid any more."""
        has_file = self.status is ExportStatus.COMPLETED
        return self.expires_at + LINK_LIFE if has_file else self.expires_at

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


class Unmade(msgspec.Struct, frozen=True):
    """No file was made: because of an error, or because the export is no longer wanted."""

    error: str | None = None  # None when there is nothing to report


class Fault(StrEnum):
    """Why a result is missing from the file, or is damaged in it."""

    EXPIRED = "result_expired"
    MISSING = "result_missing"
    DAMAGED = "result_damaged"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A task in the manifest. Every member is present; those that do not apply are null."""

    id: str
    external_id: str | None
    url: str
    status: str
    entry: str | None  # the name of its result in the file
    content_type: str | None  # of the result
    size: int | None  # bytes of the result
    http_status: int | None
    final_url: str | None
    attempts: int
    duration_ms: int | None
    credits: int | None  # of all its calls, in the run that paid them
    cost: float | None  # dollars
    error: msgspec.Raw | None  # a problem document


def is_over(export: Export, now: datetime) -> bool:
    """Whether it has expired: its caller no longer sees it."""
    return now >= export.expires_at


def begun(export: Export) -> Export:
    """The export under a new claim."""
    return _moved(export, ExportStatus.RUNNING, claim_no=export.claim_no + 1)


def completed(export: Export, length: int) -> Export:
    return _moved(export, ExportStatus.COMPLETED, length=length)


def failed(export: Export, error: str) -> Export:
    return _moved(export, ExportStatus.FAILED, error=error)


def too_large(cap: int) -> str:
    return f"results are larger than {cap / GIB:.10g} gb"


def export_blob(export: Export) -> str:
    """The key of the file of a completed export."""
    return f"{files_of(export)}{export.claim_no}.zip"


def spool_blob(export: Export, part: str) -> str:
    """The key of a part of the file that waits until everything before it is written."""
    return f"{files_of(export)}{export.claim_no}.{part}"


def files_of(export: Export) -> str:
    """The prefix of the keys of all files of an export, of every claim."""
    return f"{exports_of(export.job_id, export.run_id)}{export.id}."


def exports_of(job_id: JobId, run_id: RunId) -> str:
    """The prefix of the keys of all exports of a run."""
    return f"exports/{job_id}/{run_id}/"


def export_message(export: Export) -> ControlMessage:
    """The message that makes an export."""
    return ControlMessage(
        kind=EXPORT, subject=export.id, caller=export.caller, payload={"id": export.id}
    )


def entry_name(task: Task) -> str:
    """The name of a result in the file.

    It consists of the task id and a known extension. A name chosen by a caller or a site could be
    a path that leads out of the folder in which the file is unpacked.
    """
    return f"{task.id}.{_extension(task)}"


def is_compressible(task: Task) -> bool:
    return _extension(task) not in media.COMPRESSED


def _extension(task: Task) -> str:
    result = task.result
    return media.extension(result.format, result.content_type) if result else "bin"


def manifest_line(task: Task, *, entry: str | None = None, fault: Fault | None = None) -> bytes:
    """A task's line in the manifest: the name of its result in the file, or why there is none."""
    line = Line(
        id=task.id,
        external_id=task.spec.external_id,
        url=task.spec.url,
        status=EXPIRED if fault is Fault.EXPIRED else task.status,
        entry=entry,
        content_type=task.result.served_as if task.result and entry else None,
        size=task.result.length if task.result and entry else None,
        http_status=task.facts.http_status,
        final_url=task.facts.final_url,
        attempts=task.attempts,
        duration_ms=task.facts.duration_ms,
        credits=None if task.spend is None else task.spend.credits,
        cost=None if task.spend is None else task.spend.dollars,
        error=FAULTS[fault] if fault else _failure(task),
    )
    return msgspec.json.encode(line) + b"\n"


def _failure(task: Task) -> msgspec.Raw | None:
    if task.status is not TaskStatus.FAILED or task.problem is None:
        return None
    return msgspec.Raw(task.problem.encode())


def _moved(export: Export, status: ExportStatus, **changes: object) -> Export:
    if export.has_ended:
        raise IllegalMove(f"export {export.id}: {export.status} -> {status}")
    return msgspec.structs.replace(export, status=status, **changes)


def _problem(status: int, fault: Fault, detail: str) -> msgspec.Raw:
    title = fault.replace("_", " ").capitalize()
    document = problem(status=status, code=fault, title=title, detail=detail)
    return msgspec.Raw(msgspec.json.encode(document))


FAULTS = {
    Fault.EXPIRED: _problem(410, Fault.EXPIRED, "The result is past its retention."),
    Fault.MISSING: _problem(404, Fault.MISSING, "The result is not where it was kept."),
    Fault.DAMAGED: _problem(500, Fault.DAMAGED, "The result is not as long as it was when kept."),
}
