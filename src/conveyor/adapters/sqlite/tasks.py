"""Task rows in SQLite."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial

import apsw
import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import (
    DECODER,
    NOT_LISTED,
    PHASE,
    STATUS_NO,
    RunNumbers,
    add_failures,
    columns,
    failing,
    find_place,
    find_run_no,
    fitting,
    gathered,
    line_of,
    make_run_no,
    needed,
    size,
    sizes,
    stamp,
    task_of,
)
from conveyor.domain.counts import COUNT_COLUMNS, MOST_OPEN, ZERO, Counts, OpenCounts
from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import FailureGroup, failure_key, listed
from conveyor.domain.ids import RunId, TaskId, task_index
from conveyor.domain.job import RunPlace
from conveyor.domain.task import WORKER_LOST, Attempt, Inherited, NewRow, Task, TaskStatus
from conveyor.ports.clock import Clock
from conveyor.ports.tasks import PAGE_BYTES, TaskPage

HISTORIES = """
SELECT task.id, attempt, started_at, ended_at, CASE attempt.problem WHEN ?4 THEN ?4 END, credits,
       nanos, attempt.http_status, attempt.duration_ms
  FROM attempt JOIN task USING (run_no, idx)
 WHERE run_no = ?1 AND idx > ?2 AND idx <= ?3 ORDER BY idx, attempt.claim_no
"""
ADD = """
INSERT INTO task (run_no, idx, id, status, phase, due_at, claim_no, attempts, lost, created_at,
                  updated_at, url, method, external_id, metadata, params, body, spent_credits,
                  spent_nanos)
SELECT ?2, value ->> 0, value ->> 1, 0, 0, ?3, 0, 0, 0, ?3, ?3, value ->> 2, value ->> 3,
       value ->> 4, value ->> 5, value ->> 6, value ->> 7, 0, 0
  FROM json_each(?1) WHERE true
ON CONFLICT DO NOTHING
"""
ADD_INHERITED = """
INSERT INTO task (run_no, idx, id, status, phase, claim_no, attempts, lost, created_at, updated_at,
                  url, method, external_id, metadata, params, body, locator, length, checksum,
                  format, content_type, problem, reason, source_run_id, scraped_at, http_status,
                  duration_ms, final_url, spent_credits, spent_nanos)
SELECT ?2, value ->> 0, value ->> 1, value ->> 8, value ->> 9, 0, value ->> 10, 0, value ->> 11,
       ?3, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
       value ->> 12, value ->> 13, value ->> 14, value ->> 15, value ->> 16, value ->> 17,
       value ->> 18, value ->> 19, value ->> 20, value ->> 21, value ->> 22, value ->> 23,
       value ->> 24, value ->> 25
  FROM json_each(?1) WHERE true
ON CONFLICT DO NOTHING
"""
# Executed before `ADD_INHERITED`, so that the rows that it will insert do not exist yet.
FAILING_INHERITED = failing("""
SELECT ?2 AS run_no, value ->> 0 AS idx, value ->> 26 AS host,
       coalesce(value ->> 18, 'other') AS reason, value ->> 27 AS code
  FROM json_each(?1)
 WHERE value ->> 8 = 3
   AND NOT EXISTS (SELECT 1 FROM task WHERE run_no = ?2 AND idx = value ->> 0)
""")
ADDED_AT_A_TIME = 1_000
MOST_WRITTEN = 10_000  # runs whose places are remembered
GET = f"SELECT {columns(NOT_LISTED)} FROM task WHERE run_no = ? AND idx = ?"
# The end of the run is checked on `run_no`, outside the inner query. As a bound of the inner query
# it would cost a comparison of whole rows.
NEAR = """
SELECT * FROM (SELECT {what} FROM task WHERE (run_no, idx) > (?1, ?2) ORDER BY run_no, idx LIMIT ?3)
 WHERE run_no = ?1
"""
NEAR_IN_PHASE = """
SELECT * FROM (SELECT {what} FROM task INDEXED BY task_by_phase
                WHERE run_no = ?1 AND phase = {phase} AND idx > ?2{partly} ORDER BY idx LIMIT ?3)
"""
# The tasks in hand are few: sorting them costs less than looking for them among all open ones.
NEAR_HELD = """
SELECT * FROM (SELECT {what} FROM task INDEXED BY task_held
                WHERE run_no = ?1 AND status = 1 AND idx > ?2 ORDER BY idx LIMIT ?3)
"""
FILTERED = "SELECT {needed} FROM task WHERE run_no = ?1 AND idx IN ({near}) ORDER BY idx"
HISTORY = """
SELECT attempt, started_at, ended_at, problem, credits, nanos, http_status, duration_ms FROM attempt
 WHERE run_no = ? AND idx = ? ORDER BY claim_no
"""
SUM = f"""
SELECT {", ".join(f"sum({name})" for name in COUNT_COLUMNS)} FROM counter
 WHERE run_no = ? HAVING count(*) > 0
"""
# From the indexes of open tasks alone, each up to a bound.
OPEN = f"""
SELECT (SELECT count(*) FROM (SELECT 1 FROM task INDEXED BY task_held
                               WHERE run_no = ?1 AND status = 1 LIMIT {MOST_OPEN})),
       (SELECT count(*) FROM (SELECT 1 FROM task INDEXED BY task_due
                               WHERE run_no = ?1 AND status = 0 AND due_at > ?2 LIMIT {MOST_OPEN}))
"""
GROUPS = """
SELECT host, reason, code, count, (SELECT id FROM task WHERE run_no = it.run_no AND idx = example)
  FROM failure_group AS it WHERE run_no = ?
"""
# These read the indexes only: the rows of a large run are many times as large.
PHASES = """
SELECT phase, count(*) FROM task INDEXED BY task_by_phase WHERE run_no = ? GROUP BY phase
"""
HELD = "SELECT count(*) FROM task INDEXED BY task_held WHERE run_no = ? AND status = 1"
RUNS = "SELECT run_id FROM run_no WHERE run_id > ? ORDER BY run_id LIMIT ?"
NO_BODY = (None,) * 5
TO_DROP = sizes(NEAR.format(what=f"run_no, idx, {size({})} AS size"))
DROP_ROWS = f"""
DELETE FROM task WHERE run_no = ?1 AND idx <=
       (SELECT max(idx) FROM ({NEAR.format(what="run_no, idx")}))
RETURNING idx
"""
DROP_RUN_NO = """
DELETE FROM run_no WHERE no = ?1 AND NOT EXISTS (SELECT 1 FROM task WHERE run_no = ?1)
"""


class SqliteTasks:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._run_numbers = RunNumbers()
        self._places: dict[RunId, RunPlace] = {}  # of runs that this process writes

    async def lay_out(self, run_id: RunId, place: RunPlace) -> None:
        """Nothing is written: the place is stored with the first rows, in their transaction."""
        known = self._places.get(run_id)
        known = known or self._database.peek(partial(find_place, run_id=run_id))
        if known not in {None, place}:
            raise ValueError(f"run {run_id} has another place: {known}, got {place}")
        self._places[run_id] = place
        if len(self._places) > MOST_WRITTEN:
            del self._places[next(iter(self._places))]

    async def add(self, run_id: RunId, tasks: Sequence[NewRow]) -> int:
        now = stamp(self._clock.now())

        fresh = _chunks([_row(task) for task in tasks if task.inherited is None])
        inherited = _chunks(
            [_inherited_row(task, task.inherited) for task in tasks if task.inherited]
        )

        any_failed = any(
            task.inherited and task.inherited.status is TaskStatus.FAILED for task in tasks
        )

        place = self._places.get(run_id)

        def operation(connection: apsw.Connection) -> int:
            run_no, added = make_run_no(connection, run_id, place), 0
            for chunk in fresh:
                connection.execute(ADD, (chunk, run_no, now))
                added += connection.changes()
            for chunk in inherited:
                if any_failed:
                    add_failures(connection, FAILING_INHERITED, (chunk, run_no))
                connection.execute(ADD_INHERITED, (chunk, run_no, now))
                added += connection.changes()
            return added

        # Lazy: rows mean nothing before the commit of the run or the watermark that follows them.
        return await self._database.write(operation, lazy=True)

    async def get(self, run_id: RunId, task_id: TaskId) -> Task | None:
        def operation(connection: apsw.Connection) -> Task | None:
            run_no, index = self._run_numbers.find(connection, run_id), task_index(task_id)
            if run_no is None or index is None:
                return None
            row = connection.execute(GET, (run_no, index)).fetchone()
            return task_of(run_id, row) if row and row[1] == task_id else None

        return self._database.peek(operation)

    async def page(
        self,
        run_id: RunId,
        *,
        limit: int,
        after: int = -1,
        statuses: frozenset[TaskStatus] | None = None,
        whole: bool = False,
        lagging: bool = False,
    ) -> TaskPage:
        del lagging  # rows are never late
        sizes_of, rows_of = _page_queries(statuses, whole=whole)

        def operation(connection: apsw.Connection) -> TaskPage:
            run_no = self._run_numbers.find(connection, run_id)
            if run_no is None:
                return TaskPage([], None)
            with connection:  # a transaction: both queries must see the same rows
                fits, is_last = fitting(
                    connection, sizes_of, (run_no, after), limit=limit, room=PAGE_BYTES
                )
                [(text,)] = connection.execute(rows_of, (run_no, after, fits))
            tasks = [task_of(run_id, row) for row in DECODER.decode(text)]
            return TaskPage(tasks, None if is_last else tasks[-1].index)

        return await self._database.read(operation)

    async def history(self, run_id: RunId, task_id: TaskId) -> Sequence[Attempt]:
        def operation(connection: apsw.Connection) -> list[Attempt]:
            run_no = self._run_numbers.find(connection, run_id)
            rows = connection.execute(HISTORY, (run_no, task_index(task_id)))
            return [line_of(row) for row in rows]

        # Not a point read: the problems of a hundred attempts may be several MB.
        return await self._database.read(operation)

    async def histories(
        self, run_id: RunId, *, after: int, up_to: int
    ) -> Mapping[TaskId, Sequence[Attempt]]:
        def operation(connection: apsw.Connection) -> dict[TaskId, list[Attempt]]:
            run_no = find_run_no(connection, run_id)
            found: dict[TaskId, list[Attempt]] = {}
            values = (run_no, after, up_to, WORKER_LOST)
            for task_id, *line in connection.execute(HISTORIES, values):
                found.setdefault(task_id, []).append(line_of(tuple(line)))
            return found

        return await self._database.read(operation)

    async def counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, Counts]:
        def operation(connection: apsw.Connection) -> dict[RunId, Counts]:
            return {run_id: self._sum(connection, run_id) for run_id in run_ids}

        return self._database.peek(operation)

    async def open_counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, OpenCounts]:
        now = stamp(self._clock.now())

        def operation(connection: apsw.Connection) -> dict[RunId, OpenCounts]:
            found = dict[RunId, OpenCounts]()
            for run_id in run_ids:
                run_no = self._run_numbers.find(connection, run_id)
                [row] = connection.execute(OPEN, (run_no, now))
                found[run_id] = OpenCounts(*row)
            return found

        return await self._database.read(operation)

    async def failure_groups(self, run_id: RunId) -> Sequence[FailureGroup]:
        def operation(connection: apsw.Connection) -> list[FailureGroup]:
            run_no = self._run_numbers.find(connection, run_id)
            return listed(_group_of(*row) for row in connection.execute(GROUPS, (run_no,)))

        return await self._database.read(operation)

    async def tally(self, run_id: RunId) -> Mapping[TaskStatus, int]:
        def operation(connection: apsw.Connection) -> dict[TaskStatus, int]:
            run_no = self._run_numbers.find(connection, run_id)
            phases = dict(connection.execute(PHASES, (run_no,)))
            [(processing,)] = connection.execute(HELD, (run_no,))
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
            run_no = find_run_no(connection, run_id)
            return 0 if run_no is None else _drop_rows(connection, run_no, limit)

        return await self._database.write(operation)

    def _sum(self, connection: apsw.Connection, run_id: RunId) -> Counts:
        run_no = self._run_numbers.find(connection, run_id)
        row = connection.execute(SUM, (run_no,)).fetchone()
        return Counts(**dict(zip(COUNT_COLUMNS, row, strict=True))) if row else ZERO


def _group_of(host: str, reason: str, code: str, count: int, example: TaskId) -> FailureGroup:
    return FailureGroup(
        host=host, reason=FailureReason(reason), code=code, count=count, example=example
    )


def _row(task: NewRow) -> tuple[int | str | None, ...]:
    spec = task.spec
    return (
        task.index, task.id,
        spec.url, spec.method, spec.external_id, spec.metadata, spec.params, spec.body,
    )  # fmt: skip


def _inherited_row(task: NewRow, stood: Inherited) -> tuple[int | str | None, ...]:
    body = msgspec.structs.astuple(stood.result) if stood.result else NO_BODY
    scraped_at = None if stood.scraped_at is None else stamp(stood.scraped_at)
    return (
        *_row(task), STATUS_NO[stood.status], PHASE[stood.status], stood.attempts,
        stamp(stood.created_at), *body, stood.problem, stood.reason, stood.source_run_id,
        scraped_at, *msgspec.structs.astuple(stood.facts),
        *((stood.spend.credits, stood.spend.nanos) if stood.spend else (None, None)),
        *_failure(task, stood),
    )  # fmt: skip


def _failure(task: NewRow, stood: Inherited) -> tuple[str, ...]:
    """Host and code of the failure group of an inherited row, if it failed."""
    if stood.status is not TaskStatus.FAILED:
        return ()
    key = failure_key(task.spec.host, stood.reason, stood.problem)
    return key.host, key.code


def _chunks(rows: Iterable[tuple[int | str | None, ...]]) -> list[str]:
    """Rows as JSON arrays of at most `ADDED_AT_A_TIME` rows and about `PAGE_BYTES` bytes."""
    return [f"[{','.join(chunk)}]" for chunk in _chunked(rows)]


def _chunked(rows: Iterable[tuple[int | str | None, ...]]) -> Iterator[list[str]]:
    chunk, room = list[str](), PAGE_BYTES
    for row in rows:
        text = msgspec.json.encode(row).decode()
        if chunk and (len(chunk) == ADDED_AT_A_TIME or len(text) > room):
            yield chunk
            chunk, room = [], PAGE_BYTES
        chunk.append(text)
        room -= len(text)
    if chunk:
        yield chunk


def _drop_rows(connection: apsw.Connection, run_no: int, limit: int) -> int:
    fits, _ = fitting(connection, TO_DROP, (run_no, -1), limit=limit, room=PAGE_BYTES)
    gone = [index for (index,) in connection.execute(DROP_ROWS, (run_no, -1, fits))]
    lines = ((run_no, index) for index in gone)
    connection.executemany("DELETE FROM attempt WHERE run_no = ? AND idx = ?", lines)
    connection.execute(DROP_RUN_NO, (run_no,))
    if connection.changes():
        connection.execute("DELETE FROM counter WHERE run_no = ?", (run_no,))
        connection.execute("DELETE FROM failure_group WHERE run_no = ?", (run_no,))
    return len(gone)


@cache
def _page_queries(statuses: frozenset[TaskStatus] | None, *, whole: bool) -> tuple[str, str]:
    """The two queries of a page: for the sizes of the next rows, and for as many rows as fit."""
    instead = {} if whole else NOT_LISTED
    size_of = f"{size(instead)} AS size"
    if statuses is None:
        rows = NEAR.format(what=needed(instead, "run_no"))
        return sizes(NEAR.format(what=f"run_no, idx, {size_of}")), _gathering(rows, instead)
    rows = FILTERED.format(needed=needed(instead), near=_near(statuses, "idx"))
    return sizes(_near(statuses, f"idx, {size_of}")), _gathering(rows, instead)


def _gathering(rows: str, instead: Mapping[str, str]) -> str:
    return f"SELECT {gathered(instead)} FROM ({rows})"


def _near(statuses: frozenset[TaskStatus], what: str) -> str:
    """A query for the next rows of some statuses: each phase is read by its index, then merged.

    If only a part of a phase is wanted (pending without processing, for example), its rows are read
    until the page is full.
    """
    if statuses == {TaskStatus.PROCESSING}:
        return NEAR_HELD.format(what=what)
    parts = []
    for phase in sorted({PHASE[status] for status in statuses}):
        wanted = {status for status, its in PHASE.items() if its == phase} & statuses
        is_whole = len(wanted) == list(PHASE.values()).count(phase)
        numbers = ", ".join(str(STATUS_NO[status]) for status in sorted(wanted))
        partly = "" if is_whole else f" AND status IN ({numbers})"
        parts.append(NEAR_IN_PHASE.format(what=what, phase=phase, partly=partly))
    return f"SELECT * FROM ({' UNION ALL '.join(parts)}) ORDER BY idx LIMIT ?3"
