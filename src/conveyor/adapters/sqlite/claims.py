"""Claims of named tasks in SQLite, for work that a queue beside the rows hands out."""

from collections.abc import Sequence

import apsw

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import (
    NOT_CLAIMED,
    NOT_LISTED,
    columns,
    find_place,
    find_run_no,
    task_of,
)
from conveyor.adapters.sqlite.work import SqliteWork
from conveyor.domain.ids import RunId, TaskId, task_index
from conveyor.domain.job import ROW_VERSION
from conveyor.domain.task import Task, size_of
from conveyor.ports.work import CLAIM_BYTES

CLAIMED = f"SELECT {columns(NOT_CLAIMED)} FROM task WHERE run_no = ? AND idx = ?"
LISTED = f"SELECT {columns(NOT_LISTED)} FROM task WHERE run_no = ? AND idx = ?"


class SqliteClaims:
    """Claims as `SqliteWork` makes them, of tasks that the caller names.

    No engine of `app/engines.py` uses it yet; the contracts test it for engines with a queue.
    """

    def __init__(self, database: Database, work: SqliteWork) -> None:
        self._database = database
        self._work = work
        self.renew = work.renew
        self.settle = work.settle
        self.release_lapsed = work.release_lapsed

    async def stamp(self, run_id: RunId) -> str:
        place = self._database.peek(lambda connection: find_place(connection, run_id))
        return place.stamp if place else ""

    async def take(
        self, run_id: RunId, task_ids: Sequence[TaskId], *, stamp: str = ""
    ) -> Sequence[Task]:
        del stamp  # the place of a run is not needed to find its rows

        def operation(connection: apsw.Connection) -> list[Task]:
            run_no, is_known = find_run_no(connection, run_id), _is_known(connection, run_id)
            found, room = list[Task](), CLAIM_BYTES
            for task_id in set(task_ids):
                task = _look_at(connection, CLAIMED, run_id, run_no, task_id)
                if task is None:
                    continue
                fits = is_known and room > 0
                if taken := self._work.take_due(connection, run_no, [task]) if fits else []:
                    room -= size_of(task)
                elif task.holder != self._work.holder or task.is_final:
                    task = _look_at(connection, LISTED, run_id, run_no, task_id) or task
                found += taken or [task]
            return found

        return await self._database.write(operation)


def _is_known(connection: apsw.Connection, run_id: RunId) -> bool:
    """Whether this release knows the format of the run's rows."""
    place = find_place(connection, run_id)
    return place is None or place.v <= ROW_VERSION


def _look_at(
    connection: apsw.Connection, query: str, run_id: RunId, run_no: int | None, task_id: TaskId
) -> Task | None:
    row = connection.execute(query, (run_no, task_index(task_id))).fetchone()
    return task_of(run_id, row) if row and row[1] == task_id else None
