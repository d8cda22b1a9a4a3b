"""Encryption keys that all processes share: one record, with each key wrapped by the root key.

The state of a key during a rotation, and which processes use it:

| state | decrypts | encrypts | until |
|---|---|---|---|
| published | yes | no | every live process has loaded it |
| current | yes | yes | the next rotation |
| old | yes | no | everything is encrypted with the current key |
| retired | yes | no | a day later, when a last pass finds nothing under it; then it is dropped |

At most one key is published. A rotation that was begun has a published or an old key.
"""

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from conveyor.errors import Conflict

RECORD = "encryption"  # the id of the only record
RETIRED_FOR = timedelta(days=1)


class KeyState(StrEnum):
    PUBLISHED = "published"
    CURRENT = "current"
    OLD = "old"
    RETIRED = "retired"


class DataKey(msgspec.Struct, frozen=True, kw_only=True):
    fingerprint: str
    wrapped: bytes
    state: KeyState
    created_at: datetime
    retired_at: datetime | None = None


class EncryptionKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys, and which root key wraps them."""

    id: str
    root: str  # fingerprint of the root key
    provider: str = ""  # the setting of KMS, if KMS wraps the root key
    wrapped_root: bytes = b""  # by KMS; empty if each process is given the root key
    keys: tuple[DataKey, ...]
    wrapped_link_secret: bytes  # signs links to results
    version: int = 0

    @property
    def current(self) -> DataKey:
        return next(key for key in self.keys if key.state is KeyState.CURRENT)


def next_key(record: EncryptionKeys) -> DataKey | None:
    """The key that the rotation under way makes current; None if none is under way."""
    for key in record.keys:
        if key.state is KeyState.PUBLISHED:
            return key
    has_old = any(key.state is KeyState.OLD for key in record.keys)
    return record.current if has_old else None


def published(record: EncryptionKeys, new: DataKey) -> EncryptionKeys:
    """Begin a rotation with a new key, unless one is under way."""
    if next_key(record):
        return record
    return msgspec.structs.replace(record, keys=(*record.keys, new))


def promoted(record: EncryptionKeys, fingerprint: str) -> EncryptionKeys:
    """Make the published key current, unless it is already."""
    found = _key(record, fingerprint)
    if found.state is KeyState.CURRENT:
        return record
    if found.state is not KeyState.PUBLISHED:
        raise Conflict("Another rotation has replaced the key of this one: repeat the command")
    states = {KeyState.PUBLISHED: KeyState.CURRENT, KeyState.CURRENT: KeyState.OLD}
    return _with_states(record, states)


def retired(record: EncryptionKeys, fingerprint: str, now: datetime) -> EncryptionKeys:
    """Retire the keys before the current one; nothing is encrypted with them.

    A record with another current key is left alone: a later rotation has begun.
    """
    if record.current.fingerprint != fingerprint:
        return record
    keys = tuple(
        msgspec.structs.replace(key, state=KeyState.RETIRED, retired_at=now)
        if key.state in {KeyState.OLD, KeyState.RETIRED}
        else key
        for key in record.keys
    )
    return msgspec.structs.replace(record, keys=keys)


def expired(record: EncryptionKeys, now: datetime) -> tuple[DataKey, ...]:
    """The keys that were retired long enough ago to be dropped."""
    return tuple(
        key for key in record.keys if key.retired_at and key.retired_at + RETIRED_FOR <= now
    )


def without_expired(record: EncryptionKeys, now: datetime) -> EncryptionKeys:
    gone = expired(record, now)
    if not gone:
        return record
    return msgspec.structs.replace(
        record, keys=tuple(key for key in record.keys if key not in gone)
    )


def _key(record: EncryptionKeys, fingerprint: str) -> DataKey:
    for key in record.keys:
        if key.fingerprint == fingerprint:
            return key
    raise Conflict("The key of this rotation was dropped: repeat the command")


def _with_states(record: EncryptionKeys, states: dict[KeyState, KeyState]) -> EncryptionKeys:
    keys = tuple(
        msgspec.structs.replace(key, state=states.get(key.state, key.state)) for key in record.keys
    )
    return msgspec.structs.replace(record, keys=keys)
