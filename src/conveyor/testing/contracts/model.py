"""A run's rows as they must be, worked out by the domain's functions alone."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from conveyor.domain import task as life
from conveyor.domain.counts import ZERO
from conveyor.domain.ids import TaskId
from conveyor.domain.task import Attempt, SettleDecision, Settlement, Task, TaskStatus
from conveyor.errors import Stale
from conveyor.ports.work import Held


class Model:
    def __init__(self, tasks: Iterable[Task], lease: timedelta) -> None:
        self.tasks = {task.id: task for task in tasks}
        self.lines: defaultdict[TaskId, list[Attempt]] = defaultdict(list)
        self.counts = ZERO
        self._lease = lease

    def due(self, now: datetime) -> list[Task]:
        return [task for task in self.tasks.values() if life.is_due(task, now)]

    def lapsed(self, then: datetime) -> list[Task]:
        return [task for task in self.due(then) if task.status is TaskStatus.PROCESSING]

    def claim(self, task_id: TaskId, now: datetime) -> Task:
        before = self.tasks[task_id]
        after = life.claim(before, now, self._lease)
        if before.status is TaskStatus.PROCESSING:
            self._lose(before, after, now)
        self.tasks[task_id] = after
        return after

    def release(self, task_id: TaskId, now: datetime) -> None:
        before = self.tasks[task_id]
        after = life.release(before, now)
        self._lose(before, after, now)
        self.tasks[task_id] = after

    def renew(self, held: Held, now: datetime) -> bool:
        """Whether the claim stands."""
        try:
            renewed = life.renew(self.tasks[held.task_id], held.claim_no, now, self._lease)
        except Stale:
            return False
        self.tasks[held.task_id] = renewed
        return True

    def settle(self, ending: Settlement, now: datetime) -> bool:
        """Whether the claim held its task."""
        before = self.tasks[ending.task_id]
        try:
            after = life.settle(before, ending.claim_no, ending.decision, now)
        except Stale:
            return False
        line = life.line(before, ending.decision, now)
        self.lines[ending.task_id] += [line] if line else []
        self.counts += life.counted(ending.decision)
        self.tasks[ending.task_id] = after
        return True

    def _lose(self, before: Task, after: Task, now: datetime) -> None:
        self.lines[before.id].append(life.lost_line(before, now))
        if after.is_final:
            lost = SettleDecision(status=after.status, charged=False, reason=after.reason)
            self.counts += life.counted(lost)
