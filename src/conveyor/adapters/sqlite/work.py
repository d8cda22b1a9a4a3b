"""Work in SQLite: the rows are the queue, ordered by `due_at`."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import apsw

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import (
    DECODER,
    NO_SPEC,
    NOT_CLAIMED,
    Row,
    add_counts,
    add_line,
    columns,
    fitting,
    gathered,
    needed,
    replace_state,
    size,
    sizes,
    stamp,
    task_of,
)
from conveyor.adapters.sqlite.run_numbers import RunNumbers, finder
from conveyor.adapters.sqlite.settling import prepare, settle_all, were_settled
from conveyor.domain import task as life
from conveyor.domain.ids import RunId, TaskId, task_index
from conveyor.domain.task import Settlement, Task, TaskStatus, size_of
from conveyor.ports.clock import Clock
from conveyor.ports.work import CLAIM_BYTES, Held

PENDING = """
FROM task INDEXED BY task_due
WHERE run_no = ?1 AND status = 0 AND due_at <= ?2 ORDER BY due_at, idx LIMIT ?3
"""
SIZE = size(NOT_CLAIMED)
SIZES = sizes(f"SELECT due_at, idx, {SIZE} AS size {PENDING}", "due_at, idx")
# What `TAKE` makes of a pending task: `NEXT` reads the rows as they will be, before they change.
TAKEN = {
    **NOT_CLAIMED,
    "status": "1",
    "due_at": "?4",
    "claim_no": "claim_no + 1",
    "claimed_at": "?2",
    "updated_at": "?2",
}
NEXT = f"SELECT {gathered(TAKEN)} FROM (SELECT {needed(TAKEN)} {PENDING})"
TAKE = f"""
UPDATE task SET status = 1, claim_no = claim_no + 1, claimed_at = ?2, updated_at = ?2, due_at = ?4
 WHERE run_no = ?1 AND idx IN (SELECT idx {PENDING})
"""
OPEN_RUN = """
SELECT no, EXISTS (SELECT 1 FROM task INDEXED BY task_held
                    WHERE run_no = no AND status = 1 AND due_at <= ?2)
  FROM run_no WHERE run_id = ?1 AND open
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
LAPSED_ANYWHERE = f"""
SELECT run_no, (SELECT run_id FROM run_no WHERE no = task.run_no), {columns(NO_SPEC)}
  FROM task INDEXED BY task_held WHERE status = 1 AND due_at <= ? LIMIT ?
"""
HELD = """
SELECT (SELECT run_id FROM run_no WHERE no = task.run_no), id, claim_no
  FROM task INDEXED BY task_held WHERE status = 1
"""
RENEW = """
UPDATE task SET due_at = ? WHERE run_no = ? AND idx = ? AND claim_no = ? AND status = 1 RETURNING 1
"""


class SqliteWork:
    """`claim`, `renew` and `settle` take one transaction each, which they share with other writes."""

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
        self._run_numbers = RunNumbers()

    async def open(self, run_id: RunId) -> None:
        await self._database.write(lambda connection: _set_open(connection, run_id, opened=True))

    async def close(self, run_id: RunId) -> None:
        await self._database.write(lambda connection: _set_open(connection, run_id, opened=False))

    async def enqueue(self, run_id: RunId, task_ids: Sequence[TaskId]) -> None:
        """Nothing to do: the rows are the queue."""

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        def operation(connection: apsw.Connection) -> list[tuple[RunId, str | list[Task]]]:
            taken, room = list[tuple[RunId, str | list[Task]]](), CLAIM_BYTES
            for run_id, limit in wants.items():
                given = self._claim_run(connection, run_id, limit, room)
                room -= len(given) if isinstance(given, str) else sum(map(size_of, given))
                taken.append((run_id, given))
            return taken

        # Not synced at once: a claim that a power cut undoes leaves a task that is pending again.
        taken = await self._database.write(operation, lazy=True)
        return [task for run_id, given in taken for task in _given(run_id, given)]

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        def operation(connection: apsw.Connection) -> list[Held]:
            # The clock is read inside the write: a repair of leases after a clock step is a write too,
            # and must not be overtaken.
            until = stamp(self._clock.now() + self._lease)
            run_no = finder(connection)
            return [
                one for one in held if not _renew_one(connection, run_no(one.run_id), one, until)
            ]

        return await self._database.write(operation, lazy=True)

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        now = stamp(self._clock.now())
        keys, claims = prepare(settlements, self._run_no_of, now)
        held = await self._database.write(
            lambda connection: settle_all(connection, claims, now, self._incarnation)
        )
        return list(were_settled(keys, held))

    async def ack(self, final: Sequence[Held]) -> None:
        """Nothing to do: the rows are the queue."""

    async def release_lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Held]:
        latest = stamp(self._clock.now() - overdue)
        return await self._database.write(
            lambda connection: self._release(connection, latest, limit)
        )

    async def held_by_the_dead(self) -> Sequence[Held]:
        """The claims of earlier incarnations: this process owns the folder, so they are dead."""
        return await self._database.read(
            lambda connection: [Held(*row) for row in connection.execute(HELD)]
        )

    def take_due(
        self, connection: apsw.Connection, run_no: int | None, tasks: Sequence[Task]
    ) -> list[Task]:
        """Claim those of the tasks that are due, as the domain says."""
        now = self._clock.now()
        due = [task for task in tasks if life.is_due(task, now)]
        taken = [life.claim(task, now, self._lease) for task in due]
        for old, new in zip(due, taken, strict=True):
            if old.status is TaskStatus.PROCESSING:
                self._move_lost(connection, run_no, old, new)
            else:
                replace_state(connection, run_no, new)
        return taken

    def _claim_run(
        self, connection: apsw.Connection, run_id: RunId, limit: int, room: int
    ) -> str | list[Task]:
        """Claim what is due of a run and fits into `room` bytes.

        Pending tasks are returned as the JSON of their rows, to be decoded on another thread: all
        writes wait for this one. Only where a lease has lapsed are tasks decoded here, because the
        domain decides what becomes of them.
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
        values = (run_no, now, fits, now + self._lease // timedelta(microseconds=1))
        [(rows,)] = connection.execute(NEXT, values)
        connection.execute(TAKE, values)
        return str(rows)

    def _run_no_of(self, run_id: RunId) -> int | None:
        return self._database.peek(lambda connection: self._run_numbers.find(connection, run_id))

    def _release(self, connection: apsw.Connection, latest: int, limit: int) -> list[Held]:
        now = self._clock.now()
        released = []
        for run_no, task in _lapsed(connection, latest, limit=limit):
            self._move_lost(connection, run_no, task, life.release(task, now))
            released.append(Held(task.run_id, task.id, task.claim_no))
        return released

    def _move_lost(
        self, connection: apsw.Connection, run_no: int | None, old: Task, new: Task
    ) -> None:
        """Write a task taken from a lost worker, with its history line and, if it failed, its count."""
        replace_state(connection, run_no, new)
        add_line(connection, run_no, old, old.claim_no, life.lost_line(old, new.updated_at))
        if new.status is TaskStatus.FAILED:
            decision = life.SettleDecision(status=new.status, charged=False, reason=new.reason)
            add_counts(connection, run_no, self._incarnation, life.counted(decision))


def _lapsed(connection: apsw.Connection, latest: int, *, limit: int) -> list[tuple[int, Task]]:
    """Claims whose lease ends at `latest` or before, each with its run number."""
    rows: Sequence[Row] = connection.execute(LAPSED_ANYWHERE, (latest, limit)).fetchall()
    return [(run_no, task_of(run_id, tuple(row))) for run_no, run_id, *row in rows]


def _renew_one(connection: apsw.Connection, run_no: int | None, held: Held, until: int) -> bool:
    key = (until, run_no, task_index(held.task_id), held.claim_no)
    return connection.execute(RENEW, key).fetchone() is not None


def _given(run_id: RunId, taken: str | list[Task]) -> list[Task]:
    if not isinstance(taken, str):
        return taken
    return [task_of(run_id, row) for row in DECODER.decode(taken)]


def _set_open(connection: apsw.Connection, run_id: RunId, *, opened: bool) -> None:
    connection.execute("UPDATE run_no SET open = ? WHERE run_id = ?", (int(opened), run_id))
