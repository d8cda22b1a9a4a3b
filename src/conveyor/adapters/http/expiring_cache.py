"""A cache whose entries expire. Concurrent callers of one key share one lookup."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class CacheEntry(NamedTuple, Generic[V]):
    """A value, for how many seconds it is valid, and how much room it takes."""

    value: V
    life: float
    weight: int = 1


class ExpiringCache(Generic[K, V]):
    """Calls `find` for keys without a valid entry. The oldest entry goes when there is no room.

    Callers of a key that is being looked up wait for it; if that lookup fails or is cancelled, one
    of them starts another.
    """

    def __init__(self, find: Callable[[K], Awaitable[CacheEntry[V]]], *, room: int) -> None:
        self._find, self._room = find, room
        self._loop = asyncio.get_running_loop()
        self._known: dict[K, tuple[CacheEntry[V], float]] = {}  # and when found; latest last
        self._sought: dict[K, asyncio.Event] = {}
        self._weight = 0

    async def of(self, key: K) -> V:
        while True:
            found, at = self._known.get(key, (None, 0.0))
            if found is not None and self._loop.time() < at + found.life:
                return found.value
            if key not in self._sought:
                return await self._seek(key)
            await self._sought[key].wait()

    def left(self, key: K) -> float:
        """Seconds for which the entry is still valid."""
        found, at = self._known.get(key, (None, 0.0))
        return 0.0 if found is None else max(at + found.life - self._loop.time(), 0.0)

    async def _seek(self, key: K) -> V:
        over = self._sought[key] = asyncio.Event()
        try:
            found = await self._find(key)
            self._keep(key, found)
            return found.value
        finally:
            del self._sought[key]
            over.set()

    def _keep(self, key: K, found: CacheEntry[V]) -> None:
        self._forget(key)
        self._known[key] = found, self._loop.time()
        self._weight += found.weight
        while self._weight > self._room:
            self._forget(next(iter(self._known)))

    def _forget(self, key: K) -> None:
        if key in self._known:
            found, _ = self._known.pop(key)
            self._weight -= found.weight
