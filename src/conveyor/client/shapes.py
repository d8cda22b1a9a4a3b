"""What the service tells, as values. Whatever else is in an answer is left alone."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from conveyor.client.errors import NotFound, Problem

Column = str | int  # of CSV: by its name in the header, or by its place from 0 on
ENDED = frozenset({"completed", "stopped", "failed", "deleted"})


class NewTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task to hand in, where there is more to say than its URL."""

    url: str
    external_id: str | None = None
    metadata: Mapping[str, str] | None = None
    method: str | None = None
    body: object = None
    zenrows_params: Mapping[str, object] | None = None


class Spend(msgspec.Struct, frozen=True):
    credits: int = 0
    cost: float = 0.0  # dollars


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    total: int = 0
    completed: int = 0
    successful: int = 0
    failed: int = 0
    spend: Spend = Spend()
    failure_reasons: dict[str, int] = {}


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Why no task of a live run can be started. Nothing is charged meanwhile."""

    reason: (
        str  # `gateway_unavailable`, `api_key_refused`, `storage_full`, or one of a newer service
    )
    since: datetime | None = None
    next_attempt_at: datetime | None = None
    detail: str = ""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    status: str
    job_id: str = ""
    run_sequence: int = 1
    trigger: str = ""
    stats: Stats = Stats()
    pause_state: str = "active"
    ingest_status: str | None = None
    last_batch_received: bool = True
    failure_reason: str | None = None
    failure_detail: str | None = None
    ingest_errors: int = 0  # rows of its list that are no tasks
    ingest_error: str | None = None  # what is wrong with its list as a whole
    waiting: Waiting | None = None
    inherited_tasks: int = 0  # done in earlier runs, and counted in `stats`
    created_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


class Job(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    status: str
    type: str = "regular"
    format: str = ""
    name: str = ""
    external_id: str = ""
    metadata: dict[str, str] = {}
    zenrows_params: dict[str, str] = {}
    latest_run: Run | None = None
    schedule: dict[str, object] | None = None  # of a scheduled job
    schedule_state: str | None = None
    next_scheduled_run: datetime | None = None
    schedule_pause_reason: str | None = None  # why the service paused it, if it did
    skipped_fires: int = 0  # that found its last run live
    last_skipped_at: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None

    def run_or_raise(self) -> Run:
        """The latest run; all may be deleted, or a scheduled job may not have had one yet."""
        if self.latest_run is None:
            problem = Problem(status=404, code="not_found", detail="The job has no run")
            raise NotFound(problem)
        return self.latest_run


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    accepted_tasks: int
    latest_run: Run | None = None
    idempotency_key: str = ""  # submitting the same with it again is the same job


class BadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a list that is no task: its line from 1 on, its place from 0 on, and why."""

    line: int
    ordinal: int = 0
    reason: str = ""
    value: str = ""  # the beginning of what stands there


class Added(msgspec.Struct, frozen=True):
    accepted_tasks: int


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    status: str = ""
    latest_run: Run | None = None
    rerun_of: str | None = None
    retried_tasks: int = 0
    inherited_tasks: int = 0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is."""

    job_id: str
    run_id: str
    status: str
    pause_state: str = "active"
    stats: Stats = Stats()
    ingest_status: str | None = None
    rate: float | None = None  # tasks a second
    eta_seconds: float | None = None
    waiting: Waiting | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


class Failure(msgspec.Struct, frozen=True):
    """Why a task failed."""

    code: str = ""
    title: str = ""
    detail: str = ""
    status: int = 0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one task. `body` is there when bodies were asked for and the task has one."""

    task_id: str
    run_id: str
    url: str
    status: str
    job_id: str = ""
    type: str = ""
    external_id: str = ""
    method: str = "GET"
    metadata: dict[str, object] = {}
    result_url: str | None = None
    error: Failure | None = None
    source_run_id: str | None = None
    scraped_at: datetime | None = None  # of an inherited row: when its own run made its outcome
    content_type: str | None = None  # of the body, where the gateway told it
    created_at: datetime | None = None
    updated_at: datetime | None = None
    body: bytes | None = None

    @property
    def has_body(self) -> bool:
        """Whether there is a page to be fetched."""
        return self.result_url is not None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    attempt: int
    started_at: datetime
    ended_at: datetime
    spend: Spend = Spend()
    error: Failure | None = None


class History(msgspec.Struct, frozen=True):
    events: list[Attempt]


class JobPage(msgspec.Struct, frozen=True):
    jobs: list[Job]
    next_cursor: str | None = None


class RunPage(msgspec.Struct, frozen=True):
    runs: list[Run]
    next_cursor: str | None = None


class ResultRows(msgspec.Struct, frozen=True):
    """A page of results as they came; rows are decoded one by one."""

    results: list[msgspec.Raw]
    next_cursor: str | None = None


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run as one file; `download_url` is good for a while, and only when completed."""

    export_id: str
    status: str
    created_at: datetime
    expires_at: datetime
    error: str | None = None
    download_url: str | None = None
    job_id: str = ""
    run_id: str = ""

    def of(self, job_id: str, run_id: str) -> "Export":
        return msgspec.structs.replace(self, job_id=job_id, run_id=run_id)
