"""Metadata in SQLite: one table for each kind of row, with the whole row as JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Generic, cast

import apsw
import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import moment, stamp, within
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

Values = tuple[str | int | bytes | None, ...]
PAST_EVERY_ID = "~"  # sorts after every ULID


@dataclass(frozen=True)
class Kind(Generic[AnyRow]):
    """How rows of a kind are stored: a table with the key, the version, the whole row as JSON, and
    the columns that queries need in addition.
    """

    table: str
    type: type[AnyRow]
    key: tuple[str, ...] = ("id",)
    columns: Mapping[str, Callable[[AnyRow], str | int | None]] = field(default_factory=dict)

    @cached_property
    def decode(self) -> Callable[[str], AnyRow]:
        return msgspec.json.Decoder(self.type).decode

    @cached_property
    def select(self) -> str:
        return f"SELECT doc FROM {self.table} WHERE {self._where}"

    @cached_property
    def page(self) -> str:
        names, marks = ", ".join(self.key), ", ".join("?" for _ in self.key)
        above = f"({names}) > ({marks})"
        return f"SELECT doc FROM {self.table} WHERE {above} ORDER BY {names} LIMIT ?"

    @cached_property
    def insert(self) -> str:
        names = (*self.key, *self.columns, "version", "doc")
        return (
            f"INSERT INTO {self.table} ({', '.join(names)}) VALUES ({', '.join('?' for _ in names)})"
            " ON CONFLICT DO NOTHING RETURNING 1"
        )

    @cached_property
    def update(self) -> str:
        """The statement takes the same values as `insert`."""
        numbers = {name: number for number, name in enumerate((*self.columns, "version", "doc"))}
        first = len(self.key) + 1
        changes = ", ".join(f"{name} = ?{first + number}" for name, number in numbers.items())
        before = f"version = ?{first + numbers['version']} - 1"
        return f"UPDATE {self.table} SET {changes} WHERE {self._where} AND {before} RETURNING 1"

    @cached_property
    def delete(self) -> str:
        return f"DELETE FROM {self.table} WHERE {self._where}"

    @cached_property
    def _where(self) -> str:
        return " AND ".join(f"{name} = ?{number}" for number, name in enumerate(self.key, 1))

    def write(self, connection: apsw.Connection, row: AnyRow) -> None:
        stored = msgspec.structs.replace(row, version=row.version + 1)
        columns = (value(row) for value in self.columns.values())
        values = (*parts(key_of(row)), *columns, stored.version, _encoded(stored))
        if (
            connection.execute(self.update if row.version else self.insert, values).fetchone()
            is None
        ):
            raise Stale(f"{self.table} {key_of(row)} has changed since version {row.version}")

    def remove(self, connection: apsw.Connection, removed: Removed) -> None:
        key, version = key_of(removed.row), removed.row.version
        if not removed.if_unchanged:
            connection.execute(self.delete, parts(key))
            return
        statement = f"{self.delete} AND version = ? RETURNING 1"
        if connection.execute(statement, (*parts(key), version)).fetchone() is None:
            raise Stale(f"{self.table} {key} has changed since version {version}")


TABLES: Mapping[type, Kind[Any]] = {
    kind.type: kind
    for kind in cast(
        "tuple[Kind[Any], ...]",
        (
            Kind(
                "job",
                Job,
                columns={
                    "caller": lambda job: job.caller,
                    "type": lambda job: job.type,
                    "status": lambda job: job.status,
                    "run_id": lambda job: job.latest_run_id or "",
                    "fires_at": lambda job: _stamped(job.fires_at),
                },
            ),
            Kind(
                "run",
                Run,
                columns={"job_id": lambda run: run.job_id, "live": lambda run: int(run.is_live)},
            ),
            Kind("batch", Batch, key=("run_id", "first")),
            Kind("deletion", Deletion),
            Kind("file_input", FileInput),
            Kind("export", Export),
            Kind(
                "outbox_event",
                OutboxEvent,
                key=("job_id", "id"),
                columns={
                    "channel": lambda event: event.channel,
                    "due_at": lambda event: _stamped(event.due_at),
                },
            ),
            Kind("signing_keys", SigningKeys),
            Kind("api_key", ApiKey),
            Kind("encryption_keys", EncryptionKeys),
        ),
    )
}
JOB: Kind[Job] = TABLES[Job]
RUN: Kind[Run] = TABLES[Run]
EVENT: Kind[OutboxEvent] = TABLES[OutboxEvent]

JOBS = """
SELECT job.doc, run.doc FROM job LEFT JOIN run ON run.id = job.run_id
 WHERE job.caller = ?1 AND job.id < ?2
   AND CASE WHEN ?3 IS NULL THEN job.status <> 'deleted' ELSE job.status = ?3 END
   AND (?4 IS NULL OR job.type = ?4)
 ORDER BY job.id DESC LIMIT ?5
"""
RUNS = """
SELECT doc FROM run WHERE job_id = ?1 AND id < ?2 AND (?3 OR doc ->> 'status' <> 'deleted')
 ORDER BY id DESC LIMIT ?4
"""
LIVE_RUNS = "SELECT doc FROM run INDEXED BY run_live WHERE live = 1 AND id > ? ORDER BY id LIMIT ?"
# Replacing the row of a run gives it a new number, above every number that was ever given.
NOTE_CHANGE = "INSERT OR REPLACE INTO run_change (run_id) VALUES (?)"
FORGET_CHANGE = "DELETE FROM run_change WHERE run_id = ?"
LATEST_CHANGE = "SELECT coalesce(max(no), 0) FROM run_change"
CHANGED_RUNS = """
SELECT CAST(no AS TEXT), doc FROM run_change JOIN run ON id = run_id WHERE no > ? ORDER BY no LIMIT ?
"""
EVENTS = "SELECT doc FROM outbox_event WHERE job_id = ? AND id < ? ORDER BY id DESC LIMIT ?"
# Each query with the position before the first row.
OF_RUN: Mapping[type[Batch | Export], tuple[str, str | int]] = {
    Batch: ("SELECT doc FROM batch WHERE run_id = ? AND first > ? ORDER BY first LIMIT ?", -1),
    Export: (
        "SELECT doc FROM export WHERE doc ->> 'run_id' = ? AND id > ? ORDER BY id LIMIT ?",
        "",
    ),
}
DUE_JOBS = """
SELECT doc FROM job INDEXED BY job_by_fire WHERE fires_at <= ? ORDER BY fires_at, id LIMIT ?
"""
DUE_EVENTS = """
SELECT doc FROM outbox_event INDEXED BY outbox_event_due WHERE channel = ? AND due_at <= ?
 ORDER BY due_at, id LIMIT ?
"""
# It reads all live runs, which are few: an index by caller would cost two writes for every run.
LIVE_RUNS_OF_CALLER = """
SELECT doc FROM run INDEXED BY run_live WHERE live = 1 AND doc ->> 'caller' = ? ORDER BY id
"""
SCHEDULED_JOBS = """
SELECT count(*) FROM job INDEXED BY job_scheduled
 WHERE caller = ? AND type = 'scheduled' AND status <> 'deleted'
"""
UNUSED_INPUTS = """
SELECT count(*) FROM file_input INDEXED BY file_input_unused
 WHERE doc ->> 'caller' = ? AND json_array_length(doc, '$.jobs') = 0
"""
OPEN_EXPORTS = """
SELECT count(*) FROM export INDEXED BY export_open
 WHERE doc ->> 'caller' = ? AND doc ->> 'status' IN ('pending', 'running')
"""
CLAIM_KEY = """
INSERT INTO idempotency_record (caller, key, fingerprint, status, body, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (caller, key) DO UPDATE SET
       fingerprint = ?3, status = ?4, body = ?5, expires_at = ?6 WHERE expires_at <= ?7
RETURNING 1
"""
IDEMPOTENCY_RECORD = """
SELECT fingerprint, status, body, expires_at FROM idempotency_record
 WHERE caller = ? AND key = ? AND expires_at > ?
"""
EXPIRED = """
SELECT caller, key FROM idempotency_record INDEXED BY idempotency_record_by_expiry WHERE expires_at <= ? LIMIT ?
"""


class SqliteMetadata:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def commit(self, *changes: Change) -> None:
        check_changes(changes)
        now = stamp(self._clock.now())
        # Idempotency keys first: if a key is taken, `KeyTaken` must be raised even if the request
        # that took it has also made a row stale.
        keys_first = sorted(changes, key=lambda change: not isinstance(change, IdempotencyRecord))

        def operation(connection: apsw.Connection) -> None:
            for change in keys_first:
                write(connection, change, now)

        await self._database.write(operation)

    async def get(self, kind: type[AnyRecord], key: Key) -> AnyRecord | None:
        if kind is IdempotencyRecord:
            return cast("AnyRecord | None", self._idempotency_record(key))
        stored = TABLES[kind]
        found = self._database.peek(
            lambda connection: connection.execute(stored.select, parts(key)).fetchone()
        )
        return stored.decode(found[0]) if found else None

    async def page(
        self, kind: type[AnyRow], *, limit: int, after: Key | None = None
    ) -> Sequence[AnyRow]:
        stored: Kind[AnyRow] = TABLES[kind]
        start = ("",) * len(stored.key) if after is None else parts(after)
        return await self._listed(stored.decode, stored.page, (*start, limit))

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
        return await self._database.read(
            lambda connection: [
                (JOB.decode(job), RUN.decode(run) if run else None)
                for job, run in within(connection.execute(JOBS, wanted), LISTING_BYTES)
            ]
        )

    async def runs(
        self, job_id: JobId, *, limit: int, before: str | None = None, deleted: bool = False
    ) -> Sequence[Run]:
        wanted = (job_id, before or PAST_EVERY_ID, deleted, limit)
        return await self._listed(RUN.decode, RUNS, wanted)

    async def live_runs(self, *, limit: int, after: str = "") -> Sequence[Run]:
        return await self._listed(RUN.decode, LIVE_RUNS, (after, limit))

    async def changed_runs(self, since: str | None, *, limit: int) -> ChangedRuns:
        if since is None:
            latest = self._database.peek(lambda connection: connection.execute(LATEST_CHANGE).get)
            return ChangedRuns([], str(latest))
        found = await self._database.read(
            lambda connection: list(
                within(connection.execute(CHANGED_RUNS, (int(since), limit)), LISTING_BYTES)
            )
        )
        return ChangedRuns([RUN.decode(doc) for _, doc in found], found[-1][0] if found else since)

    async def events(
        self, job_id: JobId, *, limit: int, before: str | None = None
    ) -> Sequence[OutboxEvent]:
        return await self._listed(EVENT.decode, EVENTS, (job_id, before or PAST_EVERY_ID, limit))

    async def of_run(
        self, kind: type[RowOfRun], run_id: RunId, *, limit: int, after: Key | None = None
    ) -> Sequence[RowOfRun]:
        stored: Kind[RowOfRun] = TABLES[kind]
        query, first = OF_RUN[kind]
        start = first if after is None else parts(after)[-1]
        return await self._listed(stored.decode, query, (run_id, start, limit))

    async def due(
        self, kind: type[DueRow], *, limit: int, channel: Channel | None = None
    ) -> Sequence[DueRow]:
        stored: Kind[DueRow] = TABLES[kind]
        latest = stamp(self._clock.now())
        if kind is Job:
            return await self._listed(stored.decode, DUE_JOBS, (latest, limit))
        return await self._listed(stored.decode, DUE_EVENTS, (channel, latest, limit))

    async def usage(self, caller: CallerId) -> Usage:
        def operation(connection: apsw.Connection) -> Usage:
            def count(query: str) -> int:
                return int(connection.execute(query, (caller,)).get)

            live = connection.execute(LIVE_RUNS_OF_CALLER, (caller,))
            return Usage(
                live_runs=[RUN.decode(doc) for (doc,) in live],
                scheduled_jobs=count(SCHEDULED_JOBS),
                unused_inputs=count(UNUSED_INPUTS),
                open_exports=count(OPEN_EXPORTS),
            )

        return await self._database.read(operation)

    async def clear_expired(self, *, limit: int) -> int:
        wanted = (stamp(self._clock.now()), limit)
        if not self._database.peek(lambda connection: _expired(connection, wanted)):
            return 0  # as in most rounds: no transaction
        return await self._database.write(lambda connection: _clear(connection, wanted))

    async def _listed(
        self, decode: Callable[[str], AnyRow], query: str, values: Values
    ) -> Sequence[AnyRow]:
        return await self._database.read(
            lambda connection: [
                decode(doc) for (doc,) in within(connection.execute(query, values), LISTING_BYTES)
            ]
        )

    def _idempotency_record(self, key: Key) -> IdempotencyRecord | None:
        caller, name = cast("tuple[CallerId, str]", key)
        wanted = (caller, name, stamp(self._clock.now()))
        row = self._database.peek(
            lambda connection: connection.execute(IDEMPOTENCY_RECORD, wanted).fetchone()
        )
        if row is None:
            return None
        fingerprint, status, body, expires_at = row
        return IdempotencyRecord(
            caller=caller,
            key=name,
            fingerprint=fingerprint,
            status=status,
            body=body,
            expires_at=moment(expires_at),
        )


def write(connection: apsw.Connection, change: Change, now: int) -> None:
    match change:
        case Removed(row):
            TABLES[type(row)].remove(connection, change)
            if isinstance(row, Run):
                connection.execute(FORGET_CHANGE, (row.id,))
        case IdempotencyRecord():
            _claim_key(connection, change, now)
        case _ if type(change) in TABLES:
            TABLES[type(change)].write(connection, change)
            if isinstance(change, Run):
                connection.execute(NOTE_CHANGE, (change.id,))
        case _:
            raise TypeError(f"not a change: {change!r}")


def parts(key: Key) -> Values:
    return key if isinstance(key, tuple) else (key,)


def _claim_key(connection: apsw.Connection, record: IdempotencyRecord, now: int) -> None:
    row = (
        record.caller,
        record.key,
        record.fingerprint,
        record.status,
        record.body,
        stamp(record.expires_at),
        now,
    )
    if connection.execute(CLAIM_KEY, row).fetchone() is None:
        raise KeyTaken(f"idempotency key {record.key!r} is taken")


def _clear(connection: apsw.Connection, wanted: tuple[int, int]) -> int:
    keys = _expired(connection, wanted)
    connection.executemany("DELETE FROM idempotency_record WHERE caller = ? AND key = ?", keys)
    return len(keys)


def _expired(connection: apsw.Connection, wanted: tuple[int, int]) -> list[tuple[str, str]]:
    return [(caller, key) for caller, key in connection.execute(EXPIRED, wanted)]


def _stamped(moment: datetime | None) -> int | None:
    return None if moment is None else stamp(moment)


def _encoded(row: Row) -> str:
    return msgspec.json.encode(row).decode()
