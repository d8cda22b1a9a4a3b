"""What a caller has under way: asked when there are limits on it."""

from collections.abc import Sequence
from typing import Protocol

from conveyor.domain.ids import CallerId
from conveyor.domain.run import Run


class Census(Protocol):
    """Reads over all that is one caller's. Raises `Unavailable`."""

    async def live_runs(self, caller: CallerId) -> Sequence[Run]:
        """Every run of the caller's that is live, in order of id."""
        ...

    async def scheduled_jobs(self, caller: CallerId) -> int:
        """How many of the caller's jobs are scheduled and not deleted, paused ones too."""
        ...

    async def open_slots(self, caller: CallerId) -> int:
        """How many of the caller's slots no job uses; expired ones count until they are removed."""
        ...

    async def open_exports(self, caller: CallerId) -> int:
        """How many of the caller's exports are pending or running."""
        ...
