"""`conveyor operator`: the jobs of all callers, over the API, with a key of the scope `operator`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from conveyor import wire
from conveyor.cli import output
from conveyor.cli.connect import Endpoint, Json, full_id, with_service
from conveyor.cli.hints import NO_SUCH_PATH, Advised
from conveyor.cli.jobs import (
    JOB_HEADS,
    JobName,
    JobStatus,
    JobType,
    Listed,
    job_row,
    list_rows,
)
from conveyor.client import ApiError, Conveyor, Job
from conveyor.client.transport import decoded
from conveyor.domain.ids import stands_for_id, whole_id

SOMETHING_IS_DOWN = 1
ADVICE = {
    403: "use a key of an operator: `conveyor keys create --scope operator`, on the machine of the "
    "service, makes one",
    404: "`conveyor operator runs` lists the live runs, `conveyor operator dead-letters` what can "
    "be redriven",
}

AnyJob = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job's id, the beginning of it, or @last for the newest job with a live run.",
    ),
]
OfCaller = Annotated[str | None, typer.Option("--caller", help="Only those of this caller.")]

operator = typer.Typer(
    help="All callers of a service: what they run and what it costs; pause and stop any job.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@contextmanager
def _client(service: Endpoint) -> Iterator[Conveyor]:
    with service.client() as client:
        try:
            yield client
        except ApiError as error:
            is_path = error.problem.detail == NO_SUCH_PATH  # of which the general advice tells more
            raise Advised(error, None if is_path else ADVICE.get(error.status)) from None


@operator.command()
@with_service
def callers(service: Endpoint, *, limit: Listed = 20, as_json: Json = False) -> None:
    """List the callers that have a key or a live run, by name."""
    with _client(service) as client:
        found = list_rows(client, "callers", "operator", "callers", limit=limit)
    if as_json:
        output.json_line(msgspec.json.encode(found))
        return
    heads = ("caller", "keys", "last used", "live runs", "open tasks", "cost so far")
    output.table(heads, [_caller_row(decoded(raw, wire.WireCaller)) for raw in found["callers"]])


def _caller_row(one: wire.WireCaller) -> tuple[object, ...]:
    used = output.seconds_of(one.last_used_at) or "-"
    return one.caller, one.active_keys, used, one.live_runs, one.open_tasks, _cost(one.spend)


@operator.command()
@with_service
def runs(
    service: Endpoint, *, caller: OfCaller = None, limit: Listed = 20, as_json: Json = False
) -> None:
    """List the live runs of all callers, the oldest first."""
    with _client(service) as client:
        found = list_rows(client, "runs", "operator", "runs", limit=limit, caller=caller)
    if as_json:
        output.json_line(msgspec.json.encode(found))
        return
    heads = ("job", "caller", "name", "run", "done", "total", "failed", "cost", "age")
    now = datetime.now(UTC)
    output.table(heads, [_run_row(decoded(raw, wire.WireLiveRun), now) for raw in found["runs"]])


def _run_row(one: wire.WireLiveRun, now: datetime) -> tuple[object, ...]:
    run, stats = one.run, one.run.stats
    age = output.duration(now - run.created_at) if run.created_at else ""
    head = (run.job_id, one.caller, one.job_name or "", output.shown_status(run))
    return (*head, stats.completed, stats.total, stats.failed, _cost(stats.spend), age)


@operator.command()
@with_service
def jobs(
    service: Endpoint,
    caller: Annotated[str, typer.Argument(metavar="CALLER", help="The name of the caller.")],
    *,
    status: JobStatus = None,
    type_: JobType = None,
    name: JobName = None,
    limit: Listed = 20,
    as_json: Json = False,
) -> None:
    """List the jobs of a caller, the newest first."""
    path = ("operator", "callers", caller, "jobs")
    filters = {"status": status, "type": type_, "name": name}
    with _client(service) as client:
        found = list_rows(client, "jobs", *path, limit=limit, **filters)
    if as_json:
        output.json_line(msgspec.json.encode(found))
        return
    output.table(JOB_HEADS, [job_row(decoded(raw, Job)) for raw in found["jobs"]])


@operator.command("dead-letters")
@with_service
def dead_letters(service: Endpoint, *, limit: Listed = 20, as_json: Json = False) -> None:
    """List background work that failed for good."""
    path = ("operator", "dead_letters")
    with _client(service) as client:
        found = list_rows(client, "dead_letters", *path, limit=limit)
    if as_json:
        output.json_line(msgspec.json.encode(found))
        return
    letters = [decoded(raw, wire.WireDeadLetter) for raw in found["dead_letters"]]
    rows = [
        (
            *(one.message_id, one.kind, output.in_pairs(one.payload)),
            *(output.seconds_of(one.dead_lettered_at), one.reason),
        )
        for one in letters
    ]
    output.table(("id", "kind", "payload", "dead since", "reason"), rows)


@operator.command()
@with_service
def redrive(
    service: Endpoint,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of dead letters.")],
    *,
    as_json: Json = False,
) -> None:
    """Redrive dead letters: put them back on the control queue."""
    with _client(service) as client:
        for one in ids:
            client.request("POST", "operator", "dead_letters", one, "redrive")
            if as_json:
                output.json_line(msgspec.json.encode({"id": one, "redriven": True}))
            else:
                output.tabbed([("redriven", one)])


@operator.command()
@with_service
def processes(service: Endpoint, *, as_json: Json = False) -> None:
    """List the live processes of a service."""
    with _client(service) as client:
        raw = client.request("GET", "operator", "processes")
    if as_json:
        output.json_line(raw)
        return
    rows = [
        (one.process_id, one.role, one.host, one.version, output.seconds_of(one.started_at))
        for one in decoded(raw, wire.WireProcesses).processes
    ]
    output.table(("process", "role", "host", "version", "started"), rows)


@operator.command()
@with_service
def engines(service: Endpoint, *, as_json: Json = False) -> None:
    """Show whether every engine answers. Exits with 1 if one does not."""
    with _client(service) as client:
        raw = client.request("GET", "operator", "engines")
    found = decoded(raw, wire.WireEngines)
    if as_json:
        output.json_line(raw)
    else:
        rows = [
            (one.holds, one.engine, f"{one.elapsed_ms} ms", one.error or "answers")
            for one in found.engines
        ]
        output.table(("holds", "engine", "took", "state"), rows)
        if found.disk_free is not None:
            output.note(f"The disk of the data folder has {found.disk_free >> 20:,} MiB free.")
    if not all(one.available for one in found.engines):
        raise typer.Exit(SOMETHING_IS_DOWN)


@operator.command()
@with_service
def pause(service: Endpoint, of: AnyJob, *, as_json: Json = False) -> None:
    """Pause the live run of any job. Its caller may resume it."""
    _change_run(service, of, "pause", as_json=as_json)


@operator.command()
@with_service
def resume(service: Endpoint, of: AnyJob, *, as_json: Json = False) -> None:
    """Resume the paused run of any job."""
    _change_run(service, of, "resume", as_json=as_json)


@operator.command()
@with_service
def stop(service: Endpoint, of: AnyJob, *, as_json: Json = False) -> None:
    """Stop the live run of any job for good; its results are kept."""
    _change_run(service, of, "stop", as_json=as_json)


def _change_run(service: Endpoint, job: str, action: str, *, as_json: bool) -> None:
    with _client(service) as client:
        found = _live_job(client, job)
        raw = client.request("POST", "operator", "jobs", found, action)
    output.print_run(raw, as_json=as_json)


def _live_job(client: Conveyor, text: str) -> str:
    """The job of a live run that `@last` or the beginning of an id stands for."""
    if not stands_for_id(text):
        return whole_id(text) or text
    rows = list_rows(client, "runs", "operator", "runs", limit=sys.maxsize)["runs"]
    jobs = {decoded(raw, wire.WireLiveRun).run.job_id for raw in rows}
    return full_id(text, iter(sorted(jobs, reverse=True)), "live job")


def _cost(spend: wire.WireSpend) -> str:
    return f"${spend.cost:.4f}"
