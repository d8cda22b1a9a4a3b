"""Claims in SQLite: a pending row is the queue entry, its `due_at` the time it comes up."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache, partial

import apsw

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import (
    ADD_LINE,
    PHASE,
    STATUS_NO,
    TASK,
    Row,
    add_counts,
    add_line,
    replace_state,
    stamp,
    task_of,
)
from conveyor.adapters.sqlite.shelves import find_shelf
from conveyor.domain import task as life
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.ids import RunId, TaskId, task_index
from conveyor.domain.task import Settlement, Task, TaskStatus
from conveyor.ports.clock import Clock
from conveyor.ports.work import Held

TAKE = f"""
UPDATE task SET status = 1, claim_no = claim_no + 1, claimed_at = ?1, updated_at = ?1, due_at = ?2
 WHERE shelf = ?3 AND idx IN
       (SELECT idx FROM task INDEXED BY task_due
         WHERE shelf = ?3 AND status = 0 AND due_at <= ?1 ORDER BY due_at, idx LIMIT ?4)
RETURNING {TASK}
"""
ANY_LAPSED = """
SELECT 1 FROM task INDEXED BY task_held WHERE shelf = ? AND status = 1 AND due_at <= ? LIMIT 1
"""
DUE = f"""
SELECT {TASK} FROM (
    SELECT * FROM (SELECT {TASK} FROM task INDEXED BY task_due
                    WHERE shelf = ?1 AND status = 0 AND due_at <= ?2
                    ORDER BY due_at, idx LIMIT ?3)
    UNION ALL
    SELECT * FROM (SELECT {TASK} FROM task INDEXED BY task_held
                    WHERE shelf = ?1 AND status = 1 AND due_at <= ?2
                    ORDER BY due_at, idx LIMIT ?3)
) ORDER BY due_at, idx LIMIT ?3
"""
LAPSED_ANYWHERE = f"""
SELECT shelf, (SELECT run_id FROM shelf WHERE no = task.shelf), {TASK} FROM task INDEXED BY task_held
 WHERE status = 1 AND due_at <= ? LIMIT ?
"""
FOREVER = timedelta(days=36_500)
RENEW = """
UPDATE task SET due_at = ? WHERE shelf = ? AND idx = ? AND claim_no = ? AND status = 1 RETURNING 1
"""
SETTLE = """
UPDATE task SET status = ?, phase = ?, attempts = attempts + ?, due_at = ?, updated_at = ?,
       locator = ?, length = ?, checksum = ?, format = ?, problem = ?, reason = ?
 WHERE shelf = ? AND idx = ? AND claim_no = ? AND status = 1
RETURNING attempts, claimed_at
"""


class SqliteWork:
    """`claim`, `renew` and `settle` each take one transaction, shared with their neighbours."""

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

    async def open(self, run_id: RunId) -> None:
        await self._database.write(lambda connection: _set_open(connection, run_id, opened=True))

    async def close(self, run_id: RunId) -> None:
        await self._database.write(lambda connection: _set_open(connection, run_id, opened=False))

    async def offer(self, run_id: RunId, task_ids: Sequence[TaskId]) -> None:
        """Nothing to do: the rows are the queue."""

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        def operation(connection: apsw.Connection) -> list[Task]:
            taken: list[Task] = []
            for run_id, limit in wants.items():
                shelf = self._open_shelf(connection, run_id)
                if shelf is not None:
                    taken += self._claim_run(connection, run_id, shelf, limit)
            return taken

        # A claim that a power cut undoes is a task that is pending again.
        return await self._database.write(operation, lazy=True)

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        until = stamp(self._clock.now() + self._lease)

        def operation(connection: apsw.Connection) -> list[Held]:
            shelf = _finder(connection)
            return [
                one for one in held if not _renew_one(connection, shelf(one.run_id), one, until)
            ]

        return await self._database.write(operation, lazy=True)

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        now = stamp(self._clock.now())

        def operation(connection: apsw.Connection) -> list[bool]:
            shelf = _finder(connection)
            sums: dict[int, Counts] = defaultdict(lambda: ZERO)
            settled = [
                _settle_one(connection, shelf(one.run_id), one, now, sums) for one in settlements
            ]
            for number, counts in sums.items():
                if counts != ZERO:
                    add_counts(connection, number, self._incarnation, counts)
            return settled

        return await self._database.write(operation)

    async def ack(self, final: Sequence[Held]) -> None:
        """Nothing to do: the rows are the queue."""

    async def release_lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Held]:
        latest = stamp(self._clock.now() - overdue)
        return await self._database.write(
            lambda connection: self._release(connection, latest, limit)
        )

    async def release_dead(self) -> Sequence[Held]:
        """Free what earlier incarnations held: owning the folder proves them dead."""
        return await self.release_lapsed(overdue=-FOREVER, limit=-1)

    def take_due(
        self, connection: apsw.Connection, shelf: int | None, tasks: Sequence[Task]
    ) -> list[Task]:
        """Claim those of the tasks that are due, as the domain says."""
        now = self._clock.now()
        due = [task for task in tasks if life.is_due(task, now)]
        taken = [life.claim(task, now, self._lease) for task in due]
        for old, new in zip(due, taken, strict=True):
            if old.status is TaskStatus.PROCESSING:
                self._move_lost(connection, shelf, old, new)
            else:
                replace_state(connection, shelf, new)
        return taken

    def _open_shelf(self, connection: apsw.Connection, run_id: RunId) -> int | None:
        row = connection.execute(
            "SELECT no, open FROM shelf WHERE run_id = ?", (run_id,)
        ).fetchone()
        return row[0] if row and row[1] else None

    def _claim_run(
        self, connection: apsw.Connection, run_id: RunId, shelf: int, limit: int
    ) -> list[Task]:
        now = stamp(self._clock.now())
        if connection.execute(ANY_LAPSED, (shelf, now)).fetchone():
            rows = connection.execute(DUE, (shelf, now, limit)).fetchall()
            return self.take_due(connection, shelf, [task_of(run_id, row) for row in rows])
        until = now + self._lease // timedelta(microseconds=1)
        taken = [
            task_of(run_id, row) for row in connection.execute(TAKE, (now, until, shelf, limit))
        ]
        return sorted(taken, key=lambda task: task.index)

    def _release(self, connection: apsw.Connection, latest: int, limit: int) -> list[Held]:
        now = self._clock.now()
        released = []
        rows: list[Row] = connection.execute(LAPSED_ANYWHERE, (latest, limit)).fetchall()
        for shelf, run_id, *row in rows:
            task = task_of(run_id, tuple(row))
            self._move_lost(connection, shelf, task, life.release(task, now))
            released.append(Held(task.run_id, task.id, task.claim_no))
        return released

    def _move_lost(
        self, connection: apsw.Connection, shelf: int | None, old: Task, new: Task
    ) -> None:
        """Write a task taken from a lost worker, with its line and, if it failed, its count."""
        replace_state(connection, shelf, new)
        add_line(connection, shelf, old, old.claim_no, life.lost_line(old, new.updated_at))
        if new.status is TaskStatus.FAILED:
            verdict = life.Verdict(status=new.status, charged=False, reason=new.reason)
            add_counts(connection, shelf, self._incarnation, life.counted(verdict))


def _finder(connection: apsw.Connection) -> Callable[[RunId], int | None]:
    """Shelves by run, each looked up once in this transaction."""
    return cache(partial(find_shelf, connection))


def _renew_one(connection: apsw.Connection, shelf: int | None, held: Held, until: int) -> bool:
    key = (until, shelf, task_index(held.task_id), held.claim_no)
    return connection.execute(RENEW, key).fetchone() is not None


def _settle_one(
    connection: apsw.Connection,
    shelf: int | None,
    one: Settlement,
    now: int,
    sums: dict[int, Counts],
) -> bool:
    index, verdict = task_index(one.task_id), one.verdict
    life.check_ends(verdict)
    if shelf is None:
        return False
    row = connection.execute(SETTLE, _settled(shelf, index, one, now)).fetchone()
    if row is None:
        return False
    attempts, claimed_at = row
    if verdict.charged:
        line = (shelf, index, one.claim_no, attempts, claimed_at, now, verdict.problem)
        connection.execute(ADD_LINE, (*line, verdict.spend.credits, verdict.spend.nanos))
    sums[shelf] += life.counted(verdict)
    return True


def _set_open(connection: apsw.Connection, run_id: RunId, *, opened: bool) -> None:
    connection.execute("UPDATE shelf SET open = ? WHERE run_id = ?", (int(opened), run_id))


def _settled(
    shelf: int, index: int | None, one: Settlement, now: int
) -> tuple[int | str | None, ...]:
    verdict, result = one.verdict, one.verdict.result
    pending = verdict.status is TaskStatus.PENDING
    failed = verdict.status is TaskStatus.FAILED
    body = (result.locator, result.length, result.checksum, result.format) if result else NO_BODY
    return (
        STATUS_NO[verdict.status],
        PHASE[verdict.status],
        int(verdict.charged),
        now + verdict.delay // timedelta(microseconds=1) if pending else None,
        now,
        *body,
        verdict.problem if failed else None,
        verdict.reason if failed else None,
        shelf,
        index,
        one.claim_no,
    )


NO_BODY = (None, None, None, None)
