"""Claim: give the free places to runs, reserve permits, claim that many tasks and start them.

While the breaker is open only probes start; while storage is full only single pages.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from conveyor.domain.concurrency import Demand, fair_shares
from conveyor.domain.ids import RunId
from conveyor.domain.task import Task
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.work import Work
from conveyor.steps.dispatch.active_run import ActiveRun, ClaimGrant, Places
from conveyor.steps.dispatch.config import BATCH_WAIT, DispatchConfig
from conveyor.steps.dispatch.discovery import Discovery
from conveyor.steps.dispatch.fetcher import Fetcher
from conveyor.steps.dispatch.gateway_health import GatewayHealth
from conveyor.steps.dispatch.permits import HostPermits, Permits
from conveyor.steps.dispatch.shared_limits import GATEWAY, SharedLimits
from conveyor.steps.dispatch.storage_pause import StoragePause

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Claimer:
    work: Work
    clock: Clock
    config: DispatchConfig
    rng: random.Random
    settle_final: Callable[[Sequence[Task]], Awaitable[None]]
    places: Places
    permits: Permits
    discovery: Discovery
    health: GatewayHealth
    storage: StoragePause
    fetcher: Fetcher
    shared_limits: SharedLimits | None = None

    async def claim_round(self, group: asyncio.TaskGroup, claims: asyncio.TaskGroup) -> int:
        """Claim as many tasks as there are places for and start them; return how many.

        With `claims_apart` each run is claimed in a coroutine of its own, in `claims`, and those
        tasks are not among the returned.
        """
        if self.storage.is_closed:
            return 0
        if self.health.is_open:
            return await self._probe(group)
        if self.places.free <= 0:
            return 0
        ready = self.discovery.ready(self.rng)
        if self.config.claims_apart:
            ready = [run for run in ready if not run.claims]
        if self.storage.is_probing:
            return await self._probe_storage(group, ready)
        demands = {
            run.id: Demand(run.run.caller, room) for run in ready if (room := run.room()) > 0
        }
        shares = fair_shares(demands, self.places.free, held=self.places.held, reserve=True)
        # A run that prefetched may not fill its own places while these runs want them.
        self.fetcher.unserved = frozenset(
            run_id for run_id, demand in demands.items() if shares.get(run_id, 0) < demand.tasks
        )
        grants = _granted(ready, shares)
        return await self._claim(group, grants, claims if self.config.claims_apart else None)

    async def _probe(self, group: asyncio.TaskGroup) -> int:
        """Start a single task while the breaker is open, if one is due."""
        run = self.health.run_to_probe(self.discovery.runs.values(), self.clock.monotonic())
        if run is None:
            return 0
        # Set before the first await, so that the other claim loops start no second probe.
        self.health.probing = run.id
        try:
            if self.shared_limits and not await self._may_probe(run):
                return 0
            grant = run.begin_claim(1, self.config.probe_choice - 1)
            return await self._claim(group, {run: grant})
        finally:
            if self.health.probing:  # nothing was due, or there is no permit: another run is next
                self.health.probing = None
                self.discovery.rest([run])
            if permit := self.health.probe_permit:
                self.health.probe_permit = None
                await self.permits.release_probe(permit)

    async def _may_probe(self, run: ActiveRun) -> bool:
        """Whether no other process probes the gateway, or has just done so."""
        self.health.probe_permit = await self.permits.reserve_probe()
        if self.health.probe_permit is None or self.shared_limits is None:
            return False
        await self.shared_limits.look([GATEWAY])
        return self.health.is_open and self.health.is_due(run)

    async def _probe_storage(self, group: asyncio.TaskGroup, ready: Sequence[ActiveRun]) -> int:
        """Start a single task, to find out whether its page can be stored."""
        run = next((run for run in ready if run.room() > 0), None)
        if run is None:
            return 0
        self.storage.close()  # to the other claim loops
        claimed = await self._claim(group, {run: run.begin_claim(1, 0)})
        if not claimed:
            self.storage.reopen()
        return claimed

    async def _claim(
        self,
        group: asyncio.TaskGroup,
        grants: dict[ActiveRun, ClaimGrant],
        claims: asyncio.TaskGroup | None = None,
    ) -> int:
        """Reserve permits and claim: all runs in one call, or each in a coroutine of `claims`."""
        wants: dict[ActiveRun, int] = {}
        for run in grants:
            run.claims += 1
        try:
            permits = await self.permits.reserve(grants)
            wants = self._start_prefetched(permits, grants)
        finally:
            _end_claims({run: grant for run, grant in grants.items() if run not in wants})
        if claims is None:
            return await self._take(group, wants, permits, grants) if wants else 0
        for run, want in wants.items():
            claims.create_task(self._take_apart(group, run, want, permits, grants))
        return 0

    async def _take_apart(
        self,
        group: asyncio.TaskGroup,
        run: ActiveRun,
        want: int,
        permits: Mapping[ActiveRun, int],
        grants: Mapping[ActiveRun, ClaimGrant],
    ) -> None:
        try:
            await self._take(group, {run: want}, permits, grants)
        except Unavailable as error:
            log.warning("dispatch.unavailable", run_id=run.id, why=str(error))
            self._pause_claims(run)
        except Exception:
            # Of this run only, such as by a row that cannot be read: other runs go on.
            log.exception("step.bug", step="claim", run_id=run.id)
            self._pause_claims(run)
        self.fetcher.capacity_changed.set()

    def _pause_claims(self, run: ActiveRun) -> None:
        wait = self.config.unavailable_wait.total_seconds()
        run.pause_claims(self.clock.monotonic() + wait)

    async def _take(
        self,
        group: asyncio.TaskGroup,
        wants: Mapping[ActiveRun, int],
        permits: Mapping[ActiveRun, int],
        grants: Mapping[ActiveRun, ClaimGrant],
    ) -> int:
        """Claim tasks of runs in one call and start them; return how many."""
        started: Counter[ActiveRun] = Counter()
        try:
            try:
                tasks = await self._claim_tasks(wants)
                hosts = await self._reserve_hosts(tasks)
                started = self._start(group, tasks, permits, hosts)
            finally:
                # Before the next await: from now on the started tasks themselves hold the places.
                _end_claims({run: grants[run] for run in wants})
            await self.settle_final([task for task in tasks if task.is_final])
        finally:
            # Also when the engine is unavailable: permits without tasks would block other processes.
            short = [run for run, want in wants.items() if started[run] < want]
            await self.permits.give_back(wants, short=short)
        small_claims_at = self.clock.monotonic() + BATCH_WAIT.total_seconds()
        for run, want in wants.items():
            run.small_claims_at = small_claims_at
            if started[run]:
                run.empty_since, run.was_set_aside = None, False
            if started[run] >= want:
                run.idle = 0.0
        # Runs that gave fewer tasks than wanted have nothing more due.
        self.discovery.rest(short)
        await self.discovery.leave_ended(run for run in wants if not started[run])
        return len(tasks)

    async def _claim_tasks(self, wants: Mapping[ActiveRun, int]) -> Sequence[Task]:
        began_at = self.clock.monotonic()
        try:
            return await self.work.claim({run.id: want for run, want in wants.items()})
        finally:
            for run, want in wants.items():
                run.learn_speed(self.clock.monotonic() - began_at, tasks=want)

    def _start_prefetched(
        self, permits: dict[ActiveRun, int], grants: dict[ActiveRun, ClaimGrant]
    ) -> dict[ActiveRun, int]:
        """Use permits for prefetched tasks first; return how many tasks of each run to claim.

        Runs with too few permits for a claim wait a moment for more. Runs without permits rest.
        """
        now = self.clock.monotonic()
        wants: dict[ActiveRun, int] = {}
        for run, have in list(permits.items()):
            prefetch = grants[run].prefetch
            if not have and (not prefetch or self.health.is_open):
                self.discovery.rest([run])
                run.lacks_permits = True
                continue
            run.lacks_permits = False
            # The run may have been paused, or its idle permits used, while permits were reserved.
            startable = min(have, len(run.prefetch.tasks), run.startable) if run.is_open else 0
            for _ in range(startable):
                self.fetcher.start_call(run.take_prefetched())
            permits[run] = have - startable
            grants[run] = run.shrink_claim(grants[run], permits[run])
            want = permits[run] + prefetch
            if want and run.is_worth_a_claim(want, now, self.config.permit_wait):
                wants[run] = want
        return wants

    async def _reserve_hosts(self, tasks: Sequence[Task]) -> HostPermits:
        """Reserve the hosts of claimed tasks, where processes share `max_per_host`.

        Not where other tasks wait for the host: those come first, here and in other processes.
        """
        if self.shared_limits is None:
            return {}
        runs = self.discovery.runs
        counts = Counter(
            (run, task.spec.host)
            for task in tasks
            if not task.is_final
            and (run := runs[task.run_id]).hosts.is_shared
            and task.spec.host not in run.hosts.waiting
        )
        return await self.permits.reserve_hosts(counts) if counts else {}

    def _start(
        self,
        group: asyncio.TaskGroup,
        tasks: Sequence[Task],
        permits: Mapping[ActiveRun, int],
        hosts: HostPermits,
    ) -> Counter[ActiveRun]:
        """Start claimed tasks; return how many of each run."""
        started: Counter[ActiveRun] = Counter()
        for task in self.health.in_order(tasks):
            if not task.is_final:
                run = self.discovery.runs[task.run_id]
                started[run] += 1
                of_host = hosts.get((run, task.spec.host)) if hosts else None
                self.fetcher.start(
                    group,
                    run,
                    task,
                    has_permit=started[run] <= permits[run],
                    host_permit=of_host.pop() if of_host else None,
                )
        return started


def _end_claims(grants: Mapping[ActiveRun, ClaimGrant]) -> None:
    for run, grant in grants.items():
        run.end_claim(grant)
        run.claims -= 1


def _granted(
    ready: Iterable[ActiveRun], shares: Mapping[RunId, int]
) -> dict[ActiveRun, ClaimGrant]:
    """What to claim of each run.

    `begin_claim` lowers the room of the gateway key for the runs that follow: runs with one key share
    what is left of its limit, in the order of `ready`, which is random.
    """
    grants: dict[ActiveRun, ClaimGrant] = {}
    for run in ready:
        calls = max(min(shares.get(run.id, 0), run.room()), 0)
        prefetch = run.prefetch.room(run.calls) if run.is_open else 0
        if calls or prefetch:
            grants[run] = run.begin_claim(calls, prefetch)
    return grants
