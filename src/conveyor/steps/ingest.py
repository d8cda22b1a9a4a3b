"""Ingest: write the rows of a batch, chunk by chunk, from where an earlier writer stopped.

The control worker ingests batches in turns. A call that adds tasks ingests its batch before it is
answered.

For each chunk: rows if absent, then the messages, then the watermark. After the last chunk one
transaction sets the total (absolute), latches the run of a closed job and removes the batch; then
the run is checked for completion. Two concurrent writers do no harm: rows are inserted if absent,
and the version of the watermark lets only one of them go on.

How many tasks a file input holds is known only once it has been read. So the run's total grows with
the watermark, in the same transaction. Bad rows are counted and reported, and the others are
written. A `strict` list is read twice: rows are written in the second reading, and only if the first
one found no bad row.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from conveyor.domain import run as run_rules
from conveyor.domain.batch import Batch
from conveyor.domain.ids import RunId, TaskId, task_ids
from conveyor.domain.job import Job, JobStatus
from conveyor.domain.outbox import events_at_end
from conveyor.domain.params import Params, load
from conveyor.domain.rerun import inherited
from conveyor.domain.run import NO_INHERITANCE, IngestStatus, Inheritance, Run, RunStatus
from conveyor.domain.selection import with_params
from conveyor.domain.submission import Limits
from conveyor.domain.task import NewRow, Task
from conveyor.domain.task_list.reader import (
    MOST_REPORTED,
    START,
    ListChunk,
    error_report,
    error_report_key,
)
from conveyor.domain.task_list.spec import SourceList
from conveyor.errors import InvalidArgument, NotFound, Stale, TooLarge
from conveyor.ports.blobs import Blobs, as_stream
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.metadata import Metadata, Removed
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Work
from conveyor.steps.shared.notifier import Notifier
from conveyor.steps.shared.row_sources import RowChunk, copied_rows, file_chunks, stored_rows
from conveyor.steps.shared.work_limits import DEFAULT_SIZES, ENDLESS, Sizes, Turn

FIRST_VERSION = 1  # of a row that was stored once
LIST_GIVEN_UP = "Reading the list was given up; run the job again to read all of it"
LIST_GONE = "The list is no longer in storage; submit it again"
COPY_GIVEN_UP = "Copying the earlier run was given up; run the job again to copy all of it"
ADDED_GIVEN_UP = "Adding tasks was given up; submit the missing ones as a new job"


class BatchEnding(msgspec.Struct, frozen=True):
    """How far a batch has come when a writer stops writing it."""

    batch: Batch
    is_cut: bool = False  # rows are left that will not be written
    why: str | None = None  # for the caller, when the list is at fault
    continues: bool = False  # in another turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    metadata: Metadata
    tasks: Tasks
    work: Work
    blobs: Blobs
    clock: Clock
    ids: Ids
    limits: Limits
    check_completion: Callable[[RunId], Awaitable[bool]]
    notifier: Notifier
    sizes: Sizes = DEFAULT_SIZES

    async def run(self, run_id: RunId, first: int, turn: Turn = ENDLESS) -> Batch | None:
        """Finish the batch that begins at an index, if it is unfinished.

        When the turn is over before that, return the batch as far as it has come.
        """
        batch = await self.metadata.get(Batch, (run_id, first))
        try:
            if batch:
                ending = await self._write(batch, turn)
                if ending.continues:
                    return ending.batch
                await self._finish(ending)
            else:
                await self._correct_total(run_id)  # the last writer may have died before it
        except Stale:
            # Another writer is ahead of this one. Or it has finished the batch, and its total lacks
            # the rows that were written here since.
            await self._correct_total(run_id)
            return None
        except NotFound:
            if await self.metadata.get(Batch, (run_id, first)):
                raise
            return None  # another writer has finished, and removed the list
        # For a finished batch too: its writer may have died before this check.
        await self.check_completion(run_id)
        return None

    async def progress(self, run_id: RunId, first: int, version: int) -> tuple[bool, Batch | None]:
        """Whether a batch is finished; and the batch, if it has progressed since `version`."""
        batch = await self.metadata.get(Batch, (run_id, first))
        # The first message is made before the batch is stored, and so with version 0.
        version = max(version, FIRST_VERSION)
        return batch is None, batch if batch and batch.version > version else None

    async def abandon(self, run_id: RunId, first: int) -> None:
        """Give up a batch that cannot be finished: its run is stopped with the rows it has."""
        batch = await self.metadata.get(Batch, (run_id, first))
        if batch is None:
            return
        why = await self._why_given_up(batch)
        while (run := await self.metadata.get(Run, run_id)) and run.is_live:
            stopped = run_rules.explained(run_rules.stop(run, self.clock.now()), why, is_cut=True)
            events = events_at_end(stopped, self.ids.new)
            with suppress(Stale):
                await self.metadata.commit(stopped, *events)
                if events:
                    self.notifier.events_due()
        while batch := await self.metadata.get(Batch, (run_id, first)):
            with suppress(Stale):
                await self._finish(BatchEnding(batch, is_cut=True, why=why))
        await self._close_work(run_id)

    async def _why_given_up(self, batch: Batch) -> str:
        if batch.source_run_id:
            return COPY_GIVEN_UP
        key = batch.source_list.blob if batch.source_list else batch.blob or ""
        if await self.blobs.length(key) is None:
            return LIST_GONE
        can_rerun = batch.source_list or await self._is_kept(batch)
        return LIST_GIVEN_UP if can_rerun else ADDED_GIVEN_UP

    async def _finish(self, ending: BatchEnding) -> None:
        """Record how the batch ended: with all of its rows, or with those written so far."""
        batch = ending.batch
        while True:
            # The run is read before the batch. If another writer ends the batch in between, the run
            # has another version and this commit is stale: missing rows are subtracted only once.
            run = await self.metadata.get(Run, batch.run_id)
            if await self.metadata.get(Batch, (batch.run_id, batch.first)) != batch:
                raise Stale(f"batch {batch.first} of {batch.run_id} has moved on")
            ended = await self._ended(run, ending)
            is_over = run is not None and run.is_live and ended and not ended[0].is_live
            events = events_at_end(ended[0], self.ids.new) if is_over else []
            try:
                await self.metadata.commit(*ended, *events, Removed(batch))
                break
            except Stale:
                continue
        if events:
            self.notifier.events_due()
        if ending.is_cut and ending.why:
            await self._close_work(batch.run_id)
        if batch.blob and not await self._is_kept(batch):
            await self.blobs.delete([batch.blob])

    async def _close_work(self, run_id: RunId) -> None:
        await self.work.close(run_id)
        self.notifier.run_changed(run_id)

    async def _is_kept(self, batch: Batch) -> bool:
        """Whether the job keeps the list, to read it again."""
        job = await self.metadata.get(Job, batch.job_id)
        return bool(job and job.source_list and job.source_list.blob == batch.blob)

    async def _correct_total(self, run_id: RunId) -> None:
        """Correct the total of an ended run that has no batch left and more rows than its total."""
        while run := await self.metadata.get(Run, run_id):
            if run.is_live or run.status is RunStatus.DELETED:
                return
            if await self.metadata.of_run(Batch, run_id, limit=1):
                return
            rows = sum((await self.tasks.tally(run_id)).values())
            if rows <= run.total:
                return
            with suppress(Stale):
                await self.metadata.commit(msgspec.structs.replace(run, total=rows))

    async def _write(self, batch: Batch, turn: Turn) -> BatchEnding:
        """Write rows until there are no more, the run does not want them, or the turn is over."""
        job = await self.metadata.get(Job, batch.job_id)
        if job is None:
            return BatchEnding(batch, is_cut=batch.source_list is not None)
        await self.tasks.lay_out(batch.run_id, job.place)
        if batch.source_list:
            return await self._write_file(batch, batch.source_list, load(job.params), turn)
        async for chunk in self._chunks(batch):
            if not await self._is_wanted(batch):
                return BatchEnding(batch)
            batch = await self._write_chunk(batch, chunk)
            self.notifier.run_changed(batch.run_id)
            if turn.is_over:
                return BatchEnding(batch, continues=True)
        if batch.source_run_id and batch.written < batch.count and await self._is_wanted(batch):
            raise InvalidArgument(
                f"rows of run {batch.source_run_id} are gone before they were copied"
            )
        return BatchEnding(batch)

    async def _write_file(
        self, batch: Batch, source_list: SourceList, params: Params, turn: Turn
    ) -> BatchEnding:
        while True:
            checking = source_list.strict and not batch.checked
            read = file_chunks(
                self.blobs,
                source_list,
                params,
                batch.position,
                limits=self.sizes.reader,
                task_limits=self.limits,
            )
            try:
                async with read as chunks:
                    async for chunk in chunks:
                        # A compressed list is decompressed from its start to find this position.
                        turn.begin()
                        if not await self._is_wanted(batch):
                            return BatchEnding(batch, is_cut=True)
                        batch = await self._write_list_chunk(batch, chunk, checking=checking)
                        if turn.is_over:
                            return BatchEnding(batch, continues=True)
            except (InvalidArgument, TooLarge) as fault:
                return BatchEnding(batch, is_cut=True, why=fault.detail)
            if not checking:
                return BatchEnding(batch, why=_why_nothing(batch))
            if batch.errors:
                return BatchEnding(batch, is_cut=True, why=_why_refused(batch))
            # No bad row: read the list again from its start, and write it this time.
            batch = await self._move(
                batch, msgspec.structs.replace(batch, checked=True, position=START)
            )

    async def _write_list_chunk(self, batch: Batch, chunk: ListChunk, *, checking: bool) -> Batch:
        """Write the good rows of a chunk, report the bad ones, and move the watermark."""
        if not checking:
            rows = await asyncio.to_thread(_rows, batch, chunk)
            await self.tasks.add(batch.run_id, rows)
            await self.work.enqueue(batch.run_id, [row.id for row in rows])
        if chunk.errors and batch.errors < MOST_REPORTED:
            key = error_report_key(batch.job_id, batch.run_id, chunk)
            await self.blobs.put(key, as_stream([error_report(chunk.errors, batch.errors)]))
        written = batch.written + (0 if checking else len(chunk.tasks))
        advanced = msgspec.structs.replace(
            batch,
            written=written,
            count=written,
            position=chunk.position,
            errors=batch.errors + len(chunk.errors),
        )
        batch = await self._move(batch, advanced)
        self.notifier.run_changed(batch.run_id)
        return batch

    async def _move(self, batch: Batch, advanced: Batch) -> Batch:
        """Store the watermark of a file input, and the run with its new total."""
        while True:
            run = await self.metadata.get(Run, batch.run_id)
            grown = [self._grown(run, advanced)] if run else []
            try:
                await self.metadata.commit(advanced, *grown)
            except Stale:
                # Only the run has changed: try again. A batch that changed has another writer.
                if await self.metadata.get(Batch, (batch.run_id, batch.first)) != batch:
                    raise
            else:
                return _stored(advanced)

    def _grown(self, run: Run, batch: Batch) -> Run:
        next_index = max(run.next_index, batch.position.ordinal)
        return run_rules.listed(run, batch.written, next_index, batch.errors, self.clock.now())

    def _chunks(self, batch: Batch) -> AsyncIterator[RowChunk]:
        most = self.sizes.chunk_rows
        if batch.source_run_id:
            return copied_rows(
                self.tasks,
                batch.source_run_id,
                batch.scraped_again,
                batch.params,
                first=batch.read,
                most=most,
            )
        return stored_rows(
            self.blobs,
            batch.blob or "",
            batch.run_id,
            first=batch.first + batch.written,
            offset=batch.read,
            most=most,
            params=batch.params,
        )

    async def _write_chunk(self, batch: Batch, chunk: RowChunk) -> Batch:
        await self.tasks.add(batch.run_id, chunk.rows)
        fresh, taken_over = await self._inherited_and_fresh(batch, chunk)
        await self.work.enqueue(batch.run_id, fresh)
        advanced = msgspec.structs.replace(
            batch,
            written=batch.written + len(chunk.rows),
            read=chunk.read,
            inherited=batch.inherited + taken_over,
        )
        await self.metadata.commit(advanced)
        return _stored(advanced)

    async def _inherited_and_fresh(
        self, batch: Batch, chunk: RowChunk
    ) -> tuple[list[TaskId], Inheritance]:
        """The rows of a chunk that are scraped again, and what the others inherit.

        Read from the rows as stored: a row that settled late in its own run may have been copied
        by an earlier writer before it did.
        """
        if batch.scraped_again.is_all:
            return [row.id for row in chunk.rows], NO_INHERITANCE
        fresh, taken_over, left = list[TaskId](), NO_INHERITANCE, len(chunk.rows)
        after: int | None = chunk.rows[0].index - 1
        while after is not None and left:
            page = await self.tasks.page(batch.run_id, limit=left, after=after)
            fresh += [row.id for row in page.tasks if row.source_run_id is None]
            taken_over += inherited(page.tasks)
            left -= len(page.tasks)
            after = page.cursor
        return fresh, taken_over

    async def _ended(self, run: Run | None, ending: BatchEnding) -> list[Run]:
        if run is None:
            return []
        batch = await self._with_rows_ahead(ending.batch)
        missing = batch.count - batch.written
        if run.ingest_status is not IngestStatus.PENDING:
            less = msgspec.structs.replace(run, total=run.total - missing)
            return [less] if missing else []
        now = self.clock.now()
        if batch.source_list:
            run = self._grown(run, batch)
        ended = run_rules.ingested(run, batch.first + batch.written, batch.inherited, now)
        ended = run_rules.explained(ended, ending.why, is_cut=ending.is_cut or missing > 0)
        if ending.is_cut and ending.why and ended.is_live:
            ended = run_rules.stop(ended, now)
        job = await self.metadata.get(Job, batch.job_id)
        is_last = job is None or job.status is not JobStatus.OPEN
        return [run_rules.latch(ended, now) if is_last else ended]

    async def _with_rows_ahead(self, batch: Batch) -> Batch:
        """The batch with the rows that exist beyond its watermark.

        A writer that died before it moved the watermark left some. They may be scraped by now, so
        they must count.
        """
        after: int | None = _next(batch) - 1
        while after is not None and (batch.source_list or batch.written < batch.count):
            page = await self.tasks.page(batch.run_id, limit=self.sizes.chunk_rows, after=after)
            end = batch.first + batch.count
            rows = [row for row in page.tasks if not batch.blob or row.index < end]
            if rows:
                batch = _with_rows(batch, rows)
            after = page.cursor if len(rows) == len(page.tasks) else None
        return batch

    async def _is_wanted(self, batch: Batch) -> bool:
        """Whether the run gets the rest of its rows.

        A run whose account failed does: its caller will run it again. A stop cuts a list short, but
        not a copy: the next rerun would have fewer rows to copy than there were.
        """
        run = await self.metadata.get(Run, batch.run_id)
        if run is None or run.status is RunStatus.DELETED:
            return False
        return run.status is not RunStatus.STOPPED or batch.source_run_id is not None


def _stored(batch: Batch) -> Batch:
    """The batch in the version that it has once it is committed."""
    return msgspec.structs.replace(batch, version=batch.version + 1)


def _rows(batch: Batch, chunk: ListChunk) -> list[NewRow]:
    task_id = task_ids(batch.run_id)
    return [
        NewRow(index, task_id(index), with_params(spec, batch.params))
        for index, spec in chunk.tasks
    ]


def _next(batch: Batch) -> int:
    """The index of the first row that the watermark does not cover."""
    if batch.source_list:
        return batch.position.ordinal
    return batch.read if batch.source_run_id else batch.first + batch.written


def _with_rows(batch: Batch, rows: Sequence[Task]) -> Batch:
    written, after = batch.written + len(rows), rows[-1].index + 1
    if batch.source_list:
        position = msgspec.structs.replace(batch.position, ordinal=after)
        return msgspec.structs.replace(batch, written=written, count=written, position=position)
    return msgspec.structs.replace(
        batch,
        written=written,
        read=after if batch.source_run_id else batch.read,
        inherited=batch.inherited + inherited(rows),
    )


def _why_nothing(batch: Batch) -> str | None:
    if batch.written:
        return None
    if batch.errors:
        return f"None of the {batch.errors} rows of the list is a task; the report lists them"
    return "The list has no row"


def _why_refused(batch: Batch) -> str:
    return (
        f"{batch.errors} of the {batch.position.ordinal} rows of the list are not tasks, and "
        "`on_invalid` is `fail`; the report lists them"
    )
