"""Unfinished files in a folder that processes share: those of dead processes are removed.

The name of such a file contains the incarnation of the process that writes it, and the members tell
whether that is alive. A process that is cut off from coordination looks dead, and goes on writing.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from conveyor.ports.clock import Clock

# Time without a write after which the file of a dead process is removed.
QUIET = timedelta(minutes=10)
LONGEST_WRITE = timedelta(days=1)  # the same if it is not known whether the process is alive

IsAbandoned = Callable[[str, datetime], bool]  # by its process and the time of its last write


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedFiles:
    clock: Clock
    is_alive: Callable[[str], bool | None]  # of an incarnation; None if that is not known
    removers: Sequence[Callable[[IsAbandoned], None]]  # one for each folder

    async def step(self) -> None:
        """Look at all unfinished files once."""
        for remove in self.removers:
            await asyncio.to_thread(remove, self._is_abandoned)

    def _is_abandoned(self, incarnation: str, written_at: datetime) -> bool:
        alive = self.is_alive(incarnation)
        quiet_for = self.clock.now() - written_at
        return not alive and quiet_for >= (LONGEST_WRITE if alive is None else QUIET)
