"""Parameters and results of the client: the API's documents under short names, and its own."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypedDict

import msgspec

from conveyor import wire
from conveyor.client.errors import NotFoundError, Problem

Added = wire.WireAdded
Attempt = wire.WireAttempt
BadRow = wire.WireBadRow
Failure = wire.WireFailure
FailureGroup = wire.WireFailureGroup
Failures = wire.WireFailures
FileInput = wire.WireFileInput
History = wire.WireHistory
Job = wire.WireJob
NewSigningKey = wire.WireNewKey
JobPage = wire.WireJobs
Progress = wire.WireProgress
SigningKeyInUse = wire.WireKeyInUse
SigningKeys = wire.WireKeys
Rerun = wire.WireRerun
Run = wire.WireRun
RunPage = wire.WireRuns
Spend = wire.WireSpend
Stats = wire.WireStats
Timeline = wire.WireTimeline
TimelineInterval = wire.WireInterval
Upload = wire.WireUpload
Waiting = wire.WireWaiting
Webhook = wire.WireWebhook
WebhookEvent = wire.WireEvent
WebhookEventPage = wire.WireEvents
WebhookTest = wire.WireTested

Column = str | int  # of CSV: its name in the header, or its number from 0


class JobOptions(TypedDict, total=False):
    """Options of a new job; the service's defaults apply to those that are left out."""

    params: Mapping[str, object] | None  # of the scraper, for every task
    name: str | None
    external_id: str | None
    metadata: Mapping[str, str] | None
    max_inflight: int | None  # tasks at a time
    max_per_host: int | None  # tasks of one host at a time
    retries: int | None  # after the first attempt
    result_ttl_days: int | None
    schedule: Mapping[str, object] | None  # makes it a scheduled job
    webhook: Mapping[str, object] | None  # `url` and `signature`
    idempotency_key: str | None  # submitting the same list with it again makes no new job


class RowConditions(TypedDict, total=False):
    """Which tasks: those that meet all conditions that are given."""

    reason: Sequence[str] | None  # why they failed, like `blocked`
    code: Sequence[str] | None  # of their errors
    host: Sequence[str] | None  # of their URLs


class RerunConditions(RowConditions, total=False):
    """Which tasks run again: those that meet all conditions that are given."""

    task_ids: Sequence[str] | None
    scraped_before: datetime | None
    params: Mapping[str, object] | None  # of the scraper, in place of theirs; None removes one


class FileFormat(TypedDict, total=False):
    """How the service must read an uploaded list. All but `type` apply to CSV only."""

    type: str | None  # csv, ndjson or txt; by the file's name if left out
    header: bool  # whether the first line names the columns, which is the default
    delimiter: str  # a comma by default
    url_column: Column | None  # `url` by default, or the first column without a header
    id_column: Column | None  # of the tasks' external ids; none by default


class FileJobOptions(JobOptions, FileFormat, total=False):
    """Options of a new job whose tasks are in a file."""

    on_invalid: str | None  # what to do about bad rows: skip or fail


class NewTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task to submit that has more than a URL."""

    url: str
    external_id: str | None = None
    metadata: Mapping[str, str] | None = None
    method: str | None = None
    body: object = None
    zenrows_params: Mapping[str, object] | None = None


class SubmittedJob(wire.WireSubmitted, frozen=True, kw_only=True):
    """`idempotency_key`: submitting the same list with it again makes no new job."""

    idempotency_key: str = ""


class TaskResult(wire.WireResult, frozen=True, kw_only=True):
    """The result of one task. `body` is set if bodies were requested and the task has one."""

    job_id: str = ""
    body: bytes | None = None


class ResultRows(msgspec.Struct, frozen=True):
    """A page of results whose rows are not decoded yet."""

    results: list[msgspec.Raw]
    next_cursor: str | None = None


class RunExport(wire.WireExport, frozen=True, kw_only=True):
    """All results of a run in one file. A completed one has a `download_url`, which expires."""

    job_id: str = ""
    run_id: str = ""

    def of(self, job_id: str, run_id: str) -> "RunExport":
        return msgspec.structs.replace(self, job_id=job_id, run_id=run_id)


def latest_run(job: Job) -> Run:
    """The latest run. A job has none if all were deleted, or before the first fire of its schedule."""
    if job.latest_run is None:
        raise NotFoundError(Problem(status=404, code="not_found", detail="The job has no run"))
    return job.latest_run
