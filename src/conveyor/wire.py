"""The JSON documents of the API: the service writes them, the client reads them.

This module imports msgspec alone. A field whose default is None, zero or empty is left out of the
JSON while it has that value. The service always writes all other fields. They still have defaults
(by `always`), so that a client can read the documents of an older service that lacks them. Statuses
and reasons are strings, because a newer service may have others.
"""

from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

T = TypeVar("T")

ACTIVE = "active"
ENDED = frozenset({"completed", "stopped", "failed", "deleted"})
# Fields that the service always writes although their default is None. For the OpenAPI document.
ALWAYS_WRITTEN = frozenset({"created_at", "updated_at", "expires_at", "since"})

AnySchedule = Annotated[
    Any, msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/Schedule"})
]


def always(value: T) -> T:
    """Return the default of a field that is written even while it has this value.

    `omit_defaults` leaves out a value that equals a plain default, but does not call factories
    other than `list`, `dict` and `set`.
    """
    written: T = msgspec.field(default_factory=lambda: value)
    return written


class Document(msgspec.Struct, frozen=True, omit_defaults=True):
    """The base of every document."""


class WireSpend(Document, frozen=True):
    credits: int = always(0)
    cost: float = always(0.0)  # dollars


class WireStats(Document, frozen=True):
    total: int = always(0)
    completed: int = always(0)
    successful: int = always(0)
    failed: int = always(0)
    spend: WireSpend = always(WireSpend())
    failure_reasons: dict[str, int] = {}
    in_flight: int | None = None  # of a live run, up to 10,000
    waiting_for_retry: int | None = None  # of a live run, up to 10,000


class WireWaiting(Document, frozen=True, kw_only=True):
    """Why the dispatcher starts no task of a live run. Nothing is charged meanwhile."""

    reason: str  # one of `WaitReason`, or a newer one
    since: datetime | None = None
    detail: str = always("")
    next_attempt_at: datetime | None = None  # None if no task is left to try with


class WireRun(Document, frozen=True, kw_only=True):
    run_id: str
    job_id: str = always("")
    run_sequence: int = always(1)
    status: str
    trigger: str = always("")
    stats: WireStats = always(WireStats())
    last_batch_received: bool = always(True)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    ingest_status: str | None = None
    pause_state: str = ACTIVE
    failure_reason: str | None = None
    failure_detail: str | None = None
    ingest_errors: int = 0  # rows of its list that are not tasks
    ingest_error: str | None = None  # what is wrong with its list as a whole
    cut_short: bool = False
    waiting: WireWaiting | None = None
    inherited_tasks: int = 0  # finished in earlier runs; `stats.completed` includes them

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


NO_RUN = WireRun(run_id="", status="no run")


class WireWebhook(Document, frozen=True):
    url: str
    signature: bool
    disabled_at: datetime | None = None


class WireJobOfCaller(Document, frozen=True, kw_only=True):
    """A job as operators see it: without what may have a secret of its caller."""

    job_id: str
    type: str = always("regular")
    status: str
    format: str = always("")
    created_at: datetime | None = None
    updated_at: datetime | None = None
    max_inflight: int = always(0)
    retries: int = always(0)
    result_ttl_days: int = always(0)
    next_scheduled_run: datetime | None = always(None)
    schedule: AnySchedule = None
    schedule_state: str | None = None
    schedule_pause_reason: str | None = None  # why the service paused it, if it did
    skipped_fires: int = 0  # because the run before was still live
    last_skipped_at: datetime | None = None
    max_per_host: int | None = None
    latest_run: WireRun | None = None
    external_id: str | None = None
    name: str | None = None


class WireJob(WireJobOfCaller, frozen=True, kw_only=True):
    zenrows_params: dict[str, str] | None = None
    metadata: dict[str, str] | None = None
    webhook: WireWebhook | None = None


class WireUpload(Document, frozen=True):
    url: str
    headers: dict[str, str] = always({})
    expires_at: datetime | None = None
    method: str = always("PUT")


class WireFileInput(Document, frozen=True):
    file_input_id: str
    upload: WireUpload
    expires_at: datetime | None = None


class WireBadRow(Document, frozen=True):
    """A row of an uploaded list that is not a task. Lines count from 1, ordinals from 0."""

    line: int
    ordinal: int = always(0)
    reason: str = always("")
    value: str | None = None  # the beginning of the row


class WireSubmitted(Document, frozen=True, kw_only=True):
    job_id: str
    status: str = always("")
    latest_run: WireRun | None = None
    accepted_tasks: int
    webhook: WireWebhook | None = None


class WireRerun(Document, frozen=True, kw_only=True):
    job_id: str
    status: str = always("")
    latest_run: WireRun = always(NO_RUN)
    rerun_of: str | None = None
    retried_tasks: int = always(0)
    inherited_tasks: int = always(0)  # all others, also those that no run has finished


class WireAdded(Document, frozen=True):
    accepted_tasks: int
    job_status: str = always("")
    latest_run: WireRun = always(NO_RUN)


class WireJobs(Document, frozen=True):
    jobs: list[WireJob]
    next_cursor: str | None = always(None)


class WireJobsOfCaller(Document, frozen=True):
    jobs: list[WireJobOfCaller]
    next_cursor: str | None = always(None)


class WireRuns(Document, frozen=True):
    runs: list[WireRun]
    next_cursor: str | None = always(None)


class WireProblem(msgspec.Struct, kw_only=True):
    """RFC 9457, with a stable `code`."""

    type: str
    title: str
    status: int
    code: str
    detail: str | UnsetType = UNSET
    instance: str | UnsetType = UNSET
    field: str | UnsetType = UNSET  # the field or parameter that is at fault
    invalid_tasks: list[dict[str, Any]] | UnsetType = UNSET
    gateway_request_id: str | UnsetType = UNSET  # of a failed attempt


class WireFailure(Document, frozen=True, kw_only=True):
    """The problem that a task failed with."""

    code: str = always("")
    title: str = always("")
    detail: str = always("")
    status: int = always(0)


class WireResult(Document, frozen=True, kw_only=True):
    task_id: str
    run_id: str
    url: str
    status: str
    result_url: str | None = always(None)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    external_id: str | None = None
    metadata: dict[str, Any] | None = None
    method: str | None = None  # None: GET
    type: str | None = None
    error: WireFailure | None = None
    source_run_id: str | None = None
    scraped_at: datetime | None = None  # of an inherited result: when the earlier run scraped it
    content_type: str | None = None  # of the body; another service may leave it out
    size: int | None = None  # bytes of the body
    http_status: int | None = None  # of the target, if the gateway passes it on
    duration_ms: int | None = None  # of the call that ended the task
    final_url: str | None = None  # after redirects, if it is another URL
    attempts: int = 0  # that ended and were charged, in the run that scraped it
    # Of all its calls, in the run that paid them. Not `spend`: the official client has another form
    # of that on rows, and refuses a page in which it differs.
    credits: int | None = None
    cost: float | None = None  # dollars

    @property
    def has_body(self) -> bool:
        """Whether the result has a body to download."""
        return self.result_url is not None


class WireResults(Document, frozen=True):
    results: list[WireResult]
    next_cursor: str | None = always(None)


class WireFailureGroup(Document, frozen=True, kw_only=True):
    """Failed tasks of a run that have host, reason and code in common, with one of them."""

    host: str | None = None  # None: the group counts what has no group of its own
    reason: str
    code: str = always("")
    count: int
    title: str = always("")  # of the example's problem, as is the detail
    detail: str = always("")
    example_task_id: str
    example_url: str | None = None


class WireFailures(Document, frozen=True, kw_only=True):
    """The failed tasks of a run by group, the largest group first."""

    failed: int
    groups: list[WireFailureGroup]
    groups_total: int


class WireInterval(Document, frozen=True, kw_only=True):
    """An interval of a timeline. It ends where the next one begins."""

    started_at: datetime
    successful: int
    failed: int


class WireTimeline(Document, frozen=True, kw_only=True):
    """How many tasks of a run ended in each interval of time, without inherited ones."""

    run_id: str
    interval_seconds: int
    intervals: list[WireInterval]
    until: datetime | None = None  # the last ending, of a live run now; None before the first
    estimated: bool = always(False)  # from a sample of the rows, with the exact counts of the run
    rows: int = always(0)  # that it rests on


class WireAttempt(Document, frozen=True, kw_only=True):
    started_at: datetime
    ended_at: datetime
    attempt: int
    spend: WireSpend = always(WireSpend())
    error: WireFailure | None = None
    http_status: int | None = None
    duration_ms: int | None = None


class WireHistory(Document, frozen=True):
    events: list[WireAttempt]


class WireExportStarted(Document, frozen=True):
    export_id: str
    status: str
    created_at: datetime | None = None
    expires_at: datetime | None = None


class WireExport(Document, frozen=True, kw_only=True):
    export_id: str
    status: str
    error: str | None = None
    download_url: str | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None


class WireProgress(Document, frozen=True, kw_only=True):
    """The data of an event of a run."""

    job_id: str
    run_id: str
    status: str
    pause_state: str = always(ACTIVE)
    stats: WireStats = always(WireStats())
    rate: float | None = always(None)  # tasks a second
    eta_seconds: int | None = always(None)
    ingest_status: str | None = None
    waiting: WireWaiting | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


class WireDelivery(Document, frozen=True, kw_only=True):
    """One attempt to deliver an event."""

    attempt: int
    started_at: datetime
    elapsed_ms: int
    status_code: int | None = None
    error: str | None = None


class WireEvent(Document, frozen=True, kw_only=True):
    """A webhook event and its deliveries so far."""

    event_id: str
    event_type: str
    run_id: str
    occurred_at: datetime
    status: str
    attempts: list[WireDelivery]
    next_attempt_at: datetime | None = None


class WireEvents(Document, frozen=True):
    events: list[WireEvent]
    next_cursor: str | None = always(None)


class WireTested(Document, frozen=True, kw_only=True):
    """The result of a test event."""

    delivered: bool
    event_id: str
    elapsed_ms: int
    status_code: int | None = None
    error: str | None = None


class WireKey(Document, frozen=True):
    """A signing key, without its secret."""

    kid: str
    created_at: datetime


class WireKeys(Document, frozen=True):
    active: WireKey | None = None
    candidate: WireKey | None = None


class WireNewKey(Document, frozen=True):
    kid: str
    secret: str
    created_at: datetime


class WireKeyInUse(Document, frozen=True):
    active_kid: str
    created_at: datetime


class WireIdentity(Document, frozen=True):
    """The caller of a key, and what the key may do."""

    caller: str
    scopes: list[str] = always([])  # `read`, `write`, `operator`, or a newer one
    has_default_key: bool = always(False)


class WireCaller(Document, frozen=True, kw_only=True):
    """A caller as operators see it: its keys, and its live runs together."""

    caller: str
    active_keys: int = always(0)  # of those that were created here
    last_used_at: datetime | None = None  # the last use of one of its keys
    live_runs: int = always(0)
    open_tasks: int = always(0)  # of the live runs
    spend: WireSpend = always(WireSpend())  # of the live runs


class WireCallers(Document, frozen=True):
    callers: list[WireCaller]
    next_cursor: str | None = always(None)


class WireLiveRun(Document, frozen=True, kw_only=True):
    """A live run with its caller."""

    caller: str
    job_name: str | None = None
    run: WireRun


class WireLiveRuns(Document, frozen=True):
    runs: list[WireLiveRun]
    next_cursor: str | None = always(None)


class WireDeadLetter(Document, frozen=True, kw_only=True):
    """A message of the control queue that was given up, and why."""

    message_id: str
    kind: str
    payload: dict[str, str] = always({})
    reason: str = always("")
    dead_lettered_at: datetime


class WireDeadLetters(Document, frozen=True):
    dead_letters: list[WireDeadLetter]
    next_cursor: str | None = always(None)


class WireProcess(Document, frozen=True, kw_only=True):
    """A live process. `process_id` is new at each start."""

    process_id: str
    role: str
    host: str
    version: str
    started_at: datetime


class WireProcesses(Document, frozen=True):
    processes: list[WireProcess]


class WireEngine(Document, frozen=True, kw_only=True):
    """An engine as the process that answers finds it."""

    holds: str  # a kind of state: `metadata`, `tasks`, `bodies`, and so on
    engine: str  # the scheme of its URL: `sqlite`, `dynamodb`, and so on
    available: bool
    elapsed_ms: int  # that one small read took
    error: str | None = None


class WireEngines(Document, frozen=True, kw_only=True):
    engines: list[WireEngine]
    disk_free: int | None = None  # bytes, where an engine is in the data folder
