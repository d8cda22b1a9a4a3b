"""Claims of named tasks in SQLite, for work that a queue beside the rows hands out."""

from collections.abc import Sequence

import apsw

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import NOT_CLAIMED, NOT_LISTED, columns, find_run_no, task_of
from conveyor.adapters.sqlite.work import SqliteWork
from conveyor.domain.ids import RunId, TaskId, task_index
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

    async def take(self, run_id: RunId, task_ids: Sequence[TaskId]) -> Sequence[Task]:
        def operation(connection: apsw.Connection) -> list[Task]:
            run_no = find_run_no(connection, run_id)
            taken, room = list[Task](), CLAIM_BYTES
            for task_id in set(task_ids):
                if room > 0 and (task := _look_at(connection, CLAIMED, run_id, run_no, task_id)):
                    taken += self._work.take_due(connection, run_no, [task])
                    room = CLAIM_BYTES - sum(map(size_of, taken))
            return taken

        return await self._database.write(operation)

    async def look(self, run_id: RunId, task_ids: Sequence[TaskId]) -> Sequence[Task]:
        def operation(connection: apsw.Connection) -> list[Task]:
            run_no = find_run_no(connection, run_id)
            found = (_look_at(connection, LISTED, run_id, run_no, task_id) for task_id in task_ids)
            return [task for task in found if task]

        return await self._database.read(operation)


def _look_at(
    connection: apsw.Connection, query: str, run_id: RunId, run_no: int | None, task_id: TaskId
) -> Task | None:
    row = connection.execute(query, (run_no, task_index(task_id))).fetchone()
    return task_of(run_id, row) if row and row[1] == task_id else None
