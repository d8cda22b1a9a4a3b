"""Work made of claims in memory and of queues on an emulator of SQS."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.adapters.queued.work import QueuedWork
from conveyor.ports.queues import Queues
from conveyor.testing.clock import FakeClock
from conveyor.testing.contracts.engine import Engine
from conveyor.testing.contracts.work import WorkContract
from conveyor.testing.memory.claims import MemoryClaims
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.tasks import MemoryTasks
from conveyor.testing.sqs.proxy import SqsFaults, sqs_proxy
from tests.aws.test_sqs_queues import VISIBILITY, an_address, queues_at
from tests.emulators import Emulator


def engine_over(queues: Queues, clock: FakeClock, emulator: Emulator) -> Engine:
    async def wait(by: timedelta) -> None:
        emulator.pass_time(by)

    rows = Rows(clock, VISIBILITY)

    def work(holder: str) -> QueuedWork:
        claims = MemoryClaims(rows, holder)
        return QueuedWork(claims, queues, clock=clock, lease=VISIBILITY, holder=holder)

    return Engine(
        metadata=MemoryMetadata(clock),
        tasks=MemoryTasks(rows),
        work=work(""),
        claims=MemoryClaims(rows),
        control_queue=MemoryControlQueue(clock),
        clock=clock,
        lease=VISIBILITY,
        ordered=False,
        hinted=True,
        precise=False,
        other=work("other"),
        wait=wait,
    )


class TestWorkOverSqs(WorkContract):
    @pytest.fixture
    async def engine(self, ministack: Emulator) -> AsyncIterator[Engine]:
        clock = FakeClock()
        async with queues_at(ministack.url, an_address(), clock) as queues:
            yield engine_over(queues, clock, ministack)


@pytest.mark.long
class TestWorkOverFauxqs(WorkContract):
    @pytest.fixture
    async def engine(self, fauxqs: Emulator) -> AsyncIterator[Engine]:
        clock = FakeClock()
        async with queues_at(fauxqs.url, an_address(), clock) as queues:
            yield engine_over(queues, clock, fauxqs)


@pytest.mark.long
class TestWorkOverSqsWithFaults(WorkContract):
    @pytest.fixture
    async def engine(self, ministack: Emulator) -> AsyncIterator[Engine]:
        clock, faults = FakeClock(), SqsFaults(failed=0.1, empty=0.1, late=0.1, doubled=0.1)
        async with (
            sqs_proxy(ministack.url, faults) as proxy,
            queues_at(proxy.url, an_address(), clock) as queues,
        ):
            yield engine_over(queues, clock, ministack)
