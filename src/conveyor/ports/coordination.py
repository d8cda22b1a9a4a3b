"""Short-lived state that processes share: permits, rate-limit tokens and cached values."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from conveyor.domain.concurrency import Allowance
from conveyor.domain.ids import JobId


class Coordination(Protocol):
    """Permits are leases, and the live leases are the count: those of a crashed worker expire.

    Raises `Unavailable`: then no new task starts, and running tasks continue.
    """

    async def reserve(self, job_id: JobId, *, want: int, cap: int) -> Sequence[str]:
        """Take up to `want` permits while at most `cap` are held; return their ids."""
        ...

    async def renew(self, permits: Mapping[JobId, Sequence[str]]) -> None:
        """Extend the leases of permits. Permits that lapsed are taken again, even over the cap:
        their tasks are running.
        """
        ...

    async def release(self, job_id: JobId, permits: Sequence[str]) -> None: ...

    async def held(self, job_id: JobId) -> int:
        """Count the live permits of a job."""
        ...

    async def take(self, bucket: str, *, rate: float, burst: int) -> Allowance:
        """Take a token from a bucket that holds `burst` tokens and gains `rate` a second.

        A new bucket is full. Concurrent calls are granted no more tokens than the bucket has.
        """
        ...

    async def recall(self, name: str) -> bytes | None:
        """Read a cached value; it may be dropped at any time."""
        ...

    async def remember(self, name: str, value: bytes, *, life: timedelta) -> None:
        """Cache a value for `life`, in place of an earlier one."""
        ...
