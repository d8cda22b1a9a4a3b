"""Conversion of domain values into the documents of the API."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from conveyor import wire
from conveyor.domain import run as run_rules
from conveyor.domain.counts import ZERO, Counts, OpenCounts, Spend
from conveyor.domain.export import Export, ExportStatus
from conveyor.domain.failure_groups import FailureExample, FailureGroup
from conveyor.domain.ids import EventId, TaskId
from conveyor.domain.job import Job
from conveyor.domain.outbox import Delivery, OutboxEvent
from conveyor.domain.progress import RunProgress, Waiting
from conveyor.domain.run import Run, RunStatus
from conveyor.domain.signing import SigningKeys
from conveyor.domain.task import Attempt, Task, TaskStatus
from conveyor.domain.timeline import Timeline
from conveyor.domain.webhook import Webhook
from conveyor.ports.control_queue import DeadLetter
from conveyor.ports.coordination import Member
from conveyor.steps.operators import CallerView, Health, LiveRun
from conveyor.steps.read import JobView, RunView
from conveyor.steps.rerun import Rerunning

EXPIRED = "expired"
IGNORED = "Conveyor-Ignored-Fields"  # response header: unknown members of the request body
TEXTS = msgspec.json.Decoder(dict[str, str])

encode = msgspec.json.Encoder().encode


def run_shown(
    run: Run,
    settled: Counts,
    waiting: Waiting | None = None,
    open_counts: OpenCounts | None = None,
) -> wire.WireRun:
    status = run_rules.shown_status(run, settled)
    return wire.WireRun(
        run_id=run.id,
        job_id=run.job_id,
        run_sequence=run.sequence,
        status=status,
        trigger=run.trigger,
        stats=_stats(run, settled, open_counts),
        last_batch_received=run.last_batch_received,
        ingest_status=run.ingest_status or None,
        pause_state=run.pause_state if run.is_paused else wire.ACTIVE,
        failure_reason=run.failure_reason or None,
        failure_detail=run.failure_detail or None,
        ingest_errors=run.ingest_errors,
        ingest_error=run.ingest_error or None,
        cut_short=run.is_cut,
        waiting=_shown_waiting(status, waiting),
        inherited_tasks=run.inherited.counts.done,
        created_at=run.created_at,
        updated_at=run.updated_at,
    )


def job_shown(view: JobView) -> wire.WireJob:
    job = view.job
    return wire.WireJob(
        job_id=job.id,
        type=job.type,
        status=job.status,
        format=job.format,
        latest_run=run_view_shown(view.latest) if view.latest else None,
        next_scheduled_run=view.next_run,
        schedule=job.schedule or None,
        schedule_state=job.schedule_state if job.schedule else None,
        schedule_pause_reason=job.pause_reason or None,
        skipped_fires=job.skipped,
        last_skipped_at=job.last_skipped_at or None,
        zenrows_params=_texts(job.params),
        external_id=job.external_id,
        name=job.name,
        metadata=_texts(job.metadata),
        webhook=_webhook_of(job),
        max_inflight=job.max_inflight,
        max_per_host=job.max_per_host or None,
        retries=job.retries,
        result_ttl_days=job.result_ttl_days,
        created_at=job.created_at,
        updated_at=job.updated_at,
    )


def run_view_shown(view: RunView) -> wire.WireRun:
    return run_shown(view.run, view.settled, view.waiting, view.open_counts)


def webhook_shown(webhook: Webhook) -> wire.WireWebhook:
    return wire.WireWebhook(webhook.url, webhook.signature, webhook.disabled_at or None)


def webhook_event_shown(event: OutboxEvent) -> wire.WireEvent:
    return wire.WireEvent(
        event_id=event.id,
        event_type=event.type,
        run_id=event.run_id,
        occurred_at=event.occurred_at,
        status=event.status,
        attempts=msgspec.convert(event.deliveries, list[wire.WireDelivery], from_attributes=True),
        next_attempt_at=event.due_at,
    )


def tested_shown(event_id: EventId, delivery: Delivery) -> wire.WireTested:
    return wire.WireTested(
        delivered=delivery.error is None,
        event_id=event_id,
        elapsed_ms=delivery.elapsed_ms,
        status_code=delivery.status_code,
        error=delivery.error,
    )


def signing_keys_shown(keys: SigningKeys) -> wire.WireKeys:
    return msgspec.convert(keys, wire.WireKeys, from_attributes=True)


def jobs_shown(views: Sequence[JobView], next_cursor: str | None) -> wire.WireJobs:
    return wire.WireJobs([job_shown(view) for view in views], next_cursor)


def runs_shown(views: Sequence[RunView], next_cursor: str | None) -> wire.WireRuns:
    return wire.WireRuns([run_view_shown(view) for view in views], next_cursor)


def submitted(job: Job, run: Run | None, accepted: int) -> bytes:
    return encode(
        wire.WireSubmitted(
            job_id=job.id,
            status=job.status,
            latest_run=run_shown(run, ZERO) if run else None,
            accepted_tasks=accepted,
            webhook=_webhook_of(job),
        )
    )


def rerun_shown(rerunning: Rerunning) -> bytes:
    return encode(
        wire.WireRerun(
            job_id=rerunning.job.id,
            status=rerunning.job.status,
            latest_run=run_shown(rerunning.run, ZERO),
            rerun_of=rerunning.rerun_of or None,
            retried_tasks=rerunning.retried,
            inherited_tasks=rerunning.inherited,
        )
    )


def result_shown(task: Task, *, expired: bool, link: Callable[[Task], str]) -> wire.WireResult:
    has_body = task.result is not None and not expired
    return wire.WireResult(
        task_id=task.id,
        external_id=task.spec.external_id,
        run_id=task.run_id,
        url=task.spec.url,
        metadata=_metadata(task.spec.metadata),
        method=None if task.spec.method == "GET" else task.spec.method,
        status=EXPIRED if expired else task.status,
        type=task.result.format if task.result else None,
        result_url=link(task) if has_body else None,
        error=_problem(task.problem) if task.status is TaskStatus.FAILED else None,
        source_run_id=task.source_run_id or None,
        scraped_at=task.scraped_at or None,
        content_type=task.result.served_as if task.result else None,
        size=task.result.length if task.result else None,
        http_status=task.facts.http_status,
        duration_ms=task.facts.duration_ms,
        final_url=task.facts.final_url,
        attempts=task.attempts,
        credits=None if task.spend is None else task.spend.credits,
        cost=None if task.spend is None else task.spend.dollars,
        created_at=task.created_at,
        updated_at=task.updated_at,
    )


def failures_shown(
    groups: Sequence[FailureGroup], examples: Mapping[TaskId, FailureExample], limit: int
) -> wire.WireFailures:
    return wire.WireFailures(
        failed=sum(group.count for group in groups),
        groups=[_group_shown(group, examples.get(group.example)) for group in groups[:limit]],
        groups_total=len(groups),
    )


def _group_shown(group: FailureGroup, example: FailureExample | None) -> wire.WireFailureGroup:
    return wire.WireFailureGroup(
        host=group.host or None,
        reason=group.reason,
        code=group.code,
        count=group.count,
        title=example.title if example else "",
        detail=example.detail if example else "",
        example_task_id=group.example,
        example_url=example.url if example else None,
    )


def timeline_shown(run: Run, timeline: Timeline) -> wire.WireTimeline:
    return wire.WireTimeline(
        run_id=run.id,
        interval_seconds=timeline.seconds,
        until=timeline.until,
        estimated=timeline.is_estimated,
        rows=timeline.rows,
        intervals=[
            wire.WireInterval(
                started_at=one.started_at, successful=one.successful, failed=one.failed
            )
            for one in timeline.intervals
        ],
    )


def history_shown(lines: Sequence[Attempt]) -> wire.WireHistory:
    return wire.WireHistory(
        [
            wire.WireAttempt(
                started_at=line.started_at,
                ended_at=line.ended_at,
                attempt=line.attempt,
                spend=_spend(line.spend),
                error=_problem(line.problem),
                http_status=line.http_status,
                duration_ms=line.duration_ms,
            )
            for line in lines
        ]
    )


def export_started(export: Export) -> wire.WireExportStarted:
    return wire.WireExportStarted(export.id, export.status, export.created_at, export.expires_at)


def export_shown(export: Export, link: Callable[[Export], str]) -> wire.WireExport:
    is_there = export.status is ExportStatus.COMPLETED
    return wire.WireExport(
        export_id=export.id,
        status=export.status,
        error=export.error,
        download_url=link(export) if is_there else None,
        created_at=export.created_at,
        expires_at=export.expires_at,
    )


def event_shown(progress: RunProgress) -> bytes:
    """Return the progress of a run as a server-sent event."""
    run = progress.run
    status = run_rules.shown_status(run, progress.settled)
    data = wire.WireProgress(
        job_id=run.job_id,
        run_id=run.id,
        status=status,
        pause_state=run.pause_state,
        stats=_stats(run, progress.settled, progress.open_counts),
        rate=progress.rate,
        eta_seconds=progress.eta,
        ingest_status=run.ingest_status or None,
        waiting=_shown_waiting(status, progress.waiting),
    )
    kind = b"end" if progress.is_last else b"progress"
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (progress.mark.encode(), kind, encode(data))


# Documents for operators.


def callers_shown(views: Sequence[CallerView], next_cursor: str | None) -> wire.WireCallers:
    shown = [
        wire.WireCaller(
            caller=view.caller,
            active_keys=view.active_keys,
            last_used_at=view.last_used_at,
            live_runs=view.live_runs,
            open_tasks=view.open_tasks,
            spend=_spend(view.counts.spend),
        )
        for view in views
    ]
    return wire.WireCallers(shown, next_cursor)


def jobs_of_caller_shown(
    views: Sequence[JobView], next_cursor: str | None
) -> wire.WireJobsOfCaller:
    return wire.WireJobsOfCaller([_job_of_caller(job_shown(view)) for view in views], next_cursor)


def _job_of_caller(job: wire.WireJob) -> wire.WireJobOfCaller:
    fields = wire.WireJobOfCaller.__struct_fields__
    return wire.WireJobOfCaller(**{name: getattr(job, name) for name in fields})


def live_runs_shown(views: Sequence[LiveRun], next_cursor: str | None) -> wire.WireLiveRuns:
    shown = [
        wire.WireLiveRun(
            caller=one.job.caller,
            job_name=one.job.name,
            run=run_shown(one.run, one.settled, one.waiting),
        )
        for one in views
    ]
    return wire.WireLiveRuns(shown, next_cursor)


def dead_letters_shown(
    found: Sequence[DeadLetter], next_cursor: str | None
) -> wire.WireDeadLetters:
    shown = [
        wire.WireDeadLetter(
            message_id=one.id,
            kind=one.kind,
            payload=dict(one.payload),
            reason=one.reason,
            dead_lettered_at=one.dead_lettered_at,
        )
        for one in found
    ]
    return wire.WireDeadLetters(shown, next_cursor)


def processes_shown(members: Sequence[Member]) -> wire.WireProcesses:
    return wire.WireProcesses(
        [
            wire.WireProcess(
                process_id=one.id,
                role=one.role,
                host=one.host,
                version=one.version,
                started_at=one.started_at,
            )
            for one in members
        ]
    )


def health_shown(health: Health) -> wire.WireEngines:
    shown = [
        wire.WireEngine(
            holds=one.holds,
            engine=one.engine,
            available=one.error is None,
            elapsed_ms=one.elapsed_ms,
            error=one.error,
        )
        for one in health.engines
    ]
    return wire.WireEngines(engines=shown, disk_free=health.disk_free)


def _shown_waiting(status: RunStatus, waiting: Waiting | None) -> wire.WireWaiting | None:
    # A run that has ended or has no tasks left is not waiting, whatever the dispatcher last saw.
    if waiting is None or status is not RunStatus.RUNNING:
        return None
    return wire.WireWaiting(
        reason=waiting.reason,
        since=waiting.since,
        detail=waiting.detail,
        next_attempt_at=waiting.next_attempt_at,
    )


def _stats(run: Run, settled: Counts, open_counts: OpenCounts | None) -> wire.WireStats:
    counts = run_rules.counts(run, settled)
    failed = counts.failed
    return wire.WireStats(
        total=run_rules.shown_total(run, settled),
        completed=counts.successful + failed,
        successful=counts.successful,
        failed=failed,
        spend=_spend(counts.spend),
        failure_reasons=counts.reasons if failed else {},
        in_flight=open_counts.in_flight if open_counts else None,
        waiting_for_retry=open_counts.waiting_for_retry if open_counts else None,
    )


def _spend(spend: Spend) -> wire.WireSpend:
    return wire.WireSpend(spend.credits, spend.dollars)


def _webhook_of(job: Job) -> wire.WireWebhook | None:
    return webhook_shown(job.webhook) if job.webhook else None


# Metadata and problems are stored as JSON text. `Raw` puts the text into a document as it is, without
# decoding and encoding it again for every row of a page.


def _metadata(text: str | None) -> dict[str, Any] | None:
    return None if text is None else cast("dict[str, Any]", msgspec.Raw(text.encode()))


def _problem(text: str | None) -> wire.WireFailure | None:
    return None if text is None else cast("wire.WireFailure", msgspec.Raw(text.encode()))


def _texts(text: str | None) -> dict[str, str] | None:
    return None if text is None else TEXTS.decode(text)
