"""Keys that this service gave out. They are written by `Metadata.commit`."""

from collections.abc import Sequence
from typing import Protocol

from conveyor.domain.api_key import ApiKey
from conveyor.domain.ids import KeyId


class ApiKeys(Protocol):
    """Raises `Unavailable`."""

    async def find(self, key_id: KeyId) -> ApiKey | None: ...

    async def page(self, *, limit: int, after: str = "") -> Sequence[ApiKey]:
        """Keys in order of id, from above `after`."""
        ...
