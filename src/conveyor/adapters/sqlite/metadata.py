"""Jobs, runs and what is owed to them in SQLite."""

from collections.abc import Sequence
from datetime import datetime
from functools import singledispatch

import apsw
import msgspec

from conveyor.adapters.sqlite.answers import claim_key
from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import stamp, within
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
from conveyor.errors import Stale
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import JOBS_BYTES, Change, Removed, Row

JOB = msgspec.json.Decoder(Job)
RUN = msgspec.json.Decoder(Run)
BATCH = msgspec.json.Decoder(Batch)
DELETION = msgspec.json.Decoder(Deletion)

INSERT_JOB = """
INSERT INTO job (id, caller, type, status, run_id, fires_at, version, doc)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING 1
"""
UPDATE_JOB = """
UPDATE job SET caller = ?2, type = ?3, status = ?4, run_id = ?5, fires_at = ?6, version = ?7, doc = ?8
 WHERE id = ?1 AND version = ?7 - 1 RETURNING 1
"""
INSERT_RUN = """
INSERT INTO run (id, job_id, live, version, doc) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING 1
"""
UPDATE_RUN = """
UPDATE run SET job_id = ?2, live = ?3, version = ?4, doc = ?5
 WHERE id = ?1 AND version = ?4 - 1 RETURNING 1
"""
INSERT_BATCH = """
INSERT INTO batch (run_id, first, version, doc) VALUES (?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING 1
"""
UPDATE_BATCH = """
UPDATE batch SET version = ?3, doc = ?4
 WHERE run_id = ?1 AND first = ?2 AND version = ?3 - 1 RETURNING 1
"""
INSERT_EVENT = """
INSERT INTO event (id, job_id, channel, due_at, version, doc) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING 1
"""
UPDATE_EVENT = """
UPDATE event SET job_id = ?2, channel = ?3, due_at = ?4, version = ?5, doc = ?6
 WHERE id = ?1 AND version = ?5 - 1 RETURNING 1
"""
Named = Deletion | FileInput | Export | SigningKeys | ApiKey
NAMED: dict[type[Row], str] = {
    Deletion: "deletion",
    FileInput: "file_input",
    Export: "export",
    OutboxEvent: "event",
    SigningKeys: "signing_keys",
    ApiKey: "api_key",
}
INSERT_NAMED = """
INSERT INTO {} (id, version, doc) VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1
"""
UPDATE_NAMED = "UPDATE {} SET version = ?2, doc = ?3 WHERE id = ?1 AND version = ?2 - 1 RETURNING 1"
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
LIVE = """
SELECT run.doc, job.doc FROM run INDEXED BY run_live JOIN job ON job.id = run.job_id
 WHERE run.live = 1 AND run.id > ? ORDER BY run.id LIMIT ?
"""
BATCHES = "SELECT doc FROM batch WHERE (run_id, first) > (?, ?) ORDER BY run_id, first LIMIT ?"
DELETIONS = "SELECT doc FROM deletion WHERE id > ? ORDER BY id LIMIT ?"
PAST_EVERY_ID = "~"


class SqliteMetadata:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def commit(self, *changes: Change) -> None:
        now = stamp(self._clock.now())
        keys_first = sorted(changes, key=lambda change: not isinstance(change, IdempotencyRecord))

        def operation(connection: apsw.Connection) -> None:
            for change in keys_first:
                _write(change, connection, now)

        await self._database.write(operation)

    async def job(self, job_id: JobId) -> Job | None:
        doc = self._doc("SELECT doc FROM job WHERE id = ?", job_id)
        return JOB.decode(doc) if doc else None

    async def run(self, run_id: RunId) -> Run | None:
        doc = self._doc("SELECT doc FROM run WHERE id = ?", run_id)
        return RUN.decode(doc) if doc else None

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
                for job, run in within(connection.execute(JOBS, wanted), JOBS_BYTES)
            ]
        )

    async def runs(
        self, job_id: JobId, *, limit: int, before: str | None = None, deleted: bool = False
    ) -> Sequence[Run]:
        wanted = (job_id, before or PAST_EVERY_ID, deleted, limit)
        return await self._database.read(
            lambda connection: [RUN.decode(doc) for (doc,) in connection.execute(RUNS, wanted)]
        )

    async def live(self, *, limit: int, after: str = "") -> Sequence[tuple[Run, Job]]:
        return await self._database.read(
            lambda connection: [
                (RUN.decode(run), JOB.decode(job))
                for run, job in within(connection.execute(LIVE, (after, limit)), JOBS_BYTES)
            ]
        )

    async def batches(self, *, limit: int, after: tuple[str, int] = ("", -1)) -> Sequence[Batch]:
        return await self._database.read(
            lambda connection: [
                BATCH.decode(doc) for (doc,) in connection.execute(BATCHES, (*after, limit))
            ]
        )

    async def deletions(self, *, limit: int, after: str = "") -> Sequence[Deletion]:
        return await self._database.read(
            lambda connection: [
                DELETION.decode(doc) for (doc,) in connection.execute(DELETIONS, (after, limit))
            ]
        )

    def _doc(self, query: str, key: str) -> str | None:
        row = self._database.peek(lambda connection: connection.execute(query, (key,)).fetchone())
        return row[0] if row else None


@singledispatch
def _write(change: Change, _connection: apsw.Connection, _now: int) -> None:
    raise TypeError(f"not a change: {change!r}")


@_write.register
def write_job(job: Job, connection: apsw.Connection, _: int) -> None:
    stored = msgspec.structs.replace(job, version=job.version + 1)
    row = (
        *(job.id, job.caller, job.type, job.status, job.latest_run_id or ""),
        *(_stamped(job.fires_at), stored.version, _doc_of(stored)),
    )
    _put(connection, UPDATE_JOB if job.version else INSERT_JOB, row, job.id)


@_write.register
def _write_run(run: Run, connection: apsw.Connection, _: int) -> None:
    stored = msgspec.structs.replace(run, version=run.version + 1)
    row = (run.id, run.job_id, int(run.is_live), stored.version)
    _put(connection, UPDATE_RUN if run.version else INSERT_RUN, (*row, _doc_of(stored)), run.id)


@_write.register
def _write_batch(batch: Batch, connection: apsw.Connection, _: int) -> None:
    stored = msgspec.structs.replace(batch, version=batch.version + 1)
    row = (batch.run_id, batch.first, stored.version, _doc_of(stored))
    _put(connection, UPDATE_BATCH if batch.version else INSERT_BATCH, row, batch.run_id)


@_write.register
def _write_event(event: OutboxEvent, connection: apsw.Connection, _: int) -> None:
    stored = msgspec.structs.replace(event, version=event.version + 1)
    row = (event.id, event.job_id, event.channel, _stamped(event.due_at), stored.version)
    statement = UPDATE_EVENT if event.version else INSERT_EVENT
    _put(connection, statement, (*row, _doc_of(stored)), event.id)


@_write.register(Named)
def _write_named(named: Named, connection: apsw.Connection, _: int) -> None:
    stored = msgspec.structs.replace(named, version=named.version + 1)
    statement = (UPDATE_NAMED if named.version else INSERT_NAMED).format(NAMED[type(named)])
    _put(connection, statement, (named.id, stored.version, _doc_of(stored)), named.id)


@_write.register
def _remove(removed: Removed, connection: apsw.Connection, _: int) -> None:
    match removed.row:
        case Job(id=name):
            connection.execute("DELETE FROM job WHERE id = ?", (name,))
        case Run(id=name):
            connection.execute("DELETE FROM run WHERE id = ?", (name,))
        case Batch(run_id=run_id, first=first):
            key = (run_id, first)
            connection.execute("DELETE FROM batch WHERE run_id = ? AND first = ?", key)
        case named:
            table = NAMED[type(named)]
            connection.execute(f"DELETE FROM {table} WHERE id = ?", (named.id,))


@_write.register
def _write_idempotency_record(
    record: IdempotencyRecord, connection: apsw.Connection, now: int
) -> None:
    claim_key(record, connection, now)


def _put(
    connection: apsw.Connection, statement: str, row: tuple[str | int | None, ...], name: str
) -> None:
    if connection.execute(statement, row).fetchone() is None:
        raise Stale(f"{name} has moved on")


def _stamped(moment: datetime | None) -> int | None:
    return None if moment is None else stamp(moment)


def _doc_of(value: Row) -> str:
    return msgspec.json.encode(value).decode()
