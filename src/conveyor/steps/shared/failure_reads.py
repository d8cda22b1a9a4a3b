"""The failures of runs by group, with an example of each group."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.failure_groups import FailureExample, FailureGroup, failure_example
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.run import Run
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.tasks import Tasks
from conveyor.steps.shared.task_reads import tasks_by_id

FoundFailures = tuple[Sequence[FailureGroup], Mapping[TaskId, FailureExample]]
FindFailures = Callable[[Run, int], Awaitable[FoundFailures]]
SHARED_FOR = timedelta(seconds=1)
MOST_SHARED = 20  # readings: one may take a megabyte, and they are kept until the next request


@dataclass(slots=True, eq=False)
class _FailureReading:
    """A reading that is under way, or was made a moment ago."""

    began: float
    is_done: asyncio.Event = field(default_factory=asyncio.Event)
    found: FoundFailures | None = None  # None if it failed, or if its request was cancelled
    error: Unavailable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReader:
    """Reads the groups of a run and the examples of the first of them.

    One reading takes a read for each example, and pages that show a live run ask for it again and
    again. So all who ask for a live run within a second share one. A run that ends has another
    version: its last failures are never missing.
    """

    tasks: Tasks
    clock: Clock
    count: Callable[[int], None]  # rows that were read
    readings: dict[tuple[RunId, int, int], _FailureReading] = field(default_factory=dict)

    async def find(self, run: Run, limit: int) -> FoundFailures:
        """Return the groups of a run, with the examples of the first `limit` groups."""
        if not run.is_live:
            return await self._read(run.id, limit)
        key = run.id, run.version, limit
        self._forget()
        while known := self.readings.get(key):
            await known.is_done.wait()
            if known.error:  # not tried again by everyone who waited
                raise known.error
            if known.found:
                return known.found
        return await self._read_for_all(key)

    async def _read_for_all(self, key: tuple[RunId, int, int]) -> FoundFailures:
        mine = self.readings[key] = _FailureReading(self.clock.monotonic())
        run_id, _, limit = key
        try:
            mine.found = await self._read(run_id, limit)
        except Unavailable as error:
            mine.error = error
            raise
        finally:
            if mine.found is None:
                del self.readings[key]
            mine.is_done.set()
        return mine.found

    def _forget(self) -> None:
        """Remove the readings that are too old, and all that are done if there are too many."""
        fresh_from = self.clock.monotonic() - SHARED_FOR.total_seconds()
        too_many = len(self.readings) > MOST_SHARED
        for key, reading in list(self.readings.items()):
            if reading.found and (too_many or reading.began < fresh_from):
                del self.readings[key]

    async def _read(self, run_id: RunId, limit: int) -> FoundFailures:
        groups = await self.tasks.failure_groups(run_id)
        ids = [group.example for group in groups[:limit]]
        examples = dict[TaskId, FailureExample]()
        async for some in tasks_by_id(self.tasks, run_id, ids):
            examples |= {task.id: failure_example(task.spec.url, task.problem) for task in some}
        self.count(len(examples))
        return groups, examples
