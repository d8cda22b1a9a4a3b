"""Idempotency records: the stored response to the first call with an idempotency key."""

from datetime import datetime, timedelta

import msgspec

from conveyor.domain.ids import CallerId

IDEMPOTENCY_LIFE = timedelta(hours=24)


class IdempotencyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The response to the first call with a key; repeated calls get the same bytes."""

    caller: CallerId
    key: str
    fingerprint: bytes
    status: int
    body: bytes
    expires_at: datetime
