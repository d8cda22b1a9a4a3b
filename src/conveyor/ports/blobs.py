"""Large objects: staged lists, uploads, reports and exports, written and read as streams."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import Protocol


class Blobs(Protocol):
    """Objects under keys such as `lists/<job>/<run>/<name>.ndjson`, of any size.

    Keys are ASCII and have the form of relative paths. Every method raises `Unavailable` when the
    engine cannot answer; `put` also raises `StorageFull`.
    """

    async def put(self, key: str, content: AsyncIterable[bytes]) -> int:
        """Store a stream under a key and return its length in bytes.

        The object appears complete or not at all, and is then as durable as the engine was opened
        for. It replaces an object with the same key. If the stream raises, the exception is passed
        on and the object that was there before stays. The engine must not collect the stream in
        memory.
        """
        ...

    def read(self, key: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """Stream an object from byte `offset`, in chunks of bounded size.

        The first step of the stream raises `NotFound` when there is no such object. An offset at
        the end of the object gives an empty stream. A reader that stops early must close the
        stream, so that the engine can release the file or connection.
        """
        ...

    async def length(self, key: str) -> int | None:
        """Return the length of an object in bytes; None when there is none."""
        ...

    async def keys(self, prefix: str, *, limit: int, after: str = "") -> Sequence[str]:
        """List at most `limit` keys that begin with `prefix` and sort after `after`.

        They are in order of their characters, `/` included. An empty result is the end.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects. A key without an object is ignored, so the call may be repeated."""
        ...


async def as_stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Make content in memory the stream that `Blobs.put` takes."""
    for chunk in chunks:
        yield chunk
