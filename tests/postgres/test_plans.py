"""Every statement finds its rows by an index, also while statistics say that tables are empty.

Autovacuum writes that whenever the rows of a table are gone for a moment, as those of `held` are
between two groups. Plans made then are used until there are newer statistics, by when a million rows
may have come.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import pytest

from conveyor.adapters.postgres import control_queue, metadata, tasks, work
from conveyor.adapters.postgres.control_queue import PostgresControlQueue
from conveyor.adapters.postgres.database import Connection, Pool, PostgresDatabase
from conveyor.adapters.postgres.engine import PostgresEngine, open_engine
from conveyor.adapters.postgres.metadata import TABLES, PostgresMetadata
from conveyor.adapters.postgres.schema import migrate_at
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.domain.batch import Batch
from conveyor.domain.export import Export
from conveyor.domain.ids import ExportId, InputId, JobId, RunId
from conveyor.domain.job import Job
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.domain.run import Run
from conveyor.domain.task import TaskStatus
from conveyor.testing import factories as made
from conveyor.testing.clock import NOON
from conveyor.testing.contracts.control_queue import a_message
from tests.harness.postgres import TestDatabases, connected

# Those that grow with tasks and records. Tables of coordination have a row for each process or name.
GROWING = (
    "task", "fresh", "held", "later", "done", "attempt", "counter", "failure_group", "run_no", "job",
    "run", "idempotency_record", "outbox_event", "batch", "export", "file_input", "control_message",
)  # fmt: skip
# Those with a row for each task: a condition on the run alone reads all rows of the run.
OF_TASKS = {"task", "held", "later", "done", "attempt"}
# Statements that read rows of tables without naming them one by one.
READ_IN_ORDER = {  # until they have enough
    work.LOOK: {"later"},
    tasks.LAST_TO_DROP: {"task"},
    tasks.ANY_LEFT: {"task"},
    control_queue.GROUPS: {"control_message"},
    TABLES[Job].page(first=True): {"job"},
}
READ_WHOLE = {  # what is held at a moment, the live runs, or what the call is for
    work.ANY_LAPSED: {"held"},
    work.LAPSED: {"held"},
    tasks.OPEN: {"held"},
    tasks.TALLY: {"held", "later", "done"},
    metadata.LIVE_RUNS_OF_CALLER: {"run"},
    **{tasks.DROP_ALL.format(table=table): {table} for table in OF_TASKS},
}
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
    assert {node["Relation Name"] for nodes in scans.values() for node in nodes} >= {*GROWING}
    whole = [
        (node["Relation Name"], statement)
        for statement, nodes in scans.items()
        for node in nodes
        if _reads_more_than_it_names(node)
        and node["Relation Name"] not in (READ_IN_ORDER | READ_WHOLE).get(statement, ())
    ]
    assert not whole, "\n".join(
        f"all of {table} is read: {statement}" for table, statement in whole
    )
    ranges = [
        node["Index Cond"]
        for node in scans[tasks._page_query(frozenset({TaskStatus.PENDING}), whole=False)]
        if node["Relation Name"] == "fresh"
    ]
    assert all("first >" in condition for condition in ranges), "ranges before the page are read"


def _reads_more_than_it_names(node: Node) -> bool:
    table, condition = node["Relation Name"], node.get("Index Cond", "")
    if table in OF_TASKS:
        return not {"idx", "due_at"} & {*re.findall(r"\w+", condition)}
    return table in GROWING and not condition


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
    batch = made.a_batch(run_id=run_id, job_id=job.id)
    export = made.an_export(id=ExportId(name), run_id=run_id, job_id=job.id)
    file_input = made.a_file_input(id=InputId(name))
    await engine.metadata.commit(job, run, event, key, batch, export, file_input)
    await _read(engine.metadata, job, run)
    await _use_queue(engine.control_queue, name)
    await engine.metadata.commit(*(_next(row) for row in (job, run, event)))
    await engine.metadata.clear_expired(limit=9)
    await made.add_rows(engine.tasks, run_id, made.new_tasks(run_id, TASKS))
    await made.add_rows(engine.tasks, run_id, made.new_tasks(run_id, TASKS))  # once more
    decisions = (made.scraped(), made.refused(), made.to_retry(delay=timedelta()))
    for _ in range(2):  # the second claim takes what waits
        taken = await engine.work.claim({run_id: TASKS})
        assert await engine.work.renew([made.held(task) for task in taken]) == []
        ended = [made.settlement(task, decisions[task.index % 3]) for task in taken[: TASKS // 2]]
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


async def _read(metadata: PostgresMetadata, job: Job, run: Run) -> None:
    await metadata.get(Job, job.id)
    await metadata.page(Job, limit=9)
    await metadata.page(Job, limit=9, after=job.id)
    await metadata.jobs(job.caller, limit=9)
    await metadata.runs(job.id, limit=9)
    await metadata.live_runs(limit=9)
    await metadata.changed_runs("1:0", limit=9)
    await metadata.events(job.id, limit=9)
    await metadata.of_run(Batch, run.id, limit=9)
    await metadata.of_run(Export, run.id, limit=9)
    await metadata.due(Job, limit=9)
    await metadata.due(OutboxEvent, limit=9, channel=Channel.WEBHOOK)
    await metadata.usage(job.caller)


async def _use_queue(queue: PostgresControlQueue, name: str) -> None:
    lease = timedelta(minutes=10)
    await queue.send(a_message(name))
    await queue.is_live("delete", name)
    [message] = await queue.receive(1, lease=lease)
    await queue.extend(message, lease=lease)
    await queue.retry_later(message, delay=timedelta())
    [message] = await queue.receive(1, lease=lease)
    await queue.resend(message, {"job": "further"})
    [message] = await queue.receive(1, lease=lease)
    await queue.dead_letter(message, "because")
    [dead] = await queue.dead_letters(limit=9)
    await queue.find_dead_letter(dead.id)
    await queue.redrive(dead.id)
    await queue.drop(dead.id)
    [message] = await queue.receive(1, lease=lease)
    await queue.ack(message)


def _next(row: Row) -> Row:
    return msgspec.structs.replace(row, version=1)


async def _empty(database: PostgresDatabase) -> None:
    """Leave pages of all tables, but no rows, in statistics too."""
    async with connected(database.address) as connection:
        for table in GROWING:
            await connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            await connection.execute(f"DELETE FROM {table}")
        while len(await connection.fetch(SEEN_AS_EMPTY, GROWING)) < len(GROWING):
            # Until no older transaction, as of another test, still sees the rows.
            await connection.execute(f"VACUUM (ANALYZE, TRUNCATE off) {', '.join(GROWING)}")


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
