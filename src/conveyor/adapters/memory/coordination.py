"""Permits, tokens and notes in memory, for a service of one process."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import count

from conveyor.domain.concurrency import Allowance, Bucket, is_full, take_one
from conveyor.domain.ids import JobId
from conveyor.ports.clock import Clock

LEASE = timedelta(seconds=30)
MOST_KEPT = 10_000  # buckets, and notes; the oldest are dropped first


class MemoryCoordination:
    def __init__(self, clock: Clock, *, lease: timedelta = LEASE) -> None:
        self._clock = clock
        self._lease = lease.total_seconds()
        self._numbers = count(1)
        # All leases have the same length and a renewed permit goes to the end, so the permits of a
        # job are in the order in which they lapse: lapsed ones come first.
        self._jobs: dict[JobId, dict[str, float]] = {}
        self._buckets: dict[str, Bucket] = {}
        self._notes: dict[str, tuple[float, bytes]] = {}  # each with its expiry

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

    async def take(self, bucket: str, *, rate: float, burst: int) -> Allowance:
        now = self._clock.monotonic()
        # The bucket that was used last goes to the end, so idle ones come first.
        left, allowance = take_one(self._buckets.pop(bucket, None), now, rate=rate, burst=burst)
        self._buckets[bucket] = left
        while len(self._buckets) > 1:
            oldest = next(iter(self._buckets))
            is_idle = is_full(self._buckets[oldest], now, rate=rate, burst=burst)
            if not is_idle and len(self._buckets) <= MOST_KEPT:
                break
            del self._buckets[oldest]
        return allowance

    async def recall(self, name: str) -> bytes | None:
        until, value = self._notes.get(name, (0.0, b""))
        return value if until > self._clock.monotonic() else None

    async def remember(self, name: str, value: bytes, *, life: timedelta) -> None:
        now = self._clock.monotonic()
        self._notes.pop(name, None)
        self._notes[name] = (now + life.total_seconds(), value)
        while self._notes[oldest := next(iter(self._notes))][0] <= now or (
            len(self._notes) > MOST_KEPT
        ):
            del self._notes[oldest]

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
