"""Short-lived state that processes share: permits, rate-limit tokens and cached values."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from conveyor.domain.concurrency import Allowance
from conveyor.domain.ids import JobId


class Coordination(Protocol):
    """Losing all of this state is safe: permits are reserved again and buckets are full again.

    A permit is a lease, and the number of live leases is the count. So nothing has to be counted
    down for a worker that crashed: its permits expire. The engine is opened with the length of a
    lease.

    Every method is atomic and raises `Unavailable`. Without permits no new task starts, and running
    tasks continue.
    """

    async def reserve(self, job_id: JobId, *, want: int, cap: int) -> Sequence[str]:
        """Reserve up to `want` permits of a job and return their ids, which are unique.

        The call adds no permits beyond `cap` live ones, also when several processes reserve at the
        same time. `cap` may be lower than in an earlier call: then no permit is granted until
        enough of them were released.
        """
        ...

    async def renew(self, permits: Mapping[JobId, Sequence[str]]) -> None:
        """Extend the leases of permits, for a whole lease from now on.

        A permit that has expired is reserved again, even beyond the cap, because its task is still
        running.
        """
        ...

    async def release(self, job_id: JobId, permits: Sequence[str]) -> None:
        """Give permits back. Permits that are not held are ignored, so the call may be repeated."""
        ...

    async def held(self, job_id: JobId) -> int:
        """Count the live permits of a job, over all processes."""
        ...

    async def take(self, bucket: str, *, rate: float, burst: int) -> Allowance:
        """Take a token from a bucket that holds `burst` tokens and gains `rate` tokens a second.

        A new bucket is full. A refused call costs nothing. Concurrent calls are never granted more
        tokens than the bucket holds. An engine may forget the buckets that were used longest ago.
        """
        ...

    async def recall(self, name: str) -> bytes | None:
        """Read a cached value. None when there is none, or the engine dropped it."""
        ...

    async def remember(self, name: str, value: bytes, *, life: timedelta) -> None:
        """Cache a value for at most `life`, in place of an earlier one."""
        ...
