"""API keys: the caller, scopes and expiry of each.

A key is `cvk_<id>_<secret>`. Only a digest of the whole key is stored.
"""

import hashlib
import re
from datetime import datetime
from enum import StrEnum

import msgspec

from conveyor.domain.ids import ApiKeyId, CallerId
from conveyor.domain.json_bodies import field_error

PREFIX = "cvk_"
FORM = re.compile(PREFIX + r"([0-7][0-9A-HJKMNP-TV-Z]{25})_[0-9A-Za-z]{32}", re.ASCII)
CALLER = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f]{0,100}")
GATEWAY_KEY = re.compile(r"[\x21-\x7e]{1,512}", re.ASCII)


class Scope(StrEnum):
    READ = "read"
    WRITE = "write"
    OPERATOR = "operator"  # to see and act on the jobs of all callers


class KeyStatus(StrEnum):
    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


OWN_JOBS = (Scope.READ, Scope.WRITE)  # of one caller
EVERYTHING = (*OWN_JOBS, Scope.OPERATOR)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key as it is stored. A caller may have several."""

    id: ApiKeyId
    caller: CallerId
    digest: bytes  # SHA-256 of the whole key
    created_at: datetime
    name: str = ""
    scopes: tuple[Scope, ...] = OWN_JOBS
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    encrypted_gateway_key: bytes | None = None  # None: that of the settings
    version: int = 0


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to create; without `caller` it belongs to a new caller."""

    caller: str | None = None
    name: str = ""
    read_only: bool = False
    operator: bool = False
    expires_at: datetime | None = None
    gateway_key: str | None = None

    @property
    def scopes(self) -> tuple[Scope, ...]:
        own = (Scope.READ,) if self.read_only else OWN_JOBS
        return (*own, Scope.OPERATOR) if self.operator else own


def written(key_id: ApiKeyId, secret: str) -> str:
    """Return the key as callers send it."""
    return f"cvk_{key_id}_{secret}"


def id_in(key: str) -> ApiKeyId | None:
    """Return the id in a key; None when the text is no key."""
    found = FORM.fullmatch(key)
    return ApiKeyId(found[1]) if found else None


def digest(key: str) -> bytes:
    """Hash a key. A fast hash is enough for a random secret of 190 bits."""
    return hashlib.sha256(key.encode()).digest()


def status(key: ApiKey, now: datetime) -> KeyStatus:
    if key.revoked_at is not None:
        return KeyStatus.REVOKED
    over = key.expires_at is not None and key.expires_at <= now
    return KeyStatus.EXPIRED if over else KeyStatus.ACTIVE


def revoke(key: ApiKey, now: datetime) -> ApiKey:
    """Revoke a key and remove its gateway key."""
    return msgspec.structs.replace(
        key, revoked_at=key.revoked_at or now, encrypted_gateway_key=None
    )


def check_new_key(new: NewKey, now: datetime) -> None:
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
