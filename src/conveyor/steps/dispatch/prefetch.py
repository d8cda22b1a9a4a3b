"""Prefetch: tasks of a run that are claimed before there is a permit for their calls.

Where pages end quickly, a run would wait for the engine rather than for the gateway. So it claims as
many tasks ahead as calls finished lately within `DispatchConfig.prefetch`, at most two for each call
under way. A prefetched task has a claim, and neither a permit nor a place. It starts with the permit
of the next call that finishes, in the same coroutine. Where pages take long the rate is low, and
nothing is prefetched. On a queue nothing is, because every receive counts.
"""

from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conveyor.steps.dispatch.active_run import InFlight

RATE_WINDOW = 0.05  # seconds over which finished calls are counted for a rate
PER_CALL = 2  # prefetched tasks for each call under way, at most


@dataclass(slots=True, kw_only=True)
class Prefetch:
    horizon: timedelta  # as much is prefetched as starts within it
    pending: int = 0  # asked for and not given yet
    tasks: deque["InFlight"] = field(default_factory=deque)
    finished: int = 0  # calls, since `rated_at`
    rated_at: float = 0.0
    rate: float = 0.0  # calls that finish in a second

    def room(self, calls: int) -> int:
        """How many more tasks to claim ahead, with so many calls under way."""
        wanted = min(int(self.rate * self.horizon.total_seconds()), PER_CALL * calls)
        return max(wanted - len(self.tasks) - self.pending, 0)

    def count_finished(self, now: float) -> None:
        self.finished += 1
        if (passed := now - self.rated_at) > RATE_WINDOW:
            self.rate, self.finished, self.rated_at = self.finished / passed, 0, now

    def take_all(self) -> list["InFlight"]:
        tasks, self.tasks = self.tasks, deque()
        return list(tasks)
