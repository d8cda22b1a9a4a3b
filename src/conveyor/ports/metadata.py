"""Jobs, runs and every other small record: written together, on condition of their versions."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from conveyor.domain.api_key import ApiKey
from conveyor.domain.batch import Batch
from conveyor.domain.export import Export
from conveyor.domain.file_input import FileInput
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import Deletion, Job, JobStatus, JobType
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.domain.run import Run
from conveyor.domain.signing import SigningKeys

# Kinds of rows. Every row has a version.
Row = Job | Run | Batch | Deletion | FileInput | Export | OutboxEvent | SigningKeys | ApiKey
Record = Row | IdempotencyRecord
# A job, run, deletion, file input, export or API key has its id as key, signing keys have their
# caller; the others have two parts: a batch (run id, first index), an event (job id, event id), an
# idempotency record (caller, idempotency key).
Key = str | tuple[str, str] | tuple[str, int]

AnyRow = TypeVar("AnyRow", bound=Row)
AnyRecord = TypeVar("AnyRecord", bound=Record)
DueRow = TypeVar("DueRow", Job, OutboxEvent)
RowOfRun = TypeVar("RowOfRun", Batch, Export)

# Bytes that the records of one page take, unless the first alone is larger: a job with large
# parameters and metadata has a record of 100 KB, one of an older version 500 KB and more.
LISTING_BYTES = 4 * 1024 * 1024
# Changes of one commit: engines whose transactions are small must keep it too.
MOST_CHANGES = 25


class Removed(msgspec.Struct, frozen=True):
    """Remove the row, if it is there."""

    row: Row
    if_unchanged: bool = False  # `Stale` unless the stored row has this row's version


Change = Row | Removed | IdempotencyRecord


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What one caller has under way."""

    live_runs: Sequence[Run] = ()  # in order of id
    scheduled_jobs: int = 0  # not deleted; paused ones count
    unused_inputs: int = 0  # file inputs that no job reads; expired ones count until removed
    open_exports: int = 0  # pending or running


def key_of(record: Record) -> Key:
    """The key under which `Metadata.get` finds a record."""
    match record:
        case Batch():
            return record.run_id, record.first
        case OutboxEvent():
            return record.job_id, record.id
        case IdempotencyRecord():
            return record.caller, record.key
        case _:
            return record.id


def check_changes(changes: Sequence[Change]) -> None:
    """Refuse a commit that not every engine could make; it is a bug of the step."""
    if len(changes) > MOST_CHANGES:
        raise ValueError(f"a commit must have at most {MOST_CHANGES} changes, got {len(changes)}")
    if len(changes) < 2:  # the usual commit
        return
    records = [change.row if isinstance(change, Removed) else change for change in changes]
    if len({(type(record), key_of(record)) for record in records}) < len(records):
        raise ValueError("a commit must change each record once")


class Metadata(Protocol):
    """The record of jobs, runs and what belongs to them. Each call is one atomic step.

    `get`, `runs`, `events` and `of_run` are consistent: they see every commit that ended before
    the call began. `page`, `jobs`, `live_runs`, `due` and `usage` may be answered from an index
    that lags by seconds. A row may then be missing, or be listed as it was; no row is missing for
    good. A step that acts on such a row commits it on condition of its version, or gets it first.

    A page holds at most `limit` rows and `LISTING_BYTES`, but at least one row while there are
    any: only an empty page is the end.

    Raises only `conveyor.errors`: `Unavailable` when the engine cannot answer, `StorageFull` when
    it has no room.
    """

    async def commit(self, *changes: Change) -> None:
        """Write all the changes, or none: at most `MOST_CHANGES`, and no record twice.

        A row of version 0 is new and must not exist. A row of version n replaces the stored row
        of version n, and is stored as version n + 1. `Removed` removes its row, if it is there.
        `Stale` when one of these conditions does not hold.

        An `IdempotencyRecord` claims its key: `KeyTaken` when an unexpired claim stands; an
        expired one is replaced. When both hold, `KeyTaken` is raised, not `Stale`.
        """
        ...

    async def get(self, kind: type[AnyRecord], key: Key) -> AnyRecord | None:
        """Read one record by its key, consistently. An expired idempotency record is None."""
        ...

    async def page(
        self, kind: type[AnyRow], *, limit: int, after: Key | None = None
    ) -> Sequence[AnyRow]:
        """List the rows of a kind, of all callers, in order of key, from above `after`."""
        ...

    async def jobs(
        self,
        caller: CallerId,
        *,
        limit: int,
        before: str | None = None,
        status: JobStatus | None = None,
        kind: JobType | None = None,
    ) -> Sequence[tuple[Job, Run | None]]:
        """List a caller's jobs with their latest runs, newest first, with ids below `before`.

        Deleted jobs are left out unless `status` asks for them.
        """
        ...

    async def runs(
        self, job_id: JobId, *, limit: int, before: str | None = None, deleted: bool = False
    ) -> Sequence[Run]:
        """List a job's runs, newest first, with ids below `before`.

        Deleted runs are left out unless `deleted`.
        """
        ...

    async def live_runs(self, *, limit: int, after: str = "") -> Sequence[tuple[Run, Job]]:
        """List live runs with their jobs in order of run id, from above `after`."""
        ...

    async def events(
        self, job_id: JobId, *, limit: int, before: str | None = None
    ) -> Sequence[OutboxEvent]:
        """List a job's events, newest first, with ids below `before`."""
        ...

    async def of_run(
        self, kind: type[RowOfRun], run_id: RunId, *, limit: int, after: Key | None = None
    ) -> Sequence[RowOfRun]:
        """List a run's unfinished batches, or its exports, in order of key, from above `after`."""
        ...

    async def due(
        self, kind: type[DueRow], *, limit: int, channel: Channel | None = None
    ) -> Sequence[DueRow]:
        """List the events of a channel, or the scheduled jobs, that are due, longest due first."""
        ...

    async def usage(self, caller: CallerId) -> Usage: ...

    async def clear_expired(self, *, limit: int) -> int:
        """Remove up to `limit` expired idempotency records; return how many."""
        ...
