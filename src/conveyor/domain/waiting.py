"""Why a live run makes no progress, although it is not paused."""

from datetime import datetime
from enum import StrEnum

import msgspec


class WaitReason(StrEnum):
    GATEWAY_UNAVAILABLE = "gateway_unavailable"
    API_KEY_REFUSED = "api_key_refused"
    STORAGE_FULL = "storage_full"


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run waits for. Its tasks are not charged meanwhile."""

    reason: WaitReason
    since: datetime
    detail: str
    next_attempt_at: datetime | None = None  # unknown when there is no task to try with
