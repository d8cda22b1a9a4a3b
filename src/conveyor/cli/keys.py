"""`conveyor keys`: API keys, and the key that stored credentials are encrypted with."""

import os
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from conveyor.cli import output
from conveyor.cli.maintenance import Json, with_admin
from conveyor.domain.api_key import Scope
from conveyor.errors import ConveyorError, InvalidArgument, RefusedToStart

if TYPE_CHECKING:
    from conveyor.cli.admin import Admin
    from conveyor.domain.api_key import NewKey
    from conveyor.domain.credentials import RotationEvent, RotationProgress, RotationWait
    from conveyor.steps.api_keys import ApiKeyInfo

LEFT_UNDONE = 1
NOT_DECRYPTED = (
    "these cannot be decrypted with the keys at hand, so the old key was kept: put the right "
    "encryption.key back and repeat the command, or give them up with --force: "
)

AllowedScope = Annotated[
    Scope,
    typer.Option(
        help="What the key may do: read, write or operator; each includes those before it."
    ),
]

keys = typer.Typer(
    help="API keys: create, list or revoke them; rotate the encryption key.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@keys.command()
@with_admin
def create(
    admin: "Admin",
    *,
    caller: Annotated[
        str | None,
        typer.Option(help="The caller it belongs to; a caller may have several [a new one]."),
    ] = None,
    name: Annotated[str, typer.Option(help="A name for the key.")] = "",
    scope: AllowedScope = Scope.WRITE,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Without the scope write.")
    ] = False,
    expires: Annotated[
        str | None, typer.Option(help="After 12h or 90d, or on 2027-01-31 [never].")
    ] = None,
    gateway_key: Annotated[
        bool,
        typer.Option(
            "--gateway-key", help="Store a gateway key with it: from a prompt, or from stdin."
        ),
    ] = False,
    gateway_key_from_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Store the gateway key from this environment variable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create an API key and print it. It cannot be shown again."""
    from conveyor.domain.api_key import NewKey  # noqa: PLC0415 - like the others, for this command only
    from conveyor.settings import Auth  # noqa: PLC0415

    wanted = NewKey(
        caller=caller,
        name=name,
        read_only=read_only or scope is Scope.READ,
        operator=scope is Scope.OPERATOR,
        expires_at=_moment(expires) if expires else None,
        gateway_key=_gateway_key(gateway_key_from_env, ask=gateway_key),
    )
    _check_new_key(wanted)
    created = admin.create_key(wanted)
    if as_json:
        output.json_line(msgspec.json.encode(created))
        return
    output.facts([("key", created.key), *_facts(created.about)])
    output.note("Store the key now: it cannot be shown again.")
    if created.auth != Auth.KEYS:
        output.note(
            f"The service does not check these keys yet: its `auth` is {created.auth}, not keys."
        )


@keys.command("list")
@with_admin
def list_(admin: "Admin", *, as_json: Json = False) -> None:
    """List all keys, without their secrets."""
    found = admin.keys()
    if as_json:
        for key in found:
            output.json_line(msgspec.json.encode(key))
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
    output.table(heads, rows)
    if not rows:
        output.note("There are no keys yet: `conveyor keys create` creates one.")


@keys.command()
@with_admin
def revoke(
    admin: "Admin",
    named: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of keys.")],
    *,
    as_json: Json = False,
) -> None:
    """Revoke API keys. The service refuses them from the next request on."""
    from conveyor.domain.api_key import id_in  # noqa: PLC0415
    from conveyor.domain.ids import ApiKeyId  # noqa: PLC0415

    missing = []
    for one in named:
        # A whole key is accepted in place of its id, because that is what people have.
        revoked = admin.revoke_key(id_in(one) or ApiKeyId(one))
        if revoked is None:
            missing.append(one)
        elif as_json:
            output.json_line(msgspec.json.encode(revoked))
        else:
            output.tabbed([("revoked", revoked.id, revoked.caller)])
    if missing:
        shown = ", ".join(map(output.plain, missing))
        raise RefusedToStart(f"no such key: {shown}; `conveyor keys list` lists all keys")


@keys.command("rotate-encryption")
@with_admin
def rotate_encryption_key(
    admin: "Admin",
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Give up credentials that cannot be decrypted.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Encrypt all stored credentials with a new key, and delete the old one.

    May be interrupted at any time and repeated. Waits for every live process to use the new key.
    """
    from conveyor.domain.credentials import RotationResult  # noqa: PLC0415

    events: list[RotationEvent] = []

    def show(event: "RotationEvent") -> None:
        if as_json:
            output.json_line(msgspec.json.encode(event))
        elif [event] != events and not isinstance(event, RotationResult):
            output.note(_told(event))
        events[:] = [event]  # a wait is repeated as long as it lasts

    with output.interruptible("Both keys are kept. Go on with: conveyor keys rotate-encryption"):
        admin.rotate_encryption(show, force=force)
    rotated = events[-1] if events else None
    if not isinstance(rotated, RotationResult):
        raise ConveyorError(
            "the rotation was stopped before the end; both keys are kept: repeat the command"
        )
    if not as_json:
        output.facts(
            [("re-encrypted", rotated.reencrypted), ("unreadable", len(rotated.unreadable))]
        )
    if not rotated.old_key_removed:
        named = ", ".join(map(output.plain, rotated.unreadable[:20]))
        output.complain(f"{NOT_DECRYPTED}{named}")
        raise typer.Exit(LEFT_UNDONE)
    if rotated.retired_for and not as_json:
        hours = rotated.retired_for.total_seconds() / 3600
        output.note(f"The old key decrypts for another {hours:g} h; then a worker drops it.")


def _told(event: "RotationProgress | RotationWait") -> str:
    from conveyor.domain.credentials import RotationProgress  # noqa: PLC0415

    if isinstance(event, RotationProgress):
        return f"{event.kind}: {event.examined} examined, {event.reencrypted} re-encrypted"
    if not event.processes:
        return "waiting a minute before the last pass, because listings may lag"
    what = "load the new key" if event.until == "load" else "encrypt with the new key alone"
    return f"waiting for processes to {what}: {', '.join(map(output.plain, event.processes))}"


def _check_new_key(wanted: "NewKey") -> None:
    from conveyor.domain.api_key import check_new_key  # noqa: PLC0415

    try:
        check_new_key(wanted, datetime.now(UTC))
    except InvalidArgument as error:
        raise RefusedToStart(error.detail) from None


def _facts(key: "ApiKeyInfo") -> list[tuple[str, object]]:
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
    """Not as an argument: every user of the machine can see those."""
    if variable is not None:
        found = os.environ.get(variable)
        if not found:
            raise RefusedToStart(
                f"--gateway-key-from-env: the variable {variable} must not be empty"
            )
        return found
    if not ask:
        return None
    if sys.stdin.isatty():
        asked: str = typer.prompt("Gateway key", hide_input=True, err=True)
        return asked.strip()
    return sys.stdin.readline().strip()


def _moment(text: str) -> datetime:
    from conveyor.settings_loader import DURATION, UNITS  # noqa: PLC0415

    now = datetime.now(UTC)
    try:
        if found := DURATION.fullmatch(text):
            return now + timedelta(seconds=float(found[1]) * UNITS[found[2] or "s"])
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise RefusedToStart(
            f"--expires must be a duration like 12h or 90d, or a day like 2027-01-31, got {text!r}"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
