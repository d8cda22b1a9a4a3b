"""Contracts over a store that fails, behind the repeats of a step: by rows and by a queue.

Calls are slow, throttled and, where the port allows a repeat, not answered; listings lag.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from random import Random
from typing import Any, cast

import pytest

from conveyor.adapters.memory.queues import CALM
from conveyor.testing.clock import FakeClock
from conveyor.testing.contracts.claims import ClaimsContract
from conveyor.testing.contracts.control_queue import ControlQueueContract, DeadLettersContract
from conveyor.testing.contracts.engine import CaughtUp, Engine
from conveyor.testing.contracts.histories import HistoriesContract
from conveyor.testing.contracts.metadata import MetadataContract
from conveyor.testing.contracts.tasks import TasksContract
from conveyor.testing.contracts.work import WorkContract
from conveyor.testing.shared.faults import FaultInjector, LaggingMetadata, StoreFaults
from conveyor.testing.shared.store import SharedPorts, SharedStore
from tests.contracts.conftest import LEASE, SEED, shared_engine
from tests.harness.repeating import repeating
from tests.seed import run_seed

LAGGING = StoreFaults(lagging=0.9)
FAILING = StoreFaults(slow=0.3, throttled=0.1, lost=0.2)


@asynccontextmanager
async def a_failing_engine(seed: str, *, queued: bool) -> AsyncIterator[Engine]:
    clock, random = FakeClock(), Random(seed)
    store = SharedStore(clock, lease=LEASE, injector=FaultInjector(random, LAGGING), habits=CALM)
    assert isinstance(store.metadata, LaggingMetadata)
    ports, others = (_repeating(store, holder, random) for holder in ("one", "other"))
    listed = CaughtUp(ports.metadata, store.metadata.catch_up)
    yield shared_engine(
        SharedPorts(
            metadata=cast("Any", listed),
            tasks=ports.tasks,
            work=ports.work,
            claims=ports.claims,
            queues=ports.queues,
            control_queue=ports.control_queue,
        ),
        ports.queued_work(clock, LEASE, holder="one") if queued else ports.work,
        clock,
        other=others.queued_work(clock, LEASE, holder="other") if queued else others.work,
        queued=queued,
        holder="one",
    )


def _repeating(store: SharedStore, holder: str, random: Random) -> SharedPorts:
    plain = store.open(holder=holder, faulty=False)
    return SharedPorts(
        **{
            name: repeating(getattr(plain, name), name, random, FAILING)
            for name in SharedPorts.__slots__
        }
    )


@pytest.fixture(params=[False, True], ids=["rows", "queued"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    async with a_failing_engine(_seed(request), queued=request.param) as opened:
        yield opened


@pytest.fixture(params=[False, True], ids=["rows", "queued"])
def open_engine(
    request: pytest.FixtureRequest,
) -> Callable[[], AbstractAsyncContextManager[Engine]]:
    numbers = count()
    return lambda: a_failing_engine(f"{_seed(request)} {next(numbers)}", queued=request.param)


def _seed(request: pytest.FixtureRequest) -> str:
    # Contracts expect a message within some receives. What a repeated send doubles is hidden for
    # longer than some of them wait, so with queues the faults are always the same.
    return f"{SEED if request.param else run_seed()} {request.node.name}"


class TestFailingMetadata(MetadataContract):
    pass


class TestFailingTasks(TasksContract):
    pass


class TestFailingWork(WorkContract):
    pass


class TestFailingClaims(ClaimsContract):
    pass


class TestFailingControlQueue(ControlQueueContract):
    pass


class TestFailingDeadLetters(DeadLettersContract):
    pass


class TestFailingHistories(HistoriesContract):
    pass
