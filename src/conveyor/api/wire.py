"""What goes over the wire: the shapes of the contract, made from domain values.

Optional fields that are absent are left out, but for those the contract wants as null.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from conveyor.domain import run as run_life
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.export import Export, ExportStatus
from conveyor.domain.job import Job
from conveyor.domain.progress import RunProgress
from conveyor.domain.run import Run, RunStatus
from conveyor.domain.schedule import Schedule
from conveyor.domain.stats import Cost, Stats, cost, stats
from conveyor.domain.task import Attempt, Task, TaskStatus
from conveyor.domain.waiting import Waiting
from conveyor.domain.webhook import Webhook
from conveyor.steps.read import JobView, RunView
from conveyor.steps.rerun import Rerunning

EXPIRED = "expired"
IGNORED = "Conveyor-Ignored-Fields"  # of an answer: what the body had that is not known here


class WireRun(msgspec.Struct, kw_only=True):
    run_id: str
    job_id: str
    run_sequence: int
    status: str
    trigger: str
    stats: Stats
    last_batch_received: bool
    created_at: datetime
    updated_at: datetime
    ingest_status: str | UnsetType = UNSET
    pause_state: str | UnsetType = UNSET
    failure_reason: str | UnsetType = UNSET
    failure_detail: str | UnsetType = UNSET
    ingest_errors: int | UnsetType = UNSET
    ingest_error: str | UnsetType = UNSET
    cut_short: bool | UnsetType = UNSET
    waiting: Waiting | UnsetType = UNSET
    inherited_tasks: int | UnsetType = UNSET  # done in earlier runs, and counted in `stats`


class WireWebhook(msgspec.Struct):
    url: str
    signature: bool
    disabled_at: datetime | UnsetType = UNSET


class WireJob(msgspec.Struct, kw_only=True):
    job_id: str
    type: str
    status: str
    format: str
    created_at: datetime
    updated_at: datetime
    max_inflight: int
    retries: int
    result_ttl_days: int
    next_scheduled_run: datetime | None = None
    schedule: Schedule | UnsetType = UNSET
    schedule_state: str | UnsetType = UNSET
    schedule_pause_reason: str | UnsetType = UNSET
    skipped_fires: int | UnsetType = UNSET
    last_skipped_at: datetime | UnsetType = UNSET
    max_per_host: int | UnsetType = UNSET
    latest_run: WireRun | UnsetType = UNSET
    zenrows_params: dict[str, str] | UnsetType = UNSET
    external_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    webhook: WireWebhook | UnsetType = UNSET


class WireUpload(msgspec.Struct):
    url: str
    headers: dict[str, str]
    expires_at: datetime
    method: str = "PUT"


class WireFileInput(msgspec.Struct):
    file_input_id: str
    upload: WireUpload
    expires_at: datetime


class WireBadRow(msgspec.Struct):
    """A line of the report of a list's bad rows."""

    line: int
    ordinal: int
    reason: str
    value: str | UnsetType = UNSET


class WireSubmitted(msgspec.Struct, kw_only=True):
    job_id: str
    status: str
    latest_run: WireRun | UnsetType = UNSET
    accepted_tasks: int
    webhook: WireWebhook | UnsetType = UNSET


class WireRerun(msgspec.Struct, kw_only=True):
    job_id: str
    status: str
    latest_run: WireRun
    rerun_of: str | UnsetType = UNSET
    retried_tasks: int
    inherited_tasks: int


class WireAdded(msgspec.Struct):
    accepted_tasks: int
    job_status: str
    latest_run: WireRun


class WireJobs(msgspec.Struct):
    jobs: list[WireJob]
    next_cursor: str | None


class WireRuns(msgspec.Struct):
    runs: list[WireRun]
    next_cursor: str | None


class WireProblem(msgspec.Struct, kw_only=True):
    """RFC 9457, with a stable `code`."""

    type: str
    title: str
    status: int
    code: str
    detail: str | UnsetType = UNSET
    instance: str | UnsetType = UNSET
    invalid_tasks: list[dict[str, Any]] | UnsetType = UNSET
    gateway_request_id: str | UnsetType = UNSET  # of a failed attempt


class WireResult(msgspec.Struct, kw_only=True):
    task_id: str
    run_id: str
    url: str
    status: str
    result_url: str | None
    created_at: datetime
    updated_at: datetime
    external_id: str | UnsetType = UNSET
    metadata: msgspec.Raw | UnsetType = UNSET
    method: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    error: msgspec.Raw | UnsetType = UNSET
    source_run_id: str | UnsetType = UNSET
    scraped_at: datetime | UnsetType = UNSET
    content_type: str | UnsetType = UNSET


class WireResults(msgspec.Struct):
    results: list[WireResult]
    next_cursor: str | None


class WireAttempt(msgspec.Struct):
    started_at: datetime
    ended_at: datetime
    attempt: int
    spend: Cost
    error: msgspec.Raw | UnsetType = UNSET


class WireHistory(msgspec.Struct):
    events: list[WireAttempt]


class WireExportStarted(msgspec.Struct):
    export_id: str
    status: str
    created_at: datetime
    expires_at: datetime


class WireExport(msgspec.Struct, kw_only=True):
    export_id: str
    status: str
    error: str | UnsetType = UNSET
    download_url: str | UnsetType = UNSET
    created_at: datetime
    expires_at: datetime


class WireProgress(msgspec.Struct, kw_only=True):
    """The data of an event of a run."""

    job_id: str
    run_id: str
    status: str
    pause_state: str
    stats: Stats
    rate: float | None
    eta_seconds: int | None
    ingest_status: str | UnsetType = UNSET
    waiting: Waiting | UnsetType = UNSET


def encode(value: msgspec.Struct) -> bytes:
    return ENCODER.encode(value)


def run_shown(run: Run, settled: Counts, waiting: Waiting | None = None) -> WireRun:
    status = run_life.shown_status(run, settled)
    return WireRun(
        run_id=run.id,
        job_id=run.job_id,
        run_sequence=run.sequence,
        status=status,
        trigger=run.trigger,
        stats=stats(run, settled),
        last_batch_received=run.last_batch_received,
        ingest_status=run.ingest_status or UNSET,
        pause_state=run.pause_state if run.is_paused else UNSET,
        failure_reason=run.failure_reason or UNSET,
        failure_detail=run.failure_detail or UNSET,
        ingest_errors=run.ingest_errors or UNSET,
        ingest_error=run.ingest_error or UNSET,
        cut_short=run.is_cut or UNSET,
        waiting=_shown_waiting(status, waiting),
        inherited_tasks=run.inherited.counts.done or UNSET,
        created_at=run.created_at,
        updated_at=run.updated_at,
    )


def job_shown(view: JobView) -> WireJob:
    job = view.job
    return WireJob(
        job_id=job.id,
        type=job.type,
        status=job.status,
        format=job.format,
        latest_run=run_shown(view.run, view.settled, view.waiting) if view.run else UNSET,
        next_scheduled_run=view.next_run,
        schedule=job.schedule or UNSET,
        schedule_state=job.schedule_state if job.schedule else UNSET,
        schedule_pause_reason=job.pause_reason or UNSET,
        skipped_fires=job.skipped or UNSET,
        last_skipped_at=job.last_skipped_at or UNSET,
        zenrows_params=_texts(job.params),
        external_id=_given(job.external_id),
        name=_given(job.name),
        metadata=_texts(job.metadata),
        webhook=_webhook_of(job),
        max_inflight=job.max_inflight,
        max_per_host=job.max_per_host or UNSET,
        retries=job.retries,
        result_ttl_days=job.result_ttl_days,
        created_at=job.created_at,
        updated_at=job.updated_at,
    )


def webhook_shown(webhook: Webhook) -> WireWebhook:
    return WireWebhook(webhook.url, webhook.signature, webhook.disabled_at or UNSET)


def jobs_shown(views: Sequence[JobView], next_cursor: str | None) -> WireJobs:
    return WireJobs([job_shown(view) for view in views], next_cursor)


def runs_shown(views: Sequence[RunView], next_cursor: str | None) -> WireRuns:
    return WireRuns(
        [run_shown(view.run, view.settled, view.waiting) for view in views], next_cursor
    )


def submitted(job: Job, run: Run | None, accepted: int) -> bytes:
    return encode(
        WireSubmitted(
            job_id=job.id,
            status=job.status,
            latest_run=run_shown(run, ZERO) if run else UNSET,
            accepted_tasks=accepted,
            webhook=_webhook_of(job),
        )
    )


def rerun_shown(told: Rerunning) -> bytes:
    return encode(
        WireRerun(
            job_id=told.job.id,
            status=told.job.status,
            latest_run=run_shown(told.run, ZERO),
            rerun_of=told.rerun_of or UNSET,
            retried_tasks=told.retried,
            inherited_tasks=told.inherited,
        )
    )


def result_shown(task: Task, *, expired: bool, link: Callable[[Task], str]) -> WireResult:
    has_body = task.result is not None and not expired
    return WireResult(
        task_id=task.id,
        external_id=_given(task.spec.external_id),
        run_id=task.run_id,
        url=task.spec.url,
        metadata=_raw(task.spec.metadata),
        method=UNSET if task.spec.method == "GET" else task.spec.method,
        status=EXPIRED if expired else task.status,
        type=task.result.format if task.result else UNSET,
        result_url=link(task) if has_body else None,
        error=_raw(task.problem) if task.status is TaskStatus.FAILED else UNSET,
        source_run_id=task.source_run_id or UNSET,
        scraped_at=task.scraped_at or UNSET,
        content_type=(task.result.content_type if task.result else None) or UNSET,
        created_at=task.created_at,
        updated_at=task.updated_at,
    )


def history_shown(lines: Sequence[Attempt]) -> WireHistory:
    return WireHistory(
        [
            WireAttempt(
                line.started_at,
                line.ended_at,
                line.attempt,
                cost(line.spend),
                _raw(line.problem),
            )
            for line in lines
        ]
    )


def export_started(export: Export) -> WireExportStarted:
    return WireExportStarted(export.id, export.status, export.created_at, export.expires_at)


def export_shown(export: Export, link: Callable[[Export], str]) -> WireExport:
    is_there = export.status is ExportStatus.COMPLETED
    return WireExport(
        export_id=export.id,
        status=export.status,
        error=_given(export.error),
        download_url=link(export) if is_there else UNSET,
        created_at=export.created_at,
        expires_at=export.expires_at,
    )


def event_shown(progress: RunProgress) -> bytes:
    """News of a run as a server-sent event."""
    run = progress.run
    status = run_life.shown_status(run, progress.settled)
    data = WireProgress(
        job_id=run.job_id,
        run_id=run.id,
        status=status,
        pause_state=run.pause_state,
        stats=stats(run, progress.settled),
        rate=progress.rate,
        eta_seconds=progress.eta,
        ingest_status=run.ingest_status or UNSET,
        waiting=_shown_waiting(status, progress.waiting),
    )
    kind = b"end" if progress.is_last else b"progress"
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (progress.mark.encode(), kind, encode(data))


def _shown_waiting(status: RunStatus, waiting: Waiting | None) -> Waiting | UnsetType:
    """A run that is over, or has no tasks left, waits for nothing."""
    return waiting if waiting and status is RunStatus.RUNNING else UNSET


def _webhook_of(job: Job) -> WireWebhook | UnsetType:
    return webhook_shown(job.webhook) if job.webhook else UNSET


def _given(text: str | None) -> str | UnsetType:
    return UNSET if text is None else text


def _raw(text: str | None) -> msgspec.Raw | UnsetType:
    return UNSET if text is None else msgspec.Raw(text.encode())


def _texts(text: str | None) -> dict[str, str] | UnsetType:
    return UNSET if text is None else TEXTS.decode(text)


ENCODER = msgspec.json.Encoder()
TEXTS = msgspec.json.Decoder(dict[str, str])
