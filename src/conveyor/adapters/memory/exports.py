"""Exports in memory."""

from collections.abc import Sequence

from conveyor.adapters.memory.metadata import MemoryMetadata
from conveyor.domain.export import Export
from conveyor.domain.ids import ExportId, RunId


class MemoryExports:
    def __init__(self, metadata: MemoryMetadata) -> None:
        self._exports = metadata.exports

    async def find(self, name: ExportId) -> Export | None:
        return self._exports.get(name)

    async def of_run(self, run_id: RunId) -> Sequence[Export]:
        return [
            self._exports[name]
            for name in sorted(self._exports)
            if self._exports[name].run_id == run_id
        ]

    async def page(self, *, limit: int, after: str = "") -> Sequence[Export]:
        return [self._exports[name] for name in sorted(self._exports) if name > after][:limit]
