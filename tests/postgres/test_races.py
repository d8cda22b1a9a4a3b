"""What a transaction under way does to the calls of others."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from conveyor.adapters.postgres.engine import PostgresEngine, open_engine
from conveyor.adapters.postgres.metadata import RUN as RUNS
from conveyor.adapters.postgres.schema import migrate_at
from conveyor.adapters.postgres.tasks import GROUPS
from conveyor.adapters.postgres.work import PostgresWork
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.domain.ids import RunId
from conveyor.domain.run import Run
from conveyor.domain.task import Task
from conveyor.errors import Unavailable
from conveyor.testing.factories import (
    RUN,
    a_run,
    add_rows,
    held,
    new_ids,
    new_tasks,
    refused,
    scraped,
    settlement,
)
from tests.harness.postgres import TestDatabases, a_postgres, connected

LEASE = timedelta(minutes=10)  # longer than any test takes
IDS = SystemIds(SystemClock())


@pytest.fixture
async def engine(postgres_18: TestDatabases) -> AsyncIterator[PostgresEngine]:
    async with open_engine(await postgres_18.empty(), ids=IDS, lease=LEASE, holder="one") as opened:
        yield opened


async def test_a_change_that_is_committed_after_later_ones_is_listed(
    engine: PostgresEngine,
) -> None:
    early, late = (RunId(name) for name in new_ids(2))
    await engine.metadata.commit(a_run(id=early), a_run(id=late))
    _, mark = await engine.metadata.changed_runs(None, limit=9)
    async with connected(engine.database.address) as connection:
        async with connection.transaction():
            rows = [[value] for value in RUNS.values(a_run(id=early, version=1))]
            await connection.fetch(RUNS.update, *rows)
            await engine.metadata.commit(a_run(id=late, version=1))

            before, mark = await _changed(engine, mark)
            assert before == []
        after = list[Run]()
        while len(after) < 2:  # transactions of other tests may be in its way
            more, mark = await _changed(engine, mark)
            after += more

    assert [run.id for run in after] == [early, late]


async def test_claims_at_the_same_time_take_tasks_of_different_ranges(
    engine: PostgresEngine,
) -> None:
    await _given_tasks(engine, 4, chunk=2)
    async with connected(engine.database.address) as connection, connection.transaction():
        await connection.fetch("SELECT 1 FROM fresh WHERE first = 0 FOR UPDATE")

        given = await engine.work.claim({RUN: 4})

    assert [task.index for task in given] == [2, 3]
    assert [task.index for task in await engine.work.claim({RUN: 4})] == [0, 1]


async def test_claims_at_the_same_time_share_a_run_that_was_added_at_once(
    engine: PostgresEngine,
) -> None:
    await _given_tasks(engine, 1_000, chunk=1_000)
    async with connected(engine.database.address) as connection, connection.transaction():
        await connection.fetch("SELECT 1 FROM fresh ORDER BY first LIMIT 2 FOR UPDATE")

        given = await engine.work.claim({RUN: 400})

    assert len(given) == 400


async def test_tasks_that_were_added_one_by_one_are_claimed_together(
    engine: PostgresEngine,
) -> None:
    await _given_tasks(engine, 30, chunk=1)
    assert [task.index for task in await engine.work.claim({RUN: 30})] == list(range(30))


async def test_a_settle_waits_for_a_renewal_under_way_and_takes_effect(
    engine: PostgresEngine,
) -> None:
    [task] = await _given_claims(engine, 1)
    async with connected(engine.database.address) as connection:
        async with connection.transaction():
            await connection.execute("UPDATE held SET until = until + interval '1 s'")
            settling = asyncio.create_task(engine.work.settle([settlement(task, scraped())]))
            await _until_waiting(connection)

        assert list(await settling) == [True]


async def test_a_claim_that_is_being_settled_is_not_lost(engine: PostgresEngine) -> None:
    tasks = await _given_claims(engine, 2)
    async with connected(engine.database.address) as connection, connection.transaction():
        await connection.execute("DELETE FROM held WHERE idx = 0")

        assert list(await engine.work.renew([held(task) for task in tasks])) == []


async def test_only_the_holder_of_a_claim_can_settle_and_renew_it(engine: PostgresEngine) -> None:
    [task] = await _given_claims(engine, 1)
    other = PostgresWork(engine.database, lease=LEASE, holder="two")

    assert list(await other.settle([settlement(task, scraped())])) == [False]
    assert list(await other.renew([held(task)])) == [held(task)]
    assert list(await engine.work.settle([settlement(task, scraped())])) == [True]


async def test_rows_that_are_added_while_their_run_is_discarded_keep_it(
    engine: PostgresEngine,
) -> None:
    await _given_tasks(engine, 1)
    async with connected(engine.database.address) as connection:
        async with connection.transaction():
            await connection.fetch("SELECT 1 FROM run_no FOR KEY SHARE")  # as an add does
            discarding = asyncio.create_task(engine.tasks.discard(RUN, limit=1))
            await _until_waiting(connection)
            await connection.execute(
                "INSERT INTO task SELECT run_no, 9, name, now(), url, method FROM task"
            )
        assert await discarding == 1

    assert list(await engine.tasks.runs_held(limit=9)) == [RUN]


async def test_a_discard_that_waits_for_a_settle_keeps_no_other_settle_from_the_run(
    engine: PostgresEngine,
) -> None:
    await _given_claims(engine, 2)
    async with connected(engine.database.address) as connection:
        async with connection.transaction():
            await connection.execute("DELETE FROM held WHERE idx = 0")
            discarding = asyncio.create_task(engine.tasks.discard(RUN, limit=9))
            await _until_waiting(connection)
            # As a settle does that makes a group of failures. To wait here would be a deadlock.
            await connection.fetch("SELECT 1 FROM run_no FOR NO KEY UPDATE NOWAIT")

        assert await discarding == 2


async def test_the_server_adds_up_failures_that_several_connections_have_counted(
    engine: PostgresEngine,
) -> None:
    tasks = await _given_claims(engine, 2)
    for task in tasks:
        assert await engine.work.settle([settlement(task, refused())]) == [True]
        await engine.database.fetch("UPDATE failure_group SET slot = slot + 100")  # another's

    assert len(await engine.database.fetch(GROUPS, RUN)) == 1
    [group] = await engine.tasks.failure_groups(RUN)
    assert (group.count, group.example) == (2, tasks[0].id)


@pytest.mark.long
async def test_no_claim_is_given_out_again_after_a_crash_of_the_server() -> None:
    with a_postgres(18) as server:
        address = server.address("postgres")
        await migrate_at(address)
        async with open_engine(address, ids=IDS, lease=LEASE, holder="one") as engine:
            await _given_tasks(engine, 40, chunk=5)
            first = [task for _ in range(4) for task in await engine.work.claim({RUN: 5})]
            server.kill()
            with pytest.raises(Unavailable):
                await engine.work.claim({RUN: 5})
            server.start()
            again = [task for _ in range(9) for task in await engine.work.claim({RUN: 5})]
            settled = await engine.work.settle([settlement(task, scraped()) for task in first])

    assert len(first) == len(again) == 20
    assert not {task.index for task in first} & {task.index for task in again}
    assert all(settled)


async def _given_tasks(engine: PostgresEngine, count: int, *, chunk: int = 10) -> None:
    for first in range(0, count, chunk):
        new = new_tasks(RUN, min(chunk, count - first), first=first)
        await add_rows(engine.tasks, RUN, new)


async def _given_claims(engine: PostgresEngine, count: int) -> list[Task]:
    await _given_tasks(engine, count)
    return list(await engine.work.claim({RUN: count}))


async def _changed(engine: PostgresEngine, mark: str) -> tuple[list[Run], str]:
    runs, mark = await engine.metadata.changed_runs(mark, limit=9)
    return list(runs), mark


async def _until_waiting(connection: Any) -> None:
    """Wait until another session waits for a lock of this one."""
    waiting = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)"
    while not await connection.fetchval(waiting):
        pass  # each look is a round trip: nothing tells when a session begins to wait
