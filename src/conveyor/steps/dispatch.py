"""Dispatch: the pump. One loop in every role and on every engine.

For each live run in the local map: skip it while it cools down or is at its cap, reserve permits,
claim at most that many, start them. A permit covers the call to the gateway: as one page is in,
the next is asked for, while what ended is settled in groups. Leases of all that is not settled are
renewed from one timer. Receiving only what has a permit keeps receives at one a task.
"""

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import structlog
from msgspec.structs import replace

from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import CallerId, JobId, RunId, TaskId, ulid
from conveyor.domain.job import Job
from conveyor.domain.pacing import Throttle, Want, most_for_one, share
from conveyor.domain.params import load
from conveyor.domain.problem import encoded, problem
from conveyor.domain.run import Run
from conveyor.domain.task import (
    AccountBlocked,
    Interrupted,
    Refused,
    RetryPolicy,
    Task,
    Throttled,
)
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Coordination
from conveyor.ports.metadata import Metadata
from conveyor.ports.sealing import Sealing
from conveyor.ports.work import Held, Work
from conveyor.steps.attempt import Assignment, Ended, Result
from conveyor.steps.lane import Flight, Lane, Pace

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Pump:
    metadata: Metadata
    work: Work
    coordination: Coordination
    sealing: Sealing
    clock: Clock
    attempt: Callable[[Task, Assignment], Awaitable[Result]]
    settle: Callable[[Sequence[Ended]], Awaitable[timedelta]]  # for how long to ask for no more
    settle_final: Callable[[Sequence[Task]], Awaitable[None]]
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    pace: Pace = field(default_factory=Pace)
    lanes: dict[RunId, Lane] = field(default_factory=dict)
    throttles: dict[str, Throttle] = field(default_factory=dict)  # by API key, over all its jobs
    flights: dict[tuple[RunId, TaskId], Flight] = field(default_factory=dict)
    landed: list[tuple[Flight, Result]] = field(default_factory=list)  # over, not settled
    touched: set[RunId] = field(default_factory=set)  # runs somebody in this process changed
    noticed: asyncio.Event = field(default_factory=asyncio.Event)  # a run was touched
    stirred: asyncio.Event = field(default_factory=asyncio.Event)  # there may be room for tasks
    any_landed: asyncio.Event = field(default_factory=asyncio.Event)
    dice: random.Random = field(default_factory=random.Random)
    holding_until: float = 0.0  # there is no room for results: ask for no more pages
    refresh_at: float = 0.0
    resync_at: float = 0.0

    def wake(self, run_id: RunId) -> None:
        """A run is new, has new tasks or has ended: look at it now rather than soon."""
        self.touched.add(run_id)
        self.noticed.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve live runs until told to stop; then finish what is in hand within the grace."""
        async with asyncio.TaskGroup() as group:
            feeders = [
                group.create_task(
                    self._feed_until_told(stopping, group), name=f"pump feed {number}"
                )
                for number in range(self.pace.feeders)
            ]
            others = [
                group.create_task(self._watch_for_ever(), name="pump watch"),
                group.create_task(self._renew_for_ever(), name="pump renew"),
                *(
                    group.create_task(self._settle_for_ever(), name=f"pump settle {number}")
                    for number in range(self.pace.settlers)
                ),
            ]
            await stopping.wait()
            self.stirred.set()
            # Not cut off in the middle of a claim: its tasks would be held by nobody.
            await asyncio.wait(feeders, timeout=LAST_WORDS.total_seconds())
            for feeder in feeders:
                feeder.cancel()
            await self._wind_down()
            for loop in others:
                loop.cancel()

    async def _feed_until_told(self, stopping: asyncio.Event, group: asyncio.TaskGroup) -> None:
        while not stopping.is_set():
            self.stirred.clear()
            try:
                took = await self._feed(group)
            except Unavailable as error:
                log.warning("pump.unavailable", why=str(error))
                await asyncio.sleep(self.pace.outage.total_seconds())
                continue
            if not took:
                await self._rest()

    async def _feed(self, group: asyncio.TaskGroup) -> int:
        """Take as many tasks as there are places for, start them, and say how many."""
        free = self._free()
        if free <= 0 or self.holding_until > self.clock.monotonic():
            return 0
        most = most_for_one(self.pace.concurrency)
        granted = self._expect(share(self._wants(), free, held=self._held(), most=most))
        try:
            return await self._claim(group, granted)
        finally:
            for run_id, want in granted.items():
                self.lanes[run_id].coming -= want
                self.lanes[run_id].throttle.under_way -= want

    def _free(self) -> int:
        coming = sum(lane.coming for lane in self.lanes.values())
        return self.pace.concurrency - len(self.flights) - coming

    def _held(self) -> dict[CallerId, int]:
        held: dict[CallerId, int] = defaultdict(int)
        for lane in self.lanes.values():
            held[lane.run.caller] += lane.unsettled + lane.coming
        return held

    def _expect(self, granted: Mapping[RunId, int]) -> dict[RunId, int]:
        """Note what is about to be asked for: runs of one key share what it may have."""
        expected: dict[RunId, int] = {}
        for run_id, places in granted.items():
            lane = self.lanes[run_id]
            if (want := min(places, lane.room())) > 0:
                lane.coming += want
                lane.throttle.under_way += want
                expected[run_id] = want
        return expected

    async def _claim(self, group: asyncio.TaskGroup, granted: Mapping[RunId, int]) -> int:
        permits = await self._reserve(granted)
        asked = {run_id: len(held) for run_id, held in permits.items()}
        if not asked:
            return 0
        try:
            tasks = await self.work.claim(asked)
            for task in tasks:
                if not task.is_final:
                    self._start(group, task, permits[task.run_id].pop())
            await self.settle_final([task for task in tasks if task.is_final])
        finally:
            await self._give_back(permits)
        self._pace_lanes(permits)
        await self._leave_ended(run_id for run_id in asked if asked[run_id] == len(permits[run_id]))
        return len(tasks)

    def _wants(self) -> dict[RunId, Want]:
        now = self.clock.monotonic()
        ready = [lane for lane in self.lanes.values() if lane.ready_at() <= now and lane.room() > 0]
        self.dice.shuffle(ready)
        return {lane.run.id: Want(lane.run.caller, lane.room()) for lane in ready}

    async def _reserve(self, granted: Mapping[RunId, int]) -> dict[RunId, list[str]]:
        permits: dict[RunId, list[str]] = {}
        try:
            for run_id, want in granted.items():
                permits[run_id] = await self._reserve_for(self.lanes[run_id], want)
        except Unavailable:
            if not any(permits.values()):
                raise
        return {run_id: held for run_id, held in permits.items() if held}

    async def _reserve_for(self, lane: Lane, want: int) -> list[str]:
        held, lane.spare = lane.spare[:want], lane.spare[want:]
        if len(held) == want:
            return held
        job = lane.job
        try:
            more = await self.coordination.reserve(
                job.id, want=want - len(held), cap=job.max_inflight
            )
        except Unavailable:
            if not held:
                raise
            return held
        return [*held, *more]

    async def _give_back(self, permits: Mapping[RunId, Sequence[str]]) -> None:
        for run_id, unused in permits.items():
            if unused:
                lane = self.lanes[run_id]
                spare, lane.spare = lane.spare, []
                await self._release(lane.job.id, [*unused, *spare])

    def _pace_lanes(self, unused: Mapping[RunId, Sequence[str]]) -> None:
        """Runs that gave less than was asked for have nothing more due just now."""
        now = self.clock.monotonic()
        for run_id, left in unused.items():
            lane = self.lanes[run_id]
            lane.hasty_until = now + self.pace.patience.total_seconds()
            if not left:
                lane.idle = 0.0
                continue
            lane.idle = min(
                max(lane.idle * 2, self.pace.shortest_idle.total_seconds()),
                self.pace.longest_idle.total_seconds(),
            )
            lane.resting_until = now + lane.idle

    async def _leave_ended(self, silent: Iterable[RunId]) -> None:
        """Take no more of runs that gave nothing because they are over."""
        for run_id in silent:
            if not self.lanes[run_id].unsettled:
                run = await self.metadata.run(run_id)
                if run is None or not run.is_live:
                    self.wake(run_id)

    def _start(self, group: asyncio.TaskGroup, task: Task, permit: str) -> None:
        lane = self.lanes[task.run_id]
        flight = Flight(task, lane, permit)
        lane.calls += 1
        lane.throttle.under_way += 1
        lane.unsettled += 1
        # A process that slept through a lease may claim what it still has in flight.
        if (lapsed := self.flights.get((task.run_id, task.id))) and lapsed.worker:
            lapsed.worker.cancel()
        self.flights[task.run_id, task.id] = flight
        flight.worker = group.create_task(self._fly(flight))

    async def _fly(self, flight: Flight) -> None:
        result: Result = Interrupted()
        try:
            result = await self.attempt(flight.task, flight.lane.assignment)
        except Exception:
            # A bug that one page brings out must not take all others down with it.
            log.exception("attempt.bug", run_id=flight.task.run_id, task_id=flight.task.id)
            result = Refused(INTERNAL, FailureReason.OTHER, retryable=True)
        finally:
            self._land(flight, result)

    def _land(self, flight: Flight, result: Result) -> None:
        """A call is over: its permit is for the next page, its result to be settled."""
        lane = flight.lane
        lane.calls -= 1
        lane.throttle.under_way -= 1
        self._cool_down(lane, result)
        if flight.permit and not lane.gone and lane.cooling_until <= self.clock.monotonic():
            lane.spare.append(flight.permit)
            flight.permit = None
        self.landed.append((flight, result))
        self.any_landed.set()
        if lane.room() >= lane.worthwhile:
            self.stirred.set()

    def _cool_down(self, lane: Lane, result: Result) -> None:
        now = self.clock.monotonic()
        match result:
            case Throttled(wait):
                lane.throttle.refused(now)
                if wait > SHORT_WAIT:  # more than too many at once: the key is to be left alone
                    until = now + min(wait, LONGEST_COOLING).total_seconds()
                    lane.cooling_until = max(lane.cooling_until, until)
            case AccountBlocked():
                lane.gone = True
            case Interrupted():
                pass
            case _:
                lane.throttle.answered()

    async def _settle_for_ever(self) -> None:
        while True:
            await self.any_landed.wait()
            if len(self.landed) < self.pace.worthwhile < len(self.flights):
                await asyncio.sleep(self.pace.patience.total_seconds())  # more will land
            self.any_landed.clear()
            await self._settle_landed()

    async def _settle_landed(self) -> None:
        """Settle whatever has landed, as one group."""
        landed, self.landed = self.landed, []
        if not landed:
            return
        hold = await self.settle(
            [Ended(flight.task, flight.lane.assignment, result) for flight, result in landed]
        )
        if hold:
            self.holding_until = self.clock.monotonic() + hold.total_seconds()
        await self._clear([flight for flight, _ in landed])
        self.stirred.set()

    async def _clear(self, flights: Sequence[Flight]) -> None:
        permits: dict[JobId, list[str]] = defaultdict(list)
        for flight in flights:
            key = (flight.task.run_id, flight.task.id)
            if self.flights.get(key) is flight:
                del self.flights[key]
            flight.lane.unsettled -= 1
            if flight.permit:
                permits[flight.lane.job.id].append(flight.permit)
        for job_id, held in permits.items():
            await self._release(job_id, held)

    async def _release(self, job_id: JobId, permits: Sequence[str]) -> None:
        try:
            await self.coordination.release(job_id, permits)
        except Unavailable:
            return  # they age out by themselves

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.pace.renewal.total_seconds())
            try:
                await self._renew()
            except Unavailable as error:
                log.warning("pump.renew.unavailable", why=str(error))

    async def _renew(self) -> None:
        flights = list(self.flights.values())
        if not flights:
            return
        held = [Held(one.task.run_id, one.task.id, one.task.claim_no) for one in flights]
        for lost in await self.work.renew(held):
            self._abort(lost)
        # Only of what is still in flight: a released permit would be taken anew, for nobody.
        permits: dict[JobId, list[str]] = defaultdict(list)
        for lane in self.lanes.values():
            permits[lane.job.id] += lane.spare
        for flight in self.flights.values():
            if flight.permit:
                permits[flight.lane.job.id].append(flight.permit)
        await self.coordination.renew(permits)

    def _abort(self, lost: Held) -> None:
        """Another worker has this task now: what we would write for it counts no more."""
        flight = self.flights.get((lost.run_id, lost.task_id))
        if flight and flight.worker and flight.task.claim_no == lost.claim_no:
            flight.worker.cancel()

    async def _watch_for_ever(self) -> None:
        """Keep the map of live runs."""
        while True:
            self.noticed.clear()
            try:
                await self._refresh()
            except Unavailable as error:
                log.warning("pump.watch.unavailable", why=str(error))
                await asyncio.sleep(self.pace.outage.total_seconds())
                continue
            self.stirred.set()
            await self._wait_for(self.noticed, self.refresh_at)

    async def _refresh(self) -> None:
        """Know the live runs: those touched in this process at once, new ones every second,
        all of them now and then.
        """
        touched, self.touched = self.touched, set()
        for run_id in touched:
            await self._look_at(run_id)
        now = self.clock.monotonic()
        if now >= self.resync_at:
            live = await self._join_all(after="")
            for run_id in self.lanes.keys() - live:
                await self._leave(run_id)
            self.resync_at = now + self.pace.resync.total_seconds()
        elif now >= self.refresh_at:
            await self._join_all(after=self._id_of_the_recent_past())
        else:
            return
        self.refresh_at = now + self.pace.refresh.total_seconds()

    def _id_of_the_recent_past(self) -> str:
        """Runs made since then have greater ids, even by a clock that is somewhat behind ours."""
        then = self.clock.now() - OVERLAP
        return ulid(int(then.timestamp() * 1000), 0)

    async def _look_at(self, run_id: RunId) -> None:
        run = await self.metadata.run(run_id)
        if run is None or not run.is_live:
            await self._leave(run_id)
        elif lane := self.lanes.get(run_id):
            lane.run = run
            lane.resting_until = 0.0
            lane.idle = 0.0
        elif job := await self.metadata.job(run.job_id):
            self._join(run, job)

    async def _join_all(self, *, after: str) -> set[RunId]:
        """Serve every live run with an id above `after`, and say which they are."""
        live: set[RunId] = set()
        while page := await self.metadata.live(limit=PAGE, after=after):
            for run, job in page:
                live.add(run.id)
                if lane := self.lanes.get(run.id):
                    lane.run = run
                else:
                    self._join(run, job)
            after = page[-1][0].id
        return live

    def _join(self, run: Run, job: Job) -> None:
        try:
            key = self.sealing.open(job.sealed_key, context=f"{job.caller}|{job.id}")
        except Unavailable as error:
            log.critical("run.key.unreadable", job_id=job.id, run_id=run.id, why=str(error))
            return
        assignment = Assignment(
            job_id=job.id,
            key=key,
            params=load(job.params),
            format=job.format,
            policy=replace(self.policy, retries=job.retries),
        )
        worthwhile = min(self.pace.worthwhile, (job.max_inflight + 1) // 2)
        most = self.pace.concurrency
        self.lanes[run.id] = Lane(
            run=run,
            job=job,
            assignment=assignment,
            throttle=self.throttles.setdefault(key, Throttle(limit=most, most=most)),
            worthwhile=worthwhile,
        )

    async def _leave(self, run_id: RunId) -> None:
        """Take nothing more of a run; forget it when its last task is in."""
        lane = self.lanes.get(run_id)
        if lane is None:
            return
        lane.gone = True
        await self._release_spare(lane)
        if not lane.unsettled and not lane.coming:
            del self.lanes[run_id]

    async def _release_spare(self, lane: Lane) -> None:
        spare, lane.spare = lane.spare, []
        if spare:
            await self._release(lane.job.id, spare)

    async def _rest(self) -> None:
        """Wait until there may be room, or a run that rests is up again."""
        now = self.clock.monotonic()
        latest = now + self.pace.refresh.total_seconds()
        await self._wait_for(self.stirred, min(latest, self._next_ready(now)))

    async def _wait_for(self, event: asyncio.Event, until: float) -> None:
        try:
            async with asyncio.timeout(max(until - self.clock.monotonic(), 0.0)):
                await event.wait()
        except TimeoutError:
            return

    def _next_ready(self, now: float) -> float:
        """When a run that rests is up again, if there is a place for it."""
        if self._free() <= 0:
            return math.inf
        if self.holding_until > now:
            return self.holding_until
        resting = (lane.ready_at() for lane in self.lanes.values() if lane.room() > 0)
        return min((moment for moment in resting if moment > now), default=math.inf)

    async def _wind_down(self) -> None:
        """Let running tasks end within the grace, hand back the rest, settle it all."""
        workers = [one.worker for one in self.flights.values() if one.worker]
        if workers:
            await asyncio.wait(workers, timeout=self.pace.grace.total_seconds())
        for worker in workers:
            worker.cancel()
        try:
            async with asyncio.timeout(LAST_WORDS.total_seconds()):
                while self.flights:
                    self.stirred.clear()
                    await self.stirred.wait()
        except TimeoutError:
            log.warning("pump.stopped.unsettled", tasks=len(self.flights))
        for lane in self.lanes.values():
            await self._release_spare(lane)


PAGE = 1000
SHORT_WAIT = timedelta(seconds=5)
LONGEST_COOLING = timedelta(minutes=1)
INTERNAL = encoded(
    problem(status=500, code="internal", detail="Something went wrong here with this page.")
)
OVERLAP = timedelta(minutes=1)  # between looks for new runs, for clocks that disagree
LAST_WORDS = timedelta(seconds=5)  # for the engines to answer when the program stops
