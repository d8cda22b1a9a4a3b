"""Work in memory: the rows are the queue."""

from collections.abc import Mapping, Sequence

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Task, size_of
from conveyor.ports.work import CLAIM_BYTES, Held
from conveyor.testing.memory.claims import MemoryClaims
from conveyor.testing.memory.rows import Rows


class MemoryWork(MemoryClaims):
    """Renews, settles and releases as `MemoryClaims` does, and chooses the tasks itself."""

    def __init__(self, rows: Rows, holder: str = "") -> None:
        super().__init__(rows, holder)
        self._closed: set[RunId] = set()

    def over(self, rows: Rows, holder: str = "") -> "MemoryWork":
        """Return the same work for another service, over rows as it sees them."""
        work = MemoryWork(rows, holder)
        work._closed = self._closed
        return work

    async def close(self, run_id: RunId) -> None:
        self._closed.add(run_id)

    async def enqueue(self, run_id: RunId, task_ids: Sequence[TaskId]) -> None:
        """Nothing to do: the rows are the queue."""

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        taken = list[Task]()
        for run_id, want in wants.items():
            if run_id not in self._closed:
                room = CLAIM_BYTES - sum(map(size_of, taken))
                taken += self._rows.claim(self._rows.due(run_id)[:want], self._holder, room=room)
        return taken

    async def ack(self, final: Sequence[Held]) -> None:
        """Nothing to do: the rows are the queue."""
