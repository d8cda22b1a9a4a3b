"""Rows that the release before writes: ahead of a migration, and on the schema that it leads to."""

from datetime import timedelta

from conveyor.adapters.postgres.database import Connection, open_database
from conveyor.adapters.postgres.engine import open_engine
from conveyor.adapters.postgres.schema import migrate, migrations
from conveyor.adapters.postgres.tasks import PostgresTasks
from conveyor.adapters.system.clock import SystemClock
from conveyor.domain.counts import NOTHING
from conveyor.domain.ids import task_index
from conveyor.domain.task import TaskStatus
from conveyor.testing.clock import FakeIds
from conveyor.testing.factories import RUN, add_rows, held, new_tasks, scraped, settlement
from tests.harness.postgres import TestDatabases, connected

LEASE = timedelta(minutes=1)
# With the columns of schema 1: a claim that was lost, a task that waits, and one that has ended. The
# tasks have the indexes from $1 on, and leave the range of those that were never claimed.
OLD_WRITES = (
    "UPDATE fresh SET next = $1 + 3",
    """INSERT INTO held (run_no, idx, until, claimed_at, holder, claim_no, attempts, lost)
       SELECT no, $1, now(), now(), 'old', 1, 0, 0 FROM run_no""",
    """INSERT INTO later (run_no, idx, due_at, claimed_at, updated_at, claim_no, attempts, lost)
       SELECT no, $1 + 1, now(), now(), now(), 1, 1, 0 FROM run_no""",
    """INSERT INTO done (run_no, idx, status, claim_no, attempts, lost, claimed_at, updated_at, charged,
                         credits, nanos, locator, length, checksum, format)
       SELECT no, $1 + 2, 2, 1, 1, 0, now(), now(), true, 5, 0, 'file:a', 1, 'x', 'html' FROM run_no""",
    """INSERT INTO counter (run_no, slot, successful, auth_failed, blocked, bad_target, rate_limited,
                            timeout, gateway_error, other, credits, nanos)
       SELECT no, $1, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0 FROM run_no""",
)


async def test_rows_of_the_release_before_are_claimed_settled_counted_and_read(
    postgres_18: TestDatabases,
) -> None:
    address = await postgres_18.create()
    async with connected(address) as old:
        await old.execute(migrations()[0][1])
        await old.execute("INSERT INTO schema_version (version) VALUES (1)")
        async with open_database(address) as database:
            tasks = PostgresTasks(database, SystemClock())
            await add_rows(tasks, RUN, new_tasks(RUN, 7))  # with the same columns in both releases
            await _write(old, first=0)
            assert await migrate(database)
        await _write(old, first=3)
    async with open_engine(address, ids=FakeIds(), lease=LEASE, holder="new") as engine:
        claimed = await engine.work.claim({RUN: 9})
        assert sorted(task_index(task.id) or 0 for task in claimed) == [0, 1, 3, 4, 6]
        lost = await engine.work.renew([held(task) for task in claimed])
        assert not lost
        ended = [settlement(task, scraped()) for task in claimed]
        assert await engine.work.settle(ended) == [True] * 5

        rows = (await engine.tasks.page(RUN, limit=9)).tasks
        assert [task.status for task in rows] == [TaskStatus.SUCCESSFUL] * 7
        assert (await engine.tasks.counts([RUN]))[RUN].successful == 7
        assert await engine.tasks.tally(RUN) == {TaskStatus.SUCCESSFUL: 7}
        # What the calls of the release before cost is unknown.
        assert [task.spend for task in rows] == [None] * 6 + [NOTHING]


async def _write(old: Connection, *, first: int) -> None:
    for statement in OLD_WRITES:
        await old.execute(statement, first)
