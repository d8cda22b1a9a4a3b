"""Where the rows of a run come from: a file input, a stored list, or the rows of an earlier run.

Each is read in chunks, from wherever an earlier reader got to.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager

import msgspec

from conveyor.domain.ids import RunId
from conveyor.domain.params import NO_PARAMS, Params
from conveyor.domain.rerun import copy_rows
from conveyor.domain.selection import ALL, Selection, with_params
from conveyor.domain.submission import Limits
from conveyor.domain.task import NewRow, TaskSpec, new_tasks
from conveyor.domain.task_list.reader import LIMITS, START, ListChunk, SourceListReader
from conveyor.domain.task_list.rows import Position, ReaderLimits
from conveyor.domain.task_list.spec import SourceList
from conveyor.errors import InvalidArgument
from conveyor.ports.blobs import Blobs
from conveyor.ports.tasks import PAGE_BYTES, Tasks

SPECS = msgspec.json.Decoder(TaskSpec)


@asynccontextmanager
async def file_chunks(
    blobs: Blobs,
    source: SourceList,
    params: Params,
    position: Position = START,
    *,
    limits: ReaderLimits = LIMITS,
    task_limits: Limits,
    most_bytes: float = math.inf,
) -> AsyncIterator[AsyncIterator[ListChunk]]:
    """The chunks of a file input from a position on; raises as `SourceListReader` does."""
    reader = SourceListReader(
        source, params, position, limits=limits, task_limits=task_limits, most_bytes=most_bytes
    )
    async with (
        aclosing(blobs.read(source.blob, offset=reader.offset)) as content,
        aclosing(_chunks(reader, content)) as chunks,
    ):
        yield chunks


async def _chunks(
    reader: SourceListReader, content: AsyncIterator[bytes]
) -> AsyncGenerator[ListChunk, None]:
    async for part in content:
        async for chunk in _in_threads(reader.feed(part)):
            yield chunk
    async for chunk in _in_threads(reader.finish()):
        yield chunk


async def _in_threads(chunks: Iterator[ListChunk]) -> AsyncIterator[ListChunk]:
    """Compute each chunk in a thread: it takes tens of milliseconds, too long for the loop."""
    while chunk := await asyncio.to_thread(next, chunks, None):
        yield chunk


class RowChunk(msgspec.Struct, frozen=True):
    """Rows to be added in one call, and where the next chunk begins (`Batch.read`)."""

    rows: list[NewRow]
    read: int


async def stored_rows(
    blobs: Blobs,
    key: str,
    run_id: RunId,
    *,
    first: int = 0,
    offset: int = 0,
    most: int,
    params: Params = NO_PARAMS,
) -> AsyncIterator[RowChunk]:
    """The tasks of a stored list as rows from index `first`; `read` is in bytes of the list."""
    async for specs, length in stored_tasks(blobs, key, offset=offset, most=most):
        offset += length
        tasks = [with_params(spec, params) for spec in specs] if params else specs
        yield RowChunk(new_tasks(run_id, first, tasks), offset)
        first += len(specs)


async def copied_rows(
    tasks: Tasks,
    source: RunId,
    selection: Selection = ALL,
    params: Params = NO_PARAMS,
    *,
    first: int = 0,
    most: int,
) -> AsyncIterator[RowChunk]:
    """The rows of an earlier run from index `first`, copied; `read` is in indexes."""
    after: int | None = first - 1
    while after is not None:
        page = await tasks.page(source, limit=most, after=after, whole=True)
        if page.tasks:
            yield RowChunk(copy_rows(page.tasks, selection, params), page.tasks[-1].index + 1)
        after = page.cursor


async def stored_tasks(
    blobs: Blobs, key: str, *, offset: int = 0, most: int
) -> AsyncIterator[tuple[list[TaskSpec], int]]:
    """The tasks of a stored list from an offset on, with the bytes they took.

    Up to `most` at a time, and fewer where they are large.
    """
    rest, specs, length = b"", list[TaskSpec](), 0
    async for part in blobs.read(key, offset=offset):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            specs.append(_spec(line))
            length += len(line) + 1
            if len(specs) == most or length >= PAGE_BYTES:
                yield specs, length
                specs, length = [], 0
    if specs:
        yield specs, length


def _spec(line: bytes) -> TaskSpec:
    try:
        return SPECS.decode(line)
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"a stored list cannot be read: {error}") from error
