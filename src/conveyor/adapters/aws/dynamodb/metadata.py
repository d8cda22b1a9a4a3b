"""Metadata in DynamoDB. docs/storage/dynamodb.md describes the items."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Any

from conveyor.adapters.aws.dynamodb.changed_runs import Mark, changed_since, mark_of_now
from conveyor.adapters.aws.dynamodb.commits import Commits
from conveyor.adapters.aws.dynamodb.layout import GSI1, GSI2, GSI3, SK, ItemKey, index_shards
from conveyor.adapters.aws.dynamodb.listings import IndexEntry, entries, records
from conveyor.adapters.aws.dynamodb.records import (
    BATCHES,
    DELETED,
    DUE_FIRES,
    EVENTS,
    EXPORTS,
    JOBS,
    KINDS,
    LIVE,
    OPEN_EXPORTS,
    RUN,
    RUNS,
    SCHEDULED,
    STATUS,
    UNUSED_INPUTS,
    RecordKind,
    due_events,
    order,
    run_place,
    stamp,
)
from conveyor.adapters.aws.dynamodb.table import DynamoTable, key_of_item
from conveyor.adapters.aws.item_size import Item
from conveyor.domain.batch import Batch
from conveyor.domain.export import Export
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.domain.run import Run, RunStatus
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import (
    AnyRecord,
    AnyRow,
    Change,
    ChangedRuns,
    DueRow,
    Key,
    RowOfRun,
    Usage,
)

END = "~"  # sorts after every id, and after the sign between a time and an id


class DynamoMetadata:
    def __init__(self, table: DynamoTable, clock: Clock) -> None:
        self._table, self._clock = table, clock
        self._commits = Commits(table, clock)

    async def commit(self, *changes: Change) -> None:
        await self._commits.commit(changes)

    async def get(self, kind: type[AnyRecord], key: Key) -> AnyRecord | None:
        stored: RecordKind[AnyRecord] = KINDS[kind]
        item = await self._table.get(stored.place(key))
        if item is None:
            return None
        record = stored.of_item(item)
        if isinstance(record, IdempotencyRecord) and record.expires_at <= self._clock.now():
            return None
        return record

    async def page(
        self, kind: type[AnyRow], *, limit: int, after: Key | None = None
    ) -> Sequence[AnyRow]:
        stored: RecordKind[AnyRow] = KINDS[kind]
        start = order(after) if after else None
        # The entry of a run is that of the item which points to it.
        at: Any = {"at": lambda item: run_place(item["g3s"]["S"])} if kind is Run else {}
        listed = self._index(GSI3, stored.listing, first=start, without=start, want=limit, **at)
        return await records(self._table, stored, listed, limit=limit)

    async def jobs(
        self,
        caller: CallerId,
        *,
        limit: int,
        before: str | None = None,
        status: JobStatus | None = None,
        kind: JobType | None = None,
    ) -> Sequence[tuple[Job, Run | None]]:
        listed = entries(
            self._table,
            [f"{listing}#{caller}" for listing in _job_listings(status, kind)],
            index=GSI1,
            last=before,
            without=before,
            forward=False,
            want=None if status else limit,
        )
        fitting = (
            entry async for entry in listed if not status or entry.item[STATUS] == {"S": status}
        )
        jobs = await records(
            self._table, KINDS[Job], fitting, limit=limit, wanted=_is_wanted(status, kind)
        )
        latest = {run_place(job.latest_run_id) for job in jobs if job.latest_run_id}
        runs = await self._table.get_many(list(latest), consistent=False)
        return [(job, _run_in(runs, job.latest_run_id)) for job in jobs]

    async def runs(
        self, job_id: JobId, *, limit: int, before: str | None = None, deleted: bool = False
    ) -> Sequence[Run]:
        listed = self._below(f"Job#{job_id}", RUNS, before=before, want=limit, at=_run_of_pointer)
        return await records(
            self._table,
            RUN,
            listed,
            limit=limit,
            wanted=lambda run: deleted or run.status is not RunStatus.DELETED,
            consistent=True,
        )

    async def live_runs(self, *, limit: int, after: str = "") -> Sequence[Run]:
        start = after or None
        listed = self._index(GSI3, LIVE, first=start, without=start, want=limit)
        return await records(self._table, RUN, listed, limit=limit, wanted=lambda run: run.is_live)

    async def changed_runs(self, since: str | None, *, limit: int) -> ChangedRuns:
        if since is None:
            return ChangedRuns([], str(await mark_of_now(self._table, self._clock)))
        runs, mark = await changed_since(self._table, self._clock, Mark.parse(since), limit=limit)
        return ChangedRuns(runs, str(mark))

    async def events(
        self, job_id: JobId, *, limit: int, before: str | None = None
    ) -> Sequence[OutboxEvent]:
        listed = self._below(f"Job#{job_id}", EVENTS, before=before, want=limit)
        return await records(self._table, KINDS[OutboxEvent], listed, limit=limit)

    async def of_run(
        self, kind: type[RowOfRun], run_id: RunId, *, limit: int, after: Key | None = None
    ) -> Sequence[RowOfRun]:
        stored: RecordKind[RowOfRun] = KINDS[kind]
        prefix, at = IN_RUN[kind]
        start = _sort_in_run(prefix, after) if after else None
        listed = entries(
            self._table,
            [f"Run#{run_id}"],
            first=start or prefix,
            last=prefix + END,
            without=start,
            consistent=True,
            want=limit,
            at=at,
        )
        return await records(self._table, stored, listed, limit=limit, consistent=True)

    async def due(
        self, kind: type[DueRow], *, limit: int, channel: Channel | None = None
    ) -> Sequence[DueRow]:
        stored: RecordKind[DueRow] = KINDS[kind]
        now = self._clock.now()
        listed = self._index(
            GSI2, DUE.get(kind) or due_events(channel), last=stamp(now) + END, want=limit
        )
        return await records(
            self._table, stored, listed, limit=limit, wanted=_is_due(now), consistent=True
        )

    async def usage(self, caller: CallerId) -> Usage:
        live = entries(self._table, [f"{LIVE}#{caller}"], index=GSI1)
        live_runs, scheduled, unused, unended = await asyncio.gather(
            records(self._table, RUN, live, most_bytes=inf, wanted=lambda run: run.is_live),
            self._count(f"{SCHEDULED}#{caller}"),
            self._count(f"{UNUSED_INPUTS}#{caller}"),
            self._count(f"{OPEN_EXPORTS}#{caller}"),
        )
        return Usage(
            live_runs=live_runs,
            scheduled_jobs=scheduled,
            unused_inputs=unused,
            open_exports=unended,
        )

    async def clear_expired(self, *, limit: int) -> int:
        """DynamoDB removes expired records by itself."""
        del limit
        return 0

    async def _count(self, partition: str) -> int:
        answers = self._table.query(partition, index=GSI1, Select="COUNT")
        return sum([answer["Count"] async for answer in answers])

    def _index(self, index: str, listing: str, **how: Any) -> AsyncIterator[IndexEntry]:
        """The entries of a listing over all callers."""
        return entries(self._table, index_shards(listing), index=index, **how)

    def _below(
        self, partition: str, prefix: str, *, before: str | None, **how: Any
    ) -> AsyncIterator[IndexEntry]:
        """The items of a partition with a prefix, the last first."""
        start = prefix + before if before else None
        return entries(
            self._table,
            [partition],
            first=prefix,
            last=start or prefix + END,
            without=start,
            forward=False,
            consistent=True,
            **how,
        )


def _job_listings(status: JobStatus | None, kind: JobType | None) -> list[str]:
    if status is JobStatus.DELETED:
        return [DELETED]
    listings = {JobType.REGULAR: JOBS, JobType.SCHEDULED: SCHEDULED}
    return [listings[kind]] if kind else list(listings.values())


def _is_wanted(status: JobStatus | None, kind: JobType | None) -> Callable[[Job], bool]:
    def wanted(job: Job) -> bool:
        fits = job.status is not JobStatus.DELETED if status is None else job.status is status
        return fits and (kind is None or job.type is kind)

    return wanted


def _is_due(now: datetime) -> Callable[[Job | OutboxEvent], bool]:
    def due(row: Job | OutboxEvent) -> bool:
        at = row.fires_at if isinstance(row, Job) else row.due_at
        return at is not None and at <= now

    return due


def _run_in(items: dict[ItemKey, Item], run_id: RunId | None) -> Run | None:
    item = items.get(run_place(run_id)) if run_id else None
    return RUN.of_item(item) if item else None


def _run_of_pointer(item: Item) -> ItemKey:
    return run_place(item[SK]["S"].removeprefix(RUNS))


def _export_of_pointer(item: Item) -> ItemKey:
    return KINDS[Export].place(item[SK]["S"].removeprefix(EXPORTS))


def _sort_in_run(prefix: str, after: Key) -> str:
    return f"{prefix}{after[1]:010d}" if isinstance(after, tuple) else f"{prefix}{after}"


# The prefix of sort keys below a run, and where the record of an item is.
IN_RUN: Mapping[type, tuple[str, Callable[[Item], ItemKey]]] = {
    Batch: (BATCHES, key_of_item),
    Export: (EXPORTS, _export_of_pointer),
}
DUE: Mapping[type, str] = {Job: DUE_FIRES}
