"""Callers' signing keys in memory."""

from collections.abc import Sequence

from conveyor.adapters.memory.metadata import MemoryMetadata
from conveyor.domain.ids import CallerId
from conveyor.domain.signing import SigningKeys


class MemorySigningKeys:
    def __init__(self, metadata: MemoryMetadata) -> None:
        self._slots = metadata.signing_keys

    async def find(self, caller: CallerId) -> SigningKeys | None:
        return self._slots.get(caller)

    async def page(self, *, limit: int, after: str = "") -> Sequence[SigningKeys]:
        return [self._slots[name] for name in sorted(self._slots) if name > after][:limit]
