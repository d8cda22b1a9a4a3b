"""Slots for lists. They are written by `Metadata.commit`, beside the jobs that read them."""

from collections.abc import Sequence
from typing import Protocol

from conveyor.domain.file_input import FileInput
from conveyor.domain.ids import InputId


class Inputs(Protocol):
    """Raises `Unavailable`."""

    async def find(self, name: InputId) -> FileInput | None: ...

    async def page(self, *, limit: int, after: str = "") -> Sequence[FileInput]:
        """Slots in order of id, from above `after`."""
        ...
