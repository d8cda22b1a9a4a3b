"""The dispatcher: the loops that take tasks, fetch their pages and settle the results.

    discover --> claim --> fetch --> settle
      runs       permits   calls     bodies, rows, counts

- **Discover** keeps the map of live runs (`Discovery`).
- **Claim**, in several loops: divide the free places fairly between the runs that are ready, reserve
  permits, claim that many tasks in one call, start them. On a queue each run is claimed in a coroutine
  of its own. A loop that claimed nothing waits until `capacity_changed`, until a resting run is ready
  again or, in an outage, until a probe is due.
- **Fetch**: one coroutine for each call (`Fetcher`).
- **Settle**, in several loops: write everything that has finished as one group; or, where groups
  have a price, each group of a run in a coroutine of its own (`SettleGroups`).
- **Renew**: one timer renews all leases and permits.

A place is the right to have one task started and not settled; a process has `concurrency` of them. A
permit is the right to one call of a job, over all processes.

| invariant | kept by |
|---|---|
| tasks started and not settled are at most `concurrency`; prefetched ones are not started | `Places` |
| a permit is reserved before a task is claimed for it; unused ones are released | `Claimer` |
| what a round is about to claim counts for its run, gateway key and caller until the engine has answered | `ActiveRun.begin_claim`, `Claimer` |
| while the breaker is open only probes start; while storage is full only single pages | `Claimer.claim_round` |
| no claim is cancelled half-way: at a stop the claim loops end first, then calls, then settling | `run` |
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import timedelta

import structlog

from conveyor.domain.breaker import RefusedGatewayKeys
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.progress import Waiting
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.task import Task
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Coordination
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata
from conveyor.ports.work import Held, PartlyRenewed, Work
from conveyor.steps.dispatch.active_run import ActiveRun, InFlight, Places
from conveyor.steps.dispatch.claimer import Claimer
from conveyor.steps.dispatch.config import BATCH_WAIT, SETTLE_LOOPS, DispatchConfig
from conveyor.steps.dispatch.discovery import Discovery
from conveyor.steps.dispatch.fetcher import Fetcher
from conveyor.steps.dispatch.gateway_health import (
    CHECK_EVERY,
    Finished,
    GatewayHealth,
    never_answers,
)
from conveyor.steps.dispatch.permits import Permits, key_permit_name
from conveyor.steps.dispatch.settle_groups import SettleGroups
from conveyor.steps.dispatch.shared_limits import GATEWAY, SharedLimits
from conveyor.steps.dispatch.storage_pause import StoragePause
from conveyor.steps.shared.attempt import Assignment, CallResult, FinishedAttempt

DEFAULT_POLICY = RetryPolicy()
HOST_WAIT = timedelta(milliseconds=250)  # between looks for free hosts, if processes share them

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Dispatcher:
    metadata: InitVar[Metadata]
    coordination: InitVar[Coordination]
    encryption: InitVar[KeyRing]
    work: Work
    clock: Clock
    attempt: InitVar[Callable[[Task, Assignment], Awaitable[CallResult]]]
    # Returns whether all was stored; calls its second argument when it begins to write the rows.
    settle: Callable[[Sequence[FinishedAttempt], Callable[[bool], None]], Awaitable[bool | None]]
    settle_final: Callable[[Sequence[Task]], Awaitable[None]]
    check_gateway: InitVar[Callable[[], Awaitable[bool]]] = never_answers  # of the gateway's health
    policy: InitVar[RetryPolicy] = DEFAULT_POLICY
    # The name of this process among those that share coordination; empty if there are no others.
    shared_as: InitVar[str] = ""
    config: DispatchConfig = field(default_factory=DispatchConfig)
    refused_keys: RefusedGatewayKeys = field(default_factory=RefusedGatewayKeys)
    rng: random.Random = field(default_factory=random.Random)
    permits: Permits = field(init=False)
    places: Places = field(init=False)
    discovery: Discovery = field(init=False)
    health: GatewayHealth = field(init=False)
    storage: StoragePause = field(init=False)
    fetcher: Fetcher = field(init=False)
    claimer: Claimer = field(init=False)
    groups: SettleGroups = field(init=False)
    # Settles under way; each ends when the permits of its tasks are released.
    settling: int = field(init=False, default=0)
    # None if no other process has the same coordination.
    shared_limits: SharedLimits | None = field(init=False, default=None)

    def __post_init__(  # noqa: PLR0917 - the init-only fields, in their order
        self,
        metadata: Metadata,
        coordination: Coordination,
        encryption: KeyRing,
        attempt: Callable[[Task, Assignment], Awaitable[CallResult]],
        check_gateway: Callable[[], Awaitable[bool]],
        policy: RetryPolicy,
        shared_as: str,
    ) -> None:
        runs: dict[RunId, ActiveRun] = {}
        self.permits = Permits(
            coordination=coordination, clock=self.clock, lease=self.config.lease, runs=runs
        )
        self.places = Places(self.config.concurrency)
        self.storage = StoragePause(clock=self.clock)
        self.health = GatewayHealth(
            clock=self.clock, check_gateway=check_gateway, on_open=self._hand_back_all_waiting
        )
        self.discovery = Discovery(
            metadata=metadata,
            encryption=encryption,
            clock=self.clock,
            policy=policy,
            config=self.config,
            refused_keys=self.refused_keys,
            permits=self.permits,
            places=self.places,
            runs=runs,
        )
        self.fetcher = Fetcher(
            clock=self.clock,
            attempt=attempt,
            places=self.places,
            health=self.health,
            storage=self.storage,
            permits=self.permits,
        )
        if shared_as:
            self._share_limits(coordination, shared_as)
        self.groups = SettleGroups(self.clock, self.config)
        self.claimer = self._claimer()

    def _claimer(self) -> Claimer:
        return Claimer(
            work=self.work,
            clock=self.clock,
            config=self.config,
            rng=self.rng,
            settle_final=self.settle_final,
            places=self.places,
            permits=self.permits,
            discovery=self.discovery,
            health=self.health,
            storage=self.storage,
            fetcher=self.fetcher,
            shared_limits=self.shared_limits,
        )

    def _share_limits(self, coordination: Coordination, writer: str) -> None:
        limits = self.shared_limits = SharedLimits(
            coordination=coordination,
            clock=self.clock,
            writer=writer,
            refused_keys=self.refused_keys,
            health=self.health,
            storage=self.storage,
            permits=self.permits,
            key_states=lambda: self.discovery.key_states,
            inflight=self.inflight.values,
            settle_soon=self.fetcher.settle_soon,
            on_change=self.fetcher.capacity_changed.set,
        )
        self.health.share = lambda: limits.learned(GATEWAY)
        self.discovery.on_lesson = lambda state: limits.learned(key_permit_name(state.digest))
        self.discovery.on_growth = limits.woken.set
        self.discovery.look_at_key = limits.look_at_key

    @property
    def inflight(self) -> Mapping[tuple[RunId, TaskId], InFlight]:
        return self.fetcher.inflight

    @property
    def runs(self) -> dict[RunId, ActiveRun]:
        return self.discovery.runs

    def wake(self, run_id: RunId) -> None:
        """Read a run at once: it is new, has new tasks or has ended."""
        self.discovery.wake(run_id)

    def waiting(self, run_id: RunId) -> Waiting | None:
        """What a run that this process serves waits for, other than its own tasks."""
        run = self.runs.get(run_id)
        if run is None or not run.is_open:
            return None
        return self.discovery.refused(run) or self.health.waiting() or self.storage.waiting()

    async def round(self) -> None:
        """Claim what is due, fetch all of it, renew the leases and settle, without the loops.

        For tests that need each step at a known moment; `run` is what a worker uses.
        """
        await self.fetch_round()
        await self.settle_finished()

    async def fetch_round(self) -> None:
        """The first half of `round`, for tests of a crash before settling."""
        await self.discovery.refresh()
        async with asyncio.TaskGroup() as group:
            await self.claimer.claim_round(group, group)
        await self.renew()

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve live runs until `stopping`, then finish what is in flight within the grace."""
        async with asyncio.TaskGroup() as group:
            claiming = [
                group.create_task(
                    self._claim_loop(stopping, group), name=f"dispatch claim {number}"
                )
                for number in range(self.config.claim_loops)
            ]
            others = [
                group.create_task(self._discover_loop(), name="dispatch discover"),
                group.create_task(self._renew_loop(), name="dispatch renew"),
                group.create_task(self._health_loop(), name="dispatch health"),
                *(
                    [
                        group.create_task(self.shared_limits.run(), name="dispatch limits"),
                        group.create_task(self._host_loop(), name="dispatch hosts"),
                    ]
                    if self.shared_limits
                    else []
                ),
                *(
                    group.create_task(self._settle_loop(), name=f"dispatch settle {number}")
                    for number in range(SETTLE_LOOPS)
                ),
            ]
            await stopping.wait()
            began = asyncio.get_running_loop().time()
            self.fetcher.capacity_changed.set()
            # A claim that is cancelled half-way may have taken effect in the engine. Its tasks would
            # then wait for their leases to lapse, because no worker knows of them.
            await asyncio.wait(claiming, timeout=self.config.stop_times.work)
            for loop in claiming:
                loop.cancel()
            # The other loops go on meanwhile: they renew the leases and settle what finishes.
            await self._wind_down(began)
            for loop in others:
                loop.cancel()

    # Discover.

    async def _discover_loop(self) -> None:
        while True:
            # Cleared before the read: a run that is woken during it is read by the next one.
            self.discovery.woken.clear()
            try:
                await self.discovery.refresh()
            except Unavailable as error:
                log.warning("dispatch.discover.unavailable", why=str(error))
                await asyncio.sleep(self.config.unavailable_wait.total_seconds())
                continue
            closed = [run for run in self.runs.values() if not run.is_open]
            for run in closed:
                self.fetcher.hand_back_waiting(run)
            await self.permits.release_idle(closed)
            if self.discovery.has_changed:
                self.discovery.has_changed = False
                self.fetcher.capacity_changed.set()
            await self._wait_for(self.discovery.woken, self.discovery.refresh_at)

    # Claim.

    async def _claim_loop(self, stopping: asyncio.Event, group: asyncio.TaskGroup) -> None:
        async with asyncio.TaskGroup() as claims:
            while not stopping.is_set():
                # Cleared before the round: a change during it starts another one.
                self.fetcher.capacity_changed.clear()
                try:
                    claimed = await self.claimer.claim_round(group, claims)
                except Unavailable as error:
                    log.warning("dispatch.unavailable", why=str(error))
                    await asyncio.sleep(self.config.unavailable_wait.total_seconds())
                    continue
                if not claimed:
                    await self._wait_for_capacity()

    # Settle.

    async def _settle_loop(self) -> None:
        async with asyncio.TaskGroup() as settling:
            while True:
                if self.groups.waiting:
                    await self._wait_for(self.fetcher.any_finished, self.groups.next_at())
                else:
                    await self.fetcher.any_finished.wait()
                # Under load more tasks finish within milliseconds, and share the commit.
                if len(self.fetcher.finished) < self.config.batch < len(self.inflight):
                    await asyncio.sleep(BATCH_WAIT.total_seconds())
                self.fetcher.any_finished.clear()
                if self.config.settle_wait:
                    for closed in self._closed_groups():
                        settling.create_task(self._settle_group(closed))
                else:
                    await self.settle_finished()

    async def settle_finished(self) -> None:
        """Settle everything that has finished and need not wait for more."""
        for closed in self._closed_groups():
            await self._settle_group(closed)

    def _closed_groups(self) -> list[Sequence[Finished]]:
        # Taken before the first await, so that another settle loop takes only what finishes later.
        finished, self.fetcher.finished = self.fetcher.finished, []
        return self.groups.closed(finished)

    async def _settle_group(self, closed: Sequence[Finished]) -> None:
        self.settling += 1
        try:
            await self._settle(closed)
        finally:
            self.settling -= 1
            self.groups.end(closed)
            self._wake_settle_loop()

    def _wake_settle_loop(self) -> None:
        """Look again when the next group closes: one that waited for another may close now."""
        if self.groups.waiting:
            self.fetcher.any_finished.set()

    async def _settle(self, finished: Sequence[Finished]) -> None:
        began_at = self.clock.monotonic()

        def writing(is_settling: bool) -> None:
            nonlocal began_at
            if is_settling:
                began_at = self.clock.monotonic()
            for entry, _ in finished:
                entry.is_settling = is_settling

        stored = await self.settle(
            [
                FinishedAttempt(entry.task, entry.run.assignment, result)
                for entry, result in finished
            ],
            writing,
        )
        self.storage.learn(stored=stored)
        if self.shared_limits and stored is not None:
            self.shared_limits.tried_storage(stored=stored)
        if stored is False:
            self._hand_back_all_waiting()
        settled = [entry for entry, _ in finished]
        self.fetcher.settled(settled)
        now = self.clock.monotonic()
        if self.config.settle_wait:
            settled[0].run.learn_speed(now - began_at)
        # Permits that this process cannot use now are released for other processes.
        resting = [
            run
            for run in self.runs.values()
            if run.idle_permits
            and (self.storage.is_probing or not self.fetcher.may_start(run, now))
        ]
        await self.permits.release_after(settled, resting)
        self.fetcher.capacity_changed.set()

    async def _health_loop(self) -> None:
        """Judge failed calls that may be the gateway's fault."""
        while True:
            await self.health.needs_check.wait()
            await asyncio.sleep(CHECK_EVERY.total_seconds())
            hosts = {entry.task.spec.host for entry in self.inflight.values()}
            was_open = self.health.is_open
            try:
                self.fetcher.settle_soon(await self.health.examine(len(hosts)))
            except Exception:
                log.exception("step.bug", step="gateway health")  # the next check may succeed
            if self.health.is_open is not was_open:
                self.fetcher.capacity_changed.set()

    async def _host_loop(self) -> None:
        """Start tasks whose hosts other processes were calling."""
        while True:
            await asyncio.sleep(HOST_WAIT.total_seconds())
            await self.fetcher.start_waiting()

    # Renew.

    async def _renew_loop(self) -> None:
        wait = self.config.renewal
        while True:
            await asyncio.sleep(wait.total_seconds())
            wait = self.config.renewal
            try:
                await self.renew()
            except Unavailable as error:
                log.warning("dispatch.renew.unavailable", why=str(error))
                wait = self.config.unavailable_wait

    async def renew(self) -> None:
        """Renew leases by age, and the permits of all tasks in flight; drop claims that are lost."""
        now = self.clock.monotonic()
        old = [entry for entry in self.inflight.values() if self._needs_renewal(entry, now)]
        held = {Held(entry.task.run_id, entry.task.id, entry.task.claim_no): entry for entry in old}
        try:
            self._note_renewed(held, await self.work.renew([*held]) if held else (), now)
        except PartlyRenewed as error:
            rest = {one: entry for one, entry in held.items() if one not in error.unknown}
            self._note_renewed(rest, error.fallen, now)
            raise
        finally:
            # Also when the leases could not be renewed: the calls go on, and other processes must
            # not take their permits. Read again, because renewing a permit that was released
            # meanwhile would take it for no call.
            await self.permits.renew(self.inflight.values())

    def _note_renewed(
        self, held: Mapping[Held, InFlight], fallen: Collection[Held], now: float
    ) -> None:
        for lost in fallen:
            self.fetcher.drop_lost(lost)
        for entry in held.values():
            entry.renewed_at = now

    def _needs_renewal(self, entry: InFlight, now: float) -> bool:
        youngest = self.config.renew_from.total_seconds()
        # A renewal would conflict with the settle, where an engine has transactions of rows. The time
        # before it, in which bodies are stored, and repeated settles may be longer than a lease.
        return not youngest or (now - entry.renewed_at >= youngest and not entry.is_settling)

    # Wait and stop.

    async def _wait_for_capacity(self) -> None:
        """Wait until there may be capacity, or a resting run or a probe is due."""
        now = self.clock.monotonic()
        # In an outage, which may last for hours, only a probe could start.
        longest = self.config.resync if self.health.is_open else self.config.refresh
        until = min(now + longest.total_seconds(), self._next_ready(now))
        await self._wait_for(self.fetcher.capacity_changed, until)

    async def _wait_for(self, event: asyncio.Event, until: float) -> None:
        try:
            async with asyncio.timeout(max(until - self.clock.monotonic(), 0.0)):
                await event.wait()
        except TimeoutError:
            return

    def _next_ready(self, now: float) -> float:
        """When a resting run is ready again, if there is a place for it; or a probe."""
        if self.storage.closed_until > now:
            return self.storage.closed_until
        if self.health.is_open:
            return self.health.next_probe_at(self.runs.values(), now)
        if self.places.free <= 0:
            return math.inf  # a settle sets `capacity_changed`
        resting = (run.ready_at() for run in self.runs.values() if run.demand())
        return min((ready_at for ready_at in resting if ready_at > now), default=math.inf)

    async def _wind_down(self, began: float) -> None:
        """Let calls finish, hand back the rest, settle everything: all within the grace."""
        times, loop = self.config.stop_times, asyncio.get_running_loop()
        self.groups.is_stopping = True
        self._wake_settle_loop()
        self._hand_back_all_waiting()
        self.fetcher.settle_soon(self.health.stop())
        workers = [entry.worker for entry in self.inflight.values() if entry.worker]
        if workers:
            await asyncio.wait(workers, timeout=max(began + times.calls - loop.time(), 0.0))
        for worker in workers:
            worker.cancel()  # `_fetch` hands its task back, uncharged
        try:
            async with asyncio.timeout_at(began + times.end):
                while self.inflight or self.settling:
                    self.fetcher.capacity_changed.clear()
                    await self.fetcher.capacity_changed.wait()
                await self.permits.release_idle(self.runs.values())
        except TimeoutError:
            log.warning("dispatch.stopped.unsettled", tasks=len(self.inflight))

    def _hand_back_all_waiting(self) -> None:
        for run in self.runs.values():
            self.fetcher.hand_back_waiting(run)
