"""Large objects: staged lists, uploads, reports and exports, written and read as streams."""

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Mapping,
    Sequence,
)
from datetime import timedelta
from typing import Protocol

import msgspec


class SignedUpload(msgspec.Struct, frozen=True):
    """A URL that takes one PUT without further credentials."""

    url: str
    headers: Mapping[str, str]  # the request must have them as they are


class Blobs(Protocol):
    """Objects under keys such as `lists/<job>/<run>/<name>.ndjson`, of any size.

    Keys are ASCII and have the form of relative paths. Every method that waits raises `Unavailable`
    when the engine cannot answer; `put` also raises `StorageFull`.

    Some engines sign URLs by which a client reaches an object without this service. `sign_put` and
    `sign_get` return None where the engine cannot, or where the URL would end before `life` because
    the credentials that sign it do. The service then passes the bytes on itself.
    """

    @property
    def is_swept(self) -> bool:
        """Whether the sweeper may list every object again and again.

        False where listings are billed, and where the objects may belong to another service. What
        nothing refers to is then left to rules of the storage.
        """
        ...

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

    def sign_put(
        self, key: str, *, content_type: str, life: timedelta, length: int | None = None
    ) -> SignedUpload | None:
        """Sign a URL that stores one object, of exactly `length` bytes if that is given.

        An object that exists is never replaced: a second upload is refused, as far as the server
        of the engine implements conditional writes.
        """
        ...

    def sign_get(
        self, key: str, *, life: timedelta, content_type: str, filename: str | None = None
    ) -> str | None:
        """Sign a URL that downloads an object. With `filename`, browsers save it under that name."""
        ...


async def as_stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Make content in memory the stream that `Blobs.put` takes."""
    for chunk in chunks:
        yield chunk
