"""Jobs, runs and what is owed to them: few rows, all conditional."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from conveyor.domain.api_key import ApiKey
from conveyor.domain.batch import Batch
from conveyor.domain.deletion import Deletion
from conveyor.domain.export import Export
from conveyor.domain.file_input import FileInput
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.outbox import OutboxEvent
from conveyor.domain.run import Run
from conveyor.domain.signing import SigningKeys

# What has a version.
Row = Job | Run | Batch | Deletion | FileInput | Export | OutboxEvent | SigningKeys | ApiKey


class Removed(msgspec.Struct, frozen=True):
    """What is over: its row goes."""

    row: Row


Change = Row | Removed | IdempotencyRecord


# Bytes that the records of one page take, unless the first alone is larger: a job with large
# parameters and metadata has a record of 100 KB, an older one of 500 KB and more.
JOBS_BYTES = 4 * 1024 * 1024


class Metadata(Protocol):
    """The record of jobs and runs. Each call is one atomic step.

    Raises only `conveyor.errors`: `Unavailable` when the engine cannot answer, `StorageFull`
    when it has no room.
    """

    async def commit(self, *changes: Change) -> None:
        """Write all the changes, or none.

        A row of version 0 is new and must not exist; one of version n
        replaces the stored row of version n, which becomes n + 1; `Removed` takes its row away
        if it is there, whatever its version. `Stale` when any of them does not hold. An `IdempotencyRecord`
        claims its key: `KeyTaken` when an unexpired claim stands, whoever made it; an expired
        one is replaced. `KeyTaken` is told in preference to `Stale`.
        """
        ...

    async def job(self, job_id: JobId) -> Job | None: ...

    async def run(self, run_id: RunId) -> Run | None: ...

    async def jobs(
        self,
        caller: CallerId,
        *,
        limit: int,
        before: str | None = None,
        status: JobStatus | None = None,
        kind: JobType | None = None,
    ) -> Sequence[tuple[Job, Run | None]]:
        """A caller's jobs with their latest runs, newest first, with ids below `before`.

        Deleted jobs are left out unless `status` asks for them. Of many that are large no more
        than `JOBS_BYTES`, but at least one: only when there are none is it the end.
        """
        ...

    async def runs(
        self, job_id: JobId, *, limit: int, before: str | None = None, deleted: bool = False
    ) -> Sequence[Run]:
        """A job's runs, newest first, with ids below `before`; deleted ones when asked for too."""
        ...

    async def live(self, *, limit: int, after: str = "") -> Sequence[tuple[Run, Job]]:
        """Live runs with their jobs in order of run id, from above `after`.

        A run that was live before the call began and still is when it ends is in its place in
        the listing: nobody who pages through it misses one for good. No more than `JOBS_BYTES`,
        as `jobs`.
        """
        ...

    async def batches(self, *, limit: int, after: tuple[str, int] = ("", -1)) -> Sequence[Batch]:
        """Unfinished batches in order of (run id, first index), from above `after`."""
        ...

    async def deletions(self, *, limit: int, after: str = "") -> Sequence[Deletion]:
        """What was deleted, cleared away or not, in order of id, from above `after`."""
        ...
