"""Task rows in SQLite."""

from collections.abc import Mapping, Sequence
from operator import itemgetter

import apsw
import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import (
    PHASE,
    ROWS,
    STATUS_NO,
    TASK,
    Row,
    line_of,
    rows_of,
    stamp,
    task_of,
)
from conveyor.adapters.sqlite.shelves import Shelves, find_shelf, make_shelf
from conveyor.domain.counts import COLUMNS as COUNTED
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.ids import RunId, TaskId, task_index
from conveyor.domain.task import Attempt, Inherited, Task, TaskStatus
from conveyor.ports.clock import Clock
from conveyor.ports.tasks import NewTask

ADD = """
INSERT INTO task (shelf, idx, id, status, phase, due_at, claim_no, attempts, lost, created_at,
                  updated_at, url, method, external_id, metadata, params, body)
SELECT ?2, value ->> 0, value ->> 1, 0, 0, ?3, 0, 0, 0, ?3, ?3, value ->> 2, value ->> 3,
       value ->> 4, value ->> 5, value ->> 6, value ->> 7
  FROM json_each(?1) WHERE true
ON CONFLICT DO NOTHING
"""
ADD_INHERITED = """
INSERT INTO task (shelf, idx, id, status, phase, claim_no, attempts, lost, created_at, updated_at,
                  url, method, external_id, metadata, params, body, locator, length, checksum,
                  format, content_type, problem, reason, source_run_id, scraped_at)
SELECT ?2, value ->> 0, value ->> 1, value ->> 8, value ->> 9, 0, value ->> 10, 0, value ->> 11,
       ?3, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
       value ->> 12, value ->> 13, value ->> 14, value ->> 15, value ->> 16, value ->> 17,
       value ->> 18, value ->> 19, value ->> 20
  FROM json_each(?1) WHERE true
ON CONFLICT DO NOTHING
"""
ADDED_AT_A_TIME = 1_000
GET = f"SELECT {TASK} FROM task WHERE shelf = ? AND idx = ?"
PAGE = f"""
SELECT {ROWS} FROM
       (SELECT {TASK} FROM task WHERE shelf = ? AND idx > ? ORDER BY idx LIMIT ?)
"""
PAGE_OF_PHASE = f"""
SELECT {ROWS} FROM
       (SELECT {TASK} FROM task INDEXED BY task_by_phase
         WHERE shelf = ? AND phase = ? AND idx > ? AND status IN (SELECT value FROM json_each(?))
         ORDER BY idx LIMIT ?)
"""
HISTORY = """
SELECT attempt, started_at, ended_at, problem, credits, nanos FROM attempt
 WHERE shelf = ? AND idx = ? ORDER BY claim_no
"""
SUM = f"""
SELECT {", ".join(f"sum({name})" for name in COUNTED)} FROM counter
 WHERE shelf = ? HAVING count(*) > 0
"""
# From the indexes alone: the rows of a large run are many times their size.
PHASES = """
SELECT phase, count(*) FROM task INDEXED BY task_by_phase WHERE shelf = ? GROUP BY phase
"""
HELD = "SELECT count(*) FROM task INDEXED BY task_held WHERE shelf = ? AND status = 1"
RUNS = "SELECT run_id FROM shelf WHERE run_id > ? ORDER BY run_id LIMIT ?"
NO_BODY = (None,) * 5
DROP_ROWS = """
DELETE FROM task WHERE shelf = ?1 AND idx IN
       (SELECT idx FROM task WHERE shelf = ?1 ORDER BY idx LIMIT ?2)
RETURNING idx
"""


class SqliteTasks:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._shelves = Shelves()

    async def add(self, run_id: RunId, tasks: Sequence[NewTask]) -> int:
        now = stamp(self._clock.now())

        fresh = _chunks([_row(task) for task in tasks if task.inherited is None])
        inherited = _chunks(
            [_inherited_row(task, task.inherited) for task in tasks if task.inherited]
        )

        def operation(connection: apsw.Connection) -> int:
            shelf = make_shelf(connection, run_id)
            before = connection.total_changes()
            for chunk in fresh:
                connection.execute(ADD, (chunk, shelf, now))
            for chunk in inherited:
                connection.execute(ADD_INHERITED, (chunk, shelf, now))
            return int(connection.total_changes() - before)

        # Rows mean nothing before the commit of the run or watermark that follows them.
        return await self._database.write(operation, lazy=True)

    async def get(self, run_id: RunId, task_id: TaskId) -> Task | None:
        def operation(connection: apsw.Connection) -> Task | None:
            shelf, index = self._shelves.find(connection, run_id), task_index(task_id)
            if shelf is None or index is None:
                return None
            row = connection.execute(GET, (shelf, index)).fetchone()
            return task_of(run_id, row) if row and row[1] == task_id else None

        return self._database.peek(operation)

    async def page(
        self,
        run_id: RunId,
        *,
        limit: int,
        after: int = -1,
        statuses: frozenset[TaskStatus] | None = None,
    ) -> Sequence[Task]:
        def operation(connection: apsw.Connection) -> list[Task]:
            shelf = self._shelves.find(connection, run_id)
            if shelf is None:
                return []
            rows = (
                rows_of(connection, PAGE, (shelf, after, limit))
                if statuses is None
                else _of_statuses(connection, shelf, statuses, after=after, limit=limit)
            )
            return [task_of(run_id, row) for row in rows]

        return await self._database.read(operation)

    async def history(self, run_id: RunId, task_id: TaskId) -> Sequence[Attempt]:
        def operation(connection: apsw.Connection) -> list[Attempt]:
            shelf = self._shelves.find(connection, run_id)
            rows = connection.execute(HISTORY, (shelf, task_index(task_id)))
            return [line_of(row) for row in rows]

        return self._database.peek(operation)

    async def counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, Counts]:
        def operation(connection: apsw.Connection) -> dict[RunId, Counts]:
            return {run_id: self._sum(connection, run_id) for run_id in run_ids}

        return self._database.peek(operation)

    async def tally(self, run_id: RunId) -> Mapping[TaskStatus, int]:
        def operation(connection: apsw.Connection) -> dict[TaskStatus, int]:
            shelf = self._shelves.find(connection, run_id)
            phases = dict(connection.execute(PHASES, (shelf,)))
            [(processing,)] = connection.execute(HELD, (shelf,))
            counted = {
                TaskStatus.PENDING: phases.get(PHASE[TaskStatus.PENDING], 0) - processing,
                TaskStatus.PROCESSING: processing,
                TaskStatus.SUCCESSFUL: phases.get(PHASE[TaskStatus.SUCCESSFUL], 0),
                TaskStatus.FAILED: phases.get(PHASE[TaskStatus.FAILED], 0),
            }
            return {status: n for status, n in counted.items() if n}

        return await self._database.read(operation)

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[RunId]:
        def operation(connection: apsw.Connection) -> list[RunId]:
            return [RunId(run_id) for (run_id,) in connection.execute(RUNS, (after, limit))]

        return await self._database.read(operation)

    async def discard(self, run_id: RunId, *, limit: int) -> int:
        def operation(connection: apsw.Connection) -> int:
            shelf = find_shelf(connection, run_id)
            return 0 if shelf is None else _drop_rows(connection, shelf, limit)

        return await self._database.write(operation)

    def _sum(self, connection: apsw.Connection, run_id: RunId) -> Counts:
        shelf = self._shelves.find(connection, run_id)
        row = connection.execute(SUM, (shelf,)).fetchone()
        return Counts(**dict(zip(COUNTED, row, strict=True))) if row else ZERO


def _row(task: NewTask) -> tuple[int | str | None, ...]:
    spec = task.spec
    return (
        task.index, task.id,
        spec.url, spec.method, spec.external_id, spec.metadata, spec.params, spec.body,
    )  # fmt: skip


def _inherited_row(task: NewTask, stood: Inherited) -> tuple[int | str | None, ...]:
    body = msgspec.structs.astuple(stood.result) if stood.result else NO_BODY
    scraped_at = None if stood.scraped_at is None else stamp(stood.scraped_at)
    return (
        *_row(task), STATUS_NO[stood.status], PHASE[stood.status], stood.attempts,
        stamp(stood.created_at), *body, stood.problem, stood.reason, stood.source_run_id,
        scraped_at,
    )  # fmt: skip


def _chunks(rows: Sequence[tuple[int | str | None, ...]]) -> list[str]:
    """Rows as JSON, many to a text."""
    return [
        msgspec.json.encode(rows[start : start + ADDED_AT_A_TIME]).decode()
        for start in range(0, len(rows), ADDED_AT_A_TIME)
    ]


def _drop_rows(connection: apsw.Connection, shelf: int, limit: int) -> int:
    gone = [index for (index,) in connection.execute(DROP_ROWS, (shelf, limit))]
    lines = ((shelf, index) for index in gone)
    connection.executemany("DELETE FROM attempt WHERE shelf = ? AND idx = ?", lines)
    if len(gone) < limit:
        connection.execute("DELETE FROM counter WHERE shelf = ?", (shelf,))
        connection.execute("DELETE FROM shelf WHERE no = ?", (shelf,))
    return len(gone)


def _of_statuses(
    connection: apsw.Connection,
    shelf: int,
    statuses: frozenset[TaskStatus],
    *,
    after: int,
    limit: int,
) -> list[Row]:
    """Rows of some statuses: each phase read in order of index, then merged.

    A phase that is wanted only in part (pending without processing, say) is read on until the
    page is full.
    """
    wanted = msgspec.json.encode([STATUS_NO[status] for status in statuses]).decode()
    found: list[Row] = []
    for phase in {PHASE[status] for status in statuses}:
        found += rows_of(connection, PAGE_OF_PHASE, (shelf, phase, after, wanted, limit))
    return sorted(found, key=itemgetter(0))[:limit]
