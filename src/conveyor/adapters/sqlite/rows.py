"""How tasks, their attempts and their counts are stored in SQLite."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache, partial
from typing import Any

import apsw
import msgspec

from conveyor.domain.counts import COUNT_COLUMNS, NOTHING, Counts, Spend
from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import MOST_GROUPS, OTHER_CODE, OTHER_HOST
from conveyor.domain.ids import RunId
from conveyor.domain.job import RunPlace
from conveyor.domain.page_facts import NO_FACTS, PageFacts
from conveyor.domain.task import Attempt, StoredBody, Task, TaskSpec, TaskStatus

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

STATUSES = (TaskStatus.PENDING, TaskStatus.PROCESSING, TaskStatus.SUCCESSFUL, TaskStatus.FAILED)
STATUS_NO = {status: number for number, status in enumerate(STATUSES)}
PHASE = {
    TaskStatus.PENDING: 0,
    TaskStatus.PROCESSING: 0,
    TaskStatus.SUCCESSFUL: 2,
    TaskStatus.FAILED: 3,
}

Row = Sequence[Any]  # as the driver gives it

TASK_COLUMNS = (
    "idx", "id", "status", "due_at", "claim_no", "attempts", "lost", "claimed_at", "created_at",
    "updated_at", "url", "method", "external_id", "metadata", "params", "body", "locator", "length",
    "checksum", "format", "problem", "reason", "source_run_id", "content_type", "scraped_at",
    "http_status", "duration_ms", "final_url", "holder", "spent_credits", "spent_nanos",
)  # fmt: skip
# The columns that may be large, as in `size_of` of the domain.
TEXTS = ("url", "external_id", "metadata", "params", "body", "problem", "final_url")
NOT_LISTED = {"params": "NULL", "body": "NULL"}  # as `as_listed` of the domain
NOT_CLAIMED = {"external_id": "NULL", "metadata": "NULL"}  # as `as_claimed` of the domain
# Of a task that is due these columns are null: they tell how it ended.
NOT_ENDED = dict.fromkeys(
    (
        "locator", "length", "checksum", "format", "content_type", "problem", "reason",
        "source_run_id", "scraped_at", "http_status", "duration_ms", "final_url",
    ),
    "NULL",
)  # fmt: skip
ONLY_URL = {**NOT_LISTED, **NOT_CLAIMED}  # of the spec


def columns(instead: Mapping[str, str]) -> str:
    """The columns of a task, with other expressions in place of some of them."""
    return ", ".join(instead.get(name, name) for name in TASK_COLUMNS)


def needed(instead: Mapping[str, str], *others: str) -> str:
    """The stored columns that `columns` reads, and others."""
    return ", ".join([*(name for name in TASK_COLUMNS if instead.get(name) != "NULL"), *others])


def size(instead: Mapping[str, str]) -> str:
    """The bytes of the texts of a row. `octet_length` takes them from the row's header, so the texts
    themselves are not read.
    """
    read = [name for name in TEXTS if name not in instead]
    return " + ".join(f"coalesce(octet_length({name}), 0)" for name in read)


def sizes(near: str, order: str = "idx") -> str:
    """Count the rows of a query that selects up to ?3 rows with their `size`, and those that fit into
    ?4 bytes. The first row always counts as fitting.
    """
    return f"""
    SELECT count(*), coalesce(sum(so_far <= ?4 OR so_far = size), 0)
      FROM (SELECT size, sum(size) OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING) AS so_far
              FROM ({near}))
    """


# Many rows are returned as one JSON value. The driver takes the interpreter lock once for each row,
# and under load waiting for it takes longer than the query. The rows are always bounded in bytes
# first, because SQLite refuses a value of 1e9 bytes or more.
def gathered(instead: Mapping[str, str]) -> str:
    return f"json_group_array(json_array({columns(instead)}))"


DECODER = msgspec.json.Decoder(list[list[Any]])

# `fitting` looks at the sizes of this many rows first, then of eight times as many, as long as all
# of them fit. Sizes are in the rows, not in the indexes, so reading more of them than fit is waste.
FIRST_LOOK = 16

# Failures that are being counted, by group: created once, when the engine opens, and mostly empty.
FAILING = """
CREATE TEMP TABLE failing (run_no, host, reason, code, count, example, known, fits)
"""


def failing(failed: str) -> str:
    """Group the failures that a query selects, by the rule of `with_failure` of the domain."""
    return f"""
    INSERT INTO temp.failing
    SELECT *, known OR row_number() OVER (PARTITION BY run_no, known ORDER BY example)
                       <= {MOST_GROUPS} - (SELECT failure_groups FROM run_no WHERE no = new.run_no)
      FROM (SELECT run_no, host, reason, code, count(DISTINCT idx), min(idx) AS example,
                   EXISTS (SELECT 1 FROM failure_group AS it
                            WHERE it.run_no = failed.run_no AND it.host = failed.host
                              AND it.reason = failed.reason AND it.code = failed.code) AS known
              FROM ({failed}) AS failed GROUP BY run_no, host, reason, code) AS new
    """


ADD_GROUPS = f"""
INSERT INTO failure_group (run_no, host, reason, code, count, example)
SELECT run_no, iif(fits, host, '{OTHER_HOST}'), reason, iif(fits, code, '{OTHER_CODE}'), count,
       example
  FROM temp.failing WHERE true
ON CONFLICT (run_no, host, reason, code) DO UPDATE SET count = count + excluded.count
"""
COUNT_GROUPS = """
UPDATE run_no SET failure_groups = failure_groups + new.groups
  FROM (SELECT run_no AS run, count(*) AS groups FROM temp.failing
         WHERE fits AND NOT known GROUP BY run_no) AS new
 WHERE no = new.run
"""

FIND_RUN_NO = "SELECT no FROM run_no WHERE run_id = ?"
# Runs of earlier releases have no place until rows are added to them again.
FIND_PLACE = "SELECT job_id, shards, v FROM run_no WHERE run_id = ? AND job_id IS NOT NULL"
LAY_OUT = """
INSERT INTO run_no (run_id, job_id, shards, v) VALUES (?, ?, ?, ?)
ON CONFLICT (run_id) DO UPDATE
   SET job_id = excluded.job_id, shards = excluded.shards, v = excluded.v WHERE job_id IS NULL
"""
MOST_KNOWN = 100_000  # run numbers in the cache: some 20 MB

ADD_COUNTS = f"""
INSERT INTO counter (run_no, incarnation, {", ".join(COUNT_COLUMNS)})
VALUES (?, ?, {", ".join("?" for _ in COUNT_COLUMNS)})
ON CONFLICT (run_no, incarnation) DO UPDATE SET
{", ".join(f"{name} = {name} + excluded.{name}" for name in COUNT_COLUMNS)}
"""

ADD_LOST_LINE = """
INSERT INTO attempt (run_no, idx, claim_no, attempt, started_at, ended_at, problem, credits, nanos)
VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0)
"""

REPLACE_STATE = """
UPDATE task SET status = ?, phase = ?, due_at = ?, claim_no = ?, lost = ?, claimed_at = ?,
       updated_at = ?, problem = ?, reason = ?, holder = ?
 WHERE run_no = ? AND idx = ?
"""


def stamp(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


# Rows that were written together have the same times, so most calls hit the cache.
@lru_cache(maxsize=4096)
def moment(value: int) -> datetime:
    return EPOCH + timedelta(microseconds=value)


def fitting(
    connection: apsw.Connection, query: str, key: tuple[int, int], *, limit: int, room: int
) -> tuple[int, bool]:
    """Return how many of the next rows fit, by a query of `sizes`, and whether they are the last."""
    look = min(FIRST_LOOK, limit)
    while True:
        [(near, fits)] = connection.execute(query, (*key, look, room))
        if fits < near or near < look or look == limit:
            return fits, fits == near < look
        look = min(8 * look, limit)


def byte_length(text: str) -> int:
    """The length of a text in UTF-8."""
    # `isascii` reads a flag of the string, so only other texts are encoded to be measured.
    return len(text) if text.isascii() else len(text.encode())


def within(rows: Iterable[Row], room: int) -> Iterator[Row]:
    """Yield rows as long as their bytes fit; the first row always does."""
    used = 0
    for row in rows:
        size = sum(byte_length(record) for record in row if record)
        if used and used + size > room:
            return
        used += size
        yield row


def task_of(run_id: RunId, row: Row) -> Task:
    """A task from a row of `TASK_COLUMNS`."""
    (idx, task_id, status, due_at, claim_no, attempts, lost, claimed_at, created_at, updated_at,
     url, method, external_id, metadata, params, body, locator, length, checksum, fmt, problem,
     reason, source_run_id, content_type, scraped_at, http_status, duration_ms, final_url, holder,
     spent_credits, spent_nanos) = row  # fmt: skip
    return Task(
        run_id=run_id,
        id=task_id,
        index=idx,
        spec=TaskSpec(
            url=url,
            method=method,
            external_id=external_id,
            metadata=metadata,
            params=params,
            body=body,
        ),
        status=STATUSES[status],
        due_at=None if due_at is None else moment(due_at),
        claim_no=claim_no,
        attempts=attempts,
        lost=lost,
        claimed_at=None if claimed_at is None else moment(claimed_at),
        holder=None if holder is None else str(holder),
        created_at=moment(created_at),
        updated_at=moment(updated_at),
        result=_body_of(locator, length, checksum, fmt, content_type),
        problem=problem,
        reason=None if reason is None else FailureReason(reason),
        facts=_facts_of(http_status, duration_ms, final_url),
        spend=_spend_of(spent_credits, spent_nanos),
        source_run_id=source_run_id,
        scraped_at=None if scraped_at is None else moment(scraped_at),
    )


def line_of(row: Row) -> Attempt:
    attempt, started_at, ended_at, problem, credit, nanos, http_status, duration_ms = row
    return Attempt(
        attempt=attempt,
        started_at=moment(started_at),
        ended_at=moment(ended_at),
        problem=problem,
        spend=Spend(credit, nanos),
        http_status=http_status,
        duration_ms=duration_ms,
    )


def add_lost_line(
    connection: apsw.Connection, run_no: int | None, task: Task, line: Attempt
) -> None:
    """Add the history line of a lost worker, which cost nothing and told nothing about the page."""
    key = (run_no, task.index, task.claim_no)
    times = (stamp(line.started_at), stamp(line.ended_at))
    connection.execute(ADD_LOST_LINE, (*key, line.attempt, *times, line.problem))


def add_counts(
    connection: apsw.Connection, run_no: int | None, incarnation: int, counts: Counts
) -> None:
    connection.execute(ADD_COUNTS, (run_no, incarnation, *msgspec.structs.astuple(counts)))


def add_failures(
    connection: apsw.Connection, group: str, values: tuple[int | str | None, ...] = ()
) -> None:
    """Count failures in the groups of their runs; `group` is a statement of `failing`."""
    connection.execute(group, values)
    connection.execute(ADD_GROUPS)
    connection.execute(COUNT_GROUPS)
    connection.execute("DELETE FROM temp.failing")


def replace_state(connection: apsw.Connection, run_no: int | None, task: Task) -> None:
    """Write the columns that a claim or a release changes."""
    connection.execute(
        REPLACE_STATE,
        (
            STATUS_NO[task.status],
            PHASE[task.status],
            None if task.due_at is None else stamp(task.due_at),
            task.claim_no,
            task.lost,
            None if task.claimed_at is None else stamp(task.claimed_at),
            stamp(task.updated_at),
            task.problem,
            task.reason,
            None if task.holder is None else int(task.holder),
            run_no,
            task.index,
        ),
    )


def _body_of(
    locator: str | None, length: int, checksum: str, fmt: str, content_type: str | None
) -> StoredBody | None:
    if locator is None:
        return None
    return StoredBody(
        locator=locator, length=length, checksum=checksum, format=fmt, content_type=content_type
    )


def _facts_of(http_status: int | None, duration_ms: int | None, final_url: str | None) -> PageFacts:
    if http_status is None and duration_ms is None and final_url is None:
        return NO_FACTS
    return PageFacts(http_status=http_status, duration_ms=duration_ms, final_url=final_url)


def _spend_of(spent_credits: int | None, spent_nanos: int | None) -> Spend | None:
    if spent_credits is None or spent_nanos is None:
        return None
    return Spend(spent_credits, spent_nanos) if spent_credits or spent_nanos else NOTHING


def find_run_no(connection: apsw.Connection, run_id: RunId) -> int | None:
    row = connection.execute(FIND_RUN_NO, (run_id,)).fetchone()
    return row[0] if row else None


def finder(connection: apsw.Connection) -> Callable[[RunId], int | None]:
    """A lookup of run numbers that asks the database once for each run."""
    return cache(partial(find_run_no, connection))


def find_place(connection: apsw.Connection, run_id: RunId) -> RunPlace | None:
    row = connection.execute(FIND_PLACE, (run_id,)).fetchone()
    return RunPlace(*row) if row else None


def make_run_no(connection: apsw.Connection, run_id: RunId, place: RunPlace | None) -> int:
    """The number of a run, assigned together with its place if it has none yet."""
    if place:
        connection.execute(LAY_OUT, (run_id, *msgspec.structs.astuple(place)))
    known = find_run_no(connection, run_id)
    if known is None:
        raise ValueError(f"run {run_id} was not laid out")
    return known


class RunNumbers:
    """A cache of run numbers, for readers. A number never changes and is never reused.

    Writers must not use it: a number that a writer sees may still be rolled back.
    """

    def __init__(self) -> None:
        self._known: dict[RunId, int] = {}

    def find(self, connection: apsw.Connection, run_id: RunId) -> int | None:
        known = self._known.get(run_id)
        if known is None and (known := find_run_no(connection, run_id)) is not None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[run_id] = known
        return known
