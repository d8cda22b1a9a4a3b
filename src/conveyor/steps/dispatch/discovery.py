"""Discovery: the map of live runs that this process serves.

| source | read | finds |
|---|---|---|
| runs passed to `wake` and `notified` | at once | changes that this process made or was notified of |
| runs changed since the last look (`Metadata.changed_runs`) | every second, over queues every 10 s | the same changes, where notifications were lost |
| all live runs | every 30 s, over queues every 10 min | what the other two missed |

Notifications and listings only say which runs to look at: a run joins, changes or leaves by what a
consistent read of its row says.

Each receive of an empty queue costs money. So over queues a run with nothing due for 10 min is set
aside: no queue hides a message for so long. A change brings it back, and each resync, for some seconds.

| invariant | kept by |
|---|---|
| a run leaves the map only when no claim and no task of it is under way | `_leave`, by `ActiveRun.is_served` |
| runs with one gateway key share one `GatewayKeyState`; `limiter.runs` is how many there are | `_join`, `_leave` |
| a `GatewayKeyState` is dropped once no run uses it and its cool-down is over | `_drop_unused_key_states` |
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

import structlog
from msgspec.structs import replace

from conveyor.domain.breaker import RefusedGatewayKeys, gateway_key_digest
from conveyor.domain.concurrency import ACCOUNT_COOL_DOWN, ConcurrencyLimiter
from conveyor.domain.credentials import context
from conveyor.domain.ids import RunId
from conveyor.domain.job import Job
from conveyor.domain.params import load
from conveyor.domain.progress import Waiting, WaitReason
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.run import Run
from conveyor.domain.shared_limits import CEILING
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata
from conveyor.steps.dispatch.active_run import (
    ActiveRun,
    HostSlots,
    Places,
    Prefetch,
)
from conveyor.steps.dispatch.config import IDLE_RUNS, DispatchConfig
from conveyor.steps.dispatch.gateway_keys import GatewayKeyState, KeyPermits
from conveyor.steps.dispatch.permits import Permits
from conveyor.steps.dispatch.write_window import WriteWindow
from conveyor.steps.shared.attempt import Assignment

PAGE = 1000
MOST_PAGES = 10  # of changed runs that one refresh reads
MOST_UNKNOWN = 20  # notified runs to read one by one; a page of changed runs is cheaper than more
MOST_CHANGED = 10_000  # runs in `changed`; reading all live runs is cheaper than more of them

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Discovery:
    metadata: Metadata
    encryption: KeyRing
    clock: Clock
    policy: RetryPolicy
    config: DispatchConfig
    refused_keys: RefusedGatewayKeys
    permits: Permits
    places: Places
    # Where processes share limits: called when something was learned of a key, and to learn what
    # others know of it.
    on_lesson: Callable[[GatewayKeyState], None] | None = None
    on_growth: Callable[[], None] = lambda: None
    look_at_key: Callable[[str], Awaitable[None]] | None = None
    runs: dict[RunId, ActiveRun] = field(default_factory=dict)
    key_states: dict[str, GatewayKeyState] = field(default_factory=dict)  # by digest
    changed: set[RunId] = field(default_factory=set)  # notified, and not read since
    set_aside: dict[RunId, int] = field(default_factory=dict)  # idle runs, with their versions
    left: list[ActiveRun] = field(default_factory=list)  # ended, with permits to release
    woken: asyncio.Event = field(default_factory=asyncio.Event)  # a run was added to `changed`
    mark: str | None = None  # up to where the changes of all processes were read
    refresh_at: float = 0.0
    resync_at: float = 0.0
    has_changed: bool = False  # a run joined, left or changed

    def wake(self, run_id: RunId) -> None:
        # A process without a dispatcher loop reads none of them, and would keep them for ever.
        if len(self.changed) >= MOST_CHANGED:
            self.changed.clear()
            self.resync_at = 0.0
        self.changed.add(run_id)
        self.woken.set()

    def notified(self, names: Collection[str] | None) -> None:
        """Look at the runs that a notification names; at all of them if it names none."""
        if names is None:
            self.resync_at = 0.0
        elif len(names) > MOST_UNKNOWN:
            self.refresh_at = 0.0
            self.changed |= self.runs.keys() & names
        else:
            for name in names:
                self.wake(RunId(name))
        self.woken.set()

    async def refresh(self) -> None:
        """Read changes and live runs when it is time, then the runs that were notified."""
        try:
            await self._refresh()
        finally:
            left, self.left = self.left, []
            await self.permits.release_idle(left)

    async def _refresh(self) -> None:
        now = self.clock.monotonic()
        if now >= self.refresh_at:
            await self._see_changed()
            for run_id in [run.id for run in self.runs.values() if run.is_gone]:
                self._leave(run_id)  # if its last tasks are settled by now
            self.refresh_at = now + self.config.refresh.total_seconds()
        if now >= self.resync_at:
            live = await self._see_all()
            for run_id in self.runs.keys() - live:
                await self.look_at(run_id)
            self.set_aside = {
                run_id: version for run_id, version in self.set_aside.items() if run_id in live
            }
            self._drop_unused_key_states(now)
            self.resync_at = now + self.config.resync.total_seconds()
        unread, self.changed = self.changed, set()
        try:
            for run_id in list(unread):
                await self.look_at(run_id)
                unread.discard(run_id)
        finally:
            self.changed |= unread  # if the engine became unavailable, the next refresh reads these

    async def look_at(self, run_id: RunId) -> None:
        """Read one run, and serve it if it is live."""
        self.has_changed = True
        run = await self.metadata.get(Run, run_id)
        if run is None or not run.is_live:
            self._leave(run_id)
        elif active := self.runs.get(run_id):
            active.wake(run)
            await self._update_job(active)
        else:
            await self._join(run)

    async def leave_ended(self, idle: Iterable[ActiveRun]) -> None:
        """Read runs that had no task due: those that have ended, or were idle for long, leave the map.

        Without this, a run that another process completed would be polled until the next resync.
        """
        for active in idle:
            if active.empty_since is None:
                active.empty_since = self.clock.monotonic()
            if active.unsettled:
                continue
            run = await self.metadata.get(Run, active.id)
            if self.runs.get(active.id) is not active:
                continue  # it left the map during the read
            if run is None or not run.is_live:
                self.wake(active.id)
            elif self._is_idle_for_long(active) and not active.is_served:
                self.set_aside[active.id] = active.run.version
                self.left.append(active)
                self._forget(active)

    def _is_idle_for_long(self, active: ActiveRun) -> bool:
        if not self.config.serve_idle or active.empty_since is None:
            return False
        if active.was_set_aside:
            return active.idle >= self.config.longest_idle.total_seconds()
        passed = self.clock.monotonic() - active.empty_since
        return passed >= self.config.serve_idle.total_seconds()

    def ready(self, rng: Random) -> list[ActiveRun]:
        """The runs whose tasks may be claimed now, shuffled so that ties are broken fairly."""
        now = self.clock.monotonic()
        ready = [run for run in self.runs.values() if run.is_ready(now) and run.demand()]
        rng.shuffle(ready)
        return ready

    def rest(self, runs: Iterable[ActiveRun]) -> None:
        """Let runs with nothing due, or without a permit, rest: claim nothing of them for a while."""
        now = self.clock.monotonic()
        # Many idle runs rest longer, so that polling all of them costs no more than polling a few.
        longest = self.config.longest_idle * max(len(self.runs) / IDLE_RUNS, 1.0)
        for run in runs:
            run.rest(now, shortest=self.config.shortest_idle, longest=longest)

    # Gateway keys.

    def refused(self, active: ActiveRun) -> Waiting | None:
        """What callers see of a run that waits because its gateway key is refused."""
        refused = self.refused_keys.get(active.key_state.digest)
        if refused is None:
            return None
        # Computed from the date of the refusal, so that listeners see the same value every time.
        closed_until = active.key_state.limiter.closed_until
        next_attempt_at = refused.since + timedelta(seconds=closed_until - refused.since_monotonic)
        return Waiting(
            reason=WaitReason.API_KEY_REFUSED,
            since=refused.since,
            next_attempt_at=next_attempt_at if closed_until > self.clock.monotonic() else None,
            detail=refused.detail,
        )

    def sharing_key(self, run_id: RunId) -> list[RunId]:
        """The live runs that use the same gateway key."""
        active = self.runs.get(run_id)
        return [
            run.id for run in self.runs.values() if active and run.key_state is active.key_state
        ]

    def reopen(self, digest: str) -> None:
        """End the cool-down of a gateway key that is served again; begin with a single call."""
        if state := self.key_states.get(digest):
            state.limiter.closed_until = 0.0
            # Refusals of calls that are still under way are older than this answer.
            state.limiter.served_from = self.clock.monotonic()
            self.has_changed = True
            self.woken.set()

    def keys_served(self, digests: Collection[str] | None) -> None:
        """Try keys again that this or another process found to be served."""
        for digest in digests or ():
            self.refused_keys.serve(digest, self.clock.monotonic())
            self.reopen(digest)

    def _drop_unused_key_states(self, now: float) -> None:
        self.key_states = {
            digest: state
            for digest, state in self.key_states.items()
            if state.limiter.runs or state.limiter.closed_until > now
        }

    # Joining and leaving.

    async def _see_changed(self) -> None:
        """Look at runs that other processes have changed: new ones, and newer than known here.

        Changes of this process are listed too. A busy one makes them faster than they are read, so
        what is beyond the limit is left to the next refresh.
        """
        for _ in range(MOST_PAGES):
            runs, mark = await self.metadata.changed_runs(self.mark, limit=PAGE)
            for run in runs:
                await self._see(run)
            self.mark = mark  # last: if the engine became unavailable, the next look begins here
            if not runs:
                return

    async def _see_all(self) -> set[RunId]:
        """Look at what is new in the list of live runs; return their ids."""
        live, after = set[RunId](), ""
        while page := await self.metadata.live_runs(limit=PAGE, after=after):
            for run in page:
                live.add(run.id)
                version = self.set_aside.pop(run.id, None)
                await self._see(run)
                if version == run.version and (active := self.runs.get(run.id)):
                    active.was_set_aside = True
            after = page[-1].id
        return live

    async def _see(self, listed: Run) -> None:
        """Look at a run if its entry in a listing, which may lag, is news."""
        active = self.runs.get(listed.id)
        if active is None:
            is_news = listed.is_live and listed.version != self.set_aside.get(listed.id)
        else:
            is_news = listed.version > active.run.version or (active.is_gone and listed.is_live)
        if is_news:
            await self.look_at(listed.id)

    async def _join(self, run: Run) -> None:
        job = await self.metadata.get(Job, run.job_id)
        if job is None:
            return
        try:
            gateway_key = await self.encryption.decrypt(
                job.encrypted_gateway_key, context=context(job.caller, job.id)
            )
        except Unavailable as error:
            # The run stays live: once the operator restores the encryption key, a resync joins it.
            log.critical("run.key.unreadable", job_id=job.id, run_id=run.id, why=str(error))
            return
        assignment = Assignment(
            job_id=job.id,
            gateway_key=gateway_key,
            params=load(job.params),
            format=job.format,
            policy=replace(self.policy, retries=job.retries),
        )
        digest = gateway_key_digest(gateway_key)
        if self.look_at_key and digest not in self.key_states:
            self._add_key_state(digest)
            await self.look_at_key(digest)
            if run.id in self.runs:  # it joined meanwhile
                return
        # A prefetched task starts without a call of an engine, so it could have no permit of its host.
        shares_hosts = self.on_lesson is not None and job.max_per_host is not None
        self.runs[run.id] = ActiveRun(
            run=run,
            job=job,
            assignment=assignment,
            key_state=self._key_state(digest),
            claim_size=self._claim_size(job),
            prefetch=Prefetch(horizon=timedelta() if shares_hosts else self.config.prefetch),
            hosts=HostSlots(job.max_per_host, is_shared=shares_hosts),
            places=self.places,
            window=WriteWindow(self.config.concurrency) if self.config.claims_apart else None,
        )

    async def _update_job(self, active: ActiveRun) -> None:
        """Take over what has changed in the job of a run: its caps, retries and parameters.

        The run keeps the gateway key with which it joined.
        """
        job = await self.metadata.get(Job, active.job.id)
        if job is None or job.version <= active.job.version:
            return
        active.job = job
        active.claim_size = self._claim_size(job)
        active.assignment = replace(
            active.assignment,
            params=load(job.params),
            policy=replace(self.policy, retries=job.retries),
        )
        # A run without a limit has not counted its calls, so it cannot get one.
        if active.hosts.limit is not None:
            active.hosts.limit = job.max_per_host or active.hosts.limit

    def _claim_size(self, job: Job) -> int:
        return min(self.config.batch, (job.max_inflight + 1) // 2)

    def _key_state(self, digest: str) -> GatewayKeyState:
        """Return the state of a gateway key, and count one more run that uses it."""
        state = self.key_states.get(digest) or self._add_key_state(digest)
        state.limiter.runs += 1
        if refused := self.refused_keys.get(digest):
            # A schedule may fire while its key is refused: the first call of its run is the next
            # attempt, a cool-down after the last refusal.
            now = self.clock.monotonic()
            state.limiter.close(
                now, timedelta(seconds=refused.refused_at - now) + ACCOUNT_COOL_DOWN
            )
        return state

    def _add_key_state(self, digest: str) -> GatewayKeyState:
        is_shared = self.on_lesson is not None
        limiter = ConcurrencyLimiter(ceiling=CEILING if is_shared else self.config.concurrency)
        state = self.key_states[digest] = GatewayKeyState(
            digest=digest,
            limiter=limiter,
            refused_keys=self.refused_keys,
            clock=self.clock,
            permits=KeyPermits() if is_shared else None,
            on_lesson=self.on_lesson,
            on_growth=self.on_growth,
        )
        return state

    def _leave(self, run_id: RunId) -> None:
        """Start nothing more of a run. It leaves the map now, or at a later refresh once it is settled."""
        active = self.runs.get(run_id)
        if active is None:
            return
        active.is_gone = True
        self.left.append(active)
        if not active.is_served:
            self._forget(active)

    def _forget(self, active: ActiveRun) -> None:
        active.key_state.limiter.runs -= 1
        del self.runs[active.id]
