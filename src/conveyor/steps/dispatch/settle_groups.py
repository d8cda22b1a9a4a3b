"""Finished tasks, until the groups in which they are settled close.

Where each settled group of a run has a price of its own, as the counter of a run has on DynamoDB, finished
tasks wait for more of their run. A group closes

- with enough tasks, a moment after its first;
- at once if it is full, if nothing of its run is left to wait for, or at a stop;
- at the latest after `settle_wait`.

Each group is settled by itself, so that it waits for no other run. One group of a run is settled at a
time, and what finishes meanwhile waits for the next: groups grow while the engine is slow.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from conveyor.domain.ids import RunId
from conveyor.ports.clock import Clock
from conveyor.steps.dispatch.config import DispatchConfig
from conveyor.steps.dispatch.gateway_health import Finished

ENOUGH = 25  # tasks of a group: the price of the group is then small beside theirs
FULL = 99  # tasks that an engine settles with their counter in one transaction
SHORTEST_WAIT = 0.05  # seconds from the first task of a group


@dataclass(slots=True)
class WaitingGroup:
    since: float
    tasks: list[Finished] = field(default_factory=list)


@dataclass(slots=True)
class SettleGroups:
    """The groups of a process. Without `settle_wait` everything is settled as it finishes."""

    clock: Clock
    config: DispatchConfig
    waiting: dict[RunId, WaitingGroup] = field(default_factory=dict)
    settling: set[RunId] = field(default_factory=set)
    is_stopping: bool = False

    def closed(self, finished: Sequence[Finished]) -> list[Sequence[Finished]]:
        """Add finished tasks, and take the groups that have closed; `end` must follow for each."""
        if not self.config.settle_wait:
            return [finished] if finished else []
        now = self.clock.monotonic()
        for entry, result in finished:
            group = self.waiting.setdefault(entry.run.id, WaitingGroup(now))
            group.tasks.append((entry, result))
        closed = [run_id for run_id in self.waiting if self._closes_at(run_id) <= now]
        self.settling.update(closed)
        return [self.waiting.pop(run_id).tasks for run_id in closed]

    def end(self, settled: Iterable[Finished]) -> None:
        """A group was settled."""
        self.settling.difference_update(entry.run.id for entry, _ in settled)

    def next_at(self) -> float:
        """When the next group closes."""
        return min(map(self._closes_at, self.waiting), default=math.inf)

    def _closes_at(self, run_id: RunId) -> float:
        if run_id in self.settling:
            return math.inf
        group = self.waiting[run_id]
        run, count = group.tasks[0][0].run, len(group.tasks)
        # Nothing more of the run finishes before this group is settled.
        is_last = run.unsettled == count and (run.has_come_short or run.room() <= 0)
        if self.is_stopping or is_last or count >= FULL:
            return group.since
        if count >= ENOUGH:
            return group.since + SHORTEST_WAIT
        return group.since + self.config.settle_wait.total_seconds()
