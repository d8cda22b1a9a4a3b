"""Permits: how many tasks of a job are in flight, over all workers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from conveyor.domain.ids import JobId


class Coordination(Protocol):
    """The live leases are the count: a crashed worker's permits age out by themselves.

    Raises `Unavailable`: then no new work is taken, and running work goes on.
    """

    async def reserve(self, job_id: JobId, *, want: int, cap: int) -> Sequence[str]:
        """Take up to `want` permits while at most `cap` are held, and give their ids."""
        ...

    async def renew(self, permits: Mapping[JobId, Sequence[str]]) -> None:
        """Lengthen the leases of permits; those that lapsed are taken anew, over the cap if
        need be: the work they stand for is running.
        """
        ...

    async def release(self, job_id: JobId, permits: Sequence[str]) -> None: ...

    async def held(self, job_id: JobId) -> int:
        """How many permits of a job are live."""
        ...
