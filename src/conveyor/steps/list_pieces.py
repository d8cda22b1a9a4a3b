"""A caller's list as a stream of pieces. Reading one takes a thread: it is all computing."""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager

from conveyor.domain.list_rows import Position
from conveyor.domain.listing import BEGINNING, Piece
from conveyor.domain.params import Params
from conveyor.domain.pinned import PinnedList
from conveyor.domain.pinned_reader import PinnedReader
from conveyor.ports.blobs import Blobs


@asynccontextmanager
async def pieces_of(
    blobs: Blobs,
    pinned: PinnedList,
    params: Params,
    position: Position = BEGINNING,
    *,
    most_rows: int,
    enough: float = math.inf,
) -> AsyncIterator[AsyncIterator[Piece]]:
    """What is left of a list from a position on; raises as `PinnedReader` does."""
    reader = PinnedReader(pinned, params, position, most_rows=most_rows, enough=enough)
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
