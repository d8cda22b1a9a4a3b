"""What is seen of an engine when nothing is to be touched: for those who look after it."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.job import Job
from conveyor.domain.task import Attempt
from conveyor.ports.work import Held


class Survey(Protocol):
    """Reads over all callers, in pages. Raises `Unavailable`."""

    async def jobs(self, *, limit: int, after: str = "") -> Sequence[Job]:
        """Every job, deleted ones too, in order of id, from above `after`.

        No more than `JOBS_BYTES`, as `Metadata.jobs`.
        """
        ...

    async def lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Held]:
        """What `Work.release_lapsed` would release."""
        ...

    async def histories(
        self, run_id: RunId, *, after: int, up_to: int
    ) -> Mapping[TaskId, Sequence[Attempt]]:
        """The history of each task with an index above `after` and not above `up_to`.

        As `Tasks.history` gives it, but `in_brief`; tasks without a line are left out.
        """
        ...
