"""The rows behind tasks, claims and work in memory. Functions of the domain make every change."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta

import msgspec

from conveyor.domain import task as task_rules
from conveyor.domain.counts import Counts
from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import FailureGroup, FailureKey, with_failure
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.job import ROW_VERSION, RunPlace
from conveyor.domain.task import Attempt, NewRow, SettleDecision, Settlement, Task, TaskStatus
from conveyor.errors import Stale
from conveyor.ports.clock import Clock
from conveyor.ports.work import Held, Released

LOST_FOR_GOOD = task_rules.counted(
    SettleDecision(status=TaskStatus.FAILED, charged=False, reason=FailureReason.OTHER)
)


class Rows:
    def __init__(self, clock: Clock, lease: timedelta) -> None:
        self.clock = clock
        self._lease = lease
        self._places: dict[RunId, RunPlace] = {}
        self._runs: dict[RunId, dict[TaskId, Task]] = {}
        self._lines: defaultdict[tuple[RunId, TaskId], list[Attempt]] = defaultdict(list)
        self._counts: dict[RunId, Counts] = {}
        self._failures: defaultdict[RunId, dict[FailureKey, FailureGroup]] = defaultdict(dict)

    def lay_out(self, run_id: RunId, place: RunPlace) -> None:
        stored = self._places.setdefault(run_id, place)
        if stored != place:
            raise ValueError(f"run {run_id} has another place: {stored}, got {place}")

    def stamp(self, run_id: RunId) -> str:
        place = self._places.get(run_id)
        return place.stamp if place else ""

    def add(self, run_id: RunId, new: NewRow) -> bool:
        """Add a row, and return whether it was new."""
        if run_id not in self._places:
            raise ValueError(f"run {run_id} was not laid out")
        rows = self._runs.setdefault(run_id, {})
        if new.id in rows:
            return False
        row = rows[new.id] = self._new_row(run_id, new)
        self._count_failure(row)
        return True

    def get(self, run_id: RunId, task_id: TaskId) -> Task | None:
        return self._runs.get(run_id, {}).get(task_id)

    def of_run(self, run_id: RunId) -> list[Task]:
        """A run's tasks in order of index."""
        return sorted(self._runs.get(run_id, {}).values(), key=lambda task: task.index)

    def run_ids(self) -> Iterable[RunId]:
        return self._runs.keys()

    def due(self, run_id: RunId) -> list[Task]:
        """A run's due tasks, the longest due first."""
        place = self._places.get(run_id)
        if place is None or place.v > ROW_VERSION:
            return []
        now = self.clock.now()
        return _by_due(task for task in self.of_run(run_id) if task_rules.is_due(task, now))

    def lapsed(self, run_id: RunId, overdue: timedelta) -> list[Task]:
        """A run's tasks whose lease ran out at least `overdue` ago, the earliest first."""
        then = self.clock.now() - overdue
        return _by_due(
            task
            for task in self.of_run(run_id)
            if task.status is TaskStatus.PROCESSING and task_rules.is_due(task, then)
        )

    def claim(self, tasks: Iterable[Task], holder: str, *, room: int) -> list[Task]:
        """Claim tasks in their order, as long as they fit; the first always does."""
        claimed = list[Task]()
        for task in tasks:
            room -= task_rules.size_of(task_rules.as_claimed(task))
            if claimed and room < 0:
                break
            claimed.append(task_rules.as_claimed(self._claim(task, holder)))
        return claimed

    def release(self, task: Task) -> Released:
        """Release a task whose lease lapsed, and return the claim that held it."""
        released = task_rules.release(task, self.clock.now())
        self._note_lost_worker(task, released)
        self._keep(released)
        return Released(task.run_id, task.id, task.claim_no, released.is_final)

    def renew(self, held: Held, holder: str) -> bool:
        """Renew a claim, and return whether it still held its task."""
        task = self.get(held.run_id, held.task_id)
        if task is None:
            return False
        now = self.clock.now()
        try:
            self._keep(task_rules.renew(task, held.claim_no, now, self._lease, holder=holder))
        except Stale:
            return False
        return True

    def settle(self, ending: Settlement, holder: str) -> bool:
        """Settle a claim, and return whether it still held its task."""
        task = self.get(ending.run_id, ending.task_id)
        if task is None:
            return False
        now = self.clock.now()
        try:
            settled = task_rules.settle(task, ending.claim_no, ending.decision, now, holder=holder)
        except Stale:
            return False
        self._keep(settled)
        self._count_failure(settled)
        self._note(task, task_rules.line(task, ending.decision, now))
        self._count(task.run_id, task_rules.counted(ending.decision))
        return True

    def history(self, run_id: RunId, task_id: TaskId) -> list[Attempt]:
        return list(self._lines.get((run_id, task_id), ()))

    def counts(self, run_id: RunId) -> Counts:
        return self._counts.get(run_id, Counts())

    def failures(self, run_id: RunId) -> Iterable[FailureGroup]:
        return self._failures.get(run_id, {}).values()

    def _claim(self, task: Task, holder: str) -> Task:
        claimed = task_rules.claim(task, self.clock.now(), self._lease, holder=holder)
        if task.status is TaskStatus.PROCESSING:
            self._note_lost_worker(task, claimed)
        return self._keep(claimed)

    def discard(self, task: Task) -> None:
        """Remove a row with its history, and with the last row of a run its counts."""
        rows = self._runs[task.run_id]
        del rows[task.id]
        self._lines.pop((task.run_id, task.id), None)
        if not rows:
            del self._runs[task.run_id]
            self._counts.pop(task.run_id, None)
            self._failures.pop(task.run_id, None)

    def _new_row(self, run_id: RunId, new: NewRow) -> Task:
        now = self.clock.now()
        own = {"created_at": now, "due_at": now}
        inherited = new.inherited and msgspec.structs.asdict(new.inherited) | {"due_at": None}
        return Task(
            run_id=run_id,
            id=new.id,
            index=new.index,
            spec=new.spec,
            updated_at=now,
            **(inherited or own),
        )

    def _keep(self, task: Task) -> Task:
        self._runs[task.run_id][task.id] = task
        return task

    def _note_lost_worker(self, before: Task, after: Task) -> None:
        self._note(before, task_rules.lost_line(before, self.clock.now()))
        if after.is_final:
            self._count(after.run_id, LOST_FOR_GOOD)
            self._count_failure(after)

    def _note(self, task: Task, line: Attempt | None) -> None:
        if line:
            self._lines[task.run_id, task.id].append(line)

    def _count_failure(self, task: Task) -> None:
        if task.status is TaskStatus.FAILED:
            groups = self._failures[task.run_id]
            group = with_failure(groups, task_rules.failure_of(task), task.id)
            groups[group.key] = group

    def _count(self, run_id: RunId, more: Counts) -> None:
        self._counts[run_id] = self.counts(run_id) + more


def _by_due(tasks: Iterable[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: (task.due_at is None, task.due_at))
