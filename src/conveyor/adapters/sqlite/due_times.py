"""Due times after the wall clock was set.

Due times are wall times, so that they outlive the process. A clock set back by an hour leaves all
of them an hour too late: tasks, control messages, events and schedules would wait for it to catch
up. A clock set ahead ends every lease at once.

| kind | after a step back by S | after a step ahead by S |
|---|---|---|
| pending task, control message, event | S earlier, but not before now: a back-off keeps its length | unchanged |
| lease of a task | at most `lease` from now | S later |
| lease of a control message | as a message | S later |
| schedule | if more than one fire of it would be missed: its first from now | unchanged |
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import apsw

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.metadata import JOB, PAST_EVERY_ID
from conveyor.adapters.sqlite.rows import Row, moment, stamp
from conveyor.domain.job import after_clock_set_back
from conveyor.ports.clock import SLEW, Clock

BATCH = 10_000  # rows of one transaction, for which all other writes wait
SCHEDULES_AT_ONCE = 200
MICROSECOND = timedelta(microseconds=1)

LAST_SEEN = "SELECT coalesce(seen_at, started_at) FROM incarnation ORDER BY no DESC LIMIT 1"
NOTE = "UPDATE incarnation SET seen_at = ? WHERE no = ?"

LEASES_BACK = "UPDATE task INDEXED BY task_held SET due_at = ?1 WHERE status = 1 AND due_at > ?1"
LEASES_AHEAD = "UPDATE task INDEXED BY task_held SET due_at = due_at + ?1 WHERE status = 1"
MESSAGES_BACK = "UPDATE control_message SET due_at = max(due_at - ?2, ?1) WHERE due_at > ?1"
MESSAGES_AHEAD = "UPDATE control_message SET due_at = due_at + ?1 WHERE held = 1"
EVENTS = "SELECT id, due_at FROM outbox_event WHERE due_at > ?"
MOVE_EVENT = (
    "UPDATE outbox_event SET due_at = ?2, doc = json_set(doc, '$.due_at', ?3) WHERE id = ?1"
)
SCHEDULES = """
SELECT fires_at, id, doc FROM job INDEXED BY job_by_fire
 WHERE fires_at IS NOT NULL AND (fires_at, id) > (?, ?) ORDER BY fires_at, id LIMIT ?
"""
OPEN_RUNS = "SELECT no FROM run_no WHERE open = 1"
COME_DUE = """
UPDATE task SET due_at = ?2 WHERE run_no = ?1 AND idx IN (
    SELECT idx FROM task INDEXED BY task_due
     WHERE run_no = ?1 AND status = 0 AND due_at > ?2 AND due_at <= ?2 + ?3 LIMIT ?4)
"""
BACK_OFF = """
UPDATE task INDEXED BY task_due SET due_at = due_at - ?3
 WHERE run_no = ?1 AND status = 0 AND due_at > ?2 + ?3
"""


class SqliteDueTimes:
    def __init__(
        self, database: Database, clock: Clock, *, lease: timedelta, incarnation: int
    ) -> None:
        self._database = database
        self._clock = clock
        self._lease = lease
        self.incarnation = incarnation

    async def note(self) -> None:
        """Record the wall time, by which the next start sees whether the clock was set back."""
        row = (stamp(self._clock.now()), self.incarnation)
        await self._database.write(lambda connection: _execute(connection, NOTE, row), lazy=True)

    async def set_back(self, by: timedelta) -> None:
        """Repair due times after the clock was set back. The clock shows the new time already.

        Repeating it after a failure or a crash does no harm: at worst retries come too early.
        """
        now, step = stamp(self._clock.now()), by // MICROSECOND
        await self._database.write(lambda connection: self._back(connection, now, step))
        place: tuple[int, str] | None = (now, PAST_EVERY_ID)
        while place is not None:
            place = await self._database.write(partial(_some_schedules, now=now, after=place))
        run_numbers = await self._database.read(
            lambda connection: [no for (no,) in connection.execute(OPEN_RUNS)]
        )
        # First the tasks that were due by the old time, of which there may be millions. `BACK_OFF`
        # moves later tasks into the same interval, where `COME_DUE` would make them due at once.
        for run_no in run_numbers:
            batch = (run_no, now, step, BATCH)
            while await self._changed(COME_DUE, batch) == BATCH:
                pass
        for run_no in run_numbers:
            await self._changed(BACK_OFF, (run_no, now, step))
        await self.note()

    async def set_ahead(self, by: timedelta, adopt: Callable[[], None]) -> None:
        """Extend leases by a step ahead, and call `adopt`, which makes the clock show the new time.

        The clock must not show the new time while a lease may still be the old one: a claim would
        take the tasks of its own process. So `adopt` follows the commit. No claim or renewal runs in
        between: it would write a lease by the old time, which the new time ends at once.
        """
        step = (by // MICROSECOND,)

        def operation(connection: apsw.Connection) -> None:
            connection.execute(LEASES_AHEAD, step)
            connection.execute(MESSAGES_AHEAD, step)

        await self._database.write(operation, then=adopt)

    async def repair_at_start(self, by: timedelta) -> None:
        if by > SLEW:
            await self.set_back(by)

    def _back(self, connection: apsw.Connection, now: int, step: int) -> None:
        connection.execute(LEASES_BACK, (now + self._lease // MICROSECOND,))
        connection.execute(MESSAGES_BACK, (now, step))
        events: Sequence[Row] = connection.execute(EVENTS, (now,)).fetchall()
        for event_id, due_at in events:
            due = max(due_at - step, now)
            # The version stays the same: the sender that holds the event must be able to record the
            # outcome of its delivery.
            connection.execute(MOVE_EVENT, (event_id, due, moment(due).isoformat()))

    async def _changed(self, statement: str, row: tuple[int, ...]) -> int:
        return await self._database.write(
            lambda connection: _execute(connection, statement, row), lazy=True
        )


def _some_schedules(
    connection: apsw.Connection, *, now: int, after: tuple[int, str]
) -> tuple[int, str] | None:
    """Repair a page of schedules and return where the next page starts; None at the end.

    A repaired schedule fires earlier than its page, so no later page has it again.
    """
    page: Sequence[Row] = connection.execute(SCHEDULES, (*after, SCHEDULES_AT_ONCE)).fetchall()
    for _, _, doc in page:
        job = JOB.decode(doc)
        repaired = after_clock_set_back(job, moment(now))
        if repaired is not job:
            JOB.write(connection, repaired)
    return (page[-1][0], page[-1][1]) if page else None


def _execute(connection: apsw.Connection, statement: str, row: tuple[int, ...]) -> int:
    connection.execute(statement, row)
    return connection.changes()
