"""Permits: reserve them before a claim, keep them between calls, release what is not used.

A permit allows one call of a job, over all processes. Permits belong to a run and not to a claim: of
two claims under way the first to be answered starts its calls with them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from conveyor.domain.ids import JobId
from conveyor.errors import Unavailable
from conveyor.ports.coordination import Coordination
from conveyor.steps.dispatch.active_run import ActiveRun, ClaimGrant, InFlight


@dataclass(slots=True, kw_only=True)
class Permits:
    coordination: Coordination

    async def reserve(self, grants: Mapping[ActiveRun, ClaimGrant]) -> dict[ActiveRun, int]:
        """Reserve permits for the calls of a claim; the result says how many each run has."""
        permits: dict[ActiveRun, int] = {}
        try:
            for run, grant in grants.items():
                permits[run] = await self._reserve_for(run, grant.calls)
        except Unavailable:
            if not any(permits.values()):
                raise
        return permits

    async def _reserve_for(self, run: ActiveRun, want: int) -> int:
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

    async def give_back(self, grants: Mapping[ActiveRun, ClaimGrant]) -> None:
        """Release what claims of too few tasks left over, but for the permits of other claims."""
        for run, grant in grants.items():
            if unused := run.take_idle_permits(keep=run.pending - grant.calls):
                await self.release(run.job.id, unused)

    async def release_idle(self, run: ActiveRun) -> None:
        if idle := run.take_idle_permits():
            await self.release(run.job.id, idle)

    async def release_after(
        self, settled: Iterable[InFlight], resting: Iterable[ActiveRun]
    ) -> None:
        """Release the permits of settled tasks, and those of runs that cannot use theirs."""
        permits: dict[JobId, list[str]] = defaultdict(list)
        for one in settled:
            if one.permit:
                permits[one.run.job.id].append(one.permit)
        for run in resting:
            permits[run.job.id] += run.take_idle_permits()
        for job_id, released in permits.items():
            await self.release(job_id, released)

    async def renew(self, runs: Iterable[ActiveRun], inflight: Iterable[InFlight]) -> None:
        permits: dict[JobId, list[str]] = defaultdict(list)
        for run in runs:
            permits[run.job.id] += run.idle_permits
        for one in inflight:
            if one.permit:
                permits[one.run.job.id].append(one.permit)
        await self.coordination.renew(permits)

    async def release(self, job_id: JobId, permits: Sequence[str]) -> None:
        try:
            await self.coordination.release(job_id, permits)
        except Unavailable:
            return  # they lapse without a renewal
