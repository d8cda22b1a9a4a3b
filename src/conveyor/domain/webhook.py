"""Where a job's caller wants to be told of its runs."""

from datetime import datetime

import msgspec


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    signature: bool = False
    disabled_at: datetime | None = None  # the receiver said that it is gone for good
