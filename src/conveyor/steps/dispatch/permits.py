"""Permits: reserve them before a claim, keep them between calls, release what is not used.

A permit allows one call of a job, over all processes. Permits belong to a run and not to a claim: of
two claims under way, the first that the engine answers starts its calls with them.

While coordination is unavailable no call starts, also not with the permit of a call that ends: an
engine that has restarted empty may have granted it to another process. That is known from a failed
call of the engine, at the latest the next renewal, until one succeeds.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.ids import JobId
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Coordination, PermitRequest
from conveyor.steps.dispatch.active_run import ActiveRun, ClaimGrant, InFlight


def permit_name(job_id: JobId) -> str:
    """Return the name under which the permits of a job are counted."""
    return f"job:{job_id}"


@dataclass(slots=True, kw_only=True)
class Permits:
    coordination: Coordination
    clock: Clock
    lease: timedelta
    renewed_at: float = field(init=False)  # every permit was renewed or reserved since
    is_unavailable: bool = False  # the engine did not answer the last call

    def __post_init__(self) -> None:
        self.renewed_at = self.clock.monotonic()

    async def reserve(self, grants: Mapping[ActiveRun, ClaimGrant]) -> dict[ActiveRun, int]:
        """Reserve permits for the calls of a claim; return how many each run has."""
        if self.is_unavailable or self._may_have_lapsed():
            await self.release_idle(grants)
        have = {run: min(run.free_permits(calls), calls) for run, (calls, _) in grants.items()}
        missing = {run: grants[run].calls - count for run, count in have.items()}
        granted = await self._reserve(missing)
        return {run: count + granted[run] for run, count in have.items()}

    async def _reserve(self, missing: Mapping[ActiveRun, int]) -> dict[ActiveRun, int]:
        """Reserve so many permits for each run, in one call; return how many each run got."""
        wants: dict[str, PermitRequest] = {}
        for run, count in missing.items():
            if count:
                name = permit_name(run.job.id)
                asked = wants.get(name, PermitRequest(0, 0)).want  # for another run of the job
                wants[name] = PermitRequest(asked + count, run.job.max_inflight)
        if not wants and self.is_unavailable:
            raise Unavailable("coordination did not answer the last call: nothing is prefetched")
        reserved: Mapping[str, Sequence[str]] = {}
        if wants:
            with self._noticing():
                reserved = await self.coordination.reserve(wants)
        left = {name: list(ids) for name, ids in reserved.items()}
        granted: dict[ActiveRun, int] = {}
        for run, count in missing.items():
            of_job = left.get(permit_name(run.job.id), [])
            ids, of_job[:count] = of_job[:count], []
            run.idle_permits += ids
            granted[run] = len(ids)
        return granted

    async def give_back(self, runs: Iterable[ActiveRun]) -> None:
        """Release permits without a claimed task, except those of other pending claims."""
        permits: dict[str, list[str]] = defaultdict(list)
        for run in runs:
            permits[permit_name(run.job.id)] += run.take_idle_permits(keep=run.pending)
        await self._release(permits)

    async def release_idle(self, runs: Iterable[ActiveRun]) -> None:
        """Release the permits of runs that no call uses."""
        await self.release_after([], runs)

    async def release_after(
        self, settled: Iterable[InFlight], resting: Iterable[ActiveRun]
    ) -> None:
        """Release the permits of settled tasks, and those of runs that cannot use theirs."""
        permits = _by_name(settled)
        for run in resting:
            permits[permit_name(run.job.id)] += run.take_idle_permits()
        await self._release(permits)

    async def renew(self, runs: Iterable[ActiveRun], inflight: Iterable[InFlight]) -> None:
        permits, now = _by_name(inflight), self.clock.monotonic()
        for run in runs:
            # A renewal takes lapsed permits again, over the cap if necessary. That is right for a
            # call that runs, and wrong for a permit that no call uses.
            if self._may_have_lapsed():
                run.take_idle_permits()
            elif run.idle_permits:
                permits[permit_name(run.job.id)] += run.idle_permits
        if permits:
            with self._noticing():
                await self.coordination.renew(permits)
        self.renewed_at = now

    def _may_have_lapsed(self) -> bool:
        """Whether idle permits may have lapsed: no renewal succeeded for a whole lease."""
        return self.clock.monotonic() - self.renewed_at >= self.lease.total_seconds()

    async def _release(self, permits: Mapping[str, list[str]]) -> None:
        held = {name: ids for name, ids in permits.items() if ids}
        with suppress(Unavailable):  # without a renewal they lapse
            if held:
                with self._noticing():
                    await self.coordination.release(held)

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Notice whether the engine answers."""
        try:
            yield
        except Unavailable:
            self.is_unavailable = True
            raise
        self.is_unavailable = False


def _by_name(entries: Iterable[InFlight]) -> dict[str, list[str]]:
    permits: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        if entry.permit:
            permits[permit_name(entry.run.job.id)].append(entry.permit)
    return permits
