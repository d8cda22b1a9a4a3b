"""A pooler in transaction mode: each transaction may be on another connection of the server."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

import pytest

from conveyor.adapters.postgres.coordination import PostgresCoordination
from conveyor.adapters.postgres.database import open_database
from conveyor.adapters.postgres.engine import PostgresEngine, open_engine
from conveyor.adapters.postgres.schema import migrate_at, missing_at
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.domain.ids import RunId
from conveyor.domain.run import Run
from conveyor.ports.coordination import Notification, PermitRequest
from conveyor.testing.factories import (
    RUN,
    a_run,
    add_rows,
    held,
    new_ids,
    new_tasks,
    scraped,
    settlement,
)
from tests.harness.pgbouncer import pgbouncer
from tests.harness.postgres import TestDatabases, a_postgres, connected

LEASE = timedelta(minutes=10)
DOCUMENTED = Path(__file__).parents[2] / "docs" / "storage" / "postgres.md"


@pytest.fixture
async def engine(postgres_18: TestDatabases) -> AsyncIterator[PostgresEngine]:
    direct = await postgres_18.create()
    [settings] = re.findall(r"```sql\n(ALTER ROLE .*?)```", DOCUMENTED.read_text(), re.DOTALL)
    here = f"ALTER ROLE {direct.user} IN DATABASE {direct.database}"  # other tests have this role
    async with connected(direct) as connection:
        await connection.execute(settings.replace("ALTER ROLE conveyor", here))
    with pgbouncer(direct) as address:
        assert await migrate_at(address)
        assert not await missing_at(address)
        ids = SystemIds(SystemClock())
        async with open_engine(address, ids=ids, lease=LEASE, holder="one") as opened:
            yield opened


async def test_tasks_are_added_claimed_renewed_and_settled_through_a_pooler(
    engine: PostgresEngine,
) -> None:
    count = 200
    await add_rows(engine.tasks, RUN, new_tasks(RUN, count))

    async def drain() -> int:
        done = 0
        while claimed := await engine.work.claim({RUN: 20}):
            await engine.work.renew([held(task) for task in claimed])
            await engine.work.settle([settlement(task, scraped()) for task in claimed])
            done += len(claimed)
        return done

    assert sum(await asyncio.gather(*[drain() for _ in range(8)])) == count
    assert (await engine.tasks.counts([RUN]))[RUN].successful == count


async def test_records_are_committed_and_read_through_a_pooler(engine: PostgresEngine) -> None:
    runs = [a_run(id=RunId(name)) for name in new_ids(10)]

    await asyncio.gather(*[engine.metadata.commit(run) for run in runs])

    found = await asyncio.gather(*[engine.metadata.get(Run, run.id) for run in runs])
    assert [run.id for run in found if run] == [run.id for run in runs]


async def test_coordination_works_through_a_pooler(engine: PostgresEngine) -> None:
    one, other = (
        PostgresCoordination(
            engine.database, monotonic=SystemClock(), incarnation=name, lease=LEASE
        )
        for name in ("one", "other")
    )
    wants = {"job:one": PermitRequest(3, 5)}
    granted = await asyncio.gather(
        *[coordination.reserve(wants) for _ in range(2) for coordination in (one, other)]
    )
    assert sum(len(some["job:one"]) for some in granted) == 5
    async with aclosing(one.notifications(["runs"])) as notifications, asyncio.timeout(120):
        assert await anext(notifications) == Notification("runs", None)
        await other.notify("runs", ["name"])
        assert await anext(notifications) == Notification("runs", frozenset({"name"}))


async def test_a_server_that_was_a_standby_is_used_once_it_is_promoted() -> None:
    """PgBouncer says of new connections what was true of its first one."""
    with a_postgres(18) as server:
        direct = server.address("postgres")
        server.restart_as_standby()
        with pgbouncer(direct) as address:
            async with open_database(address) as database:
                assert await database.first("SELECT pg_is_in_recovery()") == (True,)
                async with connected(direct) as connection:
                    await connection.execute("SELECT pg_promote()")
                await database.fetch("CREATE TABLE one (n integer)")
            async with open_database(address) as later:
                await later.fetch("INSERT INTO one VALUES (1)")
