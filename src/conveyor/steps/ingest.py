"""Ingest: a staged list becomes rows, chunk by chunk, from wherever the last ingester got to.

For each chunk: rows if absent, then the offer, then the watermark. After the last: the total
(absolute), the latch for a closed job, and the batch's removal, in one transaction; then the
completion check. Two ingesters at once do no harm: rows are inserted if absent, and the
watermark's version lets only one of them go on.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import msgspec

from conveyor.domain import run as life
from conveyor.domain.batch import Batch
from conveyor.domain.ids import RunId
from conveyor.domain.job import JobStatus
from conveyor.domain.run import IngestStatus, Run
from conveyor.domain.task import TaskSpec
from conveyor.errors import InvalidArgument, NotFound, Stale
from conveyor.ports.blobs import Blobs
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Finished, Metadata
from conveyor.ports.tasks import Tasks, new_tasks
from conveyor.ports.work import Work

CHUNK_LINES = 2_000
SPECS = msgspec.json.Decoder(TaskSpec)


class Chunk(msgspec.Struct, frozen=True):
    specs: list[TaskSpec]
    length: int  # bytes of the list they took


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    metadata: Metadata
    tasks: Tasks
    work: Work
    blobs: Blobs
    clock: Clock
    check: Callable[[RunId], Awaitable[bool]]
    wake: Callable[[RunId], None]

    async def run(self, run_id: RunId, first: int) -> None:
        """Finish the batch that begins at an index, if it is unfinished."""
        batch = await self._find(run_id, first)
        try:
            if batch:
                await self._finish(await self._write(batch))
        except Stale:
            return  # another ingester is at it, and has got further
        except NotFound:
            if await self._find(run_id, first):
                raise
            return  # another ingester is done, and has removed the list
        # For a batch that is gone too: whoever finished it may have died before this.
        await self.check(run_id)

    async def abandon(self, run_id: RunId, first: int) -> None:
        """Give a batch up that cannot be finished: its run is stopped with the rows it has."""
        while (run := await self.metadata.run(run_id)) and run.is_live:
            try:
                await self.metadata.commit(life.stop(run, self.clock.now()))
            except Stale:
                continue
        await self.work.close(run_id)
        if batch := await self._find(run_id, first):
            await self._finish(batch)
        self.wake(run_id)

    async def _find(self, run_id: RunId, first: int) -> Batch | None:
        found = await self.metadata.batches(limit=1, after=(run_id, first - 1))
        return next(
            (batch for batch in found if (batch.run_id, batch.first) == (run_id, first)), None
        )

    async def _write(self, batch: Batch) -> Batch:
        """Write rows until the list ends or the run no longer wants them."""
        async for chunk in _chunks(self.blobs.read(batch.blob, offset=batch.read)):
            if not await self._is_wanted(batch.run_id):
                return batch
            batch = await self._write_chunk(batch, chunk)
            self.wake(batch.run_id)
        return batch

    async def _write_chunk(self, batch: Batch, chunk: Chunk) -> Batch:
        rows = new_tasks(batch.run_id, batch.first + batch.written, chunk.specs)
        await self.tasks.add(batch.run_id, rows)
        await self.work.offer(batch.run_id, [row.id for row in rows])
        ahead = msgspec.structs.replace(
            batch, written=batch.written + len(rows), read=batch.read + chunk.length
        )
        await self.metadata.commit(ahead)
        return msgspec.structs.replace(ahead, version=ahead.version + 1)

    async def _finish(self, batch: Batch) -> None:
        """Say what came of the promise: all of it, or what was written when the run ended."""
        while True:
            # The run is read first, so that its version tells when the batch ended in between:
            # what is missing must be taken off the total once only.
            run = await self.metadata.run(batch.run_id)
            if await self._find(batch.run_id, batch.first) != batch:
                raise Stale(f"batch {batch.first} of {batch.run_id} has moved on")
            try:
                await self.metadata.commit(*await self._ended(run, batch), Finished(batch))
                break
            except Stale:
                continue
        await self.blobs.delete([batch.blob])

    async def _ended(self, run: Run | None, batch: Batch) -> list[Run]:
        missing = batch.count - batch.written
        if run is None:
            return []
        if run.ingest_status is not IngestStatus.PENDING:
            cut = msgspec.structs.replace(run, total=run.total - missing)
            return [cut] if missing else []
        job = await self.metadata.job(batch.job_id)
        ended = life.ingested(run, batch.first + batch.written, self.clock.now())
        is_last = job is None or job.status is not JobStatus.OPEN
        return [life.latch(ended, self.clock.now()) if is_last else ended]

    async def _is_wanted(self, run_id: RunId) -> bool:
        run = await self.metadata.run(run_id)
        return run is not None and run.is_live


async def _chunks(content: AsyncIterator[bytes]) -> AsyncIterator[Chunk]:
    """Whole lines of a stream, many at a time."""
    rest, specs, length = b"", list[TaskSpec](), 0
    async for part in content:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            specs.append(_spec(line))
            length += len(line) + 1
            if len(specs) == CHUNK_LINES:
                yield Chunk(specs, length)
                specs, length = [], 0
    if specs:
        yield Chunk(specs, length)


def _spec(line: bytes) -> TaskSpec:
    try:
        return SPECS.decode(line)
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"a staged list cannot be read: {error}") from error
