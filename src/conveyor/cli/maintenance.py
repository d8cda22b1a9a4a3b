"""Operators' commands: `conveyor backup`, `conveyor doctor` and `conveyor dlq`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from conveyor.cli import output
from conveyor.cli.connect import with_options
from conveyor.errors import RefusedToStart

if TYPE_CHECKING:
    from conveyor.cli.admin import Admin
    from conveyor.ports.control_queue import DeadLetter

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


def admin_of(config: str | None, data: str | None) -> "Admin":
    # Loaded here: other commands need neither the engines nor the settings.
    from conveyor.cli.admin import open_admin  # noqa: PLC0415
    from conveyor.settings_loader import load_settings  # noqa: PLC0415

    return open_admin(load_settings({"data": data}, file=config))


with_admin = with_options(admin_of, config=Config, data=Data)


@with_admin
def doctor(
    admin: "Admin",
    *,
    job: Annotated[
        str | None,
        typer.Option(help="Only this job: its id, the beginning of it, or @last for the newest."),
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="Only this run: its id, the beginning of it, or @last.")
    ] = None,
    no_bodies: Annotated[
        bool, typer.Option("--no-bodies", help="Do not read the results, which takes longest.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check all jobs, or one, for inconsistencies and stuck work. Changes nothing.

    Exits with 0 if all is well or the sweeper will repair it, with 1 if something is wrong.
    """
    from conveyor.cli.doctor import print_report  # noqa: PLC0415 - loads rich and the domain

    if print_report(admin, job, run, bodies=not no_bodies, as_json=as_json):
        raise typer.Exit(FOUND_WRONG)


def backup(
    target: Annotated[Path, typer.Argument(help="Folder for the backup, which must not exist.")],
    *,
    with_keys: Annotated[
        bool, typer.Option("--with-keys", help="Copy the keys too; protect the backup like them.")
    ] = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Copy the data folder as it is at one moment, also while a service uses it."""
    from conveyor.app.backup import back_up  # noqa: PLC0415
    from conveyor.cli.bars import CopyBar  # noqa: PLC0415
    from conveyor.settings_loader import load_settings  # noqa: PLC0415

    settings = load_settings({"data": data}, file=config)
    with CopyBar(hidden=as_json) as bar:
        made = back_up(settings, target.absolute(), with_keys=with_keys, on_progress=bar.copied)
    for kind in made.not_copied:
        scheme = getattr(settings, kind).partition(":")[0]
        where = "S3" if scheme == "s3" else "another folder"
        output.complain(
            f"warning: {kind} are in {where} and not in this backup: back them up there"
        )
    if as_json:
        output.json_line(msgspec.json.encode(made))
        return
    shown = msgspec.structs.asdict(made) | {"not_copied": ", ".join(made.not_copied) or "nothing"}
    output.facts(list(shown.items()))


@dlq.command("list")
@with_admin
def list_(admin: "Admin", *, as_json: Json = False) -> None:
    """List the dead letters."""
    dead = admin.dead_letters()
    if as_json:
        for message in dead:
            output.json_line(msgspec.json.encode(message))
        return
    rows = [
        (one.id, one.kind, output.in_pairs(one.payload), one.dead_lettered_at, one.reason)
        for one in dead
    ]
    output.table(("id", "kind", "payload", "dead since", "reason"), rows)


@dlq.command("show")
@with_admin
def show_(
    admin: "Admin",
    message: Annotated[str, typer.Argument(metavar="ID", help="Id of the dead letter.")],
    *,
    as_json: Json = False,
) -> None:
    """Show one dead letter."""
    found = admin.find_dead_letter(message)
    if found is None:
        raise _unknown([message])
    if as_json:
        output.json_line(msgspec.json.encode(found))
        return
    payload = [(name, value) for name, value in found.payload.items()]
    end = [("dead since", found.dead_lettered_at), ("reason", found.reason)]
    output.facts([("id", found.id), ("kind", found.kind), *payload, *end])


@dlq.command()
@with_admin
def redrive(
    admin: "Admin", ids: MessageIds = None, *, everything: All = False, as_json: Json = False
) -> None:
    """Redrive dead letters: put them back on the control queue."""
    chosen = _chosen(ids, admin.dead_letters, everything=everything)
    _each(chosen, admin.redrive, "redriven", as_json=as_json)


@dlq.command()
@with_admin
def drop(
    admin: "Admin",
    ids: MessageIds = None,
    *,
    everything: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete dead letters for good. Their work is not done."""
    chosen = _chosen(ids, admin.dead_letters, everything=everything)
    if chosen and not yes:
        typer.confirm(f"Delete {len(chosen)} dead letters for good?", abort=True, err=True)
    _each(chosen, admin.drop, "dropped", as_json=as_json)


def _chosen(
    named: list[str] | None, dead: Callable[[], Iterator["DeadLetter"]], *, everything: bool
) -> list[str]:
    if bool(named) == everything:
        raise RefusedToStart("name the dead letters by id, or pass --all, and not both")
    return [message.id for message in dead()] if everything else list(named or [])


def _each(ids: list[str], act: Callable[[str], bool], done: str, *, as_json: bool) -> None:
    """Act on all of them, even when some do not exist; those are named at the end."""
    missing = []
    for one in ids:
        found = act(one)
        missing += [] if found else [one]
        if as_json:
            output.json_line(msgspec.json.encode({"id": one, done: found}))
        elif found:
            output.tabbed([(done, one)])
    if missing:
        raise _unknown(missing)


def _unknown(ids: list[str]) -> RefusedToStart:
    named = ", ".join(map(output.plain, ids))
    return RefusedToStart(f"no such dead letter: {named}; `conveyor dlq list` lists them")
