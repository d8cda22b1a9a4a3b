"""Metadata in PostgreSQL: one table for each kind of row, with the whole row as JSON.

A commit of one change is one statement. Others are a transaction with one statement for each kind of
row and way of writing it, in the order of `TABLES` and of keys. So two commits lock rows in one order,
unless they update and delete rows of one kind: a deadlock of such is tried again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Generic, cast

import msgspec

from conveyor.adapters.postgres.database import Connection, PostgresDatabase, same_key
from conveyor.domain.api_key import ApiKey
from conveyor.domain.batch import Batch
from conveyor.domain.encryption_keys import EncryptionKeys
from conveyor.domain.export import Export, ExportStatus
from conveyor.domain.file_input import FileInput
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import Deletion, Job, JobStatus, JobType
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.domain.run import Run, RunStatus
from conveyor.domain.signing import SigningKeys
from conveyor.errors import KeyTaken, Stale
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import (
    LISTING_BYTES,
    AnyRecord,
    AnyRow,
    Change,
    ChangedRuns,
    DueRow,
    Key,
    Removed,
    Row,
    RowOfRun,
    Usage,
    check_changes,
    key_of,
)

NOW = "coalesce($1::timestamptz, statement_timestamp())"  # $1 is null unless a test sets the time
OPEN = {ExportStatus.PENDING, ExportStatus.RUNNING}
PAST_EVERY_ID = "~"  # sorts after every ULID
Value = str | int | bool | datetime | None
Values = tuple[Value, ...]


@dataclass(frozen=True)
class StoredKind(Generic[AnyRow]):
    """How rows of a kind are stored: a table with the key, the version, the whole row as JSON, and
    the columns that queries need in addition, each with its type.
    """

    table: str
    type: type[AnyRow]
    key: Mapping[str, str] = field(default_factory=lambda: {"id": "text"})
    columns: Mapping[str, tuple[str, Callable[[AnyRow], Value]]] = field(default_factory=dict)
    touched: str = ""  # what else an update sets

    @cached_property
    def decode(self) -> Callable[[str], AnyRow]:
        return msgspec.json.Decoder(self.type).decode

    @cached_property
    def select(self) -> str:
        return f"SELECT doc FROM {self.table} WHERE {self._is_key('$')}"

    def page(self, *, first: bool) -> str:
        names = ", ".join(self.key)
        marks = ", ".join(f"${number}" for number, _ in enumerate(self.key, 2))
        above = "" if first else f"WHERE ({names}) > ({marks})"
        return fitting("doc", f"FROM {self.table} {above} ORDER BY {names} LIMIT $1")

    @cached_property
    def insert(self) -> str:
        """It returns the keys of the rows that are new."""
        return (
            f"INSERT INTO {self.table} ({', '.join(self._types)}) SELECT * FROM {self._given} "
            f"ON CONFLICT DO NOTHING RETURNING {', '.join(self.key)}"
        )

    @cached_property
    def update(self) -> str:
        """It takes the same values as `insert`, and returns the keys of the rows that it replaced."""
        changes = [f"{name} = given.{name}" for name in self._types if name not in self.key]
        return (
            f"UPDATE {self.table} AS old SET {', '.join(changes)}{self.touched} "
            f"FROM {self._given} AS given ({', '.join(self._types)}) "
            f"WHERE {self._is_given} AND old.version = given.version - 1 RETURNING {self._old_key}"
        )

    @cached_property
    def delete(self) -> str:
        """It takes keys and versions, of which a null fits any."""
        types = {**self.key, "version": "integer"}
        return (
            f"DELETE FROM {self.table} AS old USING {_unnested(types)} AS given ({', '.join(types)}) "
            f"WHERE {self._is_given} AND old.version = coalesce(given.version, old.version) "
            f"RETURNING {self._old_key}"
        )

    def values(self, row: AnyRow) -> Values:
        stored = msgspec.structs.replace(row, version=row.version + 1)
        columns = (value(row) for _, value in self.columns.values())
        return (*parts(key_of(row)), *columns, stored.version, _encoded(stored))

    @cached_property
    def _types(self) -> Mapping[str, str]:
        columns = {name: kind for name, (kind, _) in self.columns.items()}
        return {**self.key, **columns, "version": "integer", "doc": "text"}

    @cached_property
    def _given(self) -> str:
        return _unnested(self._types)

    @cached_property
    def _old_key(self) -> str:
        return ", ".join(f"old.{name}" for name in self.key)

    @cached_property
    def _is_given(self) -> str:
        return same_key("old", "given", self.key)

    def _is_key(self, mark: str) -> str:
        return " AND ".join(f"{name} = {mark}{number}" for number, name in enumerate(self.key, 1))


def fitting(columns: str, rows: str, *, size: str = "octet_length(doc)") -> str:
    """Select rows, and of them as many as fit into `LISTING_BYTES`, but at least one.

    The length of a large text is stored beside it, so the texts that do not fit are not read.
    """
    return f"""
    SELECT {columns} FROM (
        SELECT *, sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS so_far
          FROM (SELECT *, {size} AS size {rows}) AS near) AS sized
     WHERE so_far <= {LISTING_BYTES} OR so_far = size
    """


def _unnested(types: Mapping[str, str]) -> str:
    arrays = (f"${number}::{kind}[]" for number, kind in enumerate(types.values(), 1))
    return f"unnest({', '.join(arrays)})"


# The order in which a commit locks rows.
TABLES: Mapping[type, StoredKind[Any]] = {
    kind.type: kind
    for kind in cast(
        "tuple[StoredKind[Any], ...]",
        (
            StoredKind(
                "job",
                Job,
                columns={
                    "caller": ("text", lambda job: job.caller),
                    "type": ("text", lambda job: job.type),
                    "status": ("text", lambda job: job.status),
                    "run_id": ("text", lambda job: job.latest_run_id),
                    "fires_at": ("timestamptz", lambda job: job.fires_at),
                },
            ),
            StoredKind(
                "run",
                Run,
                columns={
                    "job_id": ("text", lambda run: run.job_id),
                    "caller": ("text", lambda run: run.caller),
                    "live": ("boolean", lambda run: run.is_live),
                    "deleted": ("boolean", lambda run: run.status is RunStatus.DELETED),
                },
                touched=", changed_by = pg_current_xact_id(), change_no = nextval('run_change')",
            ),
            StoredKind("batch", Batch, key={"run_id": "text", "first": "bigint"}),
            StoredKind("deletion", Deletion),
            StoredKind(
                "file_input",
                FileInput,
                columns={
                    "caller": ("text", lambda file_input: file_input.caller),
                    "unused": ("boolean", lambda file_input: not file_input.jobs),
                },
            ),
            StoredKind(
                "export",
                Export,
                columns={
                    "caller": ("text", lambda export: export.caller),
                    "run_id": ("text", lambda export: export.run_id),
                    "open": ("boolean", lambda export: export.status in OPEN),
                },
            ),
            StoredKind(
                "outbox_event",
                OutboxEvent,
                key={"job_id": "text", "id": "text"},
                columns={
                    "channel": ("text", lambda event: event.channel),
                    "due_at": ("timestamptz", lambda event: event.due_at),
                },
            ),
            StoredKind("signing_keys", SigningKeys),
            StoredKind("api_key", ApiKey),
            StoredKind("encryption_keys", EncryptionKeys),
        ),
    )
}
ORDER = {kind: number for number, kind in enumerate(TABLES)}
JOB: StoredKind[Job] = TABLES[Job]
RUN: StoredKind[Run] = TABLES[Run]
EVENT: StoredKind[OutboxEvent] = TABLES[OutboxEvent]

JOBS = fitting(
    "job_doc, run_doc",
    """
  FROM (SELECT job.doc AS job_doc, run.doc AS run_doc
          FROM job LEFT JOIN LATERAL (
            SELECT doc FROM run WHERE run.id = job.run_id OFFSET 0) AS run ON true
         WHERE job.caller = $1 AND job.id < $2
           AND CASE WHEN $3::text IS NULL THEN job.status <> 'deleted' ELSE job.status = $3 END
           AND ($4::text IS NULL OR job.type = $4)
         ORDER BY job.id DESC LIMIT $5) AS listed
    """,
    size="octet_length(job_doc) + coalesce(octet_length(run_doc), 0)",
)
RUNS = fitting(
    "doc",
    """
  FROM run WHERE job_id = $1 AND id < $2 AND ($3 OR NOT deleted)
 ORDER BY id DESC LIMIT $4
    """,
)
LIVE_RUNS = fitting("doc", "FROM run WHERE live AND id > $1 ORDER BY id LIMIT $2")
# Numbers are given before their transactions commit, so a lower one may appear after a higher one. All
# transactions below the `xmin` of a snapshot have ended: nothing can appear there any more.
LATEST_CHANGE = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text || ':0'"
CHANGED_RUNS = fitting(
    "mark, doc",
    """
  , changed_by::text || ':' || change_no AS mark FROM run
 WHERE (changed_by, change_no) > ($1::text::xid8, $2::bigint)
   AND changed_by < pg_snapshot_xmin(pg_current_snapshot())
 ORDER BY changed_by, change_no LIMIT $3
    """,
)
EVENTS = fitting(
    "doc",
    """
  FROM outbox_event WHERE job_id = $1 AND id < $2
 ORDER BY id DESC LIMIT $3
    """,
)
# Each query with the position before the first row.
OF_RUN: Mapping[type[Batch | Export], tuple[str, str | int]] = {
    Batch: (
        fitting("doc", "FROM batch WHERE run_id = $1 AND first > $2 ORDER BY first LIMIT $3"),
        -1,
    ),
    Export: (fitting("doc", "FROM export WHERE run_id = $1 AND id > $2 ORDER BY id LIMIT $3"), ""),
}
DUE_JOBS = fitting("doc", f"FROM job WHERE fires_at <= {NOW} ORDER BY fires_at, id LIMIT $2")
DUE_EVENTS = fitting(
    "doc",
    f"FROM outbox_event WHERE channel = $3 AND due_at <= {NOW} ORDER BY due_at, id LIMIT $2",
)
# It reads all live runs, which are few: an index by caller would cost two writes for every run.
LIVE_RUNS_OF_CALLER = "SELECT doc FROM run WHERE live AND caller = $1 ORDER BY id"
COUNTS_OF_CALLER = """
SELECT (SELECT count(*) FROM job
         WHERE caller = $1 AND type = 'scheduled' AND status <> 'deleted') AS scheduled_jobs,
       (SELECT count(*) FROM file_input WHERE caller = $1 AND unused) AS unused_inputs,
       (SELECT count(*) FROM export WHERE caller = $1 AND open) AS open_exports
"""
CLAIM_KEY = f"""
INSERT INTO idempotency_record AS old (caller, key, fingerprint, status, body, expires_at)
VALUES ($2, $3, $4, $5, $6, $7)
ON CONFLICT (caller, key) DO UPDATE
   SET (fingerprint, status, body, expires_at) =
       (excluded.fingerprint, excluded.status, excluded.body, excluded.expires_at)
 WHERE old.expires_at <= {NOW}
RETURNING 1
"""
IDEMPOTENCY_RECORD = f"""
SELECT fingerprint, status, body, expires_at FROM idempotency_record
 WHERE caller = $2 AND key = $3 AND expires_at > {NOW}
"""
CLEAR_EXPIRED = f"""
WITH expired AS MATERIALIZED (
    SELECT caller, key FROM idempotency_record WHERE expires_at <= {NOW} LIMIT $2
       FOR UPDATE SKIP LOCKED)
DELETE FROM idempotency_record AS old USING expired
 WHERE {same_key("old", "expired", ("caller", "key"))} RETURNING 1
"""


class PostgresMetadata:
    def __init__(self, database: PostgresDatabase, clock: Clock | None = None) -> None:
        """With a clock, rows are due by it; by default by that of the server."""
        self._database = database
        self._clock = clock

    async def commit(self, *changes: Change) -> None:
        check_changes(changes)
        keys = sorted(
            (one for one in changes if isinstance(one, IdempotencyRecord)),
            key=lambda record: (record.caller, record.key),
        )
        rows = [one for one in changes if not isinstance(one, IdempotencyRecord)]
        writes = _writes(rows)
        now = self._now()

        async def operation(connection: Connection) -> None:
            # Keys first: if a key is taken, `KeyTaken` must be raised even if the request that took
            # it has also made a row stale.
            for record in keys:
                await _claim_key(connection, record, now)
            for write in writes:
                await write.run(connection)

        if len(changes) == 1:  # the usual commit: one statement, which needs no further round trips
            await self._database.run(operation)
        elif changes:
            await self._database.transact(operation)

    async def get(self, kind: type[AnyRecord], key: Key) -> AnyRecord | None:
        if kind is IdempotencyRecord:
            return cast("AnyRecord | None", await self._idempotency_record(key))
        stored = TABLES[kind]
        found = await self._database.first(stored.select, *parts(key))
        return stored.decode(found["doc"]) if found else None

    async def page(
        self, kind: type[AnyRow], *, limit: int, after: Key | None = None
    ) -> Sequence[AnyRow]:
        stored: StoredKind[AnyRow] = TABLES[kind]
        start = () if after is None else parts(after)
        return await self._listed(stored, stored.page(first=after is None), limit, *start)

    async def jobs(
        self,
        caller: CallerId,
        *,
        limit: int,
        before: str | None = None,
        status: JobStatus | None = None,
        kind: JobType | None = None,
    ) -> Sequence[tuple[Job, Run | None]]:
        wanted = (caller, before or PAST_EVERY_ID, status, kind, limit)
        found = await self._database.fetch(JOBS, *wanted)
        return [(JOB.decode(job), RUN.decode(run) if run else None) for job, run in found]

    async def runs(
        self, job_id: JobId, *, limit: int, before: str | None = None, deleted: bool = False
    ) -> Sequence[Run]:
        return await self._listed(RUN, RUNS, job_id, before or PAST_EVERY_ID, deleted, limit)

    async def live_runs(self, *, limit: int, after: str = "") -> Sequence[Run]:
        return await self._listed(RUN, LIVE_RUNS, after, limit)

    async def changed_runs(self, since: str | None, *, limit: int) -> ChangedRuns:
        if since is None:
            [latest] = await self._database.first(LATEST_CHANGE)
            return ChangedRuns([], latest)
        transaction, _, number = since.partition(":")
        found = await self._database.fetch(CHANGED_RUNS, transaction, int(number), limit)
        mark = found[-1]["mark"] if found else since
        return ChangedRuns([RUN.decode(doc) for _, doc in found], mark)

    async def events(
        self, job_id: JobId, *, limit: int, before: str | None = None
    ) -> Sequence[OutboxEvent]:
        return await self._listed(EVENT, EVENTS, job_id, before or PAST_EVERY_ID, limit)

    async def of_run(
        self, kind: type[RowOfRun], run_id: RunId, *, limit: int, after: Key | None = None
    ) -> Sequence[RowOfRun]:
        stored: StoredKind[RowOfRun] = TABLES[kind]
        query, first = OF_RUN[kind]
        start = first if after is None else parts(after)[-1]
        return await self._listed(stored, query, run_id, start, limit)

    async def due(
        self, kind: type[DueRow], *, limit: int, channel: Channel | None = None
    ) -> Sequence[DueRow]:
        stored: StoredKind[DueRow] = TABLES[kind]
        if kind is Job:
            return await self._listed(stored, DUE_JOBS, self._now(), limit)
        return await self._listed(stored, DUE_EVENTS, self._now(), limit, channel)

    async def usage(self, caller: CallerId) -> Usage:
        counts = await self._database.first(COUNTS_OF_CALLER, caller)
        live = await self._listed(RUN, LIVE_RUNS_OF_CALLER, caller)
        return Usage(live_runs=live, **counts)

    async def clear_expired(self, *, limit: int) -> int:
        return len(await self._database.fetch(CLEAR_EXPIRED, self._now(), limit))

    async def _listed(
        self, kind: StoredKind[AnyRow], query: str, *values: Value
    ) -> Sequence[AnyRow]:
        return [kind.decode(doc) for (doc,) in await self._database.fetch(query, *values)]

    async def _idempotency_record(self, key: Key) -> IdempotencyRecord | None:
        caller, name = cast("tuple[CallerId, str]", key)
        row = await self._database.first(IDEMPOTENCY_RECORD, self._now(), caller, name)
        return IdempotencyRecord(caller=caller, key=name, **row) if row else None

    def _now(self) -> datetime | None:
        return self._clock.now() if self._clock else None


@dataclass(frozen=True)
class _Write:
    """Rows of one kind that are written in one way, by one statement."""

    table: str
    statement: str
    rows: Sequence[Values]
    keys: Sequence[Values]  # that the statement must return, else a row has changed

    async def run(self, connection: Connection) -> None:
        arrays = [list(column) for column in zip(*self.rows, strict=True)]
        written = {tuple(row) for row in await connection.fetch(self.statement, *arrays)}
        for key in self.keys:
            if key not in written:
                raise Stale(f"{self.table} {key} has changed")


def _writes(changes: Sequence[Row | Removed]) -> list[_Write]:
    groups: dict[tuple[type, str], list[Row | Removed]] = {}
    for change in sorted(changes, key=_place):
        row = change.row if isinstance(change, Removed) else change
        if type(row) not in TABLES:
            raise TypeError(f"not a change: {change!r}")
        kind = TABLES[type(row)]
        if isinstance(change, Removed):
            statement = kind.delete
        else:
            statement = kind.update if row.version else kind.insert
        groups.setdefault((type(row), statement), []).append(change)
    return [
        _Write(
            TABLES[kind].table,
            statement,
            [_given(TABLES[kind], change) for change in group],
            [parts(key_of(row)) for row in map(_fenced, group) if row],
        )
        for (kind, statement), group in groups.items()
    ]


def _place(change: Row | Removed) -> tuple[int, Values]:
    row = change.row if isinstance(change, Removed) else change
    return ORDER.get(type(row), -1), parts(key_of(row))


def _given(kind: StoredKind[Any], change: Row | Removed) -> Values:
    if not isinstance(change, Removed):
        return kind.values(change)
    return (*parts(key_of(change.row)), change.row.version if change.if_unchanged else None)


def _fenced(change: Row | Removed) -> Row | None:
    """The row that must have been written; None for one that is removed whatever its version."""
    if not isinstance(change, Removed):
        return change
    return change.row if change.if_unchanged else None


def parts(key: Key) -> Values:
    return key if isinstance(key, tuple) else (key,)


async def _claim_key(
    connection: Connection, record: IdempotencyRecord, now: datetime | None
) -> None:
    values = (record.caller, record.key, record.fingerprint, record.status, record.body)
    if await connection.fetchval(CLAIM_KEY, now, *values, record.expires_at) is None:
        raise KeyTaken(f"idempotency key {record.key!r} is taken")


def _encoded(row: Row) -> str:
    return msgspec.json.encode(row).decode()
