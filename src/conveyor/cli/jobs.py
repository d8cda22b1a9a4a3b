"""Commands for the jobs of a service: list, watch, stop and delete them."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from conveyor.cli import output
from conveyor.cli.connect import Endpoint, Follow, JobId, Json, OfRun, TaskId, with_service
from conveyor.cli.output import plain
from conveyor.client import BadRow, Conveyor, Job, Run
from conveyor.client.models import Attempt, History
from conveyor.client.transport import decoded, of_run
from conveyor.errors import RefusedToStart

PAGE = 100  # jobs or runs
JOB_HEADS = ("job", "name", "status", "run", "done", "total", "failed", "created")

Listed = Annotated[int, typer.Option(min=1, help="How many at most.")]
JobStatus = Annotated[str | None, typer.Option(help="open, closed or deleted.")]
JobType = Annotated[str | None, typer.Option("--type", help="regular or scheduled.")]
JobName = Annotated[
    str | None, typer.Option(help="Only those whose name or external id contains this.")
]


class RowPage(msgspec.Struct, frozen=True):
    """A page of a listing whose rows are not decoded yet."""

    jobs: list[msgspec.Raw] = []
    runs: list[msgspec.Raw] = []
    events: list[msgspec.Raw] = []
    callers: list[msgspec.Raw] = []
    dead_letters: list[msgspec.Raw] = []
    next_cursor: str | None = None


@with_service
def close(service: Endpoint, job: JobId, *, as_json: Json = False) -> None:
    """Close an open job: no more tasks can be added."""
    with service.client() as client:
        output.print_job(client.request("POST", "jobs", job, "close"), as_json=as_json)


@with_service
def jobs(
    service: Endpoint,
    *,
    status: JobStatus = None,
    type_: JobType = None,
    name: JobName = None,
    limit: Listed = 20,
    as_json: Json = False,
) -> None:
    """List your jobs, the newest first."""
    filters = {"status": status, "type": type_, "name": name}
    with service.client() as client:
        found = list_rows(client, "jobs", "jobs", limit=limit, **filters)
    if as_json:
        output.json_line(msgspec.json.encode(found))
        return
    output.table(JOB_HEADS, [job_row(decoded(raw, Job)) for raw in found["jobs"]])


def job_row(job: Job) -> tuple[object, ...]:
    head = (job.job_id, job.name or "", job.status, output.shown_status(job.latest_run))
    return (*head, *_numbers(job.latest_run), output.seconds_of(job.created_at))


def _numbers(run: Run | None) -> tuple[int, int, int]:
    return (run.stats.completed, run.stats.total, run.stats.failed) if run else (0, 0, 0)


@with_service
def runs(service: Endpoint, job: JobId, *, limit: Listed = 20, as_json: Json = False) -> None:
    """List the runs of a job, the newest first."""
    with service.client() as client:
        found = list_rows(client, "runs", "jobs", job, "runs", limit=limit)
    if as_json:
        output.json_line(msgspec.json.encode(found))
        return
    heads = ("run", "no.", "status", "trigger", "done", "total", "failed", "created")
    output.table(heads, [_run_row(decoded(raw, Run)) for raw in found["runs"]])


def list_rows(
    client: Conveyor, field: str, *path: str, limit: int, **filters: str | None
) -> dict[str, Any]:
    """Up to `limit` rows, over as many pages as that takes, as one document of the API."""
    rows: list[msgspec.Raw] = []
    cursor: str | None = None
    while len(rows) < limit:
        query = {**filters, "limit": min(limit - len(rows), PAGE), "cursor": cursor}
        page = decoded(client.request("GET", *path, query=query), RowPage)
        rows += getattr(page, field)
        cursor = page.next_cursor
        if cursor is None:
            break
    return {field: rows, "next_cursor": cursor}


def _run_row(run: Run) -> tuple[object, ...]:
    head = (run.run_id, run.run_sequence, output.shown_status(run), run.trigger)
    return (*head, *_numbers(run), output.seconds_of(run.created_at))


@with_service
def status(service: Endpoint, job: JobId, *, follow: Follow = False, as_json: Json = False) -> None:
    """Show the progress of a job; with --follow, until its run has ended.

    Exits with 0, or with 3 if the run was stopped, failed or was deleted.
    """
    if follow:
        from conveyor.cli.follow import follow_and_exit, how_to_follow  # noqa: PLC0415 - loads rich

        with output.interruptible(how_to_follow(job)):
            follow_and_exit(service, job, None, as_json=as_json)
        return
    with service.client() as client:
        run = output.print_job(client.request("GET", "jobs", job), as_json=as_json)
    output.exit_as(run)


@with_service
def history(
    service: Endpoint, job: JobId, task: TaskId, *, run: OfRun = None, as_json: Json = False
) -> None:
    """List the attempts at a task."""
    with service.client() as client:
        raw = client.request("GET", *of_run(job, run, "tasks", task, "history"))
    if as_json:
        output.json_line(raw)
        return
    heads = ("attempt", "started", "ended", "outcome", "status", "took", "cost")
    output.table(heads, [_attempt_row(one) for one in decoded(raw, History).events])


def _attempt_row(one: Attempt) -> tuple[object, ...]:
    """An attempt; its HTTP status is that of the target, else that of the gateway's error."""
    status = one.http_status or (one.error.status if one.error else None)
    took = "" if one.duration_ms is None else f"{one.duration_ms} ms"
    return (
        *(one.attempt, output.moment(one.started_at), output.moment(one.ended_at)),
        *(one.error.code if one.error else "ok", status or "", took, f"${one.spend.cost:.4f}"),
    )


@with_service
def errors(
    service: Endpoint,
    job: JobId,
    *,
    run: OfRun = None,
    as_json: Json = False,
) -> None:
    """Report the lines of an uploaded list that are not tasks."""
    with service.client() as client:
        lines = client.error_rows(job, run_id=run)
        count = _copy(lines) if as_json or not output.on_terminal() else _draw(lines)
        note_rest(client.run(job, run) if run else client.job(job).latest_run, count)


def _copy(lines: Iterator[bytes]) -> int:
    count = 0
    for count, line in enumerate(lines, 1):  # noqa: B007 - the last one is returned
        sys.stdout.buffer.write(line)
    sys.stdout.flush()
    return count


def _draw(lines: Iterator[bytes]) -> int:
    """In columns of a fixed width: a table would have to be held in memory to be drawn."""
    count = 0
    for count, line in enumerate(lines, 1):
        if count == 1:
            print(f"{'line':>9}  {'reason':<22}  value")
        row = decoded(line, BadRow)
        print(f"{row.line:>9}  {plain(row.reason):<22}  {plain(row.value or '')}")
    return count


def note_rest(run: Run | None, count: int) -> None:
    """Note that there are no bad lines, or more than are reported one by one."""
    if run and output.is_growing(run):
        output.note(f"{count:,} so far: the service is still reading the list.")
    elif not count:
        output.note("No line of its list is reported.")
    elif run and run.ingest_errors > count:
        output.note(f"These are the first of {run.ingest_errors:,}: the rest is only counted.")
    if run and run.ingest_error:
        output.note(f"Of the list as a whole: {plain(run.ingest_error)}")


@with_service
def pause(service: Endpoint, job: JobId, *, as_json: Json = False) -> None:
    """Pause the live run: tasks in flight finish, no others are started."""
    _change_run(service, job, "pause", as_json=as_json)


@with_service
def resume(service: Endpoint, job: JobId, *, as_json: Json = False) -> None:
    """Resume a paused run."""
    _change_run(service, job, "resume", as_json=as_json)


@with_service
def stop(service: Endpoint, job: JobId, *, as_json: Json = False) -> None:
    """Stop the live run for good; its results are kept."""
    _change_run(service, job, "stop", as_json=as_json)


def _change_run(service: Endpoint, job: str, action: str, *, as_json: bool) -> None:
    with service.client() as client:
        output.print_run(client.request("POST", "jobs", job, action), as_json=as_json)


@with_service
def delete(
    service: Endpoint,
    job: JobId,
    *,
    run: Annotated[str | None, typer.Option(help="Delete this run only.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a job with all its runs and pages, or one run."""
    what = f"run {plain(run)}" if run else f"job {plain(job)}"
    if not yes:
        _confirm(f"Delete {what} with all its pages?")
    with service.client() as client:
        if run:
            client.delete_run(job, run)
        else:
            client.delete(job)
    if as_json:
        output.json_line(msgspec.json.encode({"deleted": run or job}))
    else:
        output.note(f"Deleted {what}; the service removes its results in the background.")


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise RefusedToStart("--yes is required to delete without a terminal to confirm on")
    typer.confirm(question, abort=True, err=True)
