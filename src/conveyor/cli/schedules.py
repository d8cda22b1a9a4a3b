"""`conveyor schedule`, and the options that describe when a scheduled job runs."""

import re
from typing import Annotated

import typer

from conveyor.cli import output
from conveyor.cli.connect import Endpoint, JobId, Json, with_service
from conveyor.cli.output import plain
from conveyor.client import Job
from conveyor.client.transport import decoded
from conveyor.errors import RefusedToStart

INTERVAL = re.compile(r"(?P<number>[1-9][0-9]{0,7})(?P<unit>[mhd])")
UNITS = {"m": "minute", "h": "hour", "d": "day"}

Cron = Annotated[
    str | None,
    typer.Option(help='Run by a line of cron, like "0 6 * * 1-5": on weekdays at 6 o\'clock.'),
]
Every = Annotated[
    str | None, typer.Option(help="Run at a rate: every 15m, 2h or 1d, the first time after that.")
]
At = Annotated[str | None, typer.Option(help="Run once, at a local time like 2027-01-31T09:00:00.")]
Timezone = Annotated[
    str | None, typer.Option(help="The time zone of the schedule, like Europe/Berlin [UTC].")
]

schedule = typer.Typer(
    help="The schedule of a job: show, replace, pause or resume it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def schedule_of(
    *, cron: str | None, every: str | None, at: str | None, timezone: str | None
) -> dict[str, object] | None:
    """The API's schedule of the options; None without any."""
    options = {"--cron": cron, "--every": every, "--at": at}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        names = " and ".join(given)
        raise RefusedToStart(f"a schedule has one of --cron, --every and --at, got {names}")
    if timezone is not None and (every is not None or not given):
        raise RefusedToStart("--timezone needs --cron or --at")
    if every is not None:
        return {"rate": _rate(every)}
    place = {"timezone": timezone or "UTC"}
    if cron is not None:
        return {"cron": cron, **place}
    return {"at": at, **place} if at is not None else None


def _rate(text: str) -> dict[str, object]:
    found = INTERVAL.fullmatch(text)
    if not found:
        raise RefusedToStart(
            f"--every must be minutes, hours or days like 15m, 2h or 1d, got {plain(text)!r}"
        )
    return {"every": int(found["number"]), "unit": UNITS[found["unit"]]}


@schedule.command()
@with_service
def show(service: Endpoint, job: JobId, *, as_json: Json = False) -> None:
    """Show the schedule of a job, its state and its next run. Exits with 1 if it has none."""
    with service.client() as client:
        _print_schedule(client.request("GET", "jobs", job), as_json=as_json)


@schedule.command("set")
@with_service
def set_(
    service: Endpoint,
    job: JobId,
    *,
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    timezone: Timezone = None,
    as_json: Json = False,
) -> None:
    """Replace the schedule of a scheduled job from now on; a paused one stays paused."""
    body = schedule_of(cron=cron, every=every, at=at, timezone=timezone)
    if body is None:
        raise RefusedToStart("a schedule needs --cron, --every or --at")
    with service.client() as client:
        raw = client.request("PUT", "jobs", job, "schedule", body=body)
    _print_schedule(raw, as_json=as_json)


@schedule.command()
@with_service
def pause(service: Endpoint, job: JobId, *, as_json: Json = False) -> None:
    """Pause a schedule: it starts no runs. A live run continues."""
    _turn(service, job, "paused", as_json=as_json)


@schedule.command()
@with_service
def resume(service: Endpoint, job: JobId, *, as_json: Json = False) -> None:
    """Resume a paused schedule from its next time on; missed ones are not made up."""
    _turn(service, job, "active", as_json=as_json)


def _turn(service: Endpoint, job: str, state: str, *, as_json: bool) -> None:
    body = {"schedule_state": state}
    with service.client() as client:
        raw = client.request("POST", "jobs", job, "schedule", "state", body=body)
    _print_schedule(raw, as_json=as_json)


def _print_schedule(raw: bytes, *, as_json: bool) -> None:
    if as_json:
        output.json_line(raw)
        return
    job = decoded(raw, Job)
    if job.schedule is None:
        output.complain(f"job {plain(job.job_id)} has no schedule: it was submitted to run once")
        raise typer.Exit(1)
    output.facts([("job", job.job_id), *output.schedule_facts(job)])
