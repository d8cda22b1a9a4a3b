"""Which rows hold encrypted credentials, and what each is encrypted for.

A credential opens in its own place only: its context names the caller and the row.
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

# A encrypted value and its context become what is to stand in its place.
Turn = Callable[[bytes, str], bytes]
CredentialRow = Job | Run | SigningKeys | ApiKey | OutboxEvent
H = TypeVar("H")


class RotationProgress(msgspec.Struct, frozen=True, tag_field="event", tag="progress"):
    """How far a change of the encryption key has come."""

    kind: str  # of rows: jobs, runs, signing_keys, api_keys, events
    examined: int
    reencrypted: int


class RotationResult(msgspec.Struct, frozen=True, tag_field="event", tag="rotated"):
    """What came of it. While anything is unreadable the old key stays, unless it was forced."""

    reencrypted: int
    unreadable: tuple[str, ...]
    old_key_removed: bool


def context(caller: str, name: str) -> str:
    return f"{caller}|{name}"


def reencrypted(row: H, turn: Turn) -> H:
    """The row with each credential in it turned; the very row when none of them changed."""
    return cast("H", _reencrypted(row, turn))


@singledispatch
def _reencrypted(row: object, _turn: Turn) -> object:
    return row


@_reencrypted.register
def _job(job: Job, turn: Turn) -> Job:
    fresh = _turned(job.encrypted_key, context(job.caller, job.id), turn)
    return job if fresh == job.encrypted_key else msgspec.structs.replace(job, encrypted_key=fresh)


@_reencrypted.register
def _run(run: Run, turn: Turn) -> Run:
    fresh = _turned(run.encrypted_token, token_context(run.caller, run.id), turn)
    return (
        run if fresh == run.encrypted_token else msgspec.structs.replace(run, encrypted_token=fresh)
    )


@_reencrypted.register
def _api_key(key: ApiKey, turn: Turn) -> ApiKey:
    old = key.encrypted_gateway_key or b""
    fresh = _turned(old, context(key.caller, key.id), turn)
    return key if fresh == old else msgspec.structs.replace(key, encrypted_gateway_key=fresh)


@_reencrypted.register
def _event(event: OutboxEvent, turn: Turn) -> OutboxEvent:
    fresh = _turned(event.encrypted_token, token_context(event.caller, event.run_id), turn)
    same = fresh == event.encrypted_token
    return event if same else msgspec.structs.replace(event, encrypted_token=fresh)


@_reencrypted.register
def _signing_keys(slots: SigningKeys, turn: Turn) -> SigningKeys:
    active = _slot(slots, slots.active, turn)
    candidate = _slot(slots, slots.candidate, turn)
    same = active is slots.active and candidate is slots.candidate
    return slots if same else msgspec.structs.replace(slots, active=active, candidate=candidate)


def _slot(slots: SigningKeys, key: SigningKey | None, turn: Turn) -> SigningKey | None:
    if key is None:
        return None
    fresh = _turned(key.encrypted_secret, signing.context(slots.id, key.kid), turn)
    same = fresh == key.encrypted_secret
    return key if same else msgspec.structs.replace(key, encrypted_secret=fresh)


def _turned(encrypted: bytes, where: str, turn: Turn) -> bytes:
    return turn(encrypted, where) if encrypted else encrypted
