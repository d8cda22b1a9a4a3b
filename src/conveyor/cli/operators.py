"""Commands for those who look after a service: is all well, and what was given up."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

import msgspec
import typer

from conveyor.cli import show
from conveyor.errors import RefusedToStart
from conveyor.ports.graves import BuriedDuty
from conveyor.settings import Settings, load_settings

FOUND_WRONG = 1

Config = Annotated[str | None, typer.Option(help="The TOML file of settings of the service.")]
Data = Annotated[str | None, typer.Option(help="The service's data folder [data].")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, a document a line.")]
DutyIds = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids of duties.")]
All = Annotated[bool, typer.Option("--all", help="All that are buried.")]

dlq = typer.Typer(
    help="Background duties that were given up: list, show, retry or drop them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    app.command()(doctor)
    app.add_typer(dlq, name="dlq")


def doctor(
    *,
    job: Annotated[str | None, typer.Option(help="Only this job.")] = None,
    run: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    no_bodies: Annotated[
        bool, typer.Option("--no-bodies", help="Do not read the results, which takes longest.")
    ] = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Check the accounts of all jobs, or of one, and tell what is stuck. Changes nothing.

    Ends with 0 when all is well, or the sweeper will see to it; with 1 when something is wrong.
    """
    from conveyor.cli.desk import desk  # noqa: PLC0415 - commands load what they need
    from conveyor.cli.doctoring import Report  # noqa: PLC0415
    from conveyor.cli.holder import OutOfReach  # noqa: PLC0415
    from conveyor.domain.finding import Wanted  # noqa: PLC0415
    from conveyor.domain.ids import JobId, RunId  # noqa: PLC0415

    wanted = Wanted(
        job_id=JobId(job) if job else None,
        run_id=RunId(run) if run else None,
        bodies=not no_bodies,
    )
    at = desk(_settings(config, data))
    with Report(as_json=as_json) as report:
        at.examine(wanted, report.tell)
    if not report.ended:
        raise OutOfReach("the doctor was stopped before the end: ask again")
    if report.wrong:
        raise typer.Exit(FOUND_WRONG)


@dlq.command("list")
def list_(*, config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """List the duties that were given up."""
    from conveyor.cli.desk import desk  # noqa: PLC0415

    buried = desk(_settings(config, data)).buried()
    if as_json:
        for duty in buried:
            show.raw(msgspec.json.encode(duty))
        return
    rows = [
        (duty.id, duty.kind, _about(duty.about), duty.buried_at, duty.reason) for duty in buried
    ]
    show.table(("duty", "kind", "about", "given up", "why"), rows)


@dlq.command("show")
def show_(
    duty: Annotated[str, typer.Argument(metavar="ID", help="The duty's id.")],
    *,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Show one of them."""
    from conveyor.cli.desk import desk  # noqa: PLC0415

    found = desk(_settings(config, data)).find(duty)
    if found is None:
        raise _unknown([duty])
    if as_json:
        show.raw(msgspec.json.encode(found))
        return
    about = [(f"about {name}", value) for name, value in found.about.items()]
    end = [("given up", found.buried_at), ("why", found.reason)]
    show.facts([("duty", found.id), ("kind", found.kind), *about, *end])


@dlq.command()
def retry(
    duties: DutyIds = None,
    *,
    everything: All = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Have duties done again, once what kept them from it is mended."""
    from conveyor.cli.desk import desk  # noqa: PLC0415

    at = desk(_settings(config, data))
    _each(_chosen(duties, at.buried, everything=everything), at.revive, "retried", as_json=as_json)


@dlq.command()
def drop(
    duties: DutyIds = None,
    *,
    everything: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Forget duties for good: what they were to do is not done."""
    from conveyor.cli.desk import desk  # noqa: PLC0415

    at = desk(_settings(config, data))
    chosen = _chosen(duties, at.buried, everything=everything)
    if chosen and not yes:
        typer.confirm(f"Forget {len(chosen)} for good?", abort=True, err=True)
    _each(chosen, at.drop, "dropped", as_json=as_json)


def _settings(config: str | None, data: str | None) -> Settings:
    return load_settings({"data": data}, file=config)


def _chosen(
    named: list[str] | None, buried: Callable[[], Iterator[BuriedDuty]], *, everything: bool
) -> list[str]:
    if bool(named) == everything:
        raise RefusedToStart("name the duties, or say --all")
    return [duty.id for duty in buried()] if everything else list(named or [])


def _each(duties: list[str], act: Callable[[str], bool], done: str, *, as_json: bool) -> None:
    """Act on all of them, also when some are not there; those are told at the end."""
    missing = []
    for duty in duties:
        found = act(duty)
        missing += [] if found else [duty]
        if as_json:
            show.raw(msgspec.json.encode({"id": duty, done: found}))
        elif found:
            show.tabbed([(done, duty)])
    if missing:
        raise _unknown(missing)


def _unknown(duties: list[str]) -> RefusedToStart:
    named = ", ".join(map(show.plain, duties))
    return RefusedToStart(f"not buried: {named}; `conveyor dlq list` lists those that are")


def _about(about: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in about.items())
