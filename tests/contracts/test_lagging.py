"""Contracts of metadata over listings that lag."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from conveyor.domain.run import Run
from conveyor.testing.clock import FakeClock
from conveyor.testing.contracts.engine import SECOND, CaughtUp, Engine
from conveyor.testing.contracts.metadata import MetadataContract
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.shared.store import SharedStore


class LateRuns(MemoryMetadata):
    """Lists live runs as they were when the listing last caught up."""

    shown: Sequence[Run] = ()

    async def live_runs(self, *, limit: int, after: str = "") -> Sequence[Run]:
        return [run for run in self.shown if run.id > after][:limit]

    async def catch_up(self) -> None:
        self.shown = await super().live_runs(limit=1_000)


@pytest.fixture
def engine() -> Engine:
    clock = FakeClock()
    ports = SharedStore(clock).open()
    late = LateRuns(clock)
    return Engine(
        metadata=cast("Any", CaughtUp(late, late.catch_up)),
        tasks=ports.tasks,
        work=ports.work,
        control_queue=ports.control_queue,
        clock=clock,
        lease=SECOND,
        ordered=True,
    )


class TestLaggingMetadata(MetadataContract):
    pass
