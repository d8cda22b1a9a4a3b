"""Commands for people: hand in jobs to a service over HTTP, watch them, fetch what came of them."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from conveyor.cli import show, telling
from conveyor.cli.bad_rows import errors
from conveyor.cli.exporting import export
from conveyor.cli.options import ConfigFile, Follow, JobId, Json, Key, TaskId, Url
from conveyor.cli.reach import reach
from conveyor.cli.remote import Refused, Remote, read
from conveyor.cli.shapes import History, Job, Jobs, Rerun, Run, Runs
from conveyor.cli.submitting import add, submit
from conveyor.errors import RefusedToStart

JOBS_PER_PAGE = RUNS_PER_PAGE = 100
FRACTION = re.compile(r"\.\d+")


def register(app: typer.Typer) -> None:
    for command in COMMANDS:
        app.command()(command)


def close(
    job: JobId,
    *,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Close an open job: no more tasks will come."""
    telling.tell_job(reach(url, key, config).post("jobs", job, "close"), as_json=as_json)


def jobs(
    *,
    status: Annotated[str | None, typer.Option(help="open, closed or deleted.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """List your jobs, the newest first."""
    found = _jobs(reach(url, key, config), status, limit)
    if as_json:
        show.raw(msgspec.json.encode(found))
        return
    heads = ("job", "name", "status", "run", "done", "total", "failed", "created")
    show.table(heads, [_job_row(read(bytes(raw), Job)) for raw in found.jobs])


def runs(
    job: JobId,
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """List the runs of a job, the newest first."""
    found = _runs(reach(url, key, config), job, limit)
    if as_json:
        show.raw(msgspec.json.encode(found))
        return
    heads = ("run", "no.", "status", "trigger", "done", "total", "failed", "created")
    show.table(heads, [_run_row(read(bytes(raw), Run)) for raw in found.runs])


def status(
    job: JobId,
    *,
    follow: Follow = False,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Tell how far a job is; with --follow, live until its run is over.

    Ends with 0, or with 3 when the run has ended otherwise than completed, or is deleted.
    """
    remote = reach(url, key, config)
    if follow:
        with show.interruptible(telling.again(job)):
            telling.follow(remote, job, None, as_json=as_json)
    else:
        telling.end_as(telling.tell_job(remote.get("jobs", job), as_json=as_json))


def results(
    job: JobId,
    *,
    status: Annotated[
        str | None, typer.Option(help="successful, failed or processing; several with commas.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save every page as a file in this folder.")
    ] = None,
    ndjson: Annotated[bool, typer.Option("--ndjson", help="Print every row as JSON.")] = False,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """List results, or save the pages."""
    from conveyor.cli import results as of_job  # noqa: PLC0415 - commands load what they need

    if out and ndjson:
        raise RefusedToStart("--out and --ndjson are two ways: choose one")
    remote = reach(url, key, config)
    if out:
        _save(remote, job, status, out, as_json=as_json)
    elif ndjson:
        of_job.as_lines(remote, job, status)
    elif as_json:
        of_job.as_one_document(remote, job, status)
    else:
        of_job.listed(remote, job, status)


def history(
    job: JobId,
    task: TaskId,
    *,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """List the attempts at a task."""
    raw = reach(url, key, config).get("jobs", job, "tasks", task, "history")
    if as_json:
        show.raw(raw)
        return
    rows = [
        (one.attempt, one.started_at, one.ended_at, one.error.code if one.error else "ok")
        for one in read(raw, History).events
    ]
    show.table(("attempt", "started", "ended", "outcome"), rows)


def pause(
    job: JobId,
    *,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Pause the live run: what is under way finishes, nothing new is taken up."""
    telling.tell_run(reach(url, key, config).post("jobs", job, "pause"), as_json=as_json)


def resume(
    job: JobId,
    *,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Resume a paused run."""
    telling.tell_run(reach(url, key, config).post("jobs", job, "resume"), as_json=as_json)


def stop(
    job: JobId,
    *,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Stop the live run for good; what is scraped is kept."""
    telling.tell_run(reach(url, key, config).post("jobs", job, "stop"), as_json=as_json)


def rerun(
    job: JobId,
    *,
    status: Annotated[
        str | None,
        typer.Option(
            help="Only tasks that are pending, processing, successful or failed, with commas "
            "between; the others are inherited [all tasks]."
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Running again with the same key is one run.")
    ] = None,
    follow: Follow = False,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Run a job again: all its tasks, or with --status some."""
    remote = reach(url, key, config)
    headers = {"Idempotency-Key": idempotency_key} if idempotency_key else None
    raw = remote.post("jobs", job, "rerun", query={"status": status}, headers=headers)
    with show.interruptible(telling.again(job)):
        _tell_rerun(raw, as_json=as_json)
        if follow:
            telling.follow(remote, job, read(raw, Rerun).latest_run, as_json=as_json)


def delete(
    job: JobId,
    *,
    run: Annotated[str | None, typer.Option(help="Delete this run only.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Delete a job with all its runs and pages, or one run."""
    remote = reach(url, key, config)
    what = f"run {show.plain(run)}" if run else f"job {show.plain(job)}"
    if not yes:
        _ask(f"Delete {what} with all its pages?")
    _delete(remote, job, run)
    if as_json:
        show.raw(msgspec.json.encode({"deleted": run or job}))
    else:
        show.aside(f"Deleted {what}; what it held is being cleared away.")


COMMANDS: tuple[Callable[..., None], ...] = (
    submit, add, close, jobs, runs, status, results, export, history, errors,
    rerun, delete, pause, resume, stop,
)  # fmt: skip


def _ask(question: str) -> None:
    """Go on only with a yes; where nobody can be asked, say how to go without."""
    if not sys.stdin.isatty():
        raise RefusedToStart("there is no terminal to ask on: say --yes if you are sure")
    typer.confirm(question, abort=True, err=True)


def _delete(remote: Remote, job_id: str, run_id: str | None) -> None:
    try:
        remote.delete("jobs", job_id, *(("runs", run_id) if run_id else ()))
    except Refused as error:
        if run_id is None or error.problem.status != 404:
            raise
        advice = f"`conveyor runs {show.plain(job_id)}` lists the runs of the job"
        raise Refused(error.problem, advice) from None


def _save(remote: Remote, job_id: str, status: str | None, out: Path, *, as_json: bool) -> None:
    from conveyor.cli.results import save  # noqa: PLC0415

    with show.interruptible("What is saved is whole. Run the same command again for the rest."):
        done = save(remote, job_id, status, out, quiet=as_json)
    if as_json:
        show.raw(msgspec.json.encode(done))
    else:
        show.facts(list(msgspec.structs.asdict(done).items()))
    if not read(remote.get("jobs", job_id), Job).run.has_ended:
        show.aside("The run is not over: run the same command again for the rest.")


def _tell_rerun(raw: bytes, *, as_json: bool) -> None:
    answer = read(raw, Rerun)
    if as_json:
        show.raw(raw)
    else:
        show.facts(
            [
                ("job", answer.job_id),
                ("run", answer.latest_run.run_id),
                ("retried_tasks", answer.retried_tasks),
                ("inherited_tasks", answer.inherited_tasks),
            ]
        )


def _jobs(remote: Remote, status: str | None, limit: int) -> Jobs:
    """Up to `limit` jobs, over as many pages as that takes."""
    found: list[msgspec.Raw] = []
    cursor: str | None = None
    while True:
        most = min(limit - len(found), JOBS_PER_PAGE)
        page = read(remote.get("jobs", status=status, limit=most, cursor=cursor), Jobs)
        found += page.jobs
        cursor = page.next_cursor
        if cursor is None or len(found) >= limit:
            return Jobs(found, cursor)


def _job_row(job: Job) -> tuple[object, ...]:
    run, stats = job.run, job.run.stats
    numbers = (stats.completed, stats.total, stats.failed)
    created = FRACTION.sub("", job.created_at)
    return job.job_id, job.name, job.status, run.shown_status, *numbers, created


def _runs(remote: Remote, job_id: str, limit: int) -> Runs:
    """Up to `limit` runs, over as many pages as that takes."""
    found: list[msgspec.Raw] = []
    cursor: str | None = None
    while True:
        most = min(limit - len(found), RUNS_PER_PAGE)
        page = read(remote.get("jobs", job_id, "runs", limit=most, cursor=cursor), Runs)
        found += page.runs
        cursor = page.next_cursor
        if cursor is None or len(found) >= limit:
            return Runs(found, cursor)


def _run_row(run: Run) -> tuple[object, ...]:
    stats = run.stats
    numbers = (stats.completed, stats.total, stats.failed)
    created = FRACTION.sub("", run.created_at)
    return run.run_id, run.run_sequence, run.shown_status, run.trigger, *numbers, created
