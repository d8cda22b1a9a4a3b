"""Contracts of metadata over listings that lag."""

from random import Random
from typing import Any, cast

import pytest

from conveyor.testing.clock import FakeClock
from conveyor.testing.contracts.engine import SECOND, CaughtUp, Engine
from conveyor.testing.contracts.metadata import MetadataContract
from conveyor.testing.shared.faults import FaultInjector, LaggingMetadata, StoreFaults
from conveyor.testing.shared.store import SharedStore

LAGGING = StoreFaults(slow=0.3, lagging=0.9)


@pytest.fixture
def engine() -> Engine:
    clock = FakeClock()
    store = SharedStore(clock, injector=FaultInjector(Random(20260302), LAGGING))
    assert isinstance(store.metadata, LaggingMetadata)
    ports = store.open()
    return Engine(
        metadata=cast("Any", CaughtUp(ports.metadata, store.metadata.catch_up)),
        tasks=ports.tasks,
        work=ports.work,
        control_queue=ports.control_queue,
        clock=clock,
        lease=SECOND,
        ordered=True,
    )


class TestLaggingMetadata(MetadataContract):
    pass
