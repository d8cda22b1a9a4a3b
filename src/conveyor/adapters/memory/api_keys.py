"""Keys that this service gave out, in memory."""

from collections.abc import Sequence

from conveyor.adapters.memory.metadata import MemoryMetadata
from conveyor.domain.api_key import ApiKey
from conveyor.domain.ids import KeyId


class MemoryApiKeys:
    def __init__(self, metadata: MemoryMetadata) -> None:
        self._keys = metadata.api_keys

    async def find(self, key_id: KeyId) -> ApiKey | None:
        return self._keys.get(key_id)

    async def page(self, *, limit: int, after: str = "") -> Sequence[ApiKey]:
        return [self._keys[name] for name in sorted(self._keys) if name > after][:limit]
