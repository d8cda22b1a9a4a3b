"""What the pump keeps of each run it serves, and of each task under way.

Not a station of its own: it is the state of dispatch.
"""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from conveyor.domain.breaker import FAILURES, Breaker, Sign
from conveyor.domain.job import Job
from conveyor.domain.refused_key import RefusedKeys
from conveyor.domain.run import Run
from conveyor.domain.task import AccountBlocked, Interrupted, Refused, Task, Throttled
from conveyor.domain.throttle import BREAK, LONGEST_COOLING, Throttle
from conveyor.ports.clock import Clock
from conveyor.steps.attempt import Assignment, Fetched, Result

SHORT_WAIT = timedelta(seconds=5)
SPELL = 0.05  # seconds over which landings are counted for a rate


@dataclass(slots=True, kw_only=True)
class Pace:
    """How the pump goes about its rounds."""

    concurrency: int = 500  # tasks begun and not settled in this process, over all runs
    refresh: timedelta = timedelta(seconds=1)  # how often new live runs are looked for
    resync: timedelta = timedelta(seconds=30)  # how often the whole map of live runs is read anew
    renewal: timedelta = timedelta(seconds=10)  # of leases and permits, well within a lease
    worthwhile: int = 50  # tasks that make a claim or a settle worth its round trip
    patience: timedelta = timedelta(milliseconds=5)  # after which fewer will do
    gathering: timedelta = timedelta()  # for which a few permits wait for more, before a claim
    shortest_idle: timedelta = timedelta(milliseconds=20)
    longest_idle: timedelta = timedelta(milliseconds=500)  # of up to `idlers` runs
    idlers: int = 500  # of more runs each is asked less often, so that all together cost no more
    outage: timedelta = timedelta(seconds=1)  # how long to wait for an engine that is away
    feeders: int = 3  # claims under way at once: one waits for the engine while another starts
    settlers: int = 3  # groups being settled at once: one writes bodies while another commits
    # What a run is likely to begin within so long is claimed ahead: else it waits for the engine.
    lead: timedelta = timedelta(milliseconds=40)
    choice: int = 20  # tasks claimed for a probe of the gateway, to find one of another host
    grace: timedelta = timedelta(seconds=20)  # for running tasks when the program stops


class Portion(NamedTuple):
    """What is about to be claimed of a run."""

    calls: int  # to begin at once, each with a permit
    ahead: int


def pace_over_queues(concurrency: int) -> Pace:
    """Where each call of the queue costs: claims of full batches, few in vain, none ahead."""
    return Pace(
        concurrency=concurrency,
        worthwhile=10,
        gathering=timedelta(milliseconds=50),
        longest_idle=timedelta(seconds=5),
        lead=timedelta(),
        choice=1,
    )


@dataclass(slots=True, kw_only=True)
class Lane:
    """A live run as this process serves it."""

    run: Run
    job: Job
    assignment: Assignment
    throttle: Throttle
    breaker: Breaker = field(repr=False)
    keys: RefusedKeys = field(repr=False)
    clock: Clock = field(repr=False)
    digest: str  # of its API key
    worthwhile: int
    lead: float = 0.0  # seconds
    coming: int = 0  # tasks asked for and not given yet
    coming_ahead: int = 0  # and those beyond what there are permits for
    ahead: deque["Flight"] = field(default_factory=deque)  # claimed, and not begun for want of one
    calls: int = 0  # pages being fetched, each with a permit
    unsettled: int = 0  # tasks claimed and not settled yet: `calls` and `ahead` among them
    spare: list[str] = field(default_factory=list)  # permits for the next pages
    hasty_until: float = 0.0  # few places are free: wait for more
    gathering_until: float = 0.0  # few permits are free: wait for more
    resting_until: float = 0.0  # nothing was due
    idle: float = 0.0  # how long it rests when nothing is due; doubles
    gone: bool = False  # no longer live: take nothing new
    landings: int = 0  # since `rated_at`
    rated_at: float = 0.0
    rate: float = 0.0  # landings a second
    probed_at: float = 0.0  # when a task of it was last a probe
    hosts: Counter[str] = field(default_factory=Counter)  # calls under way, where they are capped
    waiting: dict[str, list["Flight"]] = field(default_factory=dict)  # for their host

    def room(self) -> int:
        if not self.is_open:
            return 0
        return min(self.job.max_inflight - self.calls - self.coming, self.throttle.room())

    @property
    def is_open(self) -> bool:
        return not self.gone and not self.run.is_paused

    def may_begin(self, now: float) -> bool:
        return self.is_open and self.throttle.closed_until <= now and not self.breaker.is_open

    def room_ahead(self) -> int:
        """How many more to claim ahead: what lands within the lead, as it went lately."""
        if not self.is_open:
            return 0
        wanted = min(int(self.rate * self.lead), 2 * self.calls)
        return max(wanted - len(self.ahead) - self.coming_ahead, 0)

    def appetite(self) -> int:
        """How many tasks to claim, those to begin at once and those ahead of their time."""
        return max(self.room(), 0) + self.room_ahead()

    def count_landing(self, now: float) -> None:
        self.landings += 1
        if (passed := now - self.rated_at) > SPELL:
            self.rate, self.landings, self.rated_at = self.landings / passed, 0, now

    def learn(self, result: Result, now: float, begun: float) -> Result:
        """What a call tells of its key: how many it may have, or that it is to be left alone.

        Gives the result as it is to be settled. A refusal of the account says nothing if a call
        that began later was served: the account has paid since, and the task goes back uncharged.
        """
        throttle = self.throttle
        match result:
            case AccountBlocked(spend=spend) if begun < throttle.served_from:
                return Interrupted(spend=spend)
            case Throttled(wait):
                throttle.refused(now)
                if wait > SHORT_WAIT:  # more than too many at once
                    throttle.close(now, min(wait, LONGEST_COOLING))
            case AccountBlocked(reason, detail):
                self.gone = True
                self.keys.refuse(self.digest, reason, detail, now, self.clock.now())
                throttle.close(now, BREAK)
                return result
            case Interrupted():
                return result
            case Refused(sign=sign) if sign in FAILURES:
                return result
            case Refused(sign=Sign.NONE):  # the gateway may not have been asked
                throttle.answered()
                return result
            case Fetched(limit=int(limit)):
                throttle.answered()
                throttle.told(limit)
            case _:
                throttle.answered()
        throttle.served_from = max(throttle.served_from, begun)
        self.keys.serve(self.digest, begun)
        return result

    def next_in_place(self) -> "Flight | None":
        """A page claimed ahead that may follow one that has ended, unless the key says no, or
        other runs wait for it.
        """
        if self.ahead and self.throttle.room() > 0 and not self.throttle.is_crowded:
            return self.ahead.popleft()
        return None

    def ready_at(self) -> float:
        hasty = self.hasty_until if self.appetite() < self.worthwhile else 0.0
        return max(self.throttle.closed_until, self.resting_until, self.gathering_until, hasty)

    def is_worth_a_claim(self, tasks: int, now: float, gathering: timedelta) -> bool:
        """Whether to claim so many now, or a moment later more: then as few will do."""
        if tasks < self.worthwhile and not self.gathering_until:
            self.gathering_until = now + gathering.total_seconds()
        if tasks < self.worthwhile and now < self.gathering_until:
            return False
        self.gathering_until = 0.0
        return True

    def is_ready(self, now: float) -> bool:
        """As `ready_at` says, and soon told of the many that rest."""
        return self.resting_until <= now and self.ready_at() <= now

    def is_held_up(self, flight: "Flight") -> bool:
        """Whether a page has to wait for others of its host; if not, it is counted as begun."""
        most = self.job.max_per_host
        if most is None:
            return False
        host = host_of(flight.task.spec.url)
        if self.hosts[host] >= most:
            self.waiting.setdefault(host, []).append(flight)
            return True
        self.hosts[host] += 1
        return False

    def next_for_host(self, flight: "Flight") -> "Flight | None":
        """The page that may begin now that this one is over."""
        if self.job.max_per_host is None:
            return None
        host = host_of(flight.task.spec.url)
        if waiting := self.waiting.get(host):
            return waiting.pop(0)
        self.waiting.pop(host, None)
        self.hosts[host] -= 1
        if not self.hosts[host]:
            del self.hosts[host]
        return None

    def waits_no_longer(self, flight: "Flight") -> None:
        if flight.permit is None:
            self.ahead.remove(flight)
        else:
            self.waiting[host_of(flight.task.spec.url)].remove(flight)

    def not_begun(self) -> list["Flight"]:
        """All that wait, for their host or for a permit, and do so no longer."""
        waiting, self.waiting = self.waiting, {}
        ahead, self.ahead = self.ahead, deque()
        return [*ahead, *(flight for flights in waiting.values() for flight in flights)]


@dataclass(slots=True)
class Flight:
    """A task under way in this process."""

    task: Task
    lane: Lane
    permit: str | None  # none before its call begins, and once a next page has it
    group: asyncio.TaskGroup
    worker: asyncio.Task[None] | None = None  # none while it waits
    begun: float = 0.0  # when its call did
    is_over: bool = False  # landed or handed back: what its worker does now is another's


def host_of(url: str) -> str:
    """The host of a URL in stored form, with its port."""
    return url.split("/", 3)[2].rpartition("@")[2]
