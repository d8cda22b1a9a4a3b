"""What processes share for a while: permits, tokens, and answers that are read again and again."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from conveyor.domain.allowance import Allowance
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

    async def take(self, bucket: str, *, rate: float, burst: int) -> Allowance:
        """Take a token from a bucket that holds `burst` and gets `rate` a second, if it has one.

        One that nobody took from is full. Of any number of calls at once, no more are granted than
        there are tokens.
        """
        ...

    async def recall(self, name: str) -> bytes | None:
        """What was remembered under a name, while it lasts. It may be forgotten at any time."""
        ...

    async def remember(self, name: str, value: bytes, *, life: timedelta) -> None:
        """Keep a value for others to recall, in place of an earlier one."""
        ...
