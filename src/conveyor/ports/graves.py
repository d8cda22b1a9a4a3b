"""Duties that were buried: for a person to look at, and to revive or drop."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec


class BuriedDuty(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    about: Mapping[str, str]
    reason: str
    buried_at: datetime


class Graves(Protocol):
    """What `Duties.bury` put aside. Nothing leaves by itself. Raises `Unavailable`."""

    async def buried(self, *, limit: int, after: str = "") -> Sequence[BuriedDuty]:
        """Buried duties in order of id, from above `after`."""
        ...

    async def find(self, duty_id: str) -> BuriedDuty | None: ...

    async def revive(self, duty_id: str) -> bool:
        """Let a buried duty be due again, as one that was just sent; say whether it was there.

        It gets a new id, so that no delivery from before its burial can touch it. If a message of
        its kind and subject is live, that one does the work, and this one is gone.
        """
        ...

    async def drop(self, duty_id: str) -> bool:
        """Forget a buried duty for good, and say whether it was there."""
        ...
