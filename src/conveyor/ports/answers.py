"""Answers kept for repeated calls. They are written by `Metadata.commit`, beside their effect."""

from typing import Protocol

from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import CallerId


class Answers(Protocol):
    """Raises `Unavailable`."""

    async def replay(self, caller: CallerId, key: str) -> IdempotencyRecord | None:
        """The unexpired claim on an idempotency key."""
        ...

    async def clear_expired(self, *, limit: int) -> int:
        """Remove up to `limit` expired claims, and say how many went."""
        ...
