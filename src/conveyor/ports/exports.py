"""Exports under way and done. They are written by `Metadata.commit`."""

from collections.abc import Sequence
from typing import Protocol

from conveyor.domain.export import Export
from conveyor.domain.ids import ExportId, RunId


class Exports(Protocol):
    """Raises `Unavailable`."""

    async def find(self, name: ExportId) -> Export | None: ...

    async def of_run(self, run_id: RunId) -> Sequence[Export]:
        """All exports of a run, in order of id."""
        ...

    async def page(self, *, limit: int, after: str = "") -> Sequence[Export]:
        """Exports in order of id, from above `after`."""
        ...
