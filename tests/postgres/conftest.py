"""The contracts of ports over PostgreSQL: a sample on 18 in `make test`, all of them on 18, 16 and
15 in `make test-long`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import cast
from zlib import crc32

import pytest

from conveyor.adapters.postgres.database import PostgresDatabase
from conveyor.adapters.postgres.engine import open_engine as open_postgres_engine
from conveyor.adapters.postgres.metadata import PostgresMetadata
from conveyor.adapters.postgres.work import PostgresWork
from conveyor.ports.metadata import Metadata
from conveyor.testing.clock import FakeClock, FakeIds
from conveyor.testing.contracts.engine import CaughtUp, Engine
from tests.harness.postgres import SERVERS, TestDatabases
from tests.seed import run_seed

LEASE = timedelta(seconds=60)
SAMPLE = 8  # one of so many contract tests is part of `make test`


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        version = item.callspec.params.get("server") if hasattr(item, "callspec") else None
        if version is not None and not _is_sampled(item.nodeid, version):
            item.add_marker(pytest.mark.long)


def _is_sampled(name: str, version: str) -> bool:
    if "TestHistories" in name:  # which takes 20 s
        return False
    return version == "postgresql" and not crc32(f"{run_seed()} {name}".encode()) % SAMPLE


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> TestDatabases:
    databases: TestDatabases = request.getfixturevalue(SERVERS[request.param])
    return databases


@pytest.fixture
async def engine(server: TestDatabases) -> AsyncIterator[Engine]:
    async with opened(server) as engine:
        yield engine


@pytest.fixture
def open_engine(server: TestDatabases) -> Callable[[], AbstractAsyncContextManager[Engine]]:
    """How to open one fresh engine after another."""
    return lambda: opened(server)


@asynccontextmanager
async def opened(server: TestDatabases) -> AsyncIterator[Engine]:
    clock, address = FakeClock(), await server.empty()
    async with open_postgres_engine(
        address, ids=FakeIds(), lease=LEASE, holder="one", clock=clock
    ) as opened:
        yield Engine(
            metadata=caught_up(opened.database, opened.metadata),
            tasks=opened.tasks,
            work=opened.work,
            control_queue=opened.control_queue,
            clock=clock,
            lease=LEASE,
            ordered=False,
            holder="one",
            other=PostgresWork(opened.database, lease=LEASE, holder="two", clock=clock),
        )


def caught_up(database: PostgresDatabase, metadata: PostgresMetadata) -> Metadata:
    """Metadata whose list of changed runs waits for the transactions of other tests."""

    async def catch_up() -> None:
        [now] = await database.first("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        oldest = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
        while (await database.first(oldest))[0] < now:
            pass  # each look is a round trip: nothing tells when a transaction ends

    return cast("Metadata", CaughtUp(metadata, catch_up))
