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

from conveyor.adapters.aws.dynamodb.coordination import DynamoDbCoordination
from conveyor.adapters.files.blobs import FileBlobs
from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.adapters.memory.queues import CALM, NASTY, Habits
from conveyor.adapters.postgres.coordination import PostgresCoordination
from conveyor.adapters.s3.address import Layout
from conveyor.adapters.s3.blobs import S3Blobs
from conveyor.adapters.s3.bodies import S3Bodies
from conveyor.adapters.s3.bucket import S3Bucket
from conveyor.adapters.segments.bodies import SegmentBodies
from conveyor.adapters.segments.store import open_segment_store
from conveyor.adapters.sqlite.database import Durability
from conveyor.adapters.sqlite.engine import open_engine as open_sqlite_engine
from conveyor.adapters.sqlite.work import SqliteWork
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies
from conveyor.ports.work import Work
from conveyor.testing.clock import FakeClock, FakeIds
from conveyor.testing.contracts.coordination import CoordinationUnderTest
from conveyor.testing.contracts.engine import Engine
from conveyor.testing.contracts.queues import QueueBench
from conveyor.testing.memory.blobs import MemoryBlobs
from conveyor.testing.memory.bodies import MemoryBodies
from conveyor.testing.shared.client import connected
from conveyor.testing.shared.faults import FaultInjector
from conveyor.testing.shared.server import opening, serving
from conveyor.testing.shared.store import SharedPorts, SharedStore
from conveyor.testing.shared.wire import Hello
from tests.certificates import Authority
from tests.harness.dynamodb import PLACES, a_table
from tests.harness.postgres import SERVERS, TestDatabases
from tests.harness.valkey import Valkey, a_prefix, aging, coordination_at, tls_in_front_of
from tests.s3_server import S3Server
from tests.seed import sample_items

LEASE = timedelta(seconds=60)
SEED = 20260302
OFTEN = timedelta(milliseconds=20)  # a poll for notifications
# Engines of which `make test` runs some tests, that the seed chooses, each with how many: they repeat what others show.
SAMPLED = {
    **dict.fromkeys(PLACES[1:], 5),
    "moto": 0,
    "postgresql": 5,
    "postgresql-16": 0,
    "postgresql-15": 0,
}

OpenEngine = Callable[[Path], AbstractAsyncContextManager[Engine]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for engine, size in SAMPLED.items():
        found = [item for item in items if engine in _params(item)]
        sample_items(found, size, of=engine)


def _params(item: pytest.Item) -> Sequence[object]:
    case = getattr(item, "callspec", None)
    return list(case.params.values()) if case else []


@asynccontextmanager
async def memory(_folder: Path) -> AsyncIterator[Engine]:
    clock = FakeClock()
    store = SharedStore(clock, lease=LEASE)
    ports = store.open()
    yield shared_engine(ports, ports.work, clock, other=store.open(holder="other").work)


@asynccontextmanager
async def composed(_folder: Path) -> AsyncIterator[Engine]:
    """Work that is made of claims and of queues with the habits of real ones."""
    clock = FakeClock()
    injector = FaultInjector(Random(SEED))
    store = SharedStore(clock, lease=LEASE, injector=injector, habits=NASTY)
    ports = store.open()
    other = store.open(holder="other").queued_work(clock, LEASE, holder="other")
    yield shared_engine(ports, ports.queued_work(clock, LEASE), clock, other=other, queued=True)


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
            holder=opened.work.holder,
            other=SqliteWork(opened.database, clock, lease=LEASE, incarnation=99),
        )


@asynccontextmanager
async def served(_folder: Path) -> AsyncIterator[Engine]:
    """A shared store behind a socket, as processes of their own use it."""
    clock = FakeClock()
    store = SharedStore(clock, lease=LEASE)
    async with (
        serving(opening(store)) as port,
        connected("127.0.0.1", port, Hello("one")) as ports,
        connected("127.0.0.1", port, Hello("two")) as others,
    ):
        yield shared_engine(ports, ports.work, clock, other=others.work, holder="one")


def shared_engine(
    ports: SharedPorts,
    work: Work,
    clock: FakeClock,
    *,
    other: Work,
    queued: bool = False,
    holder: str = "",
) -> Engine:
    return Engine(
        metadata=ports.metadata,
        tasks=ports.tasks,
        work=work,
        claims=ports.claims,
        control_queue=ports.control_queue,
        clock=clock,
        lease=LEASE,
        ordered=not queued,
        hinted=queued,
        holder=holder,
        other=other,
    )


ENGINES: dict[str, OpenEngine] = {
    "memory": memory,
    "composed": composed,
    "sqlite": sqlite,
    "served": served,
}


@contextmanager
def segments(folder: Path, *, sync: bool = True) -> Iterator[Bodies]:
    with open_segment_store(
        folder / "packs", clock=FakeClock(), sync=sync, segment_size=64_000
    ) as opened:
        yield SegmentBodies(opened, FileBodies(folder, FakeIds()))


OpenBodies = Callable[[Path], AbstractContextManager[Bodies]]

BODIES: dict[str, OpenBodies] = {
    "memory": lambda _folder: nullcontext(MemoryBodies()),
    "files": lambda folder: nullcontext(FileBodies(folder, FakeIds())),
    "files-segments": lambda folder: nullcontext(FileBodies(folder, FakeIds(), packs=True)),
    "segments": segments,
    "segments-unsynced": lambda folder: segments(folder, sync=False),
}
BLOBS: dict[str, Callable[[Path], Blobs]] = {
    "memory": lambda _folder: MemoryBlobs(),
    "files": FileBlobs,
}
S3_BODIES: dict[str, tuple[str, Layout]] = {
    "s3": ("seaweedfs", Layout.OBJECTS),
    "s3-segments": ("seaweedfs", Layout.SEGMENTS),
    "s3-ministack": ("s3_of_ministack", Layout.OBJECTS),
    "s3-ministack-segments": ("s3_of_ministack", Layout.SEGMENTS),
    "s3-moto": ("s3_of_moto", Layout.OBJECTS),
    "s3-moto-segments": ("s3_of_moto", Layout.SEGMENTS),
}
S3_BLOBS: dict[str, str] = {
    "s3": "seaweedfs",
    "s3-ministack": "s3_of_ministack",
    "s3-moto": "s3_of_moto",
}
ONE_PROCESS = {"segments", "segments-unsynced"}
# What a server does otherwise than S3, and than the other two.
UNLIKE_S3 = {
    (
        "seaweedfs",
        "test_keys_are_in_order_of_their_characters_slashes_included",
    ): "it lists what is in a folder before the neighbours of the folder",
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


def dynamodb_coordination(place: str) -> "OpenCoordination":
    @asynccontextmanager
    async def opened(request: pytest.FixtureRequest) -> AsyncIterator[CoordinationUnderTest]:
        clock = FakeClock()

        async def pass_time(by: timedelta) -> None:
            clock.advance(by)

        ids = SystemIds(SystemClock())  # unique beyond the test: ministack serves all of them
        async with a_table(place, request, clock) as table:
            one, other = (
                DynamoDbCoordination(
                    table, clock=clock, incarnation=ids.new(), lease=LEASE, poll_every=OFTEN
                )
                for _ in range(2)
            )
            yield CoordinationUnderTest(
                coordination=one, another=other, lease=LEASE, pass_time=pass_time, precise=True
            )

    return opened


def postgres_coordination(server: str) -> "OpenCoordination":
    @asynccontextmanager
    async def opened(request: pytest.FixtureRequest) -> AsyncIterator[CoordinationUnderTest]:
        clock = FakeClock()

        async def pass_time(by: timedelta) -> None:
            clock.advance(by)

        databases: TestDatabases = request.getfixturevalue(server)
        async with databases.opened() as database:
            one, other = (
                PostgresCoordination(
                    database, monotonic=clock, incarnation=name, lease=LEASE, clock=clock
                )
                for name in ("one", "other")
            )
            yield CoordinationUnderTest(
                coordination=one, another=other, lease=LEASE, pass_time=pass_time, precise=True
            )

    return opened


OpenCoordination = Callable[
    [pytest.FixtureRequest], AbstractAsyncContextManager[CoordinationUnderTest]
]
COORDINATION: dict[str, OpenCoordination] = {
    "memory": memory_coordination,
    "redis": redis_coordination,
    "rediss": rediss_coordination,
    "cluster": cluster_coordination,
    **{place: dynamodb_coordination(place) for place in PLACES},
    **{name: postgres_coordination(server) for name, server in SERVERS.items()},
}
QUEUES: dict[str, Habits] = {"calm": CALM, "nasty": NASTY, "served": CALM}


def _costly(name: str) -> object:
    """A parameter that `make test` leaves out if its server is slow, and a second opinion only."""
    return pytest.param(name, marks=pytest.mark.long) if "moto" in name else name


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


@pytest.fixture(params=[*BODIES, *map(_costly, S3_BODIES)])
def bodies(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bodies]:
    with opened_bodies(request, tmp_path) as opened:
        yield opened


@pytest.fixture(
    params=[name for name in BODIES if name not in ONE_PROCESS] + [*map(_costly, S3_BODIES)]
)
def shared_bodies(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bodies]:
    with opened_bodies(request, tmp_path) as opened:
        yield opened


@contextmanager
def opened_bodies(request: pytest.FixtureRequest, folder: Path) -> Iterator[Bodies]:
    if request.param in S3_BODIES:
        server, layout = S3_BODIES[request.param]
        yield S3Bodies(a_bucket(request, server), SystemIds(SystemClock()), layout=layout)
        return
    with BODIES[request.param](folder) as opened:
        yield opened


@pytest.fixture(params=[*BLOBS, *map(_costly, S3_BLOBS)])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param in S3_BLOBS:
        if (S3_BLOBS[request.param], request.node.originalname) in UNLIKE_S3:
            pytest.skip(UNLIKE_S3[S3_BLOBS[request.param], request.node.originalname])
        return S3Blobs(a_bucket(request, S3_BLOBS[request.param]))
    return BLOBS[request.param](tmp_path)


def a_bucket(request: pytest.FixtureRequest, fixture: str) -> S3Bucket:
    """A place of its own on a server, whose fixture is started when it is needed."""
    server: S3Server = request.getfixturevalue(fixture)
    return server.bucket()


@pytest.fixture(params=COORDINATION)
async def under_test(request: pytest.FixtureRequest) -> AsyncIterator[CoordinationUnderTest]:
    async with COORDINATION[request.param](request) as opened:
        yield opened


@pytest.fixture(params=QUEUES)
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[QueueBench]:
    clock = FakeClock()
    habits = QUEUES[request.param]
    store = SharedStore(clock, lease=LEASE, injector=FaultInjector(Random(SEED)), habits=habits)
    async with (
        serving(opening(store)) as port,
        connected("127.0.0.1", port, Hello("one")) as remote,
    ):
        queues = remote.queues if request.param == "served" else store.queues
        yield QueueBench(queues=queues, clock=clock, visibility=LEASE, calm=habits == CALM)
