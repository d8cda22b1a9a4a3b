"""Large objects: lists and exports, written and read as streams."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import Protocol


class Blobs(Protocol):
    """Raises `Unavailable`, and `StorageFull` when there is no room."""

    async def put(self, key: str, content: AsyncIterable[bytes]) -> int:
        """Store a stream under a key, completely or not at all; return its length."""
        ...

    def read(self, key: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """Stream an object from byte `offset`; `NotFound` when there is none.

        A reader that stops early must close the stream.
        """
        ...

    async def length(self, key: str) -> int | None: ...

    async def keys(self, prefix: str, *, limit: int, after: str = "") -> Sequence[str]:
        """List the keys under a prefix in order, from above `after`."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, if they are there."""
        ...


async def as_stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Content in memory, as the stream that `put` takes."""
    for chunk in chunks:
        yield chunk
