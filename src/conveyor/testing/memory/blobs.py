"""Large objects in memory."""

from collections.abc import AsyncGenerator, AsyncIterable, Sequence

from conveyor.errors import NotFound

CHUNK = 64 * 1024


class MemoryBlobs:
    is_swept = True

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    async def put(self, key: str, content: AsyncIterable[bytes]) -> int:
        whole = b"".join([chunk async for chunk in content])
        self._kept[key] = whole
        return len(whole)

    async def read(self, key: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        if key not in self._kept:
            raise NotFound(f"no object {key}")
        content = self._kept[key]
        for start in range(offset, len(content), CHUNK):
            yield content[start : start + CHUNK]

    async def length(self, key: str) -> int | None:
        content = self._kept.get(key)
        return None if content is None else len(content)

    async def keys(self, prefix: str, *, limit: int, after: str = "") -> Sequence[str]:
        under = (key for key in self._kept if key.startswith(prefix) and key > after)
        return sorted(under)[:limit]

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._kept.pop(key, None)

    def sign_put(self, *_: object, **__: object) -> None:
        return None

    def sign_get(self, *_: object, **__: object) -> None:
        return None
