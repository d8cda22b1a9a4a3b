"""The keys that a caller's notifications are signed with: one in use, one about to be."""

from datetime import datetime

import msgspec

from conveyor.domain.ids import CallerId


class SigningKey(msgspec.Struct, frozen=True, kw_only=True):
    kid: str  # a ULID
    sealed_secret: bytes  # base64 of 32 bytes, sealed for its caller and kid
    created_at: datetime


class SigningKeys(msgspec.Struct, frozen=True, kw_only=True):
    """A caller's two slots."""

    id: CallerId
    active: SigningKey | None = None
    candidate: SigningKey | None = None
    version: int = 0
