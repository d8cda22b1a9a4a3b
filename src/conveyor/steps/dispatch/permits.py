"""Permits: reserve them before a claim, keep them between calls, release what is not used.

A permit allows one call of a job, over all processes. Permits belong to a run and not to a claim: of
two claims under way, the first that the engine answers starts its calls with them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.ids import JobId
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Coordination
from conveyor.steps.dispatch.active_run import ActiveRun, ClaimGrant, InFlight


@dataclass(slots=True, kw_only=True)
class Permits:
    coordination: Coordination
    clock: Clock
    lease: timedelta
    renewed_at: float = field(init=False)  # every permit was renewed or reserved since

    def __post_init__(self) -> None:
        self.renewed_at = self.clock.monotonic()

    async def reserve(self, grants: Mapping[ActiveRun, ClaimGrant]) -> dict[ActiveRun, int]:
        """Reserve permits for the calls of a claim; return how many each run has.

        Raises `Unavailable` only if no run has any. Permits that were reserved before the engine
        became unavailable are used rather than left to lapse.
        """
        permits: dict[ActiveRun, int] = {}
        try:
            for run, grant in grants.items():
                permits[run] = await self._reserve_for(run, grant.calls)
        except Unavailable:
            if not any(permits.values()):
                raise
        return permits

    async def _reserve_for(self, run: ActiveRun, want: int) -> int:
        if self._may_have_lapsed():
            await self.release_idle(run)
        have = run.free_permits(want)
        if have >= want:
            return want
        job = run.job
        try:
            more = await self.coordination.reserve(job.id, want=want - have, cap=job.max_inflight)
        except Unavailable:
            if not have:
                raise
            return have
        run.idle_permits += more
        return have + len(more)

    async def give_back(self, runs: Iterable[ActiveRun]) -> None:
        """Release permits without a claimed task, except those of other pending claims."""
        for run in runs:
            await self.release_idle(run, keep=run.pending)

    async def release_idle(self, run: ActiveRun, *, keep: int = 0) -> None:
        if idle := run.take_idle_permits(keep=keep):
            await self._release(run.job.id, idle)

    async def release_after(
        self, settled: Iterable[InFlight], resting: Iterable[ActiveRun]
    ) -> None:
        """Release the permits of settled tasks, and those of runs that cannot use theirs."""
        permits = _by_job(settled)
        for run in resting:
            permits[run.job.id] += run.take_idle_permits()
        for job_id, released in permits.items():
            await self._release(job_id, released)

    async def renew(self, runs: Iterable[ActiveRun], inflight: Iterable[InFlight]) -> None:
        permits, now = _by_job(inflight), self.clock.monotonic()
        for run in runs:
            # A renewal takes lapsed permits again, over the cap if necessary. That is right for a
            # call that runs, and wrong for a permit that no call uses.
            if self._may_have_lapsed():
                run.take_idle_permits()
            elif run.idle_permits:
                permits[run.job.id] += run.idle_permits
        if permits:
            await self.coordination.renew(permits)
        self.renewed_at = now

    def _may_have_lapsed(self) -> bool:
        """Whether idle permits may have lapsed: no renewal succeeded for a whole lease."""
        return self.clock.monotonic() - self.renewed_at >= self.lease.total_seconds()

    async def _release(self, job_id: JobId, permits: Sequence[str]) -> None:
        try:
            await self.coordination.release(job_id, permits)
        except Unavailable:
            return  # without a renewal they lapse


def _by_job(entries: Iterable[InFlight]) -> dict[JobId, list[str]]:
    permits: dict[JobId, list[str]] = defaultdict(list)
    for entry in entries:
        if entry.permit:
            permits[entry.run.job.id].append(entry.permit)
    return permits
