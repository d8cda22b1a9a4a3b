"""Claims of named tasks, in memory."""

from collections.abc import Sequence
from datetime import timedelta

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Settlement, Task, as_listed
from conveyor.ports.work import CLAIM_BYTES, Held, Released
from conveyor.testing.memory.rows import Rows


class MemoryClaims:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def take(self, run_id: RunId, task_ids: Sequence[TaskId]) -> Sequence[Task]:
        named = set(task_ids)
        due = [task for task in self._rows.due(run_id) if task.id in named]
        return self._rows.claim(due, room=CLAIM_BYTES)

    async def look(self, run_id: RunId, task_ids: Sequence[TaskId]) -> Sequence[Task]:
        return [as_listed(task) for name in task_ids if (task := self._rows.get(run_id, name))]

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        return [claim for claim in held if not self._rows.renew(claim)]

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        return [self._rows.settle(ending) for ending in settlements]

    async def release_lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Released]:
        return [self._rows.release(task) for task in self._rows.lapsed(overdue)[:limit]]
