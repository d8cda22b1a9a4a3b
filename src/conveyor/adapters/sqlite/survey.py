"""Everything in SQLite, seen without touching it."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import apsw

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.metadata import JOB
from conveyor.adapters.sqlite.rows import line_of, stamp, within
from conveyor.adapters.sqlite.run_numbers import find_run_no
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.job import Job
from conveyor.domain.task import WORKER_LOST, Attempt
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import JOBS_BYTES
from conveyor.ports.work import Held

JOBS = "SELECT doc FROM job WHERE id > ? ORDER BY id LIMIT ?"
LAPSED = """
SELECT (SELECT run_id FROM run_no WHERE no = task.run_no), id, claim_no
  FROM task INDEXED BY task_held WHERE status = 1 AND due_at <= ? LIMIT ?
"""
HISTORIES = """
SELECT task.id, attempt, started_at, ended_at, CASE attempt.problem WHEN ?4 THEN ?4 END, credits,
       nanos
  FROM attempt JOIN task USING (run_no, idx)
 WHERE run_no = ?1 AND idx > ?2 AND idx <= ?3 ORDER BY idx, attempt.claim_no
"""


class SqliteSurvey:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def jobs(self, *, limit: int, after: str = "") -> Sequence[Job]:
        return await self._database.read(
            lambda connection: [
                JOB.decode(doc)
                for (doc,) in within(connection.execute(JOBS, (after, limit)), JOBS_BYTES)
            ]
        )

    async def lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Held]:
        latest = stamp(self._clock.now() - overdue)
        return await self._database.read(
            lambda connection: [Held(*row) for row in connection.execute(LAPSED, (latest, limit))]
        )

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
