"""Zip export: write all results of a run to one zip file in blob storage, in constant memory.

Results are read and deflated in chunks, in threads, a few chunks ahead of the writer. The manifest
and the zip directory come at the end of the file and grow with the run. Until then each is spooled
to a blob, which is read back and removed.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from conveyor.domain.export import (
    MANIFEST,
    Export,
    Fault,
    Unmade,
    entry_name,
    export_blob,
    is_compressible,
    manifest_line,
    spool_blob,
    too_large,
)
from conveyor.domain.ids import TaskId
from conveyor.domain.job import Job
from conveyor.domain.task import Task, has_expired
from conveyor.domain.zip_format import Entry, Item, Stream, directory_line, ending, laid_out, packed
from conveyor.errors import NotFound, Unavailable
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies
from conveyor.ports.clock import Clock
from conveyor.ports.tasks import Tasks

PAGE = 250  # rows read at a time
CHUNK_BYTES = 2 * 1024 * 1024  # of results that are read and deflated together
LARGE = 1024 * 1024  # bytes from which a result is streamed
READ_AHEAD = 2  # chunks prepared while another is written
SPOOL_DEPTH = 4  # parts that wait to be written to a spool
DIRECTORY, LINES = "directory", "manifest"

Wanted = Callable[[], Awaitable[bool]]


class ExportChunk(msgspec.Struct, frozen=True):
    """Consecutive tasks whose results fit in memory; a task with a large result is alone."""

    tasks: Sequence[Task]
    now: datetime

    @property
    def large(self) -> Task | None:
        [*others, last] = self.tasks
        return None if others or _length(last) < LARGE else last


class Packed(msgspec.Struct, frozen=True):
    """A chunk that is ready to be written. A large result is streamed when its turn comes."""

    files: Sequence[tuple[Entry, bytes]] = ()
    lines: bytes = b""
    large: Task | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipExport:
    tasks: Tasks
    bodies: Bodies
    blobs: Blobs
    clock: Clock
    cap: int  # bytes of results in one file

    async def write(self, export: Export, job: Job, is_wanted: Wanted) -> int | Unmade:
        """Write the file of an export's claim; return its length, or why there is none."""
        try:
            async with asyncio.TaskGroup() as group:
                chunks = self._row_chunks(export, job, is_wanted)
                content = self._content(export, job, chunks, group)
                return await self.blobs.put(export_blob(export), content)
        except BaseExceptionGroup as errors:
            first = _first(errors)
            if isinstance(first, _Stop):
                return first.why
            raise first from errors
        finally:
            await self._clear(export)

    async def _clear(self, export: Export) -> None:
        try:
            await self.blobs.delete([spool_blob(export, part) for part in (DIRECTORY, LINES)])
        except Unavailable:
            return  # they are removed with the files of the export, whose prefix they share

    async def _content(
        self,
        export: Export,
        job: Job,
        chunks: AsyncIterator[ExportChunk],
        group: asyncio.TaskGroup,
    ) -> AsyncIterator[bytes]:
        """The bytes of the file, from start to end."""
        directory = Spooled(self.blobs, spool_blob(export, DIRECTORY), group)
        manifest = Spooled(self.blobs, spool_blob(export, LINES), group)
        archive = Archive(directory)
        async for ready in self._prepared(job, chunks, group):
            if ready.large:
                async for part in self._streamed(ready.large, archive, manifest):
                    yield part
            else:
                yield await archive.added(ready.files)
                await manifest.add(ready.lines)
        stream = Stream(MANIFEST, export.created_at, await manifest.end())
        async for part in archive.streamed(stream, self.blobs.read(manifest.key)):
            yield part
        length = await directory.end()
        async for part in self.blobs.read(directory.key):
            yield part
        yield ending(archive.count, archive.offset, length)

    async def _prepared(
        self, job: Job, chunks: AsyncIterator[ExportChunk], group: asyncio.TaskGroup
    ) -> AsyncIterator[Packed]:
        """Chunks in order, prepared concurrently with the writing of those before them."""
        under_way = deque[asyncio.Task[Packed]]()
        async for chunk in chunks:
            under_way.append(group.create_task(self._prepare(job, chunk)))
            if len(under_way) > READ_AHEAD:
                yield await under_way.popleft()
        while under_way:
            yield await under_way.popleft()

    async def _prepare(self, job: Job, chunk: ExportChunk) -> Packed:
        if chunk.large and not has_expired(chunk.large, job.result_ttl_days, chunk.now):
            return Packed(large=chunk.large)
        stored = [
            (task, task.result)
            for task in chunk.tasks
            if task.result and not has_expired(task, job.result_ttl_days, chunk.now)
        ]
        contents = await self.bodies.load_many([result.locator for _, result in stored])
        loaded = {task.id: content for (task, _), content in zip(stored, contents, strict=True)}
        return await asyncio.to_thread(_packed, chunk.tasks, loaded)

    async def _streamed(
        self, task: Task, archive: "Archive", manifest: "Spooled"
    ) -> AsyncIterator[bytes]:
        """A large result.

        Its first chunk is read before its header is written: once the header is in the file, a
        result that turns out to be missing could not be left out.
        """
        assert task.result
        chunks = self.bodies.read(task.result.locator)
        try:
            first = await anext(chunks, b"")
        except NotFound:
            await manifest.add(manifest_line(task, fault=Fault.MISSING))
            return
        name = entry_name(task)
        stream = Stream(name, task.made_at, task.result.length)
        async for part in archive.streamed(stream, _chain(first, chunks)):
            yield part
        is_whole = stream.length == task.result.length
        await manifest.add(
            manifest_line(task, entry=name, fault=None if is_whole else Fault.DAMAGED)
        )

    async def _row_chunks(
        self, export: Export, job: Job, is_wanted: Wanted
    ) -> AsyncIterator[ExportChunk]:
        """The rows of the run in chunks, as long as the export is wanted and not too large."""
        after: int | None = -1
        total = 0
        while after is not None:
            if not await is_wanted():
                raise _Stop(Unmade())
            page = await self.tasks.page(export.run_id, limit=PAGE, after=after)
            now = self.clock.now()
            total += sum(
                _length(task)
                for task in page.tasks
                if not has_expired(task, job.result_ttl_days, now)
            )
            if total > self.cap:
                raise _Stop(Unmade(too_large(self.cap)))
            for tasks in _split(page.tasks):
                yield ExportChunk(tasks, now)
            after = page.cursor


class Archive:
    """The zip file written so far: its length, and the number of its entries."""

    def __init__(self, directory: "Spooled") -> None:
        self._directory = directory
        self.offset = 0
        self.count = 0

    async def added(self, files: Sequence[tuple[Entry, bytes]]) -> bytes:
        """The bytes of these entries in the file."""
        parts = list(laid_out(files, self.offset))
        await self._directory.add(b"".join(line for _, line in parts))
        self.count += len(files)
        return self._grown(b"".join(whole for whole, _ in parts))

    async def streamed(self, stream: Stream, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        start = self.offset
        yield self._grown(stream.head())
        async for chunk in chunks:
            yield self._grown(await asyncio.to_thread(stream.add, chunk))
        entry, last = stream.end()
        yield self._grown(last)
        await self._directory.add(directory_line(entry, start))
        self.count += 1

    def _grown(self, part: bytes) -> bytes:
        self.offset += len(part)
        return part


class Spooled:
    """A blob that is written part by part by a task, while the file itself is written."""

    def __init__(self, blobs: Blobs, key: str, group: asyncio.TaskGroup) -> None:
        self.key = key
        self._parts = asyncio.Queue[bytes](SPOOL_DEPTH)
        self._written = group.create_task(blobs.put(key, self._drained()))

    async def add(self, part: bytes) -> None:
        if part:  # an empty part marks the end
            await self._parts.put(part)

    async def end(self) -> int:
        """Wait until the blob is stored; return its length."""
        await self._parts.put(b"")
        return await self._written

    async def _drained(self) -> AsyncIterator[bytes]:
        while part := await self._parts.get():
            yield part


class _Stop(Exception):
    """The file must not be finished; `why` is the result of the export."""

    def __init__(self, why: Unmade) -> None:
        super().__init__(why.error)
        self.why = why


def _packed(tasks: Sequence[Task], loaded: Mapping[TaskId, bytes | None]) -> Packed:
    """The entries and manifest lines of a chunk. A result that is not in `loaded` has expired."""
    files, lines = list[tuple[Entry, bytes]](), list[bytes]()
    for task in tasks:
        result, content = task.result, loaded.get(task.id)
        if result and content is not None and len(content) == result.length:
            name = entry_name(task)
            files.append(packed(Item(name, task.made_at, content, is_compressible(task))))
            lines.append(manifest_line(task, entry=name))
        else:
            lines.append(manifest_line(task, fault=_fault(task, loaded)))
    return Packed(files, b"".join(lines))


def _fault(task: Task, loaded: Mapping[TaskId, bytes | None]) -> Fault | None:
    if task.result is None:
        return None
    if task.id not in loaded:
        return Fault.EXPIRED
    return Fault.MISSING if loaded[task.id] is None else Fault.DAMAGED


def _split(rows: Sequence[Task]) -> Iterator[Sequence[Task]]:
    """Rows in order, split so that the results of each chunk fit in memory."""
    tasks, room = list[Task](), CHUNK_BYTES
    for task in rows:
        length = _length(task)
        if tasks and (length > room or length >= LARGE):
            yield tasks
            tasks, room = [], CHUNK_BYTES
        tasks.append(task)
        room -= length
        if length >= LARGE:
            yield tasks
            tasks, room = [], CHUNK_BYTES
    if tasks:
        yield tasks


def _length(task: Task) -> int:
    return task.result.length if task.result else 0


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group: it cancelled the other tasks, whose errors follow from it."""
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
