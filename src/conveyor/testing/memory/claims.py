"""Claims of named tasks, in memory."""

from collections.abc import Sequence
from datetime import timedelta

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Settlement, Task, TaskStatus, as_claimed, as_listed
from conveyor.ports.work import CLAIM_BYTES, Held, Released
from conveyor.testing.memory.rows import Rows


class MemoryClaims:
    """`holder` is the process that claims: several may claim of the same rows."""

    def __init__(self, rows: Rows, holder: str = "") -> None:
        self._rows = rows
        self._holder = holder

    async def stamp(self, run_id: RunId) -> str:
        return self._rows.stamp(run_id)

    async def take(
        self, run_id: RunId, task_ids: Sequence[TaskId], *, stamp: str = ""
    ) -> Sequence[Task]:
        del stamp  # the places are at hand
        named = set(task_ids)
        due = [task for task in self._rows.due(run_id) if task.id in named]
        taken = self._rows.claim(due, self._holder, room=CLAIM_BYTES)
        rest = named - {task.id for task in taken}
        others = [task for name in rest if (task := self._rows.get(run_id, name))]
        return [*taken, *(self._as_seen(task) for task in others)]

    def _as_seen(self, task: Task) -> Task:
        is_mine = task.status is TaskStatus.PROCESSING and task.holder == self._holder
        return as_claimed(task) if is_mine else as_listed(task)

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        return [claim for claim in held if not self._rows.renew(claim, self._holder)]

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        return [self._rows.settle(ending, self._holder) for ending in settlements]

    async def release_lapsed(
        self, run_id: RunId, *, overdue: timedelta, limit: int
    ) -> Sequence[Released]:
        return [self._rows.release(task) for task in self._rows.lapsed(run_id, overdue)[:limit]]
