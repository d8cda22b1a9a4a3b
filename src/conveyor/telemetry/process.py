"""Metrics of the process: the lag of its event loop, and figures of the engines.

The figures are sampled in the background, so that a scrape of the metrics never waits for an
engine.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

import structlog

from conveyor.domain.batch import Batch
from conveyor.errors import Unavailable
from conveyor.loops import rest
from conveyor.ports.clock import Clock
from conveyor.ports.control_queue import DeadLetters
from conveyor.ports.metadata import Metadata
from conveyor.telemetry.metrics import Metrics

TICK = timedelta(milliseconds=250)
REMEMBERED = 240  # ticks: a minute
SAMPLE_EVERY = timedelta(seconds=15)
MOST_COUNTED = 1000  # of each kind: counting on would cost more than the figure is worth

log = structlog.get_logger()


class DiskSpace(NamedTuple):
    """In bytes: free on the disk of the data, its size, and the parts of the database."""

    free: int
    size: int
    database: Mapping[str, int]


class TableHealth(NamedTuple):
    """How the tables of a database server fare that removes dead rows in the background."""

    dead_rows: Mapping[str, int]  # by table
    sizes: Mapping[str, int]  # in bytes, with indexes
    oldest_transaction: float  # seconds for which it has been open: it keeps dead rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMetrics:
    metrics: Metrics
    metadata: Metadata
    control_queue: DeadLetters
    clock: Clock
    disk_space: Callable[[], Awaitable[DiskSpace]] | None  # None if the process uses no data folder
    slow_loop: timedelta
    table_health: Callable[[], Awaitable[TableHealth]] | None = (
        None  # None: there are no such tables
    )
    lags: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def __post_init__(self) -> None:
        self.metrics.lag_max.set_function(lambda: max(self.lags, default=0.0))

    async def watch(self, stopping: asyncio.Event) -> None:
        """Measure until the process stops."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._measure_lag(stopping), name="lag")
            group.create_task(self._sample_engines(stopping), name="samples")

    async def _measure_lag(self, stopping: asyncio.Event) -> None:
        """Measure how late timers fire, which is how work that blocks the event loop shows."""
        due = TICK.total_seconds()
        while not stopping.is_set():
            started = time.perf_counter()
            await rest(stopping, TICK)
            if not stopping.is_set():
                self.tick(max(time.perf_counter() - started - due, 0.0))

    def tick(self, lag: float) -> None:
        self.lags.append(lag)
        self.metrics.lag.observe(lag)
        if lag >= self.slow_loop.total_seconds():
            log.warning("loop.lagged", seconds=round(lag, 3))

    async def _sample_engines(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                await self.sample()
            except Unavailable as error:
                log.warning("sample.unavailable", why=str(error))
            await rest(stopping, SAMPLE_EVERY)

    async def sample(self) -> None:
        """Set the gauges of the engines; they show these values until the next sample."""
        if self.disk_space:
            space = await self.disk_space()
            self.metrics.disk_free.set(space.free)
            self.metrics.disk_size.set(space.size)
            for part, length in space.database.items():
                self.metrics.database.labels(part).set(length)
        if self.table_health:
            health = await self.table_health()
            for table, rows in health.dead_rows.items():
                self.metrics.dead_rows.labels(table).set(rows)
            for table, length in health.sizes.items():
                self.metrics.table_size.labels(table).set(length)
            self.metrics.oldest_transaction.set(health.oldest_transaction)
        self.metrics.batches.set(len(await self.metadata.page(Batch, limit=MOST_COUNTED)))
        self.metrics.dead_letters.set(
            len(await self.control_queue.dead_letters(limit=MOST_COUNTED))
        )
        self.metrics.sampled.set(self.clock.now().timestamp())
