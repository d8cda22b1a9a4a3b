"""Keys that this service gave out: who may call, what for, and until when."""

from datetime import datetime
from enum import StrEnum

import msgspec

from conveyor.domain.ids import CallerId, KeyId


class Scope(StrEnum):
    READ = "read"
    WRITE = "write"


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is kept: of its secret there is only a digest. Several may be one caller's."""

    id: KeyId
    caller: CallerId
    digest: bytes  # SHA-256 of the whole key
    created_at: datetime
    name: str = ""
    scopes: tuple[Scope, ...] = (Scope.READ, Scope.WRITE)
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    sealed_gateway_key: bytes | None = None  # sealed for its caller and id; None: the settings' one
    version: int = 0
