"""Keys that this service gives out: who may call, what for, and until when.

A key is `cvk_<id>_<secret>`. Of the secret nothing is kept but a digest of the whole.
"""

import hashlib
import re
from datetime import datetime
from enum import StrEnum

import msgspec

from conveyor.domain.ids import CallerId, KeyId
from conveyor.domain.json_errors import field_error

FORM = re.compile(r"cvk_([0-7][0-9A-HJKMNP-TV-Z]{25})_[0-9A-Za-z]{32}", re.ASCII)
CALLER = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f]{0,100}")
GATEWAY_KEY = re.compile(r"[\x21-\x7e]{1,512}", re.ASCII)


class Scope(StrEnum):
    READ = "read"
    WRITE = "write"


class KeyStatus(StrEnum):
    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


EVERYTHING = (Scope.READ, Scope.WRITE)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is kept: of its secret there is only a digest. Several may be one caller's."""

    id: KeyId
    caller: CallerId
    digest: bytes  # SHA-256 of the whole key
    created_at: datetime
    name: str = ""
    scopes: tuple[Scope, ...] = EVERYTHING
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    encrypted_gateway_key: bytes | None = (
        None  # encrypted for its caller and id; None: the settings' one
    )
    version: int = 0


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator asks for; without a caller it is a new caller's."""

    caller: str | None = None
    name: str = ""
    read_only: bool = False
    expires_at: datetime | None = None
    gateway_key: str | None = None

    @property
    def scopes(self) -> tuple[Scope, ...]:
        return (Scope.READ,) if self.read_only else EVERYTHING


def written(key_id: KeyId, secret: str) -> str:
    """The key as its caller sends it."""
    return f"cvk_{key_id}_{secret}"


def id_in(key: str) -> KeyId | None:
    """The id that a key names; None when the text is no key."""
    found = FORM.fullmatch(key)
    return KeyId(found[1]) if found else None


def digest(key: str) -> bytes:
    """A fast hash is right here: nobody guesses a random secret of 190 bits."""
    return hashlib.sha256(key.encode()).digest()


def status(key: ApiKey, now: datetime) -> KeyStatus:
    if key.revoked_at is not None:
        return KeyStatus.REVOKED
    over = key.expires_at is not None and key.expires_at <= now
    return KeyStatus.EXPIRED if over else KeyStatus.ACTIVE


def revoke(key: ApiKey, now: datetime) -> ApiKey:
    """The key when it opens nothing any more: the credential that was kept for it goes too."""
    return msgspec.structs.replace(
        key, revoked_at=key.revoked_at or now, encrypted_gateway_key=None
    )


def check(new: NewKey, now: datetime) -> None:
    if new.caller is not None and not CALLER.fullmatch(new.caller):
        raise field_error(
            "caller",
            f"must be 1 to 64 letters, digits, dots, dashes or underscores, got {new.caller[:80]!r}",
        )
    if not NAME.fullmatch(new.name):
        raise field_error(
            "name", f"must be at most 100 characters on one line, got {len(new.name)} characters"
        )
    if new.expires_at is not None and new.expires_at.tzinfo is None:
        raise field_error("expires_at", f"must have a time zone, got {new.expires_at}")
    if new.expires_at is not None and new.expires_at <= now:
        raise field_error("expires_at", f"must be in the future, got {new.expires_at}")
    if new.gateway_key is not None and not GATEWAY_KEY.fullmatch(new.gateway_key):
        raise field_error(
            "gateway_key", "must be 1 to 512 ASCII characters without spaces, got others"
        )
