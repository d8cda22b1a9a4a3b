"""Metadata in memory."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, count
from typing import Any, TypeVar

import msgspec

from conveyor.domain.export import Export
from conveyor.domain.file_input import FileInput
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.domain.run import Run, RunStatus
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
    Record,
    Removed,
    RowOfRun,
    Usage,
    check_changes,
    key_of,
)

Listed = TypeVar("Listed", Job, Run, OutboxEvent)


class MemoryMetadata:
    def __init__(self, clock: Clock, tables: dict[type, dict[Key, Any]] | None = None) -> None:
        self.clock = clock
        self._tables = tables or {}
        self._changes: dict[RunId, int] = {}  # the number of the latest change of each run
        self._numbers = count(1)

    async def commit(self, *changes: Change) -> None:
        check_changes(changes)
        for change in changes:
            self._check_key(change)
        for change in changes:
            self._check_version(change)
        for change in changes:
            self._write(change)

    async def get(self, kind: type[AnyRecord], key: Key) -> AnyRecord | None:
        found = self._table(kind).get(key)
        return None if found is None or self._has_expired(found) else found

    async def page(
        self, kind: type[AnyRow], *, limit: int, after: Key | None = None
    ) -> Sequence[AnyRow]:
        return within(
            [row for row in self._all(kind) if after is None or _above(row, after)], limit
        )

    async def jobs(
        self,
        caller: CallerId,
        *,
        limit: int,
        before: str | None = None,
        status: JobStatus | None = None,
        kind: JobType | None = None,
    ) -> Sequence[tuple[Job, Run | None]]:
        asked = [
            job for job in self._all(Job) if job.caller == caller and _is_wanted(job, status, kind)
        ]
        return [
            (job, self._table(Run).get(job.latest_run_id) if job.latest_run_id else None)
            for job in within(_newest_first(asked, before), limit)
        ]

    async def runs(
        self, job_id: JobId, *, limit: int, before: str | None = None, deleted: bool = False
    ) -> Sequence[Run]:
        runs = [
            run
            for run in self._all(Run)
            if run.job_id == job_id and (deleted or run.status is not RunStatus.DELETED)
        ]
        return within(_newest_first(runs, before), limit)

    async def live_runs(self, *, limit: int, after: str = "") -> Sequence[Run]:
        return within([run for run in self._all(Run) if run.is_live and run.id > after], limit)

    async def changed_runs(self, since: str | None, *, limit: int) -> ChangedRuns:
        if since is None:
            return ChangedRuns([], str(max(self._changes.values(), default=0)))
        later = [run for run in self._all(Run) if self._changes[run.id] > int(since)]
        runs = within(sorted(later, key=lambda run: self._changes[run.id]), limit)
        return ChangedRuns(runs, str(self._changes[runs[-1].id]) if runs else since)

    async def events(
        self, job_id: JobId, *, limit: int, before: str | None = None
    ) -> Sequence[OutboxEvent]:
        events = [event for event in self._all(OutboxEvent) if event.job_id == job_id]
        return within(_newest_first(events, before), limit)

    async def of_run(
        self, kind: type[RowOfRun], run_id: RunId, *, limit: int, after: Key | None = None
    ) -> Sequence[RowOfRun]:
        rows = [row for row in self._all(kind) if row.run_id == run_id]
        return within([row for row in rows if after is None or _above(row, after)], limit)

    async def due(
        self, kind: type[DueRow], *, limit: int, channel: Channel | None = None
    ) -> Sequence[DueRow]:
        now = self.clock.now()
        waiting = [
            (moment, row.id, row)
            for row in self._all(kind)
            if (moment := _due_at(row, channel)) is not None and moment <= now
        ]
        return within([row for _, _, row in sorted(waiting, key=lambda one: one[:2])], limit)

    async def usage(self, caller: CallerId) -> Usage:
        return Usage(
            live_runs=[run for run in self._all(Run) if run.caller == caller and run.is_live],
            scheduled_jobs=sum(
                job.caller == caller
                and job.type is JobType.SCHEDULED
                and job.status is not JobStatus.DELETED
                for job in self._all(Job)
            ),
            unused_inputs=sum(
                one.caller == caller and not one.jobs for one in self._all(FileInput)
            ),
            open_exports=sum(
                one.caller == caller and not one.has_ended for one in self._all(Export)
            ),
        )

    async def clear_expired(self, *, limit: int) -> int:
        records = self._table(IdempotencyRecord)
        expired = [key for key, record in records.items() if self._has_expired(record)][:limit]
        for key in expired:
            del records[key]
        return len(expired)

    def _table(self, kind: type) -> dict[Key, Any]:
        return self._tables.setdefault(kind, {})

    def _all(self, kind: type[AnyRow]) -> list[AnyRow]:
        """All rows of a kind in order of key."""
        return sorted(self._table(kind).values(), key=key_of)

    def _has_expired(self, record: Record) -> bool:
        return isinstance(record, IdempotencyRecord) and record.expires_at <= self.clock.now()

    def _check_key(self, change: Change) -> None:
        if not isinstance(change, IdempotencyRecord):
            return
        stored = self._table(IdempotencyRecord).get(key_of(change))
        if stored and not self._has_expired(stored):
            raise KeyTaken(f"idempotency key {change.key!r} is taken")

    def _check_version(self, change: Change) -> None:
        if isinstance(change, IdempotencyRecord):
            return
        if isinstance(change, Removed) and not change.if_unchanged:
            return
        row = change.row if isinstance(change, Removed) else change
        stored = self._table(type(row)).get(key_of(row))
        if row.version != (stored.version if stored else 0):
            raise Stale(f"{type(row).__name__} has changed since version {row.version}")

    def _write(self, change: Change) -> None:
        match change:
            case Removed(row):
                self._table(type(row)).pop(key_of(row), None)
            case IdempotencyRecord():
                self._table(IdempotencyRecord)[key_of(change)] = change
            case _:
                stored = msgspec.structs.replace(change, version=change.version + 1)
                self._table(type(change))[key_of(change)] = stored
                if isinstance(change, Run):
                    self._changes[change.id] = next(self._numbers)


def within(rows: Sequence[AnyRow], limit: int) -> Sequence[AnyRow]:
    """The first rows, as many as fit into a page."""
    used = list(accumulate(len(msgspec.json.encode(row)) for row in rows[:limit]))
    return rows[: max(bisect_right(used, LISTING_BYTES), 1)] if used else []


def _above(row: AnyRow, after: Any) -> bool:
    key: Any = key_of(row)
    return bool(key > after)


def _due_at(row: Job | OutboxEvent, channel: Channel | None) -> Any:
    if isinstance(row, Job):
        return row.fires_at
    return row.due_at if row.channel is channel else None


def _is_wanted(job: Job, status: JobStatus | None, kind: JobType | None) -> bool:
    fits = job.status is not JobStatus.DELETED if status is None else job.status is status
    return fits and (kind is None or job.type is kind)


def _newest_first(rows: Iterable[Listed], before: str | None) -> list[Listed]:
    rest = [row for row in rows if before is None or row.id < before]
    return sorted(rest, key=lambda row: row.id, reverse=True)
