"""Which scheduled jobs are to run, and when. They are jobs: `Metadata.commit` writes them."""

from collections.abc import Sequence
from typing import Protocol

from conveyor.domain.job import Job


class Timetable(Protocol):
    """Raises `Unavailable`."""

    async def due(self, *, limit: int) -> Sequence[Job]:
        """Jobs whose `fires_at` has come, the longest due first.

        No more than `JOBS_BYTES`, as `Metadata.jobs`.
        """
        ...
