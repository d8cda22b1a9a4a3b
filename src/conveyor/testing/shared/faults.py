"""Faults that a shared store shows its services, as distributed engines do, by a seed."""

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from random import Random
from typing import Any

import msgspec

from conveyor.domain.ids import CallerId
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.outbox import Channel
from conveyor.domain.run import Run
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import (
    AnyRow,
    Change,
    ChangedRuns,
    DueRow,
    Key,
    Removed,
    Usage,
    key_of,
)
from conveyor.testing.memory.metadata import MemoryMetadata

MOST_TURNS = 3  # of the event loop that a slow call waits


class StoreFaults(msgspec.Struct, frozen=True, kw_only=True):
    """How often, from 0 to 1, something goes wrong that the ports allow."""

    slow: float = 0.0  # a call waits for others: a transaction that conflicts and is retried
    delay: timedelta = timedelta()  # that a slow call waits at most; if zero, for other calls only
    throttled: float = 0.0  # a call has no effect and raises `CallThrottled`
    lost: float = 0.0  # a call takes effect and raises `Unavailable`: its answer was lost
    lagging: float = 0.0  # an entry of an index stays behind for one more listing
    lag: timedelta = timedelta(seconds=3)  # after which it does not


NONE = StoreFaults()
ROUGH = StoreFaults(slow=0.3, throttled=0.02, lost=0.02, lagging=0.4)
SERVED_ROUGH = msgspec.structs.replace(ROUGH, delay=timedelta(milliseconds=50))


class CallThrottled(Unavailable):
    """A call had no effect, and its engine says so."""


class FaultInjector:
    """Decides by its seed what befalls each call, and counts it."""

    def __init__(self, random: Random, faults: StoreFaults = NONE) -> None:
        self.random = random
        self.faults = faults
        self.counted: Counter[str] = Counter()

    def happens(self, fault: str) -> bool:
        chance: float = getattr(self.faults, fault)
        # No number is drawn for a fault that is off: histories with and without it stay alike.
        happens = chance > 0 and self.random.random() < chance
        self.counted[fault] += happens
        return happens


class FaultyPort:
    """A port whose calls are slow, throttled or not answered."""

    def __init__(self, port: object, injector: FaultInjector) -> None:
        self._port = port
        self._injector = injector

    def __getattr__(self, method: str) -> Any:
        target = getattr(self._port, method)
        return self._faulty(target) if inspect.iscoroutinefunction(target) else target

    def _faulty(
        self, target: Callable[..., Coroutine[Any, Any, Any]]
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        injector = self._injector

        async def call(*given: Any, **named: Any) -> Any:
            if injector.happens("slow"):
                await self._wait()
            if injector.happens("throttled"):
                raise CallThrottled(f"{target.__qualname__} was throttled")
            result = await target(*given, **named)
            if injector.happens("lost"):
                raise Unavailable(f"the answer of {target.__qualname__} was lost")
            return result

        return call

    async def _wait(self) -> None:
        injector = self._injector
        if injector.faults.delay:
            await asyncio.sleep(injector.random.random() * injector.faults.delay.total_seconds())
            return
        for _ in range(injector.random.randint(1, MOST_TURNS)):
            await asyncio.sleep(0)


class LaggingMetadata(MemoryMetadata):
    """Metadata whose indexes lag: listings miss changes of the last seconds.

    Each row stays behind for a few listings, in its earlier version or missing altogether. Point
    reads and the listings that the port calls consistent show the present.
    """

    def __init__(self, clock: Clock, injector: FaultInjector) -> None:
        super().__init__(clock)
        self._injector = injector
        # Rows that are behind: since when by monotonic time, and what listings show.
        self._behind: dict[tuple[type, Key], tuple[float, Any]] = {}

    async def commit(self, *changes: Change) -> None:
        rows = [change.row if isinstance(change, Removed) else change for change in changes]
        before = [(type(row), key_of(row), self._table(type(row)).get(key_of(row))) for row in rows]
        await super().commit(*changes)
        for kind, key, stored in before:
            if (kind, key) not in self._behind and self._injector.happens("lagging"):
                shown = None if self._injector.random.random() < 0.5 else stored
                self._behind[kind, key] = (self.clock.monotonic(), shown)

    async def page(
        self, kind: type[AnyRow], *, limit: int, after: Key | None = None
    ) -> Sequence[AnyRow]:
        return await self._index().page(kind, limit=limit, after=after)

    async def jobs(
        self,
        caller: CallerId,
        *,
        limit: int,
        before: str | None = None,
        status: JobStatus | None = None,
        kind: JobType | None = None,
    ) -> Sequence[tuple[Job, Run | None]]:
        listed = await self._index().jobs(
            caller, limit=limit, before=before, status=status, kind=kind
        )
        # Runs are read by key.
        return [(job, self._table(Run).get(job.latest_run_id or "")) for job, _ in listed]

    async def live_runs(self, *, limit: int, after: str = "") -> Sequence[Run]:
        return await self._index().live_runs(limit=limit, after=after)

    async def changed_runs(self, since: str | None, *, limit: int) -> ChangedRuns:
        self._catch_up()
        # A log that lags ends before its first change that is behind: marks never skip one.
        numbers = [self._changes[key] for kind, key in self._behind if kind is Run]  # type: ignore[index]
        end = min(numbers, default=None)
        found = await super().changed_runs(since, limit=limit)
        if end is None:
            return found
        if since is None:
            return ChangedRuns([], str(min(end - 1, int(found.mark))))
        runs = [run for run in found.runs if self._changes[run.id] < end]
        return ChangedRuns(runs, str(self._changes[runs[-1].id]) if runs else since)

    async def due(
        self, kind: type[DueRow], *, limit: int, channel: Channel | None = None
    ) -> Sequence[DueRow]:
        return await self._index().due(kind, limit=limit, channel=channel)

    async def usage(self, caller: CallerId) -> Usage:
        return await self._index().usage(caller)

    async def catch_up(self) -> None:
        """Let listings show everything that was committed before."""
        self._behind.clear()

    def _catch_up(self) -> None:
        oldest = self.clock.monotonic() - self._injector.faults.lag.total_seconds()
        for entry, (since, _) in list(self._behind.items()):
            if since <= oldest or not self._injector.happens("lagging"):
                del self._behind[entry]

    def _index(self) -> MemoryMetadata:
        """Return the records as listings show them now."""
        self._catch_up()
        tables = {kind: dict(table) for kind, table in self._tables.items()}
        for (kind, key), (_, shown) in self._behind.items():
            table = tables.setdefault(kind, {})
            if shown is None:
                table.pop(key, None)
            else:
                table[key] = shown
        return MemoryMetadata(self.clock, tables)
