"""Work in SQLite: the rows are the queue, ordered by `due_at`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta

import apsw
import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import (
    DECODER,
    NOT_CLAIMED,
    NOT_ENDED,
    ONLY_URL,
    STATUS_NO,
    RunNumbers,
    add_counts,
    add_failures,
    add_lost_line,
    byte_length,
    columns,
    failing,
    finder,
    fitting,
    gathered,
    needed,
    replace_state,
    size,
    sizes,
    stamp,
    task_of,
)
from conveyor.domain import task as task_rules
from conveyor.domain.counts import COUNT_COLUMNS
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import RunId, TaskId, task_index
from conveyor.domain.job import ROW_VERSION
from conveyor.domain.task import SettleDecision, Settlement, Task, TaskStatus, size_of
from conveyor.ports.clock import Clock
from conveyor.ports.work import CLAIM_BYTES, Held, Released

PENDING = """
FROM task INDEXED BY task_due
WHERE run_no = ?1 AND status = 0 AND due_at <= ?2 ORDER BY due_at, idx LIMIT ?3
"""
SIZE = size({**NOT_CLAIMED, **NOT_ENDED})
SIZES = sizes(f"SELECT due_at, idx, {SIZE} AS size {PENDING}", "due_at, idx")
# The columns that `TAKE` changes. `NEXT` runs before it and returns the rows as they will be, because
# an UPDATE with RETURNING would return them one by one, and in no order.
TAKEN = {
    **NOT_CLAIMED,
    **NOT_ENDED,
    "status": "1",
    "due_at": "?4",
    "claim_no": "claim_no + 1",
    "claimed_at": "?2",
    "updated_at": "?2",
    "holder": "?5",
}
NEXT = f"SELECT {gathered(TAKEN)} FROM (SELECT {needed(TAKEN)} {PENDING})"
TAKE = f"""
UPDATE task SET status = 1, claim_no = claim_no + 1, claimed_at = ?2, updated_at = ?2, due_at = ?4,
       holder = ?5
 WHERE run_no = ?1 AND idx IN (SELECT idx {PENDING})
"""
OPEN_RUN = f"""
SELECT no, EXISTS (SELECT 1 FROM task INDEXED BY task_held
                    WHERE run_no = no AND status = 1 AND due_at <= ?2)
  FROM run_no WHERE run_id = ?1 AND open AND coalesce(v, 0) <= {ROW_VERSION}
"""
NEAR = """
SELECT * FROM (
    SELECT * FROM (SELECT {what} FROM task INDEXED BY task_due
                    WHERE run_no = ?1 AND status = 0 AND due_at <= ?2
                    ORDER BY due_at, idx LIMIT ?3)
    UNION ALL
    SELECT * FROM (SELECT {what} FROM task INDEXED BY task_held
                    WHERE run_no = ?1 AND status = 1 AND due_at <= ?2
                    ORDER BY due_at, idx LIMIT ?3)
) ORDER BY due_at, idx LIMIT ?3
"""
DUE_SIZES = sizes(NEAR.format(what=f"due_at, idx, {SIZE} AS size"), "due_at, idx")
DUE = f"""
SELECT {columns(NOT_CLAIMED)} FROM task
 WHERE run_no = ?1 AND idx IN (SELECT idx FROM ({NEAR.format(what="due_at, idx")}))
 ORDER BY due_at, idx
"""
LAPSED = f"""
SELECT {columns(ONLY_URL)} FROM task INDEXED BY task_held
 WHERE run_no = ? AND status = 1 AND due_at <= ? LIMIT ?
"""
ANY_LAPSED = """
SELECT 1 FROM task INDEXED BY task_held WHERE run_no = ? AND status = 1 AND due_at <= ? LIMIT 1
"""
HELD = """
SELECT (SELECT run_id FROM run_no WHERE no = task.run_no), id, claim_no
  FROM task INDEXED BY task_held WHERE status = 1
"""
RENEW = """
UPDATE task SET due_at = ?1
 WHERE run_no = ?2 AND idx = ?3 AND claim_no = ?4 AND status = 1 AND ifnull(holder, ?5) = ?5
RETURNING 1
"""

# Settling: any number of claims in six statements, and four more if any of them failed. All values
# are encoded beforehand as one JSON value, so that the writer thread runs SQL and hardly any Python,
# and does not wait for the interpreter lock while pages arrive. `HOLD` unpacks the value into a
# temporary table; the other statements join with it. These are the values of a claim, in the order in
# which they are sent.
SENT = (
    "run_no", "idx", "claim_no", "status", "charged", "due_at", "locator", "length", "checksum",
    "format", "content_type", "problem", "reason", "http_status", "duration_ms", "final_url",
    "credits", "nanos", "failure",
)  # fmt: skip
AT = {name: f"(claim.value ->> {place})" for place, name in enumerate(SENT)}
# Created once, when the engine opens: it lives as long as the connection of the writer.
ENDING = f"""
CREATE TEMP TABLE ending (
    {", ".join(SENT)}, attempts, claimed_at, PRIMARY KEY (run_no, idx)
) WITHOUT ROWID
"""
# `jsonb_each` gives each claim in binary; text would be parsed again for every value.
HOLD = f"""
INSERT INTO temp.ending
SELECT {", ".join(AT.values())}, task.attempts, task.claimed_at
  FROM jsonb_each(?1) AS claim CROSS JOIN task
    ON task.run_no = {AT["run_no"]} AND task.idx = {AT["idx"]}
 WHERE task.claim_no = {AT["claim_no"]} AND task.status = 1 AND ifnull(task.holder, ?2) = ?2
"""
ENDED = "SELECT json_group_array(json_array(run_no, idx, claim_no)) FROM temp.ending"
ADD_LINES = """
INSERT INTO attempt (run_no, idx, claim_no, attempt, started_at, ended_at, problem, credits, nanos,
                     http_status, duration_ms)
SELECT run_no, idx, claim_no, attempts + 1, claimed_at, ?1, problem, credits, nanos, http_status,
       duration_ms
  FROM temp.ending WHERE charged
"""
# What the claims of a run add to its counts, as `counted` of the domain says.
ADDED: dict[str, str] = {
    "successful": "sum(status = 2)",
    **{
        str(why): f"sum(status = 3 AND coalesce(reason, 'other') = '{why}')"
        for why in FailureReason
    },
    "credits": "sum(credits)",
    "nanos": "sum(nanos)",
}
COUNT = f"""
INSERT INTO counter (run_no, incarnation, {", ".join(COUNT_COLUMNS)})
SELECT run_no, ?1, {", ".join(ADDED[name] for name in COUNT_COLUMNS)} FROM temp.ending WHERE true
 GROUP BY run_no
ON CONFLICT (run_no, incarnation) DO UPDATE SET
{", ".join(f"{name} = {name} + excluded.{name}" for name in COUNT_COLUMNS)}
"""
FAILING_NOW = failing("""
SELECT run_no, idx, failure ->> 0 AS host, coalesce(reason, 'other') AS reason,
       failure ->> 1 AS code
  FROM temp.ending WHERE status = 3
""")
FAILING_LOST = failing("SELECT ?1 AS run_no, ?2 AS idx, ?3 AS host, ?4 AS reason, ?5 AS code")
MOVED = (
    "status", "due_at", "locator", "length", "checksum", "format", "content_type", "reason",
    "final_url",
)  # fmt: skip
# An attempt that is retried leaves its problem, status and duration in the history only: the task is
# pending again, which is status 0. The phase of a task that is pending, successful or failed has the
# number of its status.
MOVE = f"""
UPDATE task SET updated_at = ?1, attempts = task.attempts + ending.charged, phase = ending.status,
       holder = NULL, spent_credits = spent_credits + ending.credits,
       spent_nanos = spent_nanos + ending.nanos,
       {", ".join(f"{name} = ending.{name}" for name in MOVED)},
       problem = iif(ending.status = 3, ending.problem, NULL),
       http_status = iif(ending.status, ending.http_status, NULL),
       duration_ms = iif(ending.status, ending.duration_ms, NULL)
  FROM temp.ending WHERE task.run_no = ending.run_no AND task.idx = ending.idx
"""
NO_BODY = (None,) * 5
ENDED_KEYS = msgspec.json.Decoder(list[tuple[int, int, int]])

Key = tuple[int | None, int | None, int]
Values = tuple[int | str | tuple[str, str] | None, ...]


class SqliteWork:
    """`claim`, `renew` and `settle` are one operation of the writer each, whatever their number of tasks."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        lease: timedelta,
        incarnation: int,
    ) -> None:
        self._database = database
        self._clock = clock
        self._lease = lease
        self._incarnation = incarnation
        self.holder = str(incarnation)
        self._run_numbers = RunNumbers()

    async def close(self, run_id: RunId) -> None:
        await self._database.write(lambda connection: _close(connection, run_id))

    async def enqueue(self, run_id: RunId, task_ids: Sequence[TaskId]) -> None:
        """Nothing to do: the rows are the queue."""

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        def operation(connection: apsw.Connection) -> list[tuple[RunId, str | list[Task]]]:
            taken, room = list[tuple[RunId, str | list[Task]]](), CLAIM_BYTES
            for run_id, limit in wants.items():
                given = self._claim_run(connection, run_id, limit, room)
                room -= byte_length(given) if isinstance(given, str) else sum(map(size_of, given))
                taken.append((run_id, given))
            return taken

        # Lazy: a power cut also ends the process that holds the claim, and the task is pending again.
        taken = await self._database.write(operation, lazy=True)
        return [task for run_id, given in taken for task in _given(run_id, given)]

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        def operation(connection: apsw.Connection) -> list[Held]:
            # The clock is read inside the write. A repair of leases after a step of the clock is a
            # write too, and a time read before it must not be written after it.
            until = stamp(self._clock.now() + self._lease)
            run_no = finder(connection)
            return [
                one
                for one in held
                if not self._renew_one(connection, run_no(one.run_id), one, until)
            ]

        return await self._database.write(operation, lazy=True)

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        now = stamp(self._clock.now())
        keys, claims = _prepare(settlements, self._run_no_of, now)
        any_failed = any(one.decision.failure for one in settlements)

        def operation(connection: apsw.Connection) -> str:
            return _settle_all(connection, claims, now, self._incarnation, any_failed=any_failed)

        return list(_were_settled(keys, await self._database.write(operation)))

    async def ack(self, final: Sequence[Held]) -> None:
        """Nothing to do: the rows are the queue."""

    async def release_lapsed(
        self, run_id: RunId, *, overdue: timedelta, limit: int
    ) -> Sequence[Released]:
        key = self._run_no_of(run_id), stamp(self._clock.now() - overdue)
        # A point read first: a sweep of runs without lapsed leases must not cost transactions.
        if not self._database.peek(
            lambda connection: connection.execute(ANY_LAPSED, key).fetchone()
        ):
            return []
        return await self._database.write(
            lambda connection: self._release(connection, run_id, key, limit)
        )

    async def held_by_the_dead(self) -> Sequence[Held]:
        """The claims of earlier incarnations. This process owns the folder, so their holders are dead."""
        return await self._database.read(
            lambda connection: [Held(*row) for row in connection.execute(HELD)]
        )

    def take_due(
        self, connection: apsw.Connection, run_no: int | None, tasks: Sequence[Task]
    ) -> list[Task]:
        """Claim the tasks that are due, by the rules of the domain."""
        now = self._clock.now()
        due = [task for task in tasks if task_rules.is_due(task, now)]
        taken = [task_rules.claim(task, now, self._lease, holder=self.holder) for task in due]
        for old, new in zip(due, taken, strict=True):
            if old.status is TaskStatus.PROCESSING:
                self._move_lost(connection, run_no, old, new)
            else:
                replace_state(connection, run_no, new)
        return taken

    def _claim_run(
        self, connection: apsw.Connection, run_id: RunId, limit: int, room: int
    ) -> str | list[Task]:
        """Claim the due tasks of a run that fit into `room` bytes.

        Pending tasks are returned as the JSON of their rows, which the caller decodes: this thread
        holds up every other write. If a lease has lapsed, tasks are decoded here, because the domain
        decides whether the task is claimed again or has failed.
        """
        now = stamp(self._clock.now())
        found = connection.execute(OPEN_RUN, (run_id, now)).fetchone()
        if found is None:
            return []
        run_no, any_lapsed = found
        if any_lapsed:
            fits, _ = fitting(connection, DUE_SIZES, (run_no, now), limit=limit, room=room)
            rows = connection.execute(DUE, (run_no, now, fits)).fetchall()
            return self.take_due(connection, run_no, [task_of(run_id, row) for row in rows])
        fits, _ = fitting(connection, SIZES, (run_no, now), limit=limit, room=room)
        until = now + self._lease // timedelta(microseconds=1)
        values = (run_no, now, fits, until, self._incarnation)
        [(rows,)] = connection.execute(NEXT, values)
        connection.execute(TAKE, values)
        return str(rows)

    def _renew_one(
        self, connection: apsw.Connection, run_no: int | None, held: Held, until: int
    ) -> bool:
        key = (run_no, task_index(held.task_id), held.claim_no)
        return connection.execute(RENEW, (until, *key, self._incarnation)).fetchone() is not None

    def _run_no_of(self, run_id: RunId) -> int | None:
        return self._database.peek(lambda connection: self._run_numbers.find(connection, run_id))

    def _release(
        self, connection: apsw.Connection, run_id: RunId, key: tuple[int | None, int], limit: int
    ) -> list[Released]:
        """Release claims of a run number whose lease ends at a time or before."""
        now, (run_no, _) = self._clock.now(), key
        released = []
        for row in connection.execute(LAPSED, (*key, limit)).fetchall():
            task = task_of(run_id, row)
            freed = task_rules.release(task, now)
            self._move_lost(connection, run_no, task, freed)
            released.append(Released(task.run_id, task.id, task.claim_no, freed.is_final))
        return released

    def _move_lost(
        self, connection: apsw.Connection, run_no: int | None, old: Task, new: Task
    ) -> None:
        """Write a task taken from a lost worker, with its history line, and count it if it failed."""
        replace_state(connection, run_no, new)
        add_lost_line(connection, run_no, old, task_rules.lost_line(old, new.updated_at))
        if new.status is TaskStatus.FAILED:
            decision = SettleDecision(status=new.status, charged=False, reason=new.reason)
            add_counts(connection, run_no, self._incarnation, task_rules.counted(decision))
            failure = msgspec.structs.astuple(task_rules.failure_of(new))
            add_failures(connection, FAILING_LOST, (run_no, new.index, *failure))


def _given(run_id: RunId, taken: str | list[Task]) -> list[Task]:
    if not isinstance(taken, str):
        return taken
    return [task_of(run_id, row) for row in DECODER.decode(taken)]


def _close(connection: apsw.Connection, run_id: RunId) -> None:
    connection.execute("UPDATE run_no SET open = 0 WHERE run_id = ?", (run_id,))


def _prepare(
    settlements: Sequence[Settlement], run_no_of: Callable[[RunId], int | None], now: int
) -> tuple[list[Key], str]:
    """Return the keys of the claims, and the JSON value for the statements."""
    run_numbers = {run_id: run_no_of(run_id) for run_id in {one.run_id for one in settlements}}
    keys = [(run_numbers[one.run_id], task_index(one.task_id), one.claim_no) for one in settlements]
    sent: dict[Key, Values] = {}
    for key, one in zip(keys, settlements, strict=True):
        task_rules.check_ends(one.decision)
        # A claim that is named twice ends once, with its first decision.
        sent.setdefault(key, (*key, *_values(one.decision, now)))
    return keys, msgspec.json.encode(list(sent.values())).decode()


def _settle_all(
    connection: apsw.Connection, claims: str, now: int, incarnation: int, *, any_failed: bool
) -> str:
    """End the claims that still hold their tasks; return their keys as JSON."""
    connection.execute(HOLD, (claims, incarnation))
    connection.execute(ADD_LINES, (now,))
    connection.execute(COUNT, (incarnation,))
    if any_failed:
        add_failures(connection, FAILING_NOW)
    connection.execute(MOVE, (now,))
    [(held,)] = connection.execute(ENDED)
    connection.execute("DELETE FROM temp.ending")
    return str(held)


def _were_settled(keys: Sequence[Key], held: str) -> Iterator[bool]:
    """Whether each claim took effect; a claim that is named twice did so the first time."""
    left = set(ENDED_KEYS.decode(held))
    for key in keys:
        yield key in left
        left.discard(key)


def _values(decision: SettleDecision, now: int) -> Values:
    """The values of `SENT` after the key."""
    result, facts = decision.result, decision.facts
    spend, failure = decision.spend, decision.failure
    pending = decision.status is TaskStatus.PENDING
    return (
        STATUS_NO[decision.status],
        int(decision.charged),
        now + decision.delay // timedelta(microseconds=1) if pending else None,
        *(msgspec.structs.astuple(result) if result else NO_BODY),
        decision.problem,
        decision.reason if decision.status is TaskStatus.FAILED else None,
        facts.http_status,
        facts.duration_ms,
        None if pending else facts.final_url,
        spend.credits,
        spend.nanos,
        (failure.host, failure.code) if failure else None,
    )
