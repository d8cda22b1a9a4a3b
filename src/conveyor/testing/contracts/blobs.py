"""What every store of large objects must do."""

from collections.abc import AsyncIterator

import pytest

from conveyor.errors import NotFound, Unavailable
from conveyor.ports.blobs import Blobs
from conveyor.testing.contracts.engine import joined

LARGE = bytes(range(256)) * 4000
KEYS = ["exports/a/1", "lists/a/1", "lists/a/2", "lists/b/1", "lists/c"]


class BlobsContract:
    """A store passes by providing a `blobs` fixture."""

    @pytest.mark.parametrize("content", [b"", b"x", LARGE])
    async def test_an_object_comes_back_as_it_was_put(self, blobs: Blobs, content: bytes) -> None:
        assert await blobs.put("lists/1", _stream(content)) == len(content)

        assert await _read(blobs, "lists/1") == content
        assert await blobs.length("lists/1") == len(content)

    @pytest.mark.parametrize("offset", [0, 1, 70_000, len(LARGE) - 1, len(LARGE)])
    async def test_an_object_is_read_from_any_byte_on(self, blobs: Blobs, offset: int) -> None:
        await blobs.put("lists/1", _stream(LARGE))
        assert await _read(blobs, "lists/1", offset) == LARGE[offset:]

    async def test_an_object_put_again_is_replaced(self, blobs: Blobs) -> None:
        await blobs.put("lists/1", _stream(LARGE))
        await blobs.put("lists/1", _stream(b"new"))

        assert await _read(blobs, "lists/1") == b"new"
        assert list(await blobs.keys("", limit=9)) == ["lists/1"]

    async def test_a_stream_that_breaks_leaves_nothing(self, blobs: Blobs) -> None:
        with pytest.raises(Unavailable):
            await blobs.put("lists/1", _broken_stream())

        assert await blobs.length("lists/1") is None
        assert list(await blobs.keys("", limit=9)) == []

    async def test_a_stream_that_breaks_leaves_what_was_there(self, blobs: Blobs) -> None:
        await blobs.put("lists/1", _stream(b"old"))
        with pytest.raises(Unavailable):
            await blobs.put("lists/1", _broken_stream())

        assert await _read(blobs, "lists/1") == b"old"

    async def test_an_object_is_not_seen_before_it_is_whole(self, blobs: Blobs) -> None:
        seen: list[int | None] = []

        async def content() -> AsyncIterator[bytes]:
            yield b"half"
            seen.append(await blobs.length("lists/1"))
            yield b"whole"

        await blobs.put("lists/1", content())

        assert seen == [None]

    async def test_what_is_not_there_is_not_found(self, blobs: Blobs) -> None:
        assert await blobs.length("lists/1") is None
        with pytest.raises(NotFound):
            await _read(blobs, "lists/1")

    async def test_keys_under_a_prefix_are_listed_in_order(self, blobs: Blobs) -> None:
        await _given_keys(blobs)

        assert list(await blobs.keys("", limit=9)) == KEYS
        assert list(await blobs.keys("lists/", limit=9)) == KEYS[1:]
        assert list(await blobs.keys("lists/a/", limit=9)) == KEYS[1:3]
        assert list(await blobs.keys("nothing/", limit=9)) == []

    @pytest.mark.parametrize("size", [1, 2, 3])
    async def test_pages_of_keys_give_each_once(self, blobs: Blobs, size: int) -> None:
        await _given_keys(blobs)
        listed = await joined(
            lambda after: blobs.keys("lists/", limit=size, after=after), str, size=size, start=""
        )

        assert listed == KEYS[1:]

    async def test_keys_are_in_order_of_their_characters_slashes_included(
        self, blobs: Blobs
    ) -> None:
        keys = ["x/a", "x/a-1", "x/a.zip", "x/a1/z", "x/a2", "x/b/0/1", "x/b/0-1", "xa/1", "y"]
        for key in keys:
            await blobs.put(key, _stream(b""))

        for prefix in ("", "x", "x/", "x/a", "x/b/", "x/b/0/1"):
            wanted = sorted(key for key in keys if key.startswith(prefix))
            for number, after in enumerate(["", *wanted]):
                assert list(await blobs.keys(prefix, limit=99, after=after)) == wanted[number:]

    async def test_deleted_objects_are_gone_and_others_stay(self, blobs: Blobs) -> None:
        await _given_keys(blobs)

        await blobs.delete([KEYS[0], KEYS[2]])
        await blobs.delete([KEYS[0], "never/was"])

        assert list(await blobs.keys("", limit=9)) == [KEYS[1], *KEYS[3:]]
        with pytest.raises(NotFound):
            await _read(blobs, KEYS[0])


async def _given_keys(blobs: Blobs) -> None:
    for key in reversed(KEYS):
        await blobs.put(key, _stream(key.encode()))


async def _stream(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 100_000):
        yield content[start : start + 100_000]


async def _broken_stream() -> AsyncIterator[bytes]:
    yield b"half"
    raise Unavailable("the stream broke")


async def _read(blobs: Blobs, key: str, offset: int = 0) -> bytes:
    return b"".join([chunk async for chunk in blobs.read(key, offset=offset)])
