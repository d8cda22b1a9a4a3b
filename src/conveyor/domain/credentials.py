"""Encrypted credentials in rows: which rows hold them, and the context of each.

A credential can be decrypted in its own row only: its context names the caller and the row.
"""

from collections.abc import Callable
from functools import singledispatch
from typing import TypeVar, cast

import msgspec

from conveyor.domain import signing
from conveyor.domain.api_key import ApiKey
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


class RotationResult(msgspec.Struct, frozen=True, tag_field="event", tag="rotated"):
    """The result of a rotation. While a row is unreadable the old key is kept, unless forced."""

    reencrypted: int
    unreadable: tuple[str, ...]
    old_key_removed: bool


def context(caller: str, name: str) -> str:
    return f"{caller}|{name}"


def reencrypted(row: H, reencrypt: Reencrypt) -> H:
    """Return the row with each credential re-encrypted; the same object when none changed."""
    return cast("H", _reencrypted(row, reencrypt))


@singledispatch
def _reencrypted(row: object, _reencrypt: Reencrypt) -> object:
    return row


@_reencrypted.register
def _job(job: Job, reencrypt: Reencrypt) -> Job:
    new = _replaced(job.encrypted_key, context(job.caller, job.id), reencrypt)
    return job if new == job.encrypted_key else msgspec.structs.replace(job, encrypted_key=new)


@_reencrypted.register
def _run(run: Run, reencrypt: Reencrypt) -> Run:
    new = _replaced(run.encrypted_token, token_context(run.caller, run.id), reencrypt)
    return run if new == run.encrypted_token else msgspec.structs.replace(run, encrypted_token=new)


@_reencrypted.register
def _api_key(key: ApiKey, reencrypt: Reencrypt) -> ApiKey:
    old = key.encrypted_gateway_key or b""
    new = _replaced(old, context(key.caller, key.id), reencrypt)
    return key if new == old else msgspec.structs.replace(key, encrypted_gateway_key=new)


@_reencrypted.register
def _event(event: OutboxEvent, reencrypt: Reencrypt) -> OutboxEvent:
    new = _replaced(event.encrypted_token, token_context(event.caller, event.run_id), reencrypt)
    same = new == event.encrypted_token
    return event if same else msgspec.structs.replace(event, encrypted_token=new)


@_reencrypted.register
def _signing_keys(keys: SigningKeys, reencrypt: Reencrypt) -> SigningKeys:
    active = _key(keys, keys.active, reencrypt)
    candidate = _key(keys, keys.candidate, reencrypt)
    same = active is keys.active and candidate is keys.candidate
    return keys if same else msgspec.structs.replace(keys, active=active, candidate=candidate)


def _key(keys: SigningKeys, key: SigningKey | None, reencrypt: Reencrypt) -> SigningKey | None:
    if key is None:
        return None
    new = _replaced(key.encrypted_secret, signing.context(keys.id, key.kid), reencrypt)
    same = new == key.encrypted_secret
    return key if same else msgspec.structs.replace(key, encrypted_secret=new)


def _replaced(encrypted: bytes, where: str, reencrypt: Reencrypt) -> bytes:
    return reencrypt(encrypted, where) if encrypted else encrypted
