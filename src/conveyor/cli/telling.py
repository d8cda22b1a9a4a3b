"""What commands tell of jobs and runs, and how they end: at once, or after following a run."""

import sys
from datetime import UTC, datetime

import typer

from conveyor.cli import follow as following
from conveyor.cli import show
from conveyor.cli.remote import Remote, read
from conveyor.cli.shapes import COMPLETED, Job, Run

ENDED_OTHERWISE = 3


def follow(remote: Remote, job_id: str, run: Run | None, *, as_json: bool) -> None:
    """Follow that run, or the job's latest, and end as it does."""
    try:
        ended = following.follow(remote, job_id, run.run_id if run else None, quiet=as_json)
    except following.Gone as error:
        print(f"conveyor: {error}", file=sys.stderr)
        raise typer.Exit(ENDED_OTHERWISE) from None
    if as_json:
        show.raw(ended.raw)
    else:
        of_job = ended.job
        status = [("job_status", of_job.status), *schedule_facts(of_job)] if of_job else []
        show.facts([("job", job_id), *status, *run_facts(ended.run)])
        _point_at_errors(job_id, ended.run)
    end_as(ended.run)


def again(job_id: str) -> str:
    return f"The run goes on. Follow it again with: conveyor status {show.plain(job_id)} --follow"


def end_as(run: Run) -> None:
    if run.has_ended and run.status != COMPLETED:
        raise typer.Exit(ENDED_OTHERWISE)


def tell_job(raw: bytes, *, as_json: bool) -> Run:
    job = read(raw, Job)
    if as_json:
        show.raw(raw)
    else:
        facts = [("job", job.job_id), ("job_status", job.status), *schedule_facts(job)]
        show.facts([*facts, *run_facts(job.run)])
        _point_at_errors(job.job_id, job.run)
    return job.run


def tell_run(raw: bytes, *, as_json: bool) -> None:
    run = read(raw, Run)
    if as_json:
        show.raw(raw)
    else:
        show.facts(run_facts(run))


def schedule_facts(job: Job) -> list[tuple[str, object]]:
    """When a scheduled job runs, and how often it could not."""
    if job.schedule is None:
        return []
    told: list[tuple[str, object]] = [
        ("schedule", job.schedule),
        ("schedule_state", job.schedule_state),
        ("next_scheduled_run", job.next_scheduled_run or "none"),
    ]
    if job.schedule_pause_reason:
        told += [("schedule_pause_reason", job.schedule_pause_reason)]
    told += [("skipped_fires", job.skipped_fires)] if job.skipped_fires else []
    told += [("last_skipped_at", job.last_skipped_at)] if job.last_skipped_at else []
    return told


def run_facts(run: Run) -> list[tuple[str, object]]:
    stats = run.stats
    told: list[tuple[str, object]] = [
        ("run", run.run_id),
        ("run_status", run.shown_status),
        ("total", stats.total),
        *([("ingest_status", run.ingest_status)] if run.is_growing else []),
        ("completed", stats.completed),
        ("successful", stats.successful),
        ("failed", stats.failed),
    ]
    if run.waiting:
        told.append(("waiting", run.waiting.told(datetime.now(UTC))))
        told += [("waiting.detail", run.waiting.detail)] if run.waiting.detail else []
    told += [("elapsed", show.duration(run.elapsed))] if run.elapsed else []
    told += [("mean_rate", f"{run.mean_rate:.1f}/s")] if run.mean_rate else []
    told += [(f"failed.{reason}", times) for reason, times in stats.failure_reasons.items()]
    told += [("failure_reason", run.failure_reason)] if run.failure_reason else []
    told += [("failure_detail", run.failure_detail)] if run.failure_detail else []
    told += [("ingest_errors", run.ingest_errors)] if run.ingest_errors else []
    told += [("ingest_error", run.ingest_error)] if run.ingest_error else []
    return told


def _point_at_errors(job_id: str, run: Run) -> None:
    if run.ingest_errors:
        show.aside(f"The bad lines of its list: conveyor errors {show.plain(job_id)}")
