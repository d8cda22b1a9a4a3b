"""How many tasks of live runs are in flight or wait for a retry, for steps that show runs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.counts import OpenCounts
from conveyor.domain.ids import RunId
from conveyor.domain.run import Run
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.tasks import Tasks

FindOpenCounts = Callable[[Sequence[Run]], Awaitable[Mapping[RunId, OpenCounts]]]
PATIENCE = timedelta(milliseconds=500)  # with the engine
SHARED_FOR = timedelta(milliseconds=250)  # as counts are
MOST_KNOWN = 10_000  # runs


async def find_no_open_counts(_runs: Sequence[Run]) -> Mapping[RunId, OpenCounts]:
    """Return no figures: for steps that show none."""
    return {}


@dataclass(slots=True, kw_only=True)
class OpenCountReader:
    """Reads the figures of live runs. All who ask for a run within a moment share one read."""

    tasks: Tasks
    clock: Clock
    known: dict[RunId, tuple[float, OpenCounts | None]] = field(default_factory=dict)
    reading: dict[RunId, asyncio.Event] = field(default_factory=dict)  # set when the read has ended

    async def find(self, runs: Sequence[Run]) -> Mapping[RunId, OpenCounts]:
        """Return the figures of those runs that are live and that the engine can count in time."""
        live = [run.id for run in runs if run.is_live]
        fresh_from = self.clock.monotonic() - SHARED_FOR.total_seconds()
        under_way = [self.reading[one] for one in live if one in self.reading]
        old = [
            one for one in live if one not in self.reading and not self._is_known(one, fresh_from)
        ]
        if old:
            await self._read(old)
        for read in under_way:
            await read.wait()
        found = {one: self.known[one][1] for one in live if self._is_known(one, fresh_from)}
        return {one: counts for one, counts in found.items() if counts}

    def _is_known(self, run_id: RunId, fresh_from: float) -> bool:
        return run_id in self.known and self.known[run_id][0] >= fresh_from

    async def _read(self, run_ids: Sequence[RunId]) -> None:
        """Read for all who ask meanwhile. If this request is cancelled, they get no figures."""
        ended = asyncio.Event()
        self.reading |= dict.fromkeys(run_ids, ended)
        found: Mapping[RunId, OpenCounts] = {}
        try:
            with suppress(Unavailable, TimeoutError):  # a run can be shown without them
                async with asyncio.timeout(PATIENCE.total_seconds()):
                    found = await self.tasks.open_counts(run_ids)
            if len(self.known) > MOST_KNOWN:
                self.known.clear()
            now = self.clock.monotonic()
            self.known |= {one: (now, found.get(one)) for one in run_ids}
        finally:
            for one in run_ids:
                del self.reading[one]
            ended.set()
