"""Permits in memory: all there is to coordinate when one process does all the work."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import count

from conveyor.domain.ids import JobId
from conveyor.ports.clock import Clock

LEASE = timedelta(seconds=30)


class MemoryCoordination:
    def __init__(self, clock: Clock, *, lease: timedelta = LEASE) -> None:
        self._clock = clock
        self._lease = lease.total_seconds()
        self._numbers = count(1)
        # Leases are all of one length and a renewed permit goes to the end, so each job's
        # permits stand in the order they lapse: those to drop are always the first ones.
        self._jobs: dict[JobId, dict[str, float]] = {}

    async def reserve(self, job_id: JobId, *, want: int, cap: int) -> Sequence[str]:
        room = min(want, cap - self._live(job_id))
        permits = [str(next(self._numbers)) for _ in range(room)]
        self._hold(job_id, permits)
        return permits

    async def renew(self, permits: Mapping[JobId, Sequence[str]]) -> None:
        for job_id, of_job in permits.items():
            self._drop(job_id, of_job)
            self._hold(job_id, of_job)

    async def release(self, job_id: JobId, permits: Sequence[str]) -> None:
        self._drop(job_id, permits)

    async def held(self, job_id: JobId) -> int:
        return self._live(job_id)

    def _live(self, job_id: JobId) -> int:
        held = self._jobs.get(job_id, {})
        now = self._clock.monotonic()
        while held and held[first := next(iter(held))] <= now:
            self._drop(job_id, [first])
        return len(held)

    def _hold(self, job_id: JobId, permits: Sequence[str]) -> None:
        if permits:
            until = self._clock.monotonic() + self._lease
            self._jobs.setdefault(job_id, {}).update(dict.fromkeys(permits, until))

    def _drop(self, job_id: JobId, permits: Sequence[str]) -> None:
        held = self._jobs.get(job_id, {})
        for permit in permits:
            held.pop(permit, None)
        if not held:
            self._jobs.pop(job_id, None)
