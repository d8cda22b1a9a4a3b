"""Task rows in PostgreSQL."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import asyncpg
import msgspec

from conveyor.adapters.postgres.database import Connection, PostgresDatabase
from conveyor.adapters.postgres.rows import (
    NUMBER,
    RANGE,
    STATUS_NO,
    STATUSES,
    WITH_STATE,
    Failure,
    add_failures,
    columns_of,
    line_of,
    name_of,
    size,
    spent_columns,
    state_columns,
    task_id_of,
    task_of,
)
from conveyor.domain.counts import COUNT_COLUMNS, MOST_OPEN, ZERO, Counts, OpenCounts
from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import FailureGroup, failure_key, listed
from conveyor.domain.ids import RunId, TaskId, task_index
from conveyor.domain.job import RunPlace
from conveyor.domain.task import WORKER_LOST, Attempt, Inherited, NewRow, Task, TaskStatus
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.tasks import PAGE_BYTES, TaskPage

MOST_WRITTEN = 10_000  # runs whose places are remembered
FIND_PLACE = "SELECT job_id, shards, v FROM run_no WHERE run_id = $1"
# A discard takes the whole lock: rows must not be added to a run whose number is being removed.
FIND_RUN = """
SELECT no, job_id, shards, v, coalesce($2::timestamptz, statement_timestamp()) AS now
  FROM run_no WHERE run_id = $1 FOR KEY SHARE
"""
LAY_OUT = """
INSERT INTO run_no (run_id, job_id, shards, v) VALUES ($1, $2, $3, $4)
ON CONFLICT (run_id) DO NOTHING
"""
TASK_COLUMNS = (
    "run_no", "idx", "name", "created_at", "url", "method", "external_id", "metadata", "params",
    "body",
)  # fmt: skip
ADD = f"""
INSERT INTO task ({", ".join(TASK_COLUMNS)})
SELECT * FROM unnest($1::integer[], $2::bigint[], $3::bytea[], $4::timestamptz[], $5::text[],
                     $6::text[], $7::text[], $8::text[], $9::text[], $10::text[])
ON CONFLICT DO NOTHING RETURNING idx
"""
ADD_RANGES = """
INSERT INTO fresh (run_no, first, next, upto)
SELECT $1, first, first, upto FROM unnest($2::bigint[], $3::bigint[]) AS given (first, upto)
"""
INHERITED_COLUMNS = (
    "run_no", "idx", "status", "claim_no", "attempts", "lost", "updated_at", "charged", "credits",
    "nanos", "locator", "length", "checksum", "format", "content_type", "problem", "reason",
    "source_run_id", "scraped_at", "http_status", "duration_ms", "final_url", "spent_credits",
    "spent_nanos",
)  # fmt: skip
NO_BODY = (None,) * 5

GET = f"""
SELECT {state_columns(whole=False)} FROM task AS it {WITH_STATE}
 WHERE it.run_no = {NUMBER} AND it.idx = $2
"""
EVERY = f"SELECT idx FROM task WHERE run_no = {NUMBER} AND idx > $2 ORDER BY idx LIMIT $3"
IN_TABLE = f"""
SELECT idx FROM {{table}} WHERE run_no = {NUMBER}{{also}} AND idx > $2 ORDER BY idx LIMIT $3
"""
# The index finds ranges by their first task: the condition on it leaves those out that end before.
IN_RANGES = f"""
SELECT generate_series(greatest(next, $2 + 1), upto - 1) AS idx
  FROM (SELECT next, upto FROM fresh
         WHERE run_no = {NUMBER} AND first > $2 + 1 - {RANGE} AND upto > $2 + 1
         ORDER BY first) AS it
 LIMIT $3
"""
IN_DONE = {
    status: IN_TABLE.format(table="done", also=f" AND status = {STATUS_NO[status]}")
    for status in (TaskStatus.PENDING, TaskStatus.SUCCESSFUL, TaskStatus.FAILED)
}
# Status -> the queries that find its tasks by index.
SOURCES = {
    TaskStatus.PENDING: (
        IN_RANGES,
        IN_TABLE.format(table="later", also=""),
        IN_DONE[TaskStatus.PENDING],  # inherited
    ),
    TaskStatus.PROCESSING: (IN_TABLE.format(table="held", also=""),),
    TaskStatus.SUCCESSFUL: (IN_DONE[TaskStatus.SUCCESSFUL],),
    TaskStatus.FAILED: (IN_DONE[TaskStatus.FAILED],),
}
LINES = f"""
(SELECT run_no, idx, claim_no, attempt, started_at, ended_at, problem, credits, nanos, http_status,
        duration_ms
   FROM attempt WHERE run_no = {NUMBER} AND {{wanted}}
  UNION ALL
 SELECT run_no, idx, claim_no, attempts, claimed_at, updated_at, problem, credits, nanos,
        http_status, duration_ms
   FROM done WHERE run_no = {NUMBER} AND {{wanted}} AND charged) AS line
"""
HISTORY = f"""
SELECT attempt, started_at, ended_at, problem, credits, nanos, http_status, duration_ms
  FROM {LINES.format(wanted="idx = $2")} ORDER BY claim_no
"""
HISTORIES = f"""
SELECT idx, name, attempt, started_at, ended_at, CASE problem WHEN $4 THEN $4 END, credits, nanos,
       http_status, duration_ms
  FROM {LINES.format(wanted="idx > $2 AND idx <= $3")} CROSS JOIN LATERAL (
    SELECT name FROM task WHERE task.run_no = line.run_no AND task.idx = line.idx OFFSET 0) AS task
 ORDER BY idx, claim_no
"""
COUNTS = f"""
SELECT run_id, {", ".join(f"sum({name})::bigint" for name in COUNT_COLUMNS)}
  FROM run_no CROSS JOIN LATERAL (
    SELECT * FROM counter WHERE counter.run_no = run_no.no OFFSET 0) AS counted
 WHERE run_id = ANY($1::text[]) GROUP BY run_id
"""
OPEN = f"""
SELECT run_id,
       (SELECT count(*) FROM (SELECT 1 FROM held WHERE held.run_no = run_no.no
                               LIMIT {MOST_OPEN}) AS near),
       (SELECT count(*) FROM (SELECT 1 FROM later WHERE later.run_no = run_no.no
                                 AND due_at > coalesce($2::timestamptz, statement_timestamp())
                               LIMIT {MOST_OPEN}) AS near)
  FROM run_no WHERE run_id = ANY($1::text[])
"""
# A busy run has up to 32,000 rows, one for each group and slot: too many for the event loop to add up.
GROUPS = f"""
SELECT host, reason, code, count, example, name
  FROM (SELECT run_no, host, reason, code, sum(count)::bigint AS count, min(example) AS example
          FROM failure_group WHERE run_no = {NUMBER} GROUP BY run_no, host, reason, code) AS it
 CROSS JOIN LATERAL (
    SELECT name FROM task WHERE task.run_no = it.run_no AND task.idx = it.example OFFSET 0) AS task
"""
TALLY = f"""
SELECT status, count(*) FROM done WHERE run_no = {NUMBER} GROUP BY status
 UNION ALL SELECT 1, count(*) FROM held WHERE run_no = {NUMBER}
 UNION ALL SELECT 0, count(*) FROM later WHERE run_no = {NUMBER}
 UNION ALL SELECT 0, sum(upto - next)::bigint FROM fresh WHERE run_no = {NUMBER}
"""
RUNS = "SELECT run_id FROM run_no WHERE run_id > $1 ORDER BY run_id LIMIT $2"

# A discard locks claims before the run, as a settle does that makes a group of failures: those of the
# rows that it will probably remove. After any others the server may end a deadlock, and one of the two
# is tried again.
LOCK_HELD = f"""
SELECT FROM held WHERE run_no = {NUMBER} AND idx > $2 AND idx <= $2 + $3::bigint
 ORDER BY idx FOR UPDATE
"""
LOCK_RUN = "SELECT no FROM run_no WHERE run_id = $1 FOR UPDATE"
LAST_TO_DROP = f"""
SELECT max(idx) FROM (
    SELECT idx, size, sum(size) OVER (ORDER BY idx ROWS UNBOUNDED PRECEDING) AS so_far
      FROM (SELECT idx, {size("url", "external_id", "metadata", "params", "body")} AS size
              FROM task WHERE run_no = $1 AND idx > $2 ORDER BY idx LIMIT $3) AS near) AS sized
 WHERE so_far <= {PAGE_BYTES} OR so_far = size
"""
DROP_ROWS = "DELETE FROM {table} WHERE run_no = $1 AND idx > $2 AND idx <= $3"
ANY_LEFT = "SELECT EXISTS (SELECT 1 FROM task WHERE run_no = $1 AND idx > $2)"
FROM_START = -1  # the index after which all rows are
DROP_ALL = "DELETE FROM {table} WHERE run_no = $1"
# In the order in which a claim or a settle under way passes a task on, so that none is left behind.
OF_TASKS = ("later", "held", "later", "done", "attempt")


class _Exists(Exception):
    """A row of the chunk exists already."""


class PostgresTasks:
    def __init__(self, database: PostgresDatabase, clock: Clock | None = None) -> None:
        """With a clock, rows are dated by it; by default by that of the server."""
        self._database = database
        self._clock = clock
        self._places: dict[RunId, RunPlace] = {}  # of runs that this process writes
        # Of a run that this process removes, the last index that is gone: a look from the first one
        # passes over the index entries of all removed rows, until autovacuum has removed these too.
        self._dropped: dict[RunId, int] = {}

    async def lay_out(self, run_id: RunId, place: RunPlace) -> None:
        """Nothing is written: the place is stored with the first rows, in their transaction."""
        known = self._places.get(run_id)
        if known is None and (row := await self._database.first(FIND_PLACE, run_id)):
            known = RunPlace(*row)
        _check_place(run_id, known, place)
        self._places[run_id] = place
        if len(self._places) > MOST_WRITTEN:
            del self._places[next(iter(self._places))]

    async def add(self, run_id: RunId, tasks: Sequence[NewRow]) -> int:
        if not tasks:
            return 0
        rows = sorted(tasks, key=lambda task: task.index)  # the order of locks
        if not any(task.inherited for task in rows):
            try:
                return await self._database.transact(
                    lambda connection: self._copy(connection, run_id, rows)
                )
            except _Exists:
                pass  # as when an ingest resumes, which is rare
        return await self._database.transact(
            lambda connection: self._insert(connection, run_id, rows)
        )

    async def get(self, run_id: RunId, task_id: TaskId) -> Task | None:
        index = task_index(task_id)
        if index is None:
            return None
        row = await self._database.first(GET, run_id, index)
        task = task_of(run_id, row) if row else None
        return task if task and task.id == task_id else None

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
        query = _page_query(statuses, whole=whole)
        found = await self._database.fetch(query, run_id, after, limit)
        tasks = [task_of(run_id, tuple(row)[:-3]) for row in found]  # without size, near, so_far
        near = found[0]["near"] if found else 0
        is_last = len(tasks) == near < limit
        return TaskPage(tasks, None if is_last else tasks[-1].index)

    async def history(self, run_id: RunId, task_id: TaskId) -> Sequence[Attempt]:
        rows = await self._database.fetch(HISTORY, run_id, task_index(task_id))
        return [line_of(row) for row in rows]

    async def histories(
        self, run_id: RunId, *, after: int, up_to: int
    ) -> Mapping[TaskId, Sequence[Attempt]]:
        found: dict[TaskId, list[Attempt]] = {}
        for row in await self._database.fetch(HISTORIES, run_id, after, up_to, WORKER_LOST):
            index, name, *line = row
            found.setdefault(task_id_of(index, name), []).append(line_of(line))
        return found

    async def counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, Counts]:
        counted = {
            run_id: Counts(**dict(zip(COUNT_COLUMNS, sums, strict=True)))
            for run_id, *sums in await self._database.fetch(COUNTS, run_ids)
        }
        return {run_id: counted.get(run_id, ZERO) for run_id in run_ids}

    async def open_counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, OpenCounts]:
        now = self._clock.now() if self._clock else None
        rows = await self._database.fetch(OPEN, run_ids, now)
        found = {run_id: OpenCounts(*counts) for run_id, *counts in rows}
        return {run_id: found.get(run_id, OpenCounts()) for run_id in run_ids}

    async def failure_groups(self, run_id: RunId) -> Sequence[FailureGroup]:
        return listed(
            FailureGroup(
                host=host,
                reason=FailureReason(reason),
                code=code,
                count=count,
                example=task_id_of(index, name),
            )
            for host, reason, code, count, index, name in await self._database.fetch(GROUPS, run_id)
        )

    async def tally(self, run_id: RunId) -> Mapping[TaskStatus, int]:
        counted: dict[TaskStatus, int] = {}
        for number, count in await self._database.fetch(TALLY, run_id):
            if count:
                status = STATUSES[number]
                counted[status] = counted.get(status, 0) + count
        return counted

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[RunId]:
        return [RunId(run_id) for (run_id,) in await self._database.fetch(RUNS, after, limit)]

    async def discard(self, run_id: RunId, *, limit: int) -> int:
        async def operation(connection: Connection) -> tuple[int, int | None]:
            after = self._dropped.get(run_id, FROM_START)
            await connection.execute(LOCK_HELD, run_id, after, limit)
            run_no = await connection.fetchval(LOCK_RUN, run_id)
            if run_no is None:
                return 0, None
            dropped = await _drop_rows(connection, run_no, after, limit)
            if dropped == (0, FROM_START):
                dropped = await _drop_rows(connection, run_no, FROM_START, limit)
            return dropped

        gone, last = await self._database.transact(operation)
        self._dropped.pop(run_id, None)
        if last is not None:
            self._dropped[run_id] = last
            if len(self._dropped) > MOST_WRITTEN:
                del self._dropped[next(iter(self._dropped))]
        return gone

    async def _copy(self, connection: Connection, run_id: RunId, tasks: Sequence[NewRow]) -> int:
        """Add rows that do not exist yet, which takes half the time; `_Exists` if one does."""
        run_no, now = await self._number(connection, run_id)
        rows = (_row(run_no, task, now) for task in tasks)
        try:
            await connection.copy_records_to_table("task", records=rows, columns=TASK_COLUMNS)
        except asyncpg.UniqueViolationError:
            raise _Exists from None
        await _add_ranges(connection, run_no, [task.index for task in tasks])
        return len(tasks)

    async def _insert(self, connection: Connection, run_id: RunId, tasks: Sequence[NewRow]) -> int:
        run_no, now = await self._number(connection, run_id)
        rows = columns_of(_row(run_no, task, now) for task in tasks)
        added = {index for (index,) in await connection.fetch(ADD, *rows)}
        new = [task for task in tasks if task.index in added]
        fresh = [task.index for task in new if not task.inherited]
        if fresh:
            await _add_ranges(connection, run_no, fresh)
        await _add_inherited(connection, run_no, new, now)
        return len(new)

    async def _number(self, connection: Connection, run_id: RunId) -> tuple[int, datetime]:
        """The number of a run, assigned together with its place if it has none yet, and the time."""
        place = self._places.get(run_id)
        now = self._clock.now() if self._clock else None
        found = await connection.fetchrow(FIND_RUN, run_id, now)
        if found is None:
            if place is None:
                raise ValueError(f"run {run_id} was not laid out")
            await connection.execute(LAY_OUT, run_id, *msgspec.structs.astuple(place))
            found = await connection.fetchrow(FIND_RUN, run_id, now)
            if found is None:  # another process laid it out, and it was removed at once
                raise Unavailable(f"run {run_id} is being removed")
        run_no, job_id, shards, v, moment = found
        _check_place(run_id, RunPlace(job_id, shards, v), place)
        return run_no, moment


def _check_place(run_id: RunId, known: RunPlace | None, place: RunPlace | None) -> None:
    if known and place and known != place:
        raise ValueError(f"run {run_id} has another place: {known}, got {place}")


def _row(run_no: int, task: NewRow, now: datetime) -> tuple[Any, ...]:
    spec = task.spec
    created_at = task.inherited.created_at if task.inherited else now
    return (
        run_no, task.index, name_of(task.id), created_at,
        spec.url, spec.method, spec.external_id, spec.metadata, spec.params, spec.body,
    )  # fmt: skip


async def _add_ranges(connection: Connection, run_no: int, indexes: Sequence[int]) -> None:
    await connection.execute(ADD_RANGES, run_no, *columns_of(_ranges(indexes)))


def _ranges(indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of indexes that follow each other, each with the index after its last."""
    first = upto = indexes[0]
    for index in indexes:
        if index != upto or upto - first == RANGE:
            yield first, upto
            first = index
        upto = index + 1
    yield first, upto


async def _add_inherited(
    connection: Connection, run_no: int, tasks: Sequence[NewRow], now: datetime
) -> None:
    stood = [(task, task.inherited) for task in tasks if task.inherited]
    if not stood:
        return
    rows = (_inherited_row(run_no, task.index, how, now) for task, how in stood)
    await connection.copy_records_to_table("done", records=rows, columns=INHERITED_COLUMNS)
    failures = [
        Failure(run_no, task.index, failure_key(task.spec.host, how.reason, how.problem))
        for task, how in stood
        if how.status is TaskStatus.FAILED
    ]
    if failures:
        await add_failures(connection, failures)


def _inherited_row(run_no: int, index: int, stood: Inherited, now: datetime) -> tuple[Any, ...]:
    body = msgspec.structs.astuple(stood.result) if stood.result else NO_BODY
    return (
        run_no, index, STATUS_NO[stood.status], 0, stood.attempts, 0, now, False, 0, 0, *body,
        stood.problem, stood.reason, stood.source_run_id, stood.scraped_at,
        *msgspec.structs.astuple(stood.facts),
        *spent_columns(stood.spend),
    )  # fmt: skip


async def _drop_rows(
    connection: Connection, run_no: int, after: int, limit: int
) -> tuple[int, int | None]:
    """Remove rows after an index; return how many, and after which index there are more."""
    # No further claim: the run is being removed. Claims under way end first.
    await connection.execute(DROP_ALL.format(table="fresh"), run_no)
    last = await connection.fetchval(LAST_TO_DROP, run_no, after, limit)
    gone = 0
    if last is not None:
        told = await connection.execute(DROP_ROWS.format(table="task"), run_no, after, last)
        gone = int(told.split()[-1])
        for table in OF_TASKS:
            await connection.execute(DROP_ROWS.format(table=table), run_no, after, last)
        if await connection.fetchval(ANY_LEFT, run_no, last):
            return gone, last
    if await connection.fetchval(ANY_LEFT, run_no, FROM_START):  # others are before the index
        return gone, FROM_START
    for table in (*OF_TASKS, "counter", "failure_group"):
        await connection.execute(DROP_ALL.format(table=table), run_no)
    await connection.execute("DELETE FROM run_no WHERE no = $1", run_no)
    return gone, None


@cache
def _page_query(statuses: frozenset[TaskStatus] | None, *, whole: bool) -> str:
    texts = ("url", "external_id", "metadata", "params", "body", "problem", "final_url")
    return f"""
    SELECT * FROM (
        SELECT *, count(*) OVER () AS near,
               sum(size) OVER (ORDER BY idx ROWS UNBOUNDED PRECEDING) AS so_far
          FROM (SELECT *, {size(*texts)} AS size
                  FROM (SELECT {state_columns(whole=whole)}
                          FROM ({_near(statuses)}) AS near CROSS JOIN LATERAL (
                            SELECT * FROM task
                             WHERE task.run_no = {NUMBER} AND task.idx = near.idx OFFSET 0) AS it
                          {WITH_STATE}) AS found) AS measured) AS sized
     WHERE so_far <= {PAGE_BYTES} OR so_far = size ORDER BY idx
    """


def _near(statuses: frozenset[TaskStatus] | None) -> str:
    """A query for the indexes of the next tasks of some statuses: each source is read in order."""
    if statuses is None or statuses == frozenset(TaskStatus):
        return EVERY
    parts = [f"({source})" for status in sorted(statuses) for source in SOURCES[status]]
    return f"SELECT idx FROM ({' UNION ALL '.join(parts)}) AS found ORDER BY idx LIMIT $3"
