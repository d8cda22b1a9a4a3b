"""Lists as streams. A caller's own comes in pieces, and takes a thread: it is all computing. One in
stored form comes in tasks.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager

import msgspec

from conveyor.domain.list_rows import Position
from conveyor.domain.listing import BEGINNING, Piece
from conveyor.domain.params import Params
from conveyor.domain.pinned import PinnedList
from conveyor.domain.pinned_reader import PinnedReader
from conveyor.domain.submission import Limits
from conveyor.domain.task import TaskSpec
from conveyor.errors import InvalidArgument
from conveyor.ports.blobs import Blobs
from conveyor.ports.tasks import PAGE_BYTES

SPECS = msgspec.json.Decoder(TaskSpec)


@asynccontextmanager
async def pieces_of(
    blobs: Blobs,
    pinned: PinnedList,
    params: Params,
    position: Position = BEGINNING,
    *,
    task_limits: Limits,
    most_rows: int,
    enough: float = math.inf,
) -> AsyncIterator[AsyncIterator[Piece]]:
    """What is left of a list from a position on; raises as `PinnedReader` does."""
    reader = PinnedReader(
        pinned, params, position, task_limits=task_limits, most_rows=most_rows, enough=enough
    )
    async with (
        aclosing(blobs.read(pinned.blob, offset=reader.offset)) as content,
        aclosing(_pieces(reader, content)) as pieces,
    ):
        yield pieces


async def _pieces(
    reader: PinnedReader, content: AsyncIterator[bytes]
) -> AsyncGenerator[Piece, None]:
    async for chunk in content:
        async for piece in _in_threads(reader.feed(chunk)):
            yield piece
    async for piece in _in_threads(reader.finish()):
        yield piece


async def _in_threads(pieces: Iterator[Piece]) -> AsyncIterator[Piece]:
    while piece := await asyncio.to_thread(next, pieces, None):
        yield piece


async def staged_tasks(
    blobs: Blobs, key: str, *, offset: int = 0, at_a_time: int
) -> AsyncIterator[tuple[list[TaskSpec], int]]:
    """What is left of a list in stored form, many tasks at a time as long as they are small, and
    how many bytes they took.
    """
    rest, specs, length = b"", list[TaskSpec](), 0
    async for part in blobs.read(key, offset=offset):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            specs.append(_spec(line))
            length += len(line) + 1
            if len(specs) == at_a_time or length >= PAGE_BYTES:
                yield specs, length
                specs, length = [], 0
    if specs:
        yield specs, length


def _spec(line: bytes) -> TaskSpec:
    try:
        return SPECS.decode(line)
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"a staged list cannot be read: {error}") from error
