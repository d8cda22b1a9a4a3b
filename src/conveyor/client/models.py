"""What the client takes and returns: the documents of the API under short names, and its own."""

from collections.abc import Mapping

import msgspec

from conveyor.client.errors import NotFoundError, Problem
from conveyor.wire import WireAdded as Added
from conveyor.wire import WireAttempt as Attempt
from conveyor.wire import WireBadRow as BadRow
from conveyor.wire import WireExport, WireResult, WireSubmitted
from conveyor.wire import WireFailure as Failure
from conveyor.wire import WireFileInput as FileInput
from conveyor.wire import WireHistory as History
from conveyor.wire import WireJob as Job
from conveyor.wire import WireJobs as JobPage
from conveyor.wire import WireProgress as Progress
from conveyor.wire import WireRerun as Rerun
from conveyor.wire import WireRun as Run
from conveyor.wire import WireRuns as RunPage
from conveyor.wire import WireSpend as Spend
from conveyor.wire import WireStats as Stats
from conveyor.wire import WireUpload as Upload
from conveyor.wire import WireWaiting as Waiting

__all__ = [
    "Added",
    "Attempt",
    "BadRow",
    "Column",
    "Failure",
    "FileInput",
    "History",
    "Job",
    "JobPage",
    "NewTask",
    "Progress",
    "Rerun",
    "ResultRows",
    "Run",
    "RunExport",
    "RunPage",
    "Spend",
    "Stats",
    "SubmittedJob",
    "TaskResult",
    "Upload",
    "Waiting",
    "latest_run",
]

Column = str | int  # of CSV: by its name in the header, or by its number from 0 on


class NewTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task to submit, where there is more to say than its URL."""

    url: str
    external_id: str | None = None
    metadata: Mapping[str, str] | None = None
    method: str | None = None
    body: object = None
    zenrows_params: Mapping[str, object] | None = None


class SubmittedJob(WireSubmitted, frozen=True, kw_only=True):
    """`idempotency_key`: submitting the same list with it again makes no new job."""

    idempotency_key: str = ""


class TaskResult(WireResult, frozen=True, kw_only=True):
    """The result of one task. `body` is there if bodies were asked for and the task has one."""

    job_id: str = ""
    body: bytes | None = None


class ResultRows(msgspec.Struct, frozen=True):
    """A page of results as they came; rows are decoded one by one."""

    results: list[msgspec.Raw]
    next_cursor: str | None = None


class RunExport(WireExport, frozen=True, kw_only=True):
    """All of a run as one file; a completed one has a `download_url`, which expires."""

    job_id: str = ""
    run_id: str = ""

    def of(self, job_id: str, run_id: str) -> "RunExport":
        return msgspec.structs.replace(self, job_id=job_id, run_id=run_id)


def latest_run(job: Job) -> Run:
    """The latest run; all may be deleted, or a scheduled job may not have had one yet."""
    if job.latest_run is None:
        raise NotFoundError(Problem(status=404, code="not_found", detail="The job has no run"))
    return job.latest_run
