"""What a process watches of itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from conveyor.adapters.files.disk import disk_usage, file_sizes
from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.domain.batch import Batch
from conveyor.domain.ids import JobId, RunId
from conveyor.errors import Unavailable
from conveyor.telemetry.metrics import Metrics
from conveyor.telemetry.process import REMEMBERED, DiskSpace, ProcessMetrics, TableHealth
from conveyor.testing.clock import FakeClock
from conveyor.testing.contracts.control_queue import a_message
from conveyor.testing.memory.metadata import MemoryMetadata
from tests.harness.gateways import until

SLOW = timedelta(milliseconds=300)
ROOM = DiskSpace(10, 100, {"rows": 7, "log": 3})


async def some_space() -> DiskSpace:
    return ROOM


def measured(
    *,
    disk_space: Callable[[], Awaitable[DiskSpace]] = some_space,
    control_queue: MemoryControlQueue | None = None,
) -> ProcessMetrics:
    clock = FakeClock()
    return ProcessMetrics(
        metrics=Metrics(),
        metadata=MemoryMetadata(clock),
        control_queue=control_queue or MemoryControlQueue(clock),
        clock=clock,
        disk_space=disk_space,
        slow_loop=SLOW,
    )


def figure(of: ProcessMetrics, name: str, **labels: str) -> float | None:
    return of.metrics.registry.get_sample_value(f"conveyor_{name}", labels)


async def test_work_that_keeps_the_loop_is_seen_as_lag_and_logged() -> None:
    watched, stopping = measured(), asyncio.Event()
    with capture_logs() as logs:
        async with asyncio.TaskGroup() as group:
            group.create_task(watched.watch(stopping))
            await until(lambda: bool(watched.lags))
            watched.lags.clear()
            time.sleep(0.6)  # noqa: ASYNC251  # what must never be done is the thing to be seen
            await until(lambda: bool(watched.lags))
            stopping.set()
    assert watched.lags[0] >= 0.3
    assert figure(watched, "loop_lag_max_seconds") == max(watched.lags)
    assert (figure(watched, "loop_lag_seconds_count") or 0) >= 2
    assert [line["seconds"] >= 0.3 for line in logs if line["event"] == "loop.lagged"] == [True]


async def test_a_calm_loop_is_not_logged_and_old_lags_are_forgotten() -> None:
    watched = measured()
    with capture_logs() as logs:
        watched.tick(0.5)
        for _ in range(REMEMBERED):
            watched.tick(0.001)
    assert [line["event"] for line in logs] == ["loop.lagged"]
    assert figure(watched, "loop_lag_max_seconds") == 0.001


async def test_the_figures_of_engines_are_sampled() -> None:
    control_queue = MemoryControlQueue(FakeClock())
    watched = measured(control_queue=control_queue)
    now = watched.clock.now()
    await watched.metadata.commit(
        Batch(run_id=RunId("r"), job_id=JobId("j"), first=0, count=1, blob="b", created_at=now)
    )
    await control_queue.send(a_message())
    [message] = await control_queue.receive(1, lease=timedelta(seconds=1))
    await control_queue.dead_letter(message, "hopeless")

    await watched.sample()

    assert figure(watched, "pending_ingests") == 1
    assert figure(watched, "dead_letters") == 1
    assert figure(watched, "disk_free_bytes") == 10
    assert figure(watched, "disk_size_bytes") == 100
    assert figure(watched, "database_bytes", part="rows") == 7
    assert figure(watched, "database_bytes", part="log") == 3
    assert figure(watched, "sampled_timestamp_seconds") == now.timestamp()


async def test_the_tables_of_a_server_are_sampled() -> None:
    async def health() -> TableHealth:
        return TableHealth({"held": 5}, {"held": 8192}, 2.5)

    watched = replace(measured(), table_health=health)

    await watched.sample()

    assert figure(watched, "dead_rows", table="held") == 5
    assert figure(watched, "table_bytes", table="held") == 8192
    assert figure(watched, "oldest_transaction_seconds") == 2.5


async def test_an_engine_that_is_away_is_told_of_and_the_watching_goes_on() -> None:
    stopping, asked = asyncio.Event(), asyncio.Event()

    async def away() -> DiskSpace:
        asked.set()
        raise Unavailable("the disk is away")

    watched = measured(disk_space=away)
    with capture_logs() as logs:
        async with asyncio.TaskGroup() as group:
            group.create_task(watched.watch(stopping))
            await until(lambda: asked.is_set() and bool(watched.lags))
            stopping.set()
    assert [line["why"] for line in logs if line["event"] == "sample.unavailable"] == [
        "the disk is away"
    ]


async def test_disk_space_is_that_of_the_disk_and_a_file_that_is_not_there_takes_none(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    free, size = await disk_usage(tmp_path)
    assert 0 < free <= size
    told = await file_sizes({"a": tmp_path / "a", "b": tmp_path / "b"})
    assert told == {"a": 5, "b": 0}
    with pytest.raises(Unavailable):
        await disk_usage(tmp_path / "nowhere")
