"""Jobs, runs and every other small record: written together, on condition of their versions."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from conveyor.domain.api_key import ApiKey
from conveyor.domain.batch import Batch
from conveyor.domain.encryption_keys import EncryptionKeys
from conveyor.domain.export import Export
from conveyor.domain.file_input import FileInput
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import Deletion, Job, JobStatus, JobType
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.domain.run import Run
from conveyor.domain.signing import SigningKeys

# Kinds of rows. Every row has a version.
Row = (
    Job
    | Run
    | Batch
    | Deletion
    | FileInput
    | Export
    | OutboxEvent
    | SigningKeys
    | ApiKey
    | EncryptionKeys
)
Record = Row | IdempotencyRecord
# A job, run, deletion, file input, export, API key or record of encryption keys has its id as key,
# signing keys have their caller; the others have two parts: a batch (run id, first index), an event (job id, event id), an
# idempotency record (caller, idempotency key).
Key = str | tuple[str, str] | tuple[str, int]

AnyRow = TypeVar("AnyRow", bound=Row)
AnyRecord = TypeVar("AnyRecord", bound=Record)
DueRow = TypeVar("DueRow", Job, OutboxEvent)
RowOfRun = TypeVar("RowOfRun", Batch, Export)

# Bytes that the records of one page take at most, unless the first record alone is larger. A job with
# large parameters and metadata has a record of 100 KB; 0.1.0 wrote some of 500 KB and more.
LISTING_BYTES = 4 * 1024 * 1024
# Changes of one commit. Small enough for engines with small transactions, such as DynamoDB.
MOST_CHANGES = 25


class Removed(msgspec.Struct, frozen=True):
    """A change that removes a row, if it exists."""

    row: Row
    if_unchanged: bool = False  # `Stale` unless the stored row has this row's version


Change = Row | Removed | IdempotencyRecord


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What one caller has under way."""

    live_runs: Sequence[Run] = ()  # in order of id
    scheduled_jobs: int = 0  # not deleted; paused ones count
    unused_inputs: int = 0  # file inputs that no job reads; expired ones count until removed
    open_exports: int = 0  # pending or running


class ChangedRuns(NamedTuple):
    """Runs that have changed, and the mark with which the next call continues."""

    runs: Sequence[Run]
    mark: str


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
    """Records of jobs, runs and what belongs to them. Each call is one atomic step.

    `get`, `runs`, `events` and `of_run` are consistent: they see every commit that ended before
    the call began. `page`, `jobs`, `live_runs`, `changed_runs`, `due` and `usage` may be answered
    from an index that lags by seconds: a row may be missing for that time, or be listed in an earlier version. A
    step that acts on such a row commits it on condition of its version, or reads it with `get`
    first.

    A page holds at most `limit` rows and `LISTING_BYTES`, but at least one row if there are any.
    So a page may be short; only an empty page is the end.

    Every method raises `Unavailable` when the engine cannot answer; `commit` also raises
    `StorageFull`, and `TooLarge` for a record that the engine cannot store: every engine stores
    one of 390,000 bytes. Errors of drivers must not pass.
    """

    async def commit(self, *changes: Change) -> None:
        """Write all the changes in one transaction, or none of them.

        There are at most `MOST_CHANGES`, and no record is changed twice; `check_changes` raises
        `ValueError` otherwise.

        - A row of version 0 is new and must not exist. It is stored as version 1.
        - A row of version n replaces the stored row of version n, and is stored as version n + 1.
        - `Removed` removes its row, if it exists; with `if_unchanged` the stored row must have the
          version of the given one.
        - An `IdempotencyRecord` claims its key. A record that has expired is replaced.

        Raises `Stale` when a version does not match, and `KeyTaken` when another unexpired record
        has the key; `KeyTaken` if both apply. After `Unavailable` the commit may have happened: a
        step that repeats it must be prepared for `Stale`.

        Example: `commit(job, run, record)` accepts a job with its first run and its stored
        response, or nothing.
        """
        ...

    async def get(self, kind: type[AnyRecord], key: Key) -> AnyRecord | None:
        """Read one record by its key; None when it does not exist or, of idempotency, has expired."""
        ...

    async def page(
        self, kind: type[AnyRow], *, limit: int, after: Key | None = None
    ) -> Sequence[AnyRow]:
        """List the rows of a kind, of all callers, in order of key, beginning above `after`."""
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
        """List a caller's jobs, each with its latest run, newest first, with ids below `before`.

        `status` and `kind` filter the list. Deleted jobs are listed only with `status` deleted.
        """
        ...

    async def runs(
        self, job_id: JobId, *, limit: int, before: str | None = None, deleted: bool = False
    ) -> Sequence[Run]:
        """List a job's runs, newest first, with ids below `before`.

        Deleted runs are listed only with `deleted`.
        """
        ...

    async def live_runs(self, *, limit: int, after: str = "") -> Sequence[Run]:
        """List the live runs of all callers, by run id, beginning above `after`."""
        ...

    async def changed_runs(self, since: str | None, *, limit: int) -> ChangedRuns:
        """List at most `limit` runs that were committed since a mark, as they are now.

        Runs of all callers are listed, live or not, those that changed longest ago first. No runs
        means that there are no more for now; a short page does not. A run may be listed again although it has not changed;
        a change may be listed late, but every later call with the returned marks lists it once.
        Without a mark the call returns no runs, and the mark of the present.
        """
        ...

    async def events(
        self, job_id: JobId, *, limit: int, before: str | None = None
    ) -> Sequence[OutboxEvent]:
        """List a job's events, newest first, with ids below `before`."""
        ...

    async def of_run(
        self, kind: type[RowOfRun], run_id: RunId, *, limit: int, after: Key | None = None
    ) -> Sequence[RowOfRun]:
        """List a run's unfinished batches, or its exports, by key, beginning above `after`."""
        ...

    async def due(
        self, kind: type[DueRow], *, limit: int, channel: Channel | None = None
    ) -> Sequence[DueRow]:
        """List due outbox events of a channel, or due scheduled jobs, longest due first.

        `channel` is required for events. A row is due when its `due_at`, or the job's `fires_at`,
        is not after now by the engine's clock.
        """
        ...

    async def usage(self, caller: CallerId) -> Usage:
        """Return what a caller has under way, for its quotas."""
        ...

    async def clear_expired(self, *, limit: int) -> int:
        """Remove up to `limit` expired idempotency records, and return how many were removed."""
        ...
