"""Slots for lists in memory."""

from collections.abc import Sequence

from conveyor.adapters.memory.metadata import MemoryMetadata
from conveyor.domain.file_input import FileInput
from conveyor.domain.ids import InputId


class MemoryInputs:
    def __init__(self, metadata: MemoryMetadata) -> None:
        self._slots = metadata.inputs

    async def find(self, name: InputId) -> FileInput | None:
        return self._slots.get(name)

    async def page(self, *, limit: int, after: str = "") -> Sequence[FileInput]:
        return [self._slots[name] for name in sorted(self._slots) if name > after][:limit]
