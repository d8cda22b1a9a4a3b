"""What many ask for at once: found once, and known for a while."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Found(NamedTuple, Generic[V]):
    """A value, how long it is good for in seconds, and how much room it takes."""

    value: V
    life: float
    weight: int = 1


class Remembered(Generic[K, V]):
    """Asks `find` for what is not known. What was found longest ago goes when there is no room.

    Whoever asks for what is being looked for waits; if that search breaks off, one of them takes it
    up.
    """

    def __init__(self, find: Callable[[K], Awaitable[Found[V]]], *, room: int) -> None:
        self._find, self._room = find, room
        self._loop = asyncio.get_running_loop()
        self._known: dict[K, tuple[Found[V], float]] = {}  # with when it was found, latest last
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
        """Seconds for which what is known of it is still good."""
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

    def _keep(self, key: K, found: Found[V]) -> None:
        self._forget(key)
        self._known[key] = found, self._loop.time()
        self._weight += found.weight
        while self._weight > self._room:
            self._forget(next(iter(self._known)))

    def _forget(self, key: K) -> None:
        if key in self._known:
            found, _ = self._known.pop(key)
            self._weight -= found.weight
