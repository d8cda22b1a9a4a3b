"""The engines, each by its name: a new one is a row here and nothing else."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random

import pytest

from conveyor.adapters.files.blobs import FileBlobs
from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.adapters.memory.queues import CALM, NASTY, Habits, MemoryQueues
from conveyor.adapters.queued.work import QueuedWork
from conveyor.adapters.segments.bodies import SegmentBodies
from conveyor.adapters.segments.store import open_segment_store
from conveyor.adapters.sqlite.database import Durability
from conveyor.adapters.sqlite.engine import open_engine as open_sqlite_engine
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies
from conveyor.testing.clock import FakeClock, FakeIds
from conveyor.testing.contracts.coordination import CoordinationUnderTest
from conveyor.testing.contracts.engine import Engine
from conveyor.testing.contracts.queues import QueueBench
from conveyor.testing.memory.blobs import MemoryBlobs
from conveyor.testing.memory.bodies import MemoryBodies
from conveyor.testing.memory.claims import MemoryClaims
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.tasks import MemoryTasks
from conveyor.testing.memory.work import MemoryWork
from tests.certificates import Authority
from tests.harness.valkey import Valkey, a_prefix, aging, coordination_at, tls_in_front_of

LEASE = timedelta(seconds=60)
SEED = 20260302

OpenEngine = Callable[[Path], AbstractAsyncContextManager[Engine]]


@asynccontextmanager
async def memory(_folder: Path) -> AsyncIterator[Engine]:
    clock = FakeClock()
    rows, control_queue = Rows(clock, LEASE), MemoryControlQueue(clock)
    metadata = MemoryMetadata(clock)
    yield Engine(
        metadata=metadata,
        tasks=MemoryTasks(rows),
        work=MemoryWork(rows),
        claims=MemoryClaims(rows),
        control_queue=control_queue,
        clock=clock,
        lease=LEASE,
        ordered=True,
    )


@asynccontextmanager
async def composed(_folder: Path) -> AsyncIterator[Engine]:
    clock = FakeClock()
    rows, control_queue = Rows(clock, LEASE), MemoryControlQueue(clock)
    metadata = MemoryMetadata(clock)
    claims = MemoryClaims(rows)
    yield Engine(
        metadata=metadata,
        tasks=MemoryTasks(rows),
        work=QueuedWork(claims, queues(clock, NASTY), clock=clock, lease=LEASE),
        claims=claims,
        control_queue=control_queue,
        clock=clock,
        lease=LEASE,
        ordered=False,
        hinted=True,
    )


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[Engine]:
    clock = FakeClock()
    async with open_sqlite_engine(
        folder, clock=clock, ids=FakeIds(), lease=LEASE, durability=Durability.PROCESS
    ) as opened:
        yield Engine(
            metadata=opened.metadata,
            tasks=opened.tasks,
            work=opened.work,
            claims=opened.claims,
            control_queue=opened.control_queue,
            clock=clock,
            lease=LEASE,
            ordered=True,
        )


ENGINES: dict[str, OpenEngine] = {"memory": memory, "composed": composed, "sqlite": sqlite}


@contextmanager
def segments(folder: Path, *, sync: bool = True) -> Iterator[Bodies]:
    with open_segment_store(
        folder / "packs", clock=FakeClock(), sync=sync, segment_size=64_000
    ) as opened:
        yield SegmentBodies(opened, FileBodies(folder))


OpenBodies = Callable[[Path], AbstractContextManager[Bodies]]

BODIES: dict[str, OpenBodies] = {
    "memory": lambda _folder: nullcontext(MemoryBodies()),
    "files": lambda folder: nullcontext(FileBodies(folder)),
    "segments": segments,
    "segments-unsynced": lambda folder: segments(folder, sync=False),
}
BLOBS: dict[str, Callable[[Path], Blobs]] = {
    "memory": lambda _folder: MemoryBlobs(),
    "files": FileBlobs,
}


@asynccontextmanager
async def memory_coordination(
    _request: pytest.FixtureRequest,
) -> AsyncIterator[CoordinationUnderTest]:
    clock = FakeClock()
    coordination = MemoryCoordination(clock, lease=LEASE)

    async def pass_time(by: timedelta) -> None:
        clock.advance(by)

    yield CoordinationUnderTest(
        coordination=coordination,
        another=coordination,
        lease=LEASE,
        pass_time=pass_time,
        precise=True,
    )


@asynccontextmanager
async def redis_coordination(
    request: pytest.FixtureRequest,
) -> AsyncIterator[CoordinationUnderTest]:
    server: Valkey = request.getfixturevalue("valkey")
    async with _redis_coordination([server], server.url) as opened:
        yield opened


@asynccontextmanager
async def rediss_coordination(
    request: pytest.FixtureRequest,
) -> AsyncIterator[CoordinationUnderTest]:
    server: Valkey = request.getfixturevalue("valkey")
    authority = Authority(request.getfixturevalue("tmp_path"))
    async with tls_in_front_of(server, authority.server("127.0.0.1")) as port:
        url, ca = f"rediss://127.0.0.1:{port}/0", f"ca={authority.trusted}"
        async with _redis_coordination([server], url, ca) as opened:
            yield opened


@asynccontextmanager
async def cluster_coordination(
    request: pytest.FixtureRequest,
) -> AsyncIterator[CoordinationUnderTest]:
    servers: Sequence[Valkey] = request.getfixturevalue("valkey_cluster")
    async with _redis_coordination(servers, servers[0].url, "cluster=true") as opened:
        yield opened


@asynccontextmanager
async def _redis_coordination(
    servers: Sequence[Valkey], url: str, *options: str
) -> AsyncIterator[CoordinationUnderTest]:
    prefix = a_prefix()
    url = f"{url}?{'&'.join((f'prefix={prefix}', *options))}"
    async with (
        coordination_at(url, lease=LEASE) as one,
        coordination_at(url, lease=LEASE) as other,
    ):
        yield CoordinationUnderTest(
            coordination=one,
            another=other,
            lease=LEASE,
            pass_time=aging(servers, prefix),
            precise=False,
        )


OpenCoordination = Callable[
    [pytest.FixtureRequest], AbstractAsyncContextManager[CoordinationUnderTest]
]
COORDINATION: dict[str, OpenCoordination] = {
    "memory": memory_coordination,
    "redis": redis_coordination,
    "rediss": rediss_coordination,
    "cluster": cluster_coordination,
}
QUEUES: dict[str, Habits] = {"calm": CALM, "nasty": NASTY}


def queues(clock: FakeClock, habits: Habits) -> MemoryQueues:
    return MemoryQueues(clock, visibility=LEASE, random=Random(SEED), habits=habits)


@pytest.fixture(params=ENGINES)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with ENGINES[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture(params=ENGINES)
def open_engine(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[], AbstractAsyncContextManager[Engine]]:
    """How to open one fresh engine after another."""
    numbers = count()
    return lambda: ENGINES[request.param](tmp_path / str(next(numbers)))


@pytest.fixture(params=BODIES)
def bodies(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bodies]:
    with BODIES[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture(params=BLOBS)
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return BLOBS[request.param](tmp_path)


@pytest.fixture(params=COORDINATION)
async def under_test(request: pytest.FixtureRequest) -> AsyncIterator[CoordinationUnderTest]:
    async with COORDINATION[request.param](request) as opened:
        yield opened


@pytest.fixture(params=QUEUES)
def bench(request: pytest.FixtureRequest) -> QueueBench:
    clock = FakeClock()
    habits = QUEUES[request.param]
    return QueueBench(
        queues=queues(clock, habits), clock=clock, visibility=LEASE, calm=habits == CALM
    )
