"""Large objects: staged lists and exports, streamed in and out."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import Protocol


class Blobs(Protocol):
    """Raises `Unavailable`, and `StorageFull` when there is no room."""

    async def put(self, key: str, content: AsyncIterable[bytes]) -> int:
        """Store a stream under a key, whole or not at all, and give its length."""
        ...

    def read(self, key: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """The object in chunks from a byte on; `NotFound` when there is none.

        Whoever does not read it to its end closes it.
        """
        ...

    async def length(self, key: str) -> int | None: ...

    async def keys(self, prefix: str, *, limit: int, after: str = "") -> Sequence[str]:
        """Keys under a prefix in order, from above `after`."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are gone already do not matter."""
        ...


async def as_stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Content that is at hand, in the form `put` takes."""
    for chunk in chunks:
        yield chunk
