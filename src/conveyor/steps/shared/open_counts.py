"""How many tasks of live runs are in flight or wait for a retry, for steps that show runs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.counts import OpenCounts
from conveyor.domain.ids import RunId
from conveyor.domain.run import Run
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.tasks import Tasks

FindOpenCounts = Callable[[Sequence[Run]], Awaitable[Mapping[RunId, OpenCounts]]]
SHARED_FOR = timedelta(milliseconds=250)  # as counts are
MOST_KNOWN = 10_000  # runs


async def find_no_open_counts(_runs: Sequence[Run]) -> Mapping[RunId, OpenCounts]:
    """Return no figures, where nobody sees them."""
    return {}


@dataclass(slots=True, kw_only=True)
class OpenCountReader:
    """Reads the figures of live runs. All who ask within a moment share one read."""

    tasks: Tasks
    clock: Clock
    known: dict[RunId, tuple[float, OpenCounts | None]] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def find(self, runs: Sequence[Run]) -> Mapping[RunId, OpenCounts]:
        """Return the figures of those runs that are live and that the engine can count."""
        live = [run.id for run in runs if run.is_live]
        if not live:
            return {}
        async with self.lock:
            now = self.clock.monotonic()
            fresh_from = now - SHARED_FOR.total_seconds()
            old = [one for one in live if one not in self.known or self.known[one][0] < fresh_from]
            if old:
                read = await self._read(old)
                if len(self.known) > MOST_KNOWN:
                    self.known.clear()
                self.known |= {one: (now, read.get(one)) for one in old}
            found = {one: self.known[one][1] for one in live if one in self.known}
        return {one: counts for one, counts in found.items() if counts}

    async def _read(self, run_ids: Sequence[RunId]) -> Mapping[RunId, OpenCounts]:
        try:
            return await self.tasks.open_counts(run_ids)
        except Unavailable:
            return {}  # a run can be shown without them
