"""The embedded engine: every kind of row in one SQLite file."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import apsw
import msgspec

from conveyor.adapters.sqlite.claims import SqliteClaims
from conveyor.adapters.sqlite.control_queue import SqliteControlQueue
from conveyor.adapters.sqlite.database import Database, Durability, open_database, visit_database
from conveyor.adapters.sqlite.due_times import LAST_SEEN, SqliteDueTimes
from conveyor.adapters.sqlite.metadata import SqliteMetadata
from conveyor.adapters.sqlite.rows import FAILING, stamp
from conveyor.adapters.sqlite.tasks import SqliteTasks
from conveyor.adapters.sqlite.work import ENDING, SqliteWork
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.work import Held

NOBODY = 0
# Messages that a dead owner held are due again. `held = 0` is a message that waits out a delay, and
# goes on waiting.
FREE = "UPDATE control_message SET due_at = ?1, held = 0 WHERE held = 1 AND due_at > ?1"


class SqliteEngine(msgspec.Struct, frozen=True, kw_only=True):
    database: Database
    metadata: SqliteMetadata
    tasks: SqliteTasks
    work: SqliteWork
    claims: SqliteClaims
    control_queue: SqliteControlQueue
    due_times: SqliteDueTimes
    incarnation: int
    dead_claims: Sequence[Held]  # claims of earlier incarnations that were not settled


@asynccontextmanager
async def open_engine(
    folder: Path,
    *,
    clock: Clock,
    ids: Ids,
    lease: timedelta,
    durability: Durability = Durability.POWER,
) -> AsyncIterator[SqliteEngine]:
    """Open a data folder as its only owner, and find the claims that dead owners held."""
    async with open_database(folder, durability=durability) as database:
        now = stamp(clock.now())
        incarnation, set_back = await database.write(lambda connection: _begin(connection, now))
        due_times = SqliteDueTimes(database, clock, lease=lease, incarnation=incarnation)
        await due_times.repair_at_start(timedelta(microseconds=set_back))
        work = SqliteWork(database, clock, lease=lease, incarnation=incarnation)
        dead_claims = await work.held_by_the_dead()
        yield _engine(database, clock, ids, work, due_times, dead_claims)


@asynccontextmanager
async def visit_engine(
    folder: Path, *, clock: Clock, ids: Ids, writable: bool = False
) -> AsyncIterator[SqliteEngine]:
    """Open a data folder that no process owns, and release or repair nothing.

    No task may be settled: there is no incarnation to count under.
    """
    async with visit_database(folder, writable=writable) as database:
        work = SqliteWork(database, clock, lease=timedelta(), incarnation=NOBODY)
        due_times = SqliteDueTimes(database, clock, lease=timedelta(), incarnation=NOBODY)
        yield _engine(database, clock, ids, work, due_times, [])


def _engine(  # noqa: PLR0917 - all of them parts of one thing
    database: Database,
    clock: Clock,
    ids: Ids,
    work: SqliteWork,
    due_times: SqliteDueTimes,
    dead_claims: Sequence[Held],
) -> SqliteEngine:
    return SqliteEngine(
        database=database,
        metadata=SqliteMetadata(database, clock),
        tasks=SqliteTasks(database, clock),
        work=work,
        claims=SqliteClaims(database, work),
        control_queue=SqliteControlQueue(database, clock, ids),
        due_times=due_times,
        incarnation=due_times.incarnation,
        dead_claims=dead_claims,
    )


def _begin(connection: apsw.Connection, now: int) -> tuple[int, int]:
    """The number of this incarnation, and how far the clock was set back since the last one."""
    seen = connection.execute(LAST_SEEN).get
    connection.execute(FREE, (now,))
    # The later of the two times is kept until the repair is complete, so that after a crash the next
    # start sees the step of the clock again and repeats the repair.
    connection.execute(
        "INSERT INTO incarnation (started_at, seen_at) VALUES (?, ?)", (now, max(now, seen or now))
    )
    incarnation = connection.last_insert_rowid()
    connection.execute(ENDING)
    connection.execute(FAILING)
    return incarnation, max(0, (seen or now) - now)
