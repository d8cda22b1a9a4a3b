"""Commands for those who look after a service: is all well, and what was given up."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

import msgspec
import typer

from conveyor.cli import show
from conveyor.errors import RefusedToStart
from conveyor.ports.control_queue import DeadLetter
from conveyor.settings import Settings
from conveyor.settings_loader import load_settings

FOUND_WRONG = 1

Config = Annotated[str | None, typer.Option(help="The TOML file of settings of the service.")]
Data = Annotated[str | None, typer.Option(help="The service's data folder [data].")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, a document a line.")]
MessageIds = Annotated[
    list[str] | None, typer.Argument(metavar="ID...", help="Ids of dead letters.")
]
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]

dlq = typer.Typer(
    help="Dead letters of the control queue: list, show, redrive or drop them.",
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
    """List the dead letters."""
    from conveyor.cli.desk import desk  # noqa: PLC0415

    dead = desk(_settings(config, data)).dead_letters()
    if as_json:
        for message in dead:
            show.raw(msgspec.json.encode(message))
        return
    rows = [
        (
            message.id,
            message.kind,
            _payload(message.payload),
            message.dead_lettered_at,
            message.reason,
        )
        for message in dead
    ]
    show.table(("id", "kind", "payload", "dead since", "reason"), rows)


@dlq.command("show")
def show_(
    message: Annotated[str, typer.Argument(metavar="ID", help="Id of the dead letter.")],
    *,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Show one dead letter."""
    from conveyor.cli.desk import desk  # noqa: PLC0415

    found = desk(_settings(config, data)).find(message)
    if found is None:
        raise _unknown([message])
    if as_json:
        show.raw(msgspec.json.encode(found))
        return
    payload = [(name, value) for name, value in found.payload.items()]
    end = [("dead since", found.dead_lettered_at), ("reason", found.reason)]
    show.facts([("id", found.id), ("kind", found.kind), *payload, *end])


@dlq.command()
def redrive(
    ids: MessageIds = None,
    *,
    everything: All = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Redrive dead letters: put them back on the control queue."""
    from conveyor.cli.desk import desk  # noqa: PLC0415

    at = desk(_settings(config, data))
    _each(
        _chosen(ids, at.dead_letters, everything=everything),
        at.redrive,
        "redriven",
        as_json=as_json,
    )


@dlq.command()
def drop(
    ids: MessageIds = None,
    *,
    everything: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Delete dead letters for good. Their work is not done."""
    from conveyor.cli.desk import desk  # noqa: PLC0415

    at = desk(_settings(config, data))
    chosen = _chosen(ids, at.dead_letters, everything=everything)
    if chosen and not yes:
        typer.confirm(f"Delete {len(chosen)} dead letters for good?", abort=True, err=True)
    _each(chosen, at.drop, "dropped", as_json=as_json)


def _settings(config: str | None, data: str | None) -> Settings:
    return load_settings({"data": data}, file=config)


def _chosen(
    named: list[str] | None, dead: Callable[[], Iterator[DeadLetter]], *, everything: bool
) -> list[str]:
    if bool(named) == everything:
        raise RefusedToStart("name the dead letters, or pass --all")
    return [message.id for message in dead()] if everything else list(named or [])


def _each(ids: list[str], act: Callable[[str], bool], done: str, *, as_json: bool) -> None:
    """Act on all of them, also when some are not there; those are told at the end."""
    missing = []
    for one in ids:
        found = act(one)
        missing += [] if found else [one]
        if as_json:
            show.raw(msgspec.json.encode({"id": one, done: found}))
        elif found:
            show.tabbed([(done, one)])
    if missing:
        raise _unknown(missing)


def _unknown(ids: list[str]) -> RefusedToStart:
    named = ", ".join(map(show.plain, ids))
    return RefusedToStart(f"no such dead letter: {named}; `conveyor dlq list` lists them")


def _payload(payload: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in payload.items())
