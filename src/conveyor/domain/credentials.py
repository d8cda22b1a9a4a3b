"""Encrypted credentials in rows: which rows hold them, and the context of each.

A credential can be decrypted in its own row only: its context names the caller and the row.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar, cast

import msgspec

from conveyor.domain import signing
from conveyor.domain.api_key import ApiKey
from conveyor.domain.ids import CallerId
from conveyor.domain.job import Job
from conveyor.domain.outbox import OutboxEvent
from conveyor.domain.run import Run
from conveyor.domain.signing import SigningKey, SigningKeys
from conveyor.domain.step_functions import token_context

# Takes an encrypted value and its context, returns what replaces it.
Reencrypt = Callable[[bytes, str], bytes]
CredentialRow = Job | Run | SigningKeys | ApiKey | OutboxEvent
H = TypeVar("H")


class RotationProgress(msgspec.Struct, frozen=True, tag_field="event", tag="progress"):
    """How far a pass of the rotation has come with one kind of rows."""

    kind: str  # jobs, runs, signing_keys, api_keys or events
    examined: int
    reencrypted: int


class RotationWait(msgspec.Struct, frozen=True, tag_field="event", tag="waiting"):
    """What a rotation waits for."""

    until: str  # processes `load` the new key, `use` it, or listings `settle`
    processes: tuple[str, ...]  # that have not yet


class RotationResult(msgspec.Struct, frozen=True, tag_field="event", tag="rotated"):
    """The result of a rotation. While a row is unreadable the old key is kept, unless forced."""

    reencrypted: int
    unreadable: tuple[str, ...]
    old_key_removed: bool  # or retired, where processes share the keys
    retired_for: timedelta = timedelta()  # for which a retired key still decrypts


RotationEvent = RotationProgress | RotationWait | RotationResult


def context(caller: str, name: str) -> str:
    return f"{caller}|{name}"


def reencrypted(row: H, reencrypt: Reencrypt) -> H:
    """Return the row with each credential re-encrypted; the same object when none changed."""
    changes: dict[str, object] = {}
    match row:
        case Job():
            changes["encrypted_gateway_key"] = _replaced(
                row.encrypted_gateway_key, context(row.caller, row.id), reencrypt
            )
        case Run(id=run_id) | OutboxEvent(run_id=run_id):
            where = token_context(row.caller, run_id)
            changes["encrypted_token"] = _replaced(row.encrypted_token, where, reencrypt)
        case ApiKey():
            changes["encrypted_gateway_key"] = _replaced(
                row.encrypted_gateway_key, context(row.caller, row.id), reencrypt
            )
        case SigningKeys():
            changes["active"] = _signing_key(row.id, row.active, reencrypt)
            changes["candidate"] = _signing_key(row.id, row.candidate, reencrypt)
    if all(getattr(row, name) == new for name, new in changes.items()):
        return row
    return cast("H", msgspec.structs.replace(cast("msgspec.Struct", row), **changes))


def _signing_key(
    caller: CallerId, key: SigningKey | None, reencrypt: Reencrypt
) -> SigningKey | None:
    if key is None:
        return None
    new = _replaced(key.encrypted_secret, signing.context(caller, key.kid), reencrypt)
    return msgspec.structs.replace(key, encrypted_secret=new)


E = TypeVar("E", bytes, bytes | None)


def _replaced(encrypted: E, where: str, reencrypt: Reencrypt) -> E:
    return reencrypt(encrypted, where) if encrypted else encrypted
