"""What the pump keeps of each run it serves, and of each task under way.

Not a station of its own: it is the state of dispatch.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.job import Job
from conveyor.domain.pacing import Throttle
from conveyor.domain.run import Run
from conveyor.domain.task import Task
from conveyor.steps.attempt import Assignment


@dataclass(slots=True, kw_only=True)
class Pace:
    """How the pump goes about its rounds."""

    concurrency: int = 500  # tasks not yet settled in this process, over all runs
    refresh: timedelta = timedelta(seconds=1)  # how often new live runs are looked for
    resync: timedelta = timedelta(seconds=30)  # how often the whole map of live runs is read anew
    renewal: timedelta = timedelta(seconds=10)  # of leases and permits, well within a lease
    worthwhile: int = 25  # tasks that make a claim or a settle worth its round trip
    patience: timedelta = timedelta(milliseconds=5)  # after which fewer will do
    shortest_idle: timedelta = timedelta(milliseconds=20)
    longest_idle: timedelta = timedelta(milliseconds=500)
    outage: timedelta = timedelta(seconds=1)  # how long to wait for an engine that is away
    feeders: int = 3  # claims under way at once: one waits for the engine while another starts
    settlers: int = 2  # groups being settled at once: one writes bodies while another commits
    grace: timedelta = timedelta(seconds=20)  # for running tasks when the program stops


@dataclass(slots=True, kw_only=True)
class Lane:
    """A live run as this process serves it."""

    run: Run
    job: Job
    assignment: Assignment
    throttle: Throttle
    worthwhile: int
    coming: int = 0  # tasks asked for and not given yet
    calls: int = 0  # pages being fetched, each with a permit
    unsettled: int = 0  # tasks claimed and not settled yet: `calls` among them
    spare: list[str] = field(default_factory=list)  # permits for the next pages
    hasty_until: float = 0.0  # few places are free: wait for more
    cooling_until: float = 0.0  # the gateway asked to wait
    resting_until: float = 0.0  # nothing was due
    idle: float = 0.0  # how long it rests when nothing is due; doubles
    gone: bool = False  # no longer live: take nothing new

    def room(self) -> int:
        if self.gone or self.run.is_paused:
            return 0
        return min(self.job.max_inflight - self.calls - self.coming, self.throttle.room())

    def ready_at(self) -> float:
        hasty = self.hasty_until if self.room() < self.worthwhile else 0.0
        return max(self.cooling_until, self.resting_until, hasty)


@dataclass(slots=True)
class Flight:
    """A task under way in this process."""

    task: Task
    lane: Lane
    permit: str | None  # none once its call is over and a next page has it
    worker: asyncio.Task[None] | None = None
