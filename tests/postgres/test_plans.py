"""Every statement finds its rows by an index, also while statistics say that tables are empty.

Autovacuum writes that whenever the rows of a table are gone for a moment, as those of `held` are
between two groups. Plans made then are used until there are newer statistics, by when a million rows
may have come.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import pytest

from conveyor.adapters.postgres.database import Connection, Pool, PostgresDatabase
from conveyor.adapters.postgres.engine import PostgresEngine, open_engine
from conveyor.adapters.postgres.schema import migrate_at
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.task import TaskStatus
from conveyor.testing import factories as made
from conveyor.testing.clock import NOON
from tests.harness.postgres import TestDatabases, connected

# Those that grow with tasks and records. Tables of coordination have a row for each process or name.
TABLES = (
    "task", "fresh", "held", "later", "done", "attempt", "counter", "failure_group", "run_no", "job",
    "run", "idempotency_record", "outbox_event",
)  # fmt: skip
SEEN_AS_EMPTY = """
SELECT relname FROM pg_class WHERE relname = ANY($1::text[]) AND reltuples = 0 AND relpages > 0
"""
EXPLAINED = {"SELECT", "WITH", "INSERT", "UPDATE", "DELETE"}
TASKS = 300
Node = Mapping[str, Any]
Row = TypeVar("Row", bound=msgspec.Struct)


@pytest.mark.parametrize(
    "name",
    ["postgres_18", *(pytest.param(f"postgres_{n}", marks=pytest.mark.long) for n in (16, 15))],
)
async def test_statements_look_rows_up_whatever_statistics_say(
    request: pytest.FixtureRequest, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases: TestDatabases = request.getfixturevalue(name)
    ids, seen = SystemIds(SystemClock()), dict[str, None]()
    _log(monkeypatch, seen)
    address = await databases.create()
    await migrate_at(address)
    async with open_engine(address, ids=ids, lease=timedelta(minutes=10), holder="one") as engine:
        await _use(engine, "before")
        await _empty(engine.database)
        seen.clear()
        await _use(engine, "after")

        plans = await engine.database.run(_explaining(tuple(seen)))

    scans = {statement: [*_scans(plan)] for statement, plan in plans.items()}
    assert {node["Relation Name"] for nodes in scans.values() for node in nodes} >= {*TABLES}
    whole = [
        (node["Relation Name"], statement)
        for statement, nodes in scans.items()
        for node in nodes
        if node["Relation Name"] in TABLES and "Index Cond" not in node
    ]
    assert not whole, "\n".join(
        f"all of {table} is read: {statement}" for table, statement in whole
    )


def _log(monkeypatch: pytest.MonkeyPatch, seen: dict[str, None]) -> None:
    """Note the statements that the program sends, in their order."""
    original = PostgresDatabase.run

    async def run(self: PostgresDatabase, operation: Any, *, pool: Pool = Pool.GENERAL) -> Any:
        async def logged(connection: Connection) -> Any:
            with connection.query_logger(lambda record: seen.setdefault(record.query)):
                return await operation(connection)

        return await original(self, logged, pool=pool)

    monkeypatch.setattr(PostgresDatabase, "run", run)


async def _use(engine: PostgresEngine, name: str) -> None:
    """A run of tasks that succeed, fail, wait and are renewed, and a rerun; all calls of the engine."""
    run_id, copy = RunId(f"{name}-1"), RunId(f"{name}-2")
    job, run = made.a_job(id=JobId(name)), made.a_run(id=run_id, job_id=JobId(name))
    event = made.an_event(job_id=job.id)
    key = made.an_idempotency_record(key=name, expires_at=NOON)
    await engine.metadata.commit(job, run, event, key)
    await engine.metadata.commit(*(_next(row) for row in (job, run, event)))
    await engine.metadata.clear_expired(limit=9)
    await made.add_rows(engine.tasks, run_id, made.new_tasks(run_id, TASKS))
    await made.add_rows(engine.tasks, run_id, made.new_tasks(run_id, TASKS))  # once more
    decisions = (made.scraped(), made.refused(), made.to_retry(delay=timedelta()))
    for _ in range(2):  # the second claim takes what waits
        tasks = await engine.work.claim({run_id: TASKS})
        assert await engine.work.renew([made.held(task) for task in tasks]) == []
        ended = [made.settlement(task, decisions[task.index % 3]) for task in tasks[: TASKS // 2]]
        assert all(await engine.work.settle(ended))
    await engine.work.claim({run_id: TASKS})
    await engine.work.release_lapsed(run_id, overdue=timedelta(days=-1), limit=TASKS)
    for statuses in (None, *map(frozenset, zip(TaskStatus, strict=True))):
        page = await engine.tasks.page(run_id, limit=TASKS, statuses=statuses)
    await engine.tasks.get(run_id, page.tasks[0].id)
    await engine.tasks.history(run_id, page.tasks[0].id)
    await engine.tasks.histories(run_id, after=-1, up_to=TASKS)
    await engine.tasks.counts([run_id])
    await engine.tasks.open_counts([run_id])
    await engine.tasks.failure_groups(run_id)
    await engine.tasks.tally(run_id)
    inherited = made.inherited_as(TaskStatus.FAILED)
    rows = [msgspec.structs.replace(row, inherited=inherited) for row in made.new_tasks(copy)]
    await made.add_rows(engine.tasks, copy, rows)
    while await engine.tasks.discard(run_id, limit=100):
        pass


def _next(row: Row) -> Row:
    return msgspec.structs.replace(row, version=1)


async def _empty(database: PostgresDatabase) -> None:
    """Leave pages of all tables, but no rows, in statistics too."""
    async with connected(database.address) as connection:
        for table in TABLES:
            await connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            await connection.execute(f"DELETE FROM {table}")
        while len(await connection.fetch(SEEN_AS_EMPTY, TABLES)) < len(TABLES):
            # Until no older transaction, as of another test, still sees the rows.
            await connection.execute(f"VACUUM (ANALYZE, TRUNCATE off) {', '.join(TABLES)}")


def _explaining(statements: tuple[str, ...]) -> Callable[[Connection], Any]:
    async def operation(connection: Connection) -> dict[str, Node]:
        plans = {}
        for number, statement in enumerate(statements):
            if statement.split()[0] in EXPLAINED:
                await connection.execute(f"PREPARE it_{number} AS {statement}")
                types = "SELECT parameter_types FROM pg_prepared_statements WHERE name = $1"
                count = len(await connection.fetchval(types, f"it_{number}"))
                given = f"({', '.join(['NULL'] * count)})" if count else ""
                explain = f"EXPLAIN (FORMAT JSON) EXECUTE it_{number}{given}"
                plans[statement] = json.loads(await connection.fetchval(explain))[0]["Plan"]
        return plans

    return operation


def _scans(plan: Node) -> Iterator[Node]:
    if "Scan" in plan["Node Type"] and "Relation Name" in plan:
        yield plan
    for below in plan.get("Plans", ()):
        yield from _scans(below)
