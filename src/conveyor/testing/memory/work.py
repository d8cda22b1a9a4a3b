"""Work in memory: the rows are the queue."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Settlement, Task, size_of
from conveyor.ports.work import CLAIM_BYTES, Held
from conveyor.testing.memory.rows import Rows


class MemoryWork:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._closed: set[RunId] = set()

    async def open(self, run_id: RunId) -> None:
        self._closed.discard(run_id)

    async def close(self, run_id: RunId) -> None:
        self._closed.add(run_id)

    async def enqueue(self, run_id: RunId, task_ids: Sequence[TaskId]) -> None:
        """Nothing: the rows are the queue."""

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        taken = list[Task]()
        for run_id, want in wants.items():
            if run_id not in self._closed:
                room = CLAIM_BYTES - sum(map(size_of, taken))
                taken += self._rows.claim(self._rows.due(run_id)[:want], room=room)
        return taken

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        return [claim for claim in held if not self._rows.renew(claim)]

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        return [self._rows.settle(ending) for ending in settlements]

    async def ack(self, final: Sequence[Held]) -> None:
        """Nothing: the rows are the queue."""

    async def release_lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Held]:
        return [self._rows.release(task) for task in self._rows.lapsed(overdue)[:limit]]
