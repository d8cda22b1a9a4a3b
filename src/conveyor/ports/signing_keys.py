"""Callers' signing keys. They are written by `Metadata.commit`."""

from collections.abc import Sequence
from typing import Protocol

from conveyor.domain.ids import CallerId
from conveyor.domain.signing import SigningKeys as Slots


class SigningKeys(Protocol):
    """Raises `Unavailable`."""

    async def find(self, caller: CallerId) -> Slots | None: ...

    async def page(self, *, limit: int, after: str = "") -> Sequence[Slots]:
        """Callers' slots in order of caller, from above `after`."""
        ...
