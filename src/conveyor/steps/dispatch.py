"""Dispatch: the pump. One loop in every role and on every engine.

For each live run in the local map: skip it while it cools down or is at its cap, reserve permits,
claim as many tasks, and start them. A permit covers the call to the gateway: as one page is in, the
next is asked for, while what ended is settled in groups. Where pages end quickly the next tasks are
claimed ahead, to have them at hand; on a queue never, where each receive counts. Leases of all that
is not settled are renewed from one timer.
"""

import asyncio
import math
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from conveyor.domain.breaker import Sign
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.domain.pacing import Want, leaves_enough, share
from conveyor.domain.refused_key import RefusedKeys
from conveyor.domain.task import Interrupted, Refused, RetryPolicy, Task
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Coordination
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata
from conveyor.ports.work import Held, Work
from conveyor.steps.attempt import INTERNAL, Assignment, Ended, Result
from conveyor.steps.lane import Flight, Lane, Pace, Portion, host_of
from conveyor.steps.outage import LOOK, Outage, never_answers
from conveyor.steps.room import ResultsRoom
from conveyor.steps.roster import Roster

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Pump:
    metadata: Metadata
    work: Work
    coordination: Coordination
    encryption: KeyRing
    clock: Clock
    attempt: Callable[[Task, Assignment], Awaitable[Result]]
    settle: Callable[[Sequence[Ended]], Awaitable[bool | None]]  # whether there was room
    settle_final: Callable[[Sequence[Task]], Awaitable[None]]
    check: Callable[[], Awaitable[bool]] = never_answers  # the gateway for itself
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    pace: Pace = field(default_factory=Pace)
    keys: RefusedKeys = field(default_factory=RefusedKeys)
    roster: Roster = field(init=False)
    outage: Outage = field(init=False)
    flights: dict[tuple[RunId, TaskId], Flight] = field(default_factory=dict)
    landed: list[tuple[Flight, Result]] = field(default_factory=list)  # over, not settled
    stirred: asyncio.Event = field(default_factory=asyncio.Event)  # there may be room for tasks
    any_landed: asyncio.Event = field(default_factory=asyncio.Event)
    dice: random.Random = field(default_factory=random.Random)
    hungry: frozenset[RunId] = frozenset()  # runs that were given fewer places than they want
    room: ResultsRoom = field(init=False)

    def __post_init__(self) -> None:
        self.room = ResultsRoom(clock=self.clock)
        self.outage = Outage(clock=self.clock, check=self.check, opened=self._hand_back_everything)
        self.roster = Roster(
            breaker=self.outage.breaker,
            keys=self.keys,
            waits=lambda: self.outage.waiting() or self.room.waiting(),
            metadata=self.metadata,
            coordination=self.coordination,
            encryption=self.encryption,
            clock=self.clock,
            policy=self.policy,
            pace=self.pace,
        )

    @property
    def lanes(self) -> dict[RunId, Lane]:
        return self.roster.lanes

    def wake(self, run_id: RunId) -> None:
        """A run is new, has new tasks or has ended: look at it now rather than soon."""
        self.roster.wake(run_id)

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
                group.create_task(self._doubt_for_ever(), name="pump doubt"),
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
        if self.room.is_closed:
            return 0
        if self.outage.breaker.is_open:
            return await self._probe(group)
        free = self._free()
        if free <= 0:
            return 0
        ready = self.roster.ready(self.dice)
        if self.room.is_doubtful:
            return await self._try_one(group, ready)
        wants = {one.run.id: Want(one.run.caller, one.room()) for one in ready if one.room() > 0}
        shares = share(wants, free, held=self.roster.held(), reserve=True)
        self.hungry = frozenset(
            run_id for run_id, want in wants.items() if shares.get(run_id, 0) < want.tasks
        )
        return await self._claim(group, self.roster.expect(ready, shares))

    async def _probe(self, group: asyncio.TaskGroup) -> int:
        """Start a single task while the breaker is open, if it is time for one."""
        lane = self.outage.lane_to_probe(self.lanes.values(), self.clock.monotonic())
        if lane is None:
            return 0
        self.outage.probing = lane.run.id
        granted = self.roster.expect_one(lane, ahead=self.pace.choice - 1)
        try:
            return await self._claim(group, granted)
        finally:
            if self.outage.probing:  # nothing is due, or there is no permit: another run is next
                self.outage.probing = None
                self.roster.rest_lanes(granted)

    async def _try_one(self, group: asyncio.TaskGroup, ready: Sequence[Lane]) -> int:
        """Start a single task, to find out whether its page can be stored."""
        lane = next((one for one in ready if one.room() > 0), None)
        if lane is None:
            return 0
        self.room.close()  # to other feeders
        took = await self._claim(group, self.roster.expect_one(lane, ahead=0))
        if not took:
            self.room.closed_until = 0.0
        return took

    def _free(self) -> int:
        """Places for tasks to begin: those claimed ahead have none yet."""
        waiting = sum(len(lane.ahead) - lane.coming for lane in self.lanes.values())
        return self.pace.concurrency - len(self.flights) + waiting

    async def _claim(self, group: asyncio.TaskGroup, granted: Mapping[RunId, Portion]) -> int:
        try:
            return await self._claim_granted(group, granted)
        finally:
            self.roster.expect_no_more(granted)

    async def _claim_granted(
        self, group: asyncio.TaskGroup, granted: Mapping[RunId, Portion]
    ) -> int:
        permits = await self.roster.reserve(granted)
        asked = self._gather(permits, granted)
        if not asked:
            return 0
        begun: Counter[RunId] = Counter()
        try:
            tasks = await self.work.claim(asked)
            for task in self.outage.arranged(tasks):
                if not task.is_final:
                    begun[task.run_id] += 1
                    self._start(group, task, pledged=begun[task.run_id] <= permits[task.run_id])
            await self.settle_final([task for task in tasks if task.is_final])
        finally:
            short = [run_id for run_id in asked if begun[run_id] < asked[run_id]]
            await self.roster.give_back({run_id: granted[run_id] for run_id in short})
        self.roster.pace_lanes({run_id: wanted - begun[run_id] for run_id, wanted in asked.items()})
        await self.roster.leave_ended(run_id for run_id in asked if not begun[run_id])
        return len(tasks)

    def _gather(
        self, permits: dict[RunId, int], granted: Mapping[RunId, Portion]
    ) -> dict[RunId, int]:
        """How many tasks to claim. What was claimed ahead begins first; runs with too few permits
        for a claim wait a moment for more, and runs without any rest.
        """
        now = self.clock.monotonic()
        asked: dict[RunId, int] = {}
        for run_id, have in list(permits.items()):
            lane, ahead = self.lanes[run_id], granted[run_id].ahead
            if not have and (not ahead or self.outage.breaker.is_open):
                self.roster.rest_lanes([run_id])
                continue
            waiting = min(have, len(lane.ahead), len(lane.spare)) if lane.is_open else 0
            for _ in range(waiting):
                self._begin_ahead(lane.ahead.popleft())
            permits[run_id] = have - waiting
            wanted = permits[run_id] + ahead
            if wanted and lane.is_worth_a_claim(wanted, now, self.pace.gathering):
                asked[run_id] = wanted
        return asked

    def _start(self, group: asyncio.TaskGroup, task: Task, *, pledged: bool) -> None:
        """Begin a task that a permit was reserved for, if there is one; else as soon as may be."""
        lane = self.lanes[task.run_id]
        flight = Flight(task, lane, None, group)
        lane.unsettled += 1
        # A process that slept through a lease may claim what it still has in flight.
        if lapsed := self.flights.get((task.run_id, task.id)):
            self._drop(lapsed)
        self.flights[task.run_id, task.id] = flight
        now = self.clock.monotonic()
        if pledged and lane.spare and (lane.may_begin(now) or self.outage.takes(flight, now)):
            self._begin_ahead(flight)
            return
        lane.ahead.append(flight)
        if not lane.is_open or self.outage.breaker.is_open:
            self._hand_back_all(lane)
        elif lane.spare and self._has_place(lane, now) and (first := lane.next_in_place()):
            self._begin_ahead(first)

    def _has_place(self, lane: Lane, now: float) -> bool:
        """Whether one more may begin of what was claimed ahead, with nobody else in need of it."""
        spare = self.pace.concurrency - (len(self.flights) - len(lane.ahead)) - 1
        return (
            spare >= 0
            and leaves_enough(lane.unsettled - len(lane.ahead) + 1, spare)
            and not self.room.is_doubtful
            and lane.may_begin(now)
            and self.hungry <= {lane.run.id}
        )

    def _begin_ahead(self, flight: Flight) -> None:
        flight.permit = flight.lane.spare.pop()
        if self._is_cleared(flight):
            self._begin(flight)

    def _is_cleared(self, flight: Flight) -> bool:
        """Count a page that has its permit, and say whether it need not wait for its host."""
        flight.lane.calls += 1
        return not flight.lane.is_held_up(flight)

    def _begin(self, flight: Flight) -> None:
        flight.lane.throttle.under_way += 1
        flight.begun = self.clock.monotonic()
        flight.worker = flight.group.create_task(self._fly(flight))

    def _drop(self, flight: Flight) -> None:
        if flight.is_over:
            return
        if flight.worker:
            flight.worker.add_done_callback(lambda _: self._land_unbegun(flight))
            flight.worker.cancel()
        else:
            flight.lane.waits_no_longer(flight)
            self._hand_back(flight)

    def _hand_back(self, flight: Flight) -> None:
        """A page that was not begun goes back, to be taken up again."""
        if flight.permit:
            flight.lane.calls -= 1
        flight.is_over = True
        self.landed.append((flight, Interrupted()))
        self.any_landed.set()

    def _hand_back_all(self, lane: Lane) -> None:
        for flight in lane.not_begun():
            self._hand_back(flight)

    def _hand_back_everything(self) -> None:
        """Begin nothing any more of what was claimed."""
        for lane in self.lanes.values():
            self._hand_back_all(lane)

    async def _fly(self, flight: Flight) -> None:
        """Fetch a page, and then whatever may follow in its place."""
        following: Flight | None = flight
        while following:
            flight = following
            result: Result = Interrupted()
            try:
                result = await self.attempt(flight.task, flight.lane.assignment)
            except asyncio.CancelledError:
                if following := self._land(flight, result):
                    self._begin(following)
                raise
            except Exception:
                # A bug that one page brings out must not take all others down with it.
                log.exception("attempt.bug", run_id=flight.task.run_id, task_id=flight.task.id)
                result = Refused(INTERNAL, FailureReason.OTHER, retryable=True, sign=Sign.NONE)
            if following := self._land(flight, result):
                following.lane.throttle.under_way += 1
                following.begun = self.clock.monotonic()
                following.worker = flight.worker

    def _land_unbegun(self, flight: Flight) -> None:
        """A task of the loop that is cancelled before its first step runs nothing of itself."""
        if not flight.is_over and (following := self._land(flight, Interrupted())):
            self._begin(following)

    def _land(self, flight: Flight, result: Result) -> Flight | None:
        """A call is over: its permit is for the next page, its result to be settled. Gives the
        page that may begin now, counted as begun but for its key.
        """
        lane = flight.lane
        lane.calls -= 1
        lane.throttle.under_way -= 1
        now = self.clock.monotonic()
        lane.count_landing(now)
        result = lane.learn(result, now, flight.begun)
        flight.is_over = True
        self._settle_soon(self.outage.heard(flight, result, now))
        if lane.gone:
            self._hand_back_all(lane)
        following = lane.next_for_host(flight)
        if flight.permit and not lane.gone and lane.throttle.closed_until <= now:
            lane.spare.append(flight.permit)
            flight.permit = None
            if following is None and self._has_place(lane, now) and (first := lane.next_in_place()):
                first.permit = lane.spare.pop()
                following = first if self._is_cleared(first) else None
        if lane.appetite() >= lane.worthwhile:
            self.stirred.set()
        return following

    def _settle_soon(self, landed: Sequence[tuple[Flight, Result]]) -> None:
        if landed:
            self.landed += landed
            self.any_landed.set()

    async def _doubt_for_ever(self) -> None:
        """Judge failed calls that may be the gateway's fault."""
        while True:
            await self.outage.in_doubt.wait()
            await asyncio.sleep(LOOK.total_seconds())
            hosts = {host_of(one.task.spec.url) for one in self.flights.values()}
            try:
                self._settle_soon(await self.outage.look(len(hosts)))
            except Exception:
                log.exception("step.bug", step="doubt")  # the next look may succeed
            self.stirred.set()

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
        stored = await self.settle(
            [Ended(flight.task, flight.lane.assignment, result) for flight, result in landed]
        )
        self.room.learn(stored=stored)
        if stored is False:
            self._hand_back_everything()
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
        now = self.clock.monotonic()
        for lane in self.lanes.values():
            if lane.spare and not lane.may_begin(now) and lane.is_open:  # others may
                permits[lane.job.id] += lane.spare
                lane.spare = []
        for job_id, held in permits.items():
            await self.roster.release(job_id, held)

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
        if flight and flight.task.claim_no == lost.claim_no:
            self._drop(flight)

    async def _watch_for_ever(self) -> None:
        """Keep the map of live runs."""
        while True:
            self.roster.noticed.clear()
            try:
                await self.roster.refresh()
            except Unavailable as error:
                log.warning("pump.watch.unavailable", why=str(error))
                await asyncio.sleep(self.pace.outage.total_seconds())
                continue
            for lane in self.lanes.values():
                if not lane.is_open:
                    self._hand_back_all(lane)
            self.stirred.set()
            await self._wait_for(self.roster.noticed, self.roster.refresh_at)

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
        if self.room.closed_until > now:
            return self.room.closed_until
        if self.outage.breaker.is_open and self.outage.breaker.next_probe_at > now:
            return self.outage.breaker.next_probe_at
        resting = (lane.ready_at() for lane in self.lanes.values() if lane.appetite())
        return min((moment for moment in resting if moment > now), default=math.inf)

    async def _wind_down(self) -> None:
        """Let running tasks end within the grace, hand back the rest, settle it all."""
        self._hand_back_everything()
        self._settle_soon(self.outage.stop())
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
            await self.roster.release_spare(lane)


LAST_WORDS = timedelta(seconds=5)  # for the engines to answer when the program stops
