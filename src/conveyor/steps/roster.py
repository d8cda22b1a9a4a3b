"""The live runs that a process serves, and what it keeps of each.

Not a station of its own: dispatch works by it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

import structlog
from msgspec.structs import replace

from conveyor.domain.breaker import Breaker
from conveyor.domain.credentials import context
from conveyor.domain.ids import CallerId, JobId, RunId, ulid
from conveyor.domain.job import Job
from conveyor.domain.params import load
from conveyor.domain.refused_key import RefusedKey, RefusedKeys, digest_of
from conveyor.domain.run import Run
from conveyor.domain.task import RetryPolicy
from conveyor.domain.throttle import BREAK, Throttle
from conveyor.domain.waiting import Waiting, WaitReason
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Coordination
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata
from conveyor.steps.attempt import Assignment
from conveyor.steps.lane import Lane, Pace, Portion

PAGE = 1000
OVERLAP = timedelta(minutes=1)  # between looks for new runs, for clocks that disagree

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Roster:
    metadata: Metadata
    coordination: Coordination
    encryption: KeyRing
    clock: Clock
    policy: RetryPolicy
    pace: Pace
    breaker: Breaker
    keys: RefusedKeys
    waits: Callable[[], Waiting | None] = field(repr=False)  # what all runs wait for
    lanes: dict[RunId, Lane] = field(default_factory=dict)
    throttles: dict[str, Throttle] = field(default_factory=dict)  # by digest of the API key
    touched: set[RunId] = field(default_factory=set)  # runs somebody in this process changed
    noticed: asyncio.Event = field(default_factory=asyncio.Event)  # a run was touched
    refresh_at: float = 0.0
    resync_at: float = 0.0

    def wake(self, run_id: RunId) -> None:
        self.touched.add(run_id)
        self.noticed.set()

    def waiting(self, run_id: RunId) -> Waiting | None:
        """What a live run waits for, if it waits for something other than its own tasks."""
        lane = self.lanes.get(run_id)
        if lane is None or not lane.is_open:
            return None
        refused = self.keys.get(lane.digest)
        return self._refused(lane, refused) if refused else self.waits()

    def _refused(self, lane: Lane, refused: RefusedKey) -> Waiting:
        # Both dates follow from that of the refusal, so that they are the same at every reading.
        closed_until = lane.throttle.closed_until
        next_attempt_at = refused.since + timedelta(seconds=closed_until - refused.since_monotonic)
        return Waiting(
            reason=WaitReason.API_KEY_REFUSED,
            since=refused.since,
            next_attempt_at=next_attempt_at if closed_until > self.clock.monotonic() else None,
            detail=refused.detail,
        )

    def sharing_key(self, run_id: RunId) -> list[RunId]:
        """The live runs that pay with the same API key."""
        lane = self.lanes.get(run_id)
        return [one.run.id for one in self.lanes.values() if lane and one.digest == lane.digest]

    def reopen(self, digest: str) -> None:
        """The gateway serves a key again: use it at once, beginning with a single call."""
        if throttle := self.throttles.get(digest):
            throttle.closed_until = 0.0
            throttle.served_from = self.clock.monotonic()

    async def refresh(self) -> None:
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
            self._drop_unused(now)
            self.resync_at = now + self.pace.resync.total_seconds()
        elif now >= self.refresh_at:
            await self._join_all(after=self._id_of_the_recent_past())
        else:
            return
        self.refresh_at = now + self.pace.refresh.total_seconds()

    def _drop_unused(self, now: float) -> None:
        """Forget what was learned of keys that no live run uses any more."""
        unused = [
            digest
            for digest, one in self.throttles.items()
            if not one.runs and one.closed_until <= now
        ]
        for digest in unused:
            del self.throttles[digest]

    def _id_of_the_recent_past(self) -> str:
        """Runs made since then have greater ids, even by a clock that is somewhat behind ours."""
        then = self.clock.now() - OVERLAP
        return ulid(int(then.timestamp() * 1000), 0)

    def held(self) -> dict[CallerId, int]:
        """How many places each caller has, or is about to have."""
        held: dict[CallerId, int] = defaultdict(int)
        for lane in self.lanes.values():
            held[lane.run.caller] += lane.unsettled - len(lane.ahead) + lane.coming
        return held

    def ready(self, dice: Random) -> list[Lane]:
        """Lanes that want tasks now, in any order."""
        now = self.clock.monotonic()
        ready = [lane for lane in self.lanes.values() if lane.is_ready(now) and lane.appetite()]
        dice.shuffle(ready)
        return ready

    def expect(self, ready: Iterable[Lane], granted: Mapping[RunId, int]) -> dict[RunId, Portion]:
        """Note what is about to be asked for: runs of one key share what it may have."""
        expected: dict[RunId, Portion] = {}
        for lane in ready:
            calls = max(min(granted.get(lane.run.id, 0), lane.room()), 0)
            ahead = lane.room_ahead()
            if calls or ahead:
                lane.coming += calls
                lane.throttle.under_way += calls
                lane.coming_ahead += ahead
                expected[lane.run.id] = Portion(calls, ahead)
        return expected

    def expect_one(self, lane: Lane, *, ahead: int) -> dict[RunId, Portion]:
        """Note that a single call is about to be made, with some tasks more to choose from."""
        lane.coming += 1
        lane.throttle.under_way += 1
        lane.coming_ahead += ahead
        return {lane.run.id: Portion(1, ahead)}

    def expect_no_more(self, granted: Mapping[RunId, Portion]) -> None:
        for run_id, want in granted.items():
            lane = self.lanes[run_id]
            lane.coming -= want.calls
            lane.throttle.under_way -= want.calls
            lane.coming_ahead -= want.ahead

    def pace_lanes(self, short: Mapping[RunId, int]) -> None:
        """Runs that gave less than was asked for have nothing more due just now."""
        hasty_until = self.clock.monotonic() + self.pace.patience.total_seconds()
        for run_id, left in short.items():
            self.lanes[run_id].hasty_until = hasty_until
            if not left:
                self.lanes[run_id].idle = 0.0
        self.rest_lanes(run_id for run_id, left in short.items() if left)

    def rest_lanes(self, run_ids: Iterable[RunId]) -> None:
        """Leave runs alone for a while that gave less than was asked for, or have no permit left."""
        now = self.clock.monotonic()
        for run_id in run_ids:
            lane = self.lanes[run_id]
            longest = self.pace.longest_idle * max(len(self.lanes) / self.pace.idlers, 1.0)
            lane.idle = min(
                max(lane.idle * 2, self.pace.shortest_idle.total_seconds()),
                longest.total_seconds(),
            )
            lane.resting_until = now + lane.idle

    async def leave_ended(self, silent: Iterable[RunId]) -> None:
        """Take no more of runs that gave nothing because they are over."""
        for run_id in silent:
            if not self.lanes[run_id].unsettled:
                run = await self.metadata.get(Run, run_id)
                if run is None or not run.is_live:
                    self.wake(run_id)

    async def _look_at(self, run_id: RunId) -> None:
        run = await self.metadata.get(Run, run_id)
        if run is None or not run.is_live:
            await self._leave(run_id)
        elif lane := self.lanes.get(run_id):
            lane.run = run
            lane.resting_until = 0.0
            lane.idle = 0.0
        elif job := await self.metadata.get(Job, run.job_id):
            self._join(run, job)

    async def _join_all(self, *, after: str) -> set[RunId]:
        """Serve every live run with an id above `after`, and say which they are."""
        live: set[RunId] = set()
        while page := await self.metadata.live_runs(limit=PAGE, after=after):
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
            key = self.encryption.decrypt(job.encrypted_key, context=context(job.caller, job.id))
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
        digest = digest_of(key)
        throttle = self.throttles.setdefault(digest, Throttle(most=self.pace.concurrency))
        throttle.runs += 1
        if refused := self.keys.get(digest):  # as of a fire: its first call is the next attempt
            now = self.clock.monotonic()
            throttle.close(now, timedelta(seconds=refused.refused_at - now) + BREAK)
        self.lanes[run.id] = Lane(
            run=run,
            job=job,
            assignment=assignment,
            throttle=throttle,
            breaker=self.breaker,
            keys=self.keys,
            clock=self.clock,
            digest=digest,
            worthwhile=worthwhile,
            lead=self.pace.lead.total_seconds(),
        )

    async def _leave(self, run_id: RunId) -> None:
        """Take nothing more of a run; forget it when its last task is in."""
        lane = self.lanes.get(run_id)
        if lane is None:
            return
        lane.gone = True
        await self.release_spare(lane)
        if not lane.unsettled and not lane.coming and not lane.coming_ahead:
            lane.throttle.runs -= 1
            del self.lanes[run_id]

    async def reserve(self, granted: Mapping[RunId, Portion]) -> dict[RunId, int]:
        """Have permits for the calls to come, and say for how many there are some."""
        permits: dict[RunId, int] = {}
        try:
            for run_id, want in granted.items():
                permits[run_id] = await self._reserve_for(self.lanes[run_id], want.calls)
        except Unavailable:
            if not any(permits.values()):
                raise
        return permits

    async def _reserve_for(self, lane: Lane, want: int) -> int:
        """Permits are a lane's, whichever claim they were reserved for: what comes first begins."""
        of_others = lane.coming - want
        have = max(len(lane.spare) - of_others, 0)
        if have >= want:
            return want
        job = lane.job
        try:
            more = await self.coordination.reserve(job.id, want=want - have, cap=job.max_inflight)
        except Unavailable:
            if not have:
                raise
            return have
        lane.spare += more
        return have + len(more)

    async def give_back(self, short: Mapping[RunId, Portion]) -> None:
        """Release permits of runs that gave too few tasks, but for those of other claims."""
        for run_id, want in short.items():
            lane = self.lanes[run_id]
            others = lane.coming - want.calls
            lane.spare, unused = lane.spare[:others], lane.spare[others:]
            if unused:
                await self.release(lane.job.id, unused)

    async def release_spare(self, lane: Lane) -> None:
        spare, lane.spare = lane.spare, []
        if spare:
            await self.release(lane.job.id, spare)

    async def release(self, job_id: JobId, permits: Sequence[str]) -> None:
        try:
            await self.coordination.release(job_id, permits)
        except Unavailable:
            return  # they age out by themselves
