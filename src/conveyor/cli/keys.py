"""Commands for keys: who may call the service, and what its stored credentials are encrypted with."""

import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
import typer

from conveyor.cli import show
from conveyor.cli.operators import Config, Data, Json
from conveyor.domain.api_key import NewKey, check, id_in
from conveyor.domain.credentials import RotationProgress, RotationResult
from conveyor.domain.ids import KeyId
from conveyor.errors import ConveyorError, InvalidArgument, RefusedToStart
from conveyor.settings import Auth
from conveyor.settings_loader import DURATION, UNITS, load_settings
from conveyor.steps.api_keys import ApiKeyInfo

LEFT_UNDONE = 1
NOT_DECRYPTED = (
    "these do not open with the keys at hand, so the old key was kept: put the right "
    "encryption.key back and run the command again, or give them up with --force: "
)

keys = typer.Typer(
    help="Keys that callers send: make, list or revoke them; change the encryption key.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    app.add_typer(keys, name="keys")


@keys.command()
def create(  # noqa: PLR0917 - a command's parameters are its flags
    caller: Annotated[
        str | None, typer.Option(help="Whose key it is; several may be one caller's [a new one].")
    ] = None,
    name: Annotated[str, typer.Option(help="What you call it.")] = "",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="It may read, and change nothing.")
    ] = False,
    expires: Annotated[
        str | None, typer.Option(help="When: after 12h or 90d, or on 2027-01-31 [never].")
    ] = None,
    gateway_key: Annotated[
        bool,
        typer.Option("--gateway-key", help="Store a gateway key with it: asked for, or on stdin."),
    ] = False,
    gateway_key_from_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Store the gateway key that this variable holds."),
    ] = None,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Make a key and show it, this one time."""
    from conveyor.cli.key_desk import key_desk  # noqa: PLC0415 - commands load what they need

    wanted = NewKey(
        caller=caller,
        name=name,
        read_only=read_only,
        expires_at=_moment(expires) if expires else None,
        gateway_key=_gateway_key(gateway_key_from_env, ask=gateway_key),
    )
    _check(wanted)
    created = key_desk(load_settings({"data": data}, file=config)).create(wanted)
    if as_json:
        show.raw(msgspec.json.encode(created))
        return
    show.facts([("key", created.key), *_facts(created.about)])
    show.aside("Keep the key now: it is not shown again, and nobody can look it up.")
    if created.auth != Auth.KEYS:
        show.aside(
            f"The service's `auth` is {created.auth}: it asks for such keys when it is keys."
        )


@keys.command("list")
def list_(*, config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """List all keys, without their secrets."""
    from conveyor.cli.key_desk import key_desk  # noqa: PLC0415

    found = key_desk(load_settings({"data": data}, file=config)).keys()
    if as_json:
        for key in found:
            show.raw(msgspec.json.encode(key))
        return
    heads = ("key", "caller", "name", "status", "may", "gateway key", "expires", "last used")
    rows = [
        (
            *(key.id, key.caller, key.name or "-", key.status, " ".join(key.scopes)),
            *("its own" if key.has_gateway_key else "-", _when(key.expires_at)),
            _when(key.last_used_at),
        )
        for key in found
    ]
    show.table(heads, rows)
    if not rows:
        show.aside("There are none yet: `conveyor keys create` makes one.")


@keys.command()
def revoke(
    named: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of keys.")],
    *,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Let keys open nothing any more, from the next request on."""
    from conveyor.cli.key_desk import key_desk  # noqa: PLC0415

    desk = key_desk(load_settings({"data": data}, file=config))
    missing = []
    for one in named:
        # Whoever pastes the whole key means that key.
        revoked = desk.revoke(id_in(one) or KeyId(one))
        if revoked is None:
            missing.append(one)
        elif as_json:
            show.raw(msgspec.json.encode(revoked))
        else:
            show.tabbed([("revoked", revoked.id, revoked.caller)])
    if missing:
        shown = ", ".join(map(show.plain, missing))
        raise RefusedToStart(f"no such key: {shown}; `conveyor keys list` lists those there are")


@keys.command("rotate-encryption")
def rotate_encryption_key(
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Give up credentials that do not open.")
    ] = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Encrypt all stored credentials with a new key, and delete the old one.

    May be stopped at any moment, and run again.
    """
    from conveyor.cli.key_desk import key_desk  # noqa: PLC0415

    ended: list[RotationResult] = []

    def tell(event: RotationProgress | RotationResult) -> None:
        if as_json:
            show.raw(msgspec.json.encode(event))
        elif isinstance(event, RotationProgress):
            show.aside(
                f"{event.kind}: {event.examined} looked at, {event.reencrypted} re-encrypted"
            )
        if isinstance(event, RotationResult):
            ended.append(event)

    with show.interruptible("Both keys are kept. Go on with: conveyor keys rotate-encryption"):
        key_desk(load_settings({"data": data}, file=config)).rotate(tell, force=force)
    if not ended:
        raise ConveyorError("it was stopped before the end; both keys are kept: run it again")
    [rotated] = ended
    if not as_json:
        show.facts([("re-encrypted", rotated.reencrypted), ("unreadable", len(rotated.unreadable))])
    if not rotated.old_key_removed:
        named = ", ".join(map(show.plain, rotated.unreadable[:20]))
        print(f"conveyor: {NOT_DECRYPTED}{named}", file=sys.stderr)
        raise typer.Exit(LEFT_UNDONE)


def _check(wanted: NewKey) -> None:
    try:
        check(wanted, datetime.now(UTC))
    except InvalidArgument as error:
        raise RefusedToStart(error.detail) from None


def _facts(key: ApiKeyInfo) -> list[tuple[str, object]]:
    return [
        ("id", key.id),
        ("caller", key.caller),
        ("name", key.name or "-"),
        ("may", " ".join(key.scopes)),
        ("expires", _when(key.expires_at)),
        ("gateway key", "its own" if key.has_gateway_key else "-"),
    ]


def _when(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M}Z" if moment else "-"


def _gateway_key(variable: str | None, *, ask: bool) -> str | None:
    """Never an argument: those are seen by everybody on the machine."""
    if variable is not None:
        found = os.environ.get(variable)
        if not found:
            raise RefusedToStart(f"--gateway-key-from-env: there is nothing in {variable}")
        return found
    if not ask:
        return None
    if sys.stdin.isatty():
        asked: str = typer.prompt("Gateway key", hide_input=True, err=True)
        return asked.strip()
    return sys.stdin.readline().strip()


def _moment(text: str) -> datetime:
    now = datetime.now(UTC)
    try:
        if found := DURATION.fullmatch(text):
            return now + timedelta(seconds=float(found[1]) * UNITS[found[2] or "s"])
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise RefusedToStart(
            "--expires is a duration such as 12h or 90d, or a day such as 2027-01-31"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
