"""Tasks on DynamoDB as contract suites use them: over the fake, emulators and behind faults."""

import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from random import Random
from typing import Any, cast
from uuid import uuid4

from msgspec.structs import replace

from conveyor.adapters.aws.client import AwsClient
from conveyor.adapters.aws.credentials import RefreshedKeys
from conveyor.adapters.aws.dynamodb.layout import table_definition
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.adapters.aws.dynamodb.task_engine import DynamoTaskRows, open_task_rows
from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.adapters.memory.queues import NASTY, MemoryQueues
from conveyor.adapters.queued.work import QueuedWork
from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.adapters.system.clock import SystemClock
from conveyor.domain.ids import RunId
from conveyor.domain.job import RunPlace
from conveyor.domain.task import NewRow
from conveyor.ports.tasks import Tasks
from conveyor.testing.clock import FakeClock
from conveyor.testing.contracts.engine import Engine
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.in_process import Loss, client_in_process
from conveyor.testing.dynamodb.proxy import fault_proxy
from conveyor.testing.dynamodb.server import dynamodb_server
from conveyor.testing.memory.metadata import MemoryMetadata
from tests.harness.aws_server import client_of
from tests.seed import run_seed

LEASE = timedelta(seconds=60)
SEED = 20260302
LOST = 0.1  # of the answers
FAULTS = {
    "lost_before": 0.04,
    "lost_after": 0.04,
    "throttled": 0.04,
    "conflicts": 0.02,
    "unprocessed": 0.05,
    "entry_errors": 0.03,
}
UNLIMITED = Knobs(writes_per_second=None, reads_per_second=None)


class Sharded:
    """Tasks whose runs are spread over shards where the caller does not say how many."""

    def __init__(self, tasks: Tasks, shards: int) -> None:
        self._tasks, self._shards = tasks, shards

    async def lay_out(self, run_id: RunId, place: RunPlace) -> None:
        spread = replace(place, shards=self._shards) if place.shards == 1 else place
        await self._tasks.lay_out(run_id, spread)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tasks, name)


class Recounted:
    """Tasks whose `add` counts rows: after a lost answer an engine takes its own for others'."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    async def add(self, run_id: RunId, tasks: Sequence[NewRow]) -> int:
        before = sum((await self._tasks.tally(run_id)).values())
        await self._tasks.add(run_id, tasks)
        return sum((await self._tasks.tally(run_id)).values()) - before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tasks, name)


@asynccontextmanager
async def in_process(_url: str, shards: int) -> AsyncIterator[Engine]:
    """Over the fake in this process, without sockets."""
    clock = FakeClock()
    fake = DynamoDbEngine(clock, UNLIMITED)
    yield await engine_at(client_in_process(fake, latency=timedelta()), clock, shards)


@asynccontextmanager
async def losing(_url: str, shards: int) -> AsyncIterator[Engine]:
    """The same, where answers are lost before and after their effect."""
    clock, random = FakeClock(), Random(f"{run_seed()} losses")
    fake = DynamoDbEngine(clock, UNLIMITED)

    def loss(operation: str) -> Loss | None:
        is_lost = operation != "CreateTable" and random.random() < LOST
        return random.choice(list(Loss)) if is_lost else None

    client = client_in_process(fake, latency=timedelta(), loss=loss)
    engine = await engine_at(client, clock, shards)
    yield dataclasses.replace(engine, tasks=cast("Tasks", Recounted(engine.tasks)))


@asynccontextmanager
async def over_http(url: str, shards: int) -> AsyncIterator[Engine]:
    """Over the fake on a socket, or an emulator."""
    async with AsyncExitStack() as stack:
        if not url:
            server = await stack.enter_async_context(dynamodb_server(SystemClock(), UNLIMITED))
            url = server.url
        client = await stack.enter_async_context(client_of(url))
        yield await engine_at(client, FakeClock(), shards)


@asynccontextmanager
async def behind_faults(url: str, shards: int) -> AsyncIterator[Engine]:
    """The same behind the fault proxy."""
    async with AsyncExitStack() as stack:
        if not url:
            server = await stack.enter_async_context(dynamodb_server(SystemClock(), UNLIMITED))
            url = server.url
        keys = RefreshedKeys(lambda: Keys("test", "test"), SystemClock())
        proxy = await stack.enter_async_context(fault_proxy(url, keys=keys, clock=SystemClock()))
        client = await stack.enter_async_context(client_of(proxy.url))
        engine = await engine_at(client, FakeClock(), shards)
        for name, share in FAULTS.items():
            setattr(proxy.faults, name, share)
        yield dataclasses.replace(engine, tasks=cast("Tasks", Recounted(engine.tasks)))


async def engine_at(client: AwsClient, clock: FakeClock, shards: int = 1) -> Engine:
    """A table of its own, with two processes at it."""
    table = DynamoTable(client, f"conveyor-{uuid4()}")
    await client.call("CreateTable", table_definition(table.name), repeatable=True)
    queues = MemoryQueues(clock, visibility=LEASE, random=Random(SEED), habits=NASTY)
    rows, others = task_rows(table, clock, ""), task_rows(table, clock, "other")
    tasks = rows.tasks if shards == 1 else cast("Tasks", Sharded(rows.tasks, shards))
    return Engine(
        metadata=MemoryMetadata(clock),
        tasks=tasks,
        work=QueuedWork(rows.claims, queues, clock=clock, lease=LEASE),
        claims=rows.claims,
        control_queue=MemoryControlQueue(clock),
        clock=clock,
        lease=LEASE,
        ordered=False,
        hinted=True,
        other=QueuedWork(others.claims, queues, clock=clock, lease=LEASE, holder="other"),
    )


def task_rows(table: DynamoTable, clock: FakeClock, holder: str) -> DynamoTaskRows:
    # Not seeded: all tests share the emulator, which refuses a token that it knows for ten minutes.
    return open_task_rows(table, clock, lease=LEASE, holder=holder)
