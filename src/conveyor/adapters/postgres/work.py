"""Work in PostgreSQL: claims of fresh and due tasks, renewals and settles.

A task is in one place at a time, and a claim or settle moves it:

    fresh ─claim→ held ─settle→ done
                  ↑  └──settle or loss→ later ─claim→ held

| Invariant | Why |
|---|---|
| A claim is committed before its task is returned, and is on disk then | after a crash of the server its holder is still alive: the same number must not be given to another |
| Renewals and settles name the number and the holder | after a failover to a server that lags, a number may be given twice |
| Rows are found by key within one statement | a row that another transaction has updated since has moved |
| Rows that are locked are skipped by claims and renewals | they are being claimed or settled |
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from conveyor.adapters.postgres.database import Connection, Pool, PostgresDatabase, same_key
from conveyor.adapters.postgres.losses import move_lost
from conveyor.adapters.postgres.rows import (
    RANGE,
    SLOT,
    STATUS_NO,
    Failure,
    add_failures,
    columns_of,
    size,
    spend_of,
    task_id_of,
)
from conveyor.domain import task as task_rules
from conveyor.domain.counts import COUNT_COLUMNS
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import RunId, TaskId, task_index
from conveyor.domain.job import ROW_VERSION
from conveyor.domain.task import SettleDecision, Settlement, Task, TaskSpec, TaskStatus
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.work import CLAIM_BYTES, Held, Released

MOST_KNOWN = 100_000  # run numbers in the cache: some 20 MB
RANGES = 2  # that a claim locks at first, beside those that it needs: other claims find the rest
MORE_RANGES = 64  # if those were small, as when tasks were added one by one
NOW = "coalesce($1::timestamptz, statement_timestamp())"  # $1 is null unless a test sets the time
KEY = ("run_no", "idx")
SPEC_SIZE = size("url", "params", "body")
SPENT = "spent_credits, spent_nanos"

# What an open run has, by its place in the list of runs.
LOOK = f"""
SELECT nth::integer, run_no.no,
       (SELECT due_at FROM later WHERE later.run_no = run_no.no
         ORDER BY due_at LIMIT 1) <= {NOW} AS any_later,
       EXISTS (SELECT 1 FROM fresh WHERE fresh.run_no = run_no.no OFFSET 0) AS any_fresh
  FROM unnest($2::text[]) WITH ORDINALITY AS given (run_id, nth)
  JOIN run_no ON {same_key("run_no", "given", ("run_id",))}
 WHERE run_no.open AND run_no.v <= {ROW_VERSION}
"""
WANTED = "wanted AS (SELECT * FROM unnest($2::integer[], $3::integer[]) AS given (run_no, want))"
CLAIM = f"""
taken AS MATERIALIZED (
    SELECT * FROM (
        SELECT *, sum(size) OVER (PARTITION BY run_no ORDER BY turn, idx ROWS UNBOUNDED PRECEDING)
                  AS so_far
          FROM sized) AS measured
     WHERE so_far <= $6 OR so_far = size),
kept AS (
    INSERT INTO held (run_no, idx, until, claimed_at, holder, claim_no, attempts, lost, {SPENT})
    SELECT run_no, idx, {NOW} + $4::interval, {NOW}, $5, claim_no + 1, attempts, lost, {SPENT}
      FROM taken)
"""
CLAIMED = f"""
SELECT run_no, idx, name, created_at, url, method, params, body, claim_no + 1, attempts, lost,
       {NOW}, {NOW} + $4::interval, {SPENT}, size
  FROM taken ORDER BY run_no, turn, idx
"""
TAKE_LATER = f"""
WITH {WANTED},
due AS MATERIALIZED (
    SELECT wanted.run_no, near.* FROM wanted CROSS JOIN LATERAL (
        SELECT idx, due_at AS turn, claim_no, attempts, lost, {SPENT} FROM later
         WHERE later.run_no = wanted.run_no AND due_at <= {NOW}
         ORDER BY due_at, idx LIMIT wanted.want FOR UPDATE SKIP LOCKED) AS near),
sized AS (
    SELECT due.*, it.*, {SPEC_SIZE} AS size FROM due CROSS JOIN LATERAL (
        SELECT name, created_at, url, method, params, body FROM task
         WHERE task.run_no = due.run_no AND task.idx = due.idx OFFSET 0) AS it),
{CLAIM},
gone AS (
    DELETE FROM later USING taken WHERE {same_key("later", "taken", KEY)})
{CLAIMED}
"""
# `turn` is the first index of a range. Sums are numeric in PostgreSQL, and a comparison with a numeric
# could not use the index.
TAKE_FRESH = f"""
WITH {WANTED},
near AS MATERIALIZED (
    SELECT wanted.run_no, wanted.want, near.* FROM wanted CROSS JOIN LATERAL (
        SELECT first, next, upto FROM fresh WHERE fresh.run_no = wanted.run_no
         ORDER BY first LIMIT $7 + wanted.want / {RANGE} FOR UPDATE SKIP LOCKED) AS near),
cut AS MATERIALIZED (
    SELECT *, least(upto, next + greatest(want - before, 0)) AS stop
      FROM (SELECT *, (sum(upto - next) OVER (PARTITION BY run_no ORDER BY first)
                       - (upto - next))::bigint AS before
              FROM near) AS counted),
sized AS (
    SELECT cut.run_no, cut.first AS turn, it.*, {SPEC_SIZE} AS size,
           0 AS claim_no, 0 AS attempts, 0 AS lost, 0 AS spent_credits, 0 AS spent_nanos
      FROM cut CROSS JOIN LATERAL (
        SELECT idx, name, created_at, url, method, params, body FROM task
         WHERE task.run_no = cut.run_no AND idx >= cut.next AND idx < cut.stop OFFSET 0) AS it),
{CLAIM},
moved AS MATERIALIZED (
    SELECT run_no, turn AS first, max(idx) + 1 AS next FROM taken GROUP BY run_no, turn),
gone AS (
    DELETE FROM fresh USING moved
     WHERE {same_key("fresh", "moved", ("run_no", "first"))} AND fresh.upto = moved.next),
rest AS (
    UPDATE fresh SET next = moved.next FROM moved
     WHERE {same_key("fresh", "moved", ("run_no", "first"))} AND fresh.upto > moved.next)
{CLAIMED}
"""
ANY_LAPSED = f"""
SELECT run_no FROM unnest($2::integer[]) AS wanted (run_no)
 WHERE EXISTS (SELECT 1 FROM held WHERE held.run_no = wanted.run_no AND until <= {NOW} OFFSET 0)
"""
LAPSED = f"""
WITH {WANTED},
lapsed AS MATERIALIZED (
    SELECT wanted.run_no, near.* FROM wanted CROSS JOIN LATERAL (
        SELECT idx, until, claimed_at, holder, claim_no, attempts, lost, {SPENT} FROM held
         WHERE held.run_no = wanted.run_no AND until <= {NOW} - $5::interval
         ORDER BY until, idx LIMIT wanted.want FOR UPDATE SKIP LOCKED) AS near),
measured AS (
    SELECT lapsed.*, it.name, it.created_at, it.url, it.method, it.params, it.body, size,
           sum(size) OVER (PARTITION BY lapsed.run_no ORDER BY until, lapsed.idx
                           ROWS UNBOUNDED PRECEDING) AS so_far
      FROM lapsed CROSS JOIN LATERAL (
        SELECT *, {SPEC_SIZE} AS size FROM task
         WHERE task.run_no = lapsed.run_no AND task.idx = lapsed.idx OFFSET 0) AS it)
SELECT run_no, idx, name, created_at, url, method, params, body, claim_no, attempts, lost,
       claimed_at, until, {SPENT}, holder, {NOW} AS now
  FROM measured WHERE so_far <= $4 OR so_far = size ORDER BY run_no, until, idx
"""
RENEW = f"""
WITH given AS MATERIALIZED (
    SELECT * FROM unnest($3::integer[], $4::bigint[], $5::integer[]) AS it (run_no, idx, claim_no)),
alive AS MATERIALIZED (
    SELECT near.* FROM given CROSS JOIN LATERAL (
        SELECT held.run_no, held.idx FROM held
         WHERE held.run_no = given.run_no AND held.idx = given.idx
           AND held.claim_no = given.claim_no AND holder = $6 FOR UPDATE SKIP LOCKED) AS near),
renewed AS (
    UPDATE held SET until = {NOW} + $2::interval FROM alive
     WHERE {same_key("held", "alive", KEY)})
SELECT run_no, idx, claim_no FROM given
 WHERE EXISTS (SELECT 1 FROM held
                WHERE held.run_no = given.run_no AND held.idx = given.idx
                  AND held.claim_no = given.claim_no AND holder = $6 OFFSET 0)
"""

# The values of a claim that ends, each with its type, in the order in which they are sent.
SENT = {
    "run_no": "integer", "idx": "bigint", "claim_no": "integer", "status": "smallint",
    "charged": "boolean", "delay": "bigint", "locator": "text", "length": "bigint",
    "checksum": "text", "format": "text", "content_type": "text", "problem": "text",
    "reason": "text", "http_status": "integer", "duration_ms": "bigint", "final_url": "text",
    "credits": "bigint", "nanos": "bigint",
}  # fmt: skip
ARRAYS = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(SENT.values(), 3))
# What the claims of a run add to its counts, as `counted` of the domain says.
ADDED: dict[str, str] = {
    "successful": "count(*) FILTER (WHERE status = 2)",
    **{
        str(why): f"count(*) FILTER (WHERE status = 3 AND coalesce(reason, 'other') = '{why}')"
        for why in FailureReason
    },
    "credits": "sum(credits)",
    "nanos": "sum(nanos)",
}
RESULT = "locator, length, checksum, format, content_type"
SETTLE = f"""
WITH ended AS (
    DELETE FROM held USING unnest({ARRAYS}) AS given ({", ".join(SENT)})
     WHERE {same_key("held", "given", KEY)} AND held.claim_no = given.claim_no AND held.holder = $2
    RETURNING given.*, held.attempts, held.lost, held.claimed_at,
              spent_credits + given.credits AS spent_credits,
              spent_nanos + given.nanos AS spent_nanos),
final AS (
    INSERT INTO done (run_no, idx, status, claim_no, attempts, lost, claimed_at, updated_at, charged,
                      credits, nanos, {RESULT}, problem, reason, http_status, duration_ms, final_url,
                      {SPENT})
    SELECT run_no, idx, status, claim_no, attempts + charged::integer, lost, claimed_at, {NOW},
           charged, credits, nanos, {RESULT}, problem, reason, http_status, duration_ms, final_url,
           {SPENT}
      FROM ended WHERE status <> 0),
again AS (
    INSERT INTO later (run_no, idx, due_at, claimed_at, updated_at, claim_no, attempts, lost, {SPENT})
    SELECT run_no, idx, {NOW} + delay * interval '1 microsecond', claimed_at, {NOW}, claim_no,
           attempts + charged::integer, lost, {SPENT}
      FROM ended WHERE status = 0),
lines AS (
    INSERT INTO attempt (run_no, idx, claim_no, attempt, started_at, ended_at, problem, credits,
                         nanos, http_status, duration_ms)
    SELECT run_no, idx, claim_no, attempts + 1, claimed_at, {NOW}, problem, credits, nanos,
           http_status, duration_ms
      FROM ended WHERE status = 0 AND charged),
counted AS (
    INSERT INTO counter AS old (run_no, slot, {", ".join(COUNT_COLUMNS)})
    SELECT run_no, {SLOT}, {", ".join(ADDED[name] for name in COUNT_COLUMNS)}
      FROM ended WHERE status <> 0 OR credits <> 0 OR nanos <> 0 GROUP BY run_no ORDER BY run_no
    ON CONFLICT (run_no, slot) DO UPDATE SET
    {", ".join(f"{name} = old.{name} + excluded.{name}" for name in COUNT_COLUMNS)})
SELECT run_no, idx, claim_no FROM ended
"""
NO_BODY = (None,) * 5
NUMBERS = "SELECT run_id, no FROM run_no WHERE run_id = ANY($1::text[])"

Key = tuple[int, int, int]  # run number, index, claim number
Wants = Mapping[int, int]  # by run number


class PostgresWork:
    def __init__(
        self,
        database: PostgresDatabase,
        *,
        lease: timedelta,
        holder: str,
        clock: Clock | None = None,
    ) -> None:
        """With a clock, tasks are due by it; by default by that of the server."""
        self._database = database
        self._lease = lease
        self._clock = clock
        self.holder = holder
        self._numbers: dict[RunId, int] = {}  # of runs; a claim refreshes its own
        self._runs: dict[int, RunId] = {}  # the inverse

    async def close(self, run_id: RunId) -> None:
        await self._database.fetch("UPDATE run_no SET open = false WHERE run_id = $1", run_id)

    async def enqueue(self, run_id: RunId, task_ids: Sequence[TaskId]) -> None:
        """Nothing to do: the rows are the queue."""

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        """Take tasks that are due again, then fresh ones, then those of lost workers.

        Each of these is committed by itself. If one fails, tasks that were claimed before are
        returned: nobody else would know of them before their leases end.
        """
        asked = [run_id for run_id, want in wants.items() if want > 0]
        taken: list[Task] = []
        try:
            async for tasks in self._take(asked, wants):
                taken += tasks
        except Unavailable:
            if not taken:
                raise
        return taken

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        if not held:
            return []
        keys = await self._keys(held)
        sent = columns_of(sorted(set(keys)))
        values = (self._now(), self._lease, *sent, self.holder)
        # On a connection of its own: a lease must not end because claims wait for the server.
        rows = await self._database.fetch(RENEW, *values, pool=Pool.RESERVED)
        alive = {tuple(row) for row in rows}
        return [one for one, key in zip(held, keys, strict=True) if key not in alive]

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        if not settlements:
            return []
        for one in settlements:
            task_rules.check_ends(one.decision)
        keys = await self._keys(settlements)
        decisions: dict[Key, SettleDecision] = {}
        for key, one in zip(keys, settlements, strict=True):
            # A claim that is named twice ends once, with its first decision.
            decisions.setdefault(key, one.decision)
        ended = await self._end(decisions)
        return list(_were_settled(keys, ended))

    async def ack(self, final: Sequence[Held]) -> None:
        """Nothing to do: the rows are the queue."""

    async def release_lapsed(
        self, run_id: RunId, *, overdue: timedelta, limit: int
    ) -> Sequence[Released]:
        run_no = (await self._numbers_of([run_id])).get(run_id)
        if run_no is None:
            return []

        async def operation(connection: Connection) -> list[Released]:
            lapsed = await self._lapsed(connection, {run_no: limit}, {run_no: run_id}, overdue)
            moves = [(run_no, old, task_rules.release(old, now)) for _, old, now in lapsed]
            await move_lost(connection, moves)
            return [Released(run_id, old.id, old.claim_no, new.is_final) for _, old, new in moves]

        return await self._database.transact(operation, pool=Pool.WORK)

    async def _take(
        self, asked: Sequence[RunId], wants: Mapping[RunId, int]
    ) -> AsyncIterator[Sequence[Task]]:
        found = await self._database.fetch(LOOK, self._now(), asked, pool=Pool.WORK)
        runs = {run_no: asked[nth - 1] for nth, run_no, *_ in found}
        self._remember({run_id: run_no for run_no, run_id in runs.items()})
        left = {run_no: wants[run_id] for run_no, run_id in runs.items()}
        later = {run_no for _, run_no, any_later, _ in found if any_later}
        fresh = {run_no for _, run_no, _, any_fresh in found if any_fresh}
        room = CLAIM_BYTES // max(1, len(later | fresh))  # of a run
        bytes_of: Counter[int] = Counter()
        for statement, having, *ranges in (
            (TAKE_LATER, later),
            (TAKE_FRESH, fresh, RANGES),
            (TAKE_FRESH, fresh, MORE_RANGES),
        ):
            want = {run_no: left[run_no] for run_no in having if left[run_no]}
            if not want:
                continue
            values = (self._now(), *_arrays(want), self._lease, self.holder, room, *ranges)
            rows = await self._database.fetch(statement, *values, pool=Pool.WORK)
            yield [_held_task(runs[row["run_no"]], row, self.holder) for row in rows]
            for row in rows:
                left[row["run_no"]] -= 1
                bytes_of[row["run_no"]] += row["size"]
            if statement is TAKE_FRESH:
                # A run that gave nothing gives nothing at a second look.
                fresh &= {row["run_no"] for row in rows}
            for run_no, used in bytes_of.items():
                if 2 * used > room:
                    left[run_no] = 0  # the rest is for another claim
        rest = max(0, CLAIM_BYTES - bytes_of.total())
        yield await self._take_over({no: want for no, want in left.items() if want}, runs, rest)

    async def _take_over(
        self, wants: Wants, runs: Mapping[int, RunId], room: int
    ) -> Sequence[Task]:
        """Claim tasks of lost workers, of so many bytes over all runs.

        A task that lost too many workers is failed.
        """
        if not wants:
            return []
        values = (self._now(), sorted(wants))
        lapsed = {no for (no,) in await self._database.fetch(ANY_LAPSED, *values, pool=Pool.WORK)}
        wants = {run_no: want for run_no, want in wants.items() if run_no in lapsed}
        if not wants:
            return []

        async def operation(connection: Connection) -> list[Task]:
            moves = [
                (run_no, old, task_rules.claim(old, now, self._lease, holder=self.holder))
                for run_no, old, now in await self._lapsed(
                    connection, wants, runs, timedelta(), room=room // len(wants)
                )
            ]
            await move_lost(connection, moves)
            return [new for *_, new in moves]

        return await self._database.transact(operation, pool=Pool.WORK)

    async def _lapsed(
        self,
        connection: Connection,
        wants: Wants,
        runs: Mapping[int, RunId],
        overdue: timedelta,
        *,
        room: int = CLAIM_BYTES,
    ) -> list[tuple[int, Task, datetime]]:
        """Lock claims whose lease ended so long ago; return run number, task and time of each."""
        values = (self._now(), *_arrays(wants), room, overdue)
        return [
            (row["run_no"], _held_task(runs[row["run_no"]], row, row["holder"]), row["now"])
            for row in await connection.fetch(LAPSED, *values)
        ]

    async def _end(self, decisions: Mapping[Key, SettleDecision]) -> set[Key]:
        """End claims in the order of their keys; return those that still held their tasks."""
        rows = [(*key, *_values(decisions[key])) for key in sorted(decisions)]
        values = (self._now(), self.holder, *columns_of(rows))
        if not any(decision.failure for decision in decisions.values()):
            found = await self._database.fetch(SETTLE, *values, pool=Pool.WORK)
            return {tuple(row) for row in found}

        async def operation(connection: Connection) -> set[Key]:
            ended: set[Key] = {tuple(row) for row in await connection.fetch(SETTLE, *values)}
            failures = [
                Failure(key[0], key[1], failure)
                for key in ended
                if (failure := decisions[key].failure)
            ]
            if failures:
                await add_failures(connection, failures)
            return ended

        return await self._database.transact(operation, pool=Pool.WORK)

    async def _keys(self, claims: Sequence[Held | Settlement]) -> list[Key]:
        numbers = await self._numbers_of(one.run_id for one in claims)
        return [_key(one, numbers.get(one.run_id)) for one in claims]

    async def _numbers_of(self, run_ids: Iterable[RunId]) -> Mapping[RunId, int]:
        """The numbers of those runs that have one."""
        wanted = set(run_ids)
        known = {run_id: self._numbers[run_id] for run_id in wanted & self._numbers.keys()}
        if unknown := wanted - known.keys():
            rows = await self._database.fetch(NUMBERS, sorted(unknown), pool=Pool.RESERVED)
            found = dict(map(tuple, rows))
            self._remember(found)
            known |= found
        return known

    def _remember(self, numbers: Mapping[RunId, int]) -> None:
        """Cache numbers of runs.

        A server that was restored, or a replica that lagged, may have lost a run and given its
        number to another. What is still to be written for the lost run must not find the other.
        """
        if len(self._numbers) + len(numbers) > MOST_KNOWN:
            self._numbers.clear()
            self._runs.clear()
        for run_id, run_no in numbers.items():
            if (before := self._runs.get(run_no, run_id)) != run_id:
                self._numbers.pop(before, None)
            self._numbers[run_id] = run_no
            self._runs[run_no] = run_id

    def _now(self) -> datetime | None:
        return self._clock.now() if self._clock else None


def _key(held: Held | Settlement, run_no: int | None) -> Key:
    index = task_index(held.task_id)
    return (run_no or 0, -1 if index is None else index, held.claim_no)  # no run has number 0


def _arrays(wants: Wants) -> tuple[list[int], list[int]]:
    run_numbers = sorted(wants)
    return run_numbers, [wants[run_no] for run_no in run_numbers]


def _held_task(run_id: RunId, row: Any, holder: str) -> Task:
    """A task under a claim, as `as_claimed` says, from the first columns of a row of `CLAIMED`."""
    (_, idx, name, created_at, url, method, params, body, claim_no, attempts, lost, claimed_at,
     until, spent_credits, spent_nanos, *_) = row  # fmt: skip
    return Task(
        run_id=run_id,
        id=task_id_of(idx, name),
        index=idx,
        spec=TaskSpec(url=url, method=method, params=params, body=body),
        status=TaskStatus.PROCESSING,
        created_at=created_at,
        updated_at=claimed_at,
        due_at=until,
        claim_no=claim_no,
        attempts=attempts,
        lost=lost,
        claimed_at=claimed_at,
        holder=holder,
        spend=spend_of(spent_credits, spent_nanos),
    )


def _were_settled(keys: Sequence[Key], ended: set[Key]) -> Iterator[bool]:
    """Whether each claim took effect; a claim that is named twice did so the first time."""
    left = set(ended)
    for key in keys:
        yield key in left
        left.discard(key)


def _values(decision: SettleDecision) -> tuple[Any, ...]:
    """The values of `SENT` after the key."""
    result, facts, spend = decision.result, decision.facts, decision.spend
    pending = decision.status is TaskStatus.PENDING
    return (
        STATUS_NO[decision.status],
        decision.charged,
        decision.delay // timedelta(microseconds=1) if pending else 0,
        *(msgspec.structs.astuple(result) if result else NO_BODY),
        decision.problem,
        decision.reason if decision.status is TaskStatus.FAILED else None,
        facts.http_status,
        facts.duration_ms,
        None if pending else facts.final_url,
        spend.credits,
        spend.nanos,
    )
