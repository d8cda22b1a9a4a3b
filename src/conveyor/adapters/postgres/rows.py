"""How tasks, their attempts and their counts are stored in PostgreSQL."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from conveyor.adapters.postgres.database import Connection
from conveyor.domain.counts import COUNT_COLUMNS, NOTHING, Counts, Spend
from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import MOST_GROUPS, FailureKey
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.page_facts import NO_FACTS, PageFacts
from conveyor.domain.task import Attempt, StoredBody, Task, TaskSpec, TaskStatus

STATUSES = (TaskStatus.PENDING, TaskStatus.PROCESSING, TaskStatus.SUCCESSFUL, TaskStatus.FAILED)
STATUS_NO = {status: number for number, status in enumerate(STATUSES)}
RANGE = 250  # tasks of a range of `fresh` at most: claims at the same time need different ones
SLOTS = 32  # of the counts of a run
SLOT = f"pg_backend_pid() % {SLOTS}"

# The columns of a task as it is now. A task has a row in one of `done`, `held` and `later` at most.
STATE = """
       it.idx, it.name, it.created_at, it.url, it.method, it.external_id, it.metadata,
       {params} AS params, {body} AS body,
       coalesce(done.status, CASE WHEN held.idx IS NULL THEN 0 ELSE 1 END)::integer AS status,
       CASE WHEN done.idx IS NULL THEN coalesce(held.until, later.due_at, it.created_at) END AS due_at,
       coalesce(done.claim_no, held.claim_no, later.claim_no, 0) AS claim_no,
       coalesce(done.attempts, held.attempts, later.attempts, 0) AS attempts,
       coalesce(done.lost, held.lost, later.lost, 0) AS lost,
       coalesce(done.claimed_at, held.claimed_at, later.claimed_at) AS claimed_at,
       coalesce(done.updated_at, held.claimed_at, later.updated_at, it.created_at) AS updated_at,
       coalesce(done.holder, held.holder) AS holder,
       done.locator, done.length, done.checksum, done.format, done.content_type, done.problem,
       done.reason, done.source_run_id, done.scraped_at, done.http_status, done.duration_ms,
       done.final_url,
       CASE WHEN done.idx IS NOT NULL THEN done.spent_credits
            WHEN held.idx IS NOT NULL THEN held.spent_credits
            WHEN later.idx IS NOT NULL THEN later.spent_credits ELSE 0 END AS spent_credits,
       CASE WHEN done.idx IS NOT NULL THEN done.spent_nanos
            WHEN held.idx IS NOT NULL THEN held.spent_nanos
            WHEN later.idx IS NOT NULL THEN later.spent_nanos ELSE 0 END AS spent_nanos
"""
WITH_STATE = "".join(
    f"""
  LEFT JOIN LATERAL (
    SELECT * FROM {table} AS found WHERE found.run_no = it.run_no AND found.idx = it.idx OFFSET 0
  ) AS {table} ON true
"""
    for table in ("done", "held", "later")
)
NUMBER = "(SELECT no FROM run_no WHERE run_id = $1)"

ADD_COUNTS = f"""
INSERT INTO counter AS old (run_no, slot, {", ".join(COUNT_COLUMNS)})
SELECT $1, {SLOT}, {", ".join(f"${number}" for number, _ in enumerate(COUNT_COLUMNS, 2))}
ON CONFLICT (run_no, slot) DO UPDATE SET
{", ".join(f"{name} = old.{name} + excluded.{name}" for name in COUNT_COLUMNS)}
"""

# Failures by group: the arrays of their runs, hosts, reasons and codes.
GIVEN_GROUPS = """
unnest($1::integer[], $2::text[], $3::text[], $4::text[]) AS given (run_no, host, reason, code)
"""
KNOWN_GROUPS = f"""
SELECT run_no, host, reason, code FROM {GIVEN_GROUPS}
 WHERE EXISTS (SELECT 1 FROM failure_group AS it
                WHERE it.run_no = given.run_no AND it.host = given.host
                  AND it.reason = given.reason AND it.code = given.code OFFSET 0)
"""
LOCK_RUNS = """
SELECT no, failure_groups FROM run_no WHERE no = ANY($1::integer[]) ORDER BY no FOR NO KEY UPDATE
"""
MORE_GROUPS = "UPDATE run_no SET failure_groups = failure_groups + $2 WHERE no = $1"
ADD_GROUPS = f"""
INSERT INTO failure_group AS old (run_no, host, reason, code, slot, count, example)
SELECT run_no, host, reason, code, {SLOT}, count, example
  FROM unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[])
    AS given (run_no, host, reason, code, count, example)
ON CONFLICT (run_no, host, reason, code, slot) DO UPDATE SET count = old.count + excluded.count
"""


class Failure(NamedTuple):
    """A task that failed, with the group in which it counts."""

    run_no: int
    idx: int
    key: FailureKey


Group = tuple[int, str, str, str]  # run number, host, reason, code


def size(*texts: str) -> str:
    """The bytes of texts. The length of a large one is stored beside it, so it is not read."""
    return " + ".join(f"coalesce(octet_length({name}), 0)" for name in texts)


def state_columns(*, whole: bool) -> str:
    return STATE.format(
        params="it.params" if whole else "NULL::text", body="it.body" if whole else "NULL::text"
    )


def task_id_of(index: int, name: bytes) -> TaskId:
    return TaskId(f"{index:08x}-{name.hex()}")


def name_of(task_id: TaskId) -> bytes:
    return bytes.fromhex(task_id[9:])


def task_of(run_id: RunId, row: Any) -> Task:
    """A task from a row of `STATE`."""
    (idx, name, created_at, url, method, external_id, metadata, params, body, status, due_at,
     claim_no, attempts, lost, claimed_at, updated_at, holder, locator, length, checksum, fmt,
     content_type, problem, reason, source_run_id, scraped_at, http_status, duration_ms, final_url,
     *spent) = row  # fmt: skip
    return Task(
        run_id=run_id,
        id=task_id_of(idx, name),
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
        due_at=due_at,
        claim_no=claim_no,
        attempts=attempts,
        lost=lost,
        claimed_at=claimed_at,
        holder=holder,
        created_at=created_at,
        updated_at=updated_at,
        result=_body_of(locator, length, checksum, fmt, content_type),
        problem=problem,
        reason=None if reason is None else FailureReason(reason),
        facts=_facts_of(http_status, duration_ms, final_url),
        spend=spend_of(*spent),
        source_run_id=source_run_id,
        scraped_at=scraped_at,
    )


def spend_of(spent_credits: int | None, spent_nanos: int | None) -> Spend | None:
    if spent_credits is None or spent_nanos is None:
        return None
    return Spend(spent_credits, spent_nanos) if spent_credits or spent_nanos else NOTHING


def spent_columns(spend: Spend | None) -> tuple[int | None, int | None]:
    return (spend.credits, spend.nanos) if spend else (None, None)


def line_of(row: Sequence[Any]) -> Attempt:
    attempt, started_at, ended_at, problem, credit, nanos, http_status, duration_ms = row
    return Attempt(
        attempt=attempt,
        started_at=started_at,
        ended_at=ended_at,
        problem=problem,
        spend=Spend(credit, nanos),
        http_status=http_status,
        duration_ms=duration_ms,
    )


async def add_counts(connection: Connection, run_no: int, counts: Counts) -> None:
    await connection.execute(ADD_COUNTS, run_no, *msgspec.structs.astuple(counts))


async def add_failures(connection: Connection, failures: Iterable[Failure]) -> None:
    """Count failures in the groups of their runs, as `with_failure` of the domain says.

    A new group needs the lock of its run, so that its run has no more than `MOST_GROUPS`. There are
    few new groups; failures of known ones take no lock that another connection waits for.
    """
    counts: Counter[Group] = Counter()
    examples: dict[Group, int] = {}
    for run_no, index, key in sorted(failures):
        group = (run_no, key.host, str(key.reason), key.code)
        counts[group] += 1
        examples.setdefault(group, index)
    new = counts.keys() - await _known(connection, counts)
    if new:
        rooms = await _rooms(connection, {run_no for run_no, *_ in new})
        new -= await _known(connection, new)  # those that another connection has made meanwhile
        for run_no, room in rooms.items():
            mine = sorted((group for group in new if group[0] == run_no), key=examples.__getitem__)
            await connection.execute(MORE_GROUPS, run_no, min(room, len(mine)))
            for group in mine[room:]:
                key = FailureKey(group[1], FailureReason(group[2]), group[3]).other
                other = (run_no, key.host, str(key.reason), key.code)
                counts[other] += counts.pop(group)
                examples.setdefault(other, examples[group])
    rows = [(*group, counts[group], examples[group]) for group in sorted(counts)]
    if rows:
        await connection.execute(ADD_GROUPS, *columns_of(rows))


async def _known(connection: Connection, groups: Collection[Group]) -> set[Group]:
    if not groups:
        return set()
    return {tuple(row) for row in await connection.fetch(KNOWN_GROUPS, *columns_of(groups))}


async def _rooms(connection: Connection, run_numbers: set[int]) -> Mapping[int, int]:
    """Lock runs, and return for how many more groups each has room."""
    rows = await connection.fetch(LOCK_RUNS, sorted(run_numbers))
    rooms = {run_no: MOST_GROUPS - groups for run_no, groups in rows}
    return dict.fromkeys(run_numbers, 0) | rooms  # a run that is being discarded has none


def columns_of(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """The arrays of a statement with `unnest`. There must be a row."""
    return [list(column) for column in zip(*rows, strict=True)]


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
