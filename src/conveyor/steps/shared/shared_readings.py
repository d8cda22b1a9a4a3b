"""Reads that are shared by all who ask for the same: while they are under way, or for a time."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock

Found = TypeVar("Found")


@dataclass(slots=True, eq=False)
class _Read(Generic[Found]):
    """A read that is under way in this process."""

    is_done: asyncio.Event = field(default_factory=asyncio.Event)
    found: Found | None = None  # None if it failed, or if its request was cancelled
    error: Unavailable | None = None


@dataclass(frozen=True, slots=True)
class ConcurrentReads(Generic[Found]):
    """At most one read of a key at a time."""

    under_way: dict[Hashable, _Read[Found]] = field(default_factory=dict)

    async def find(
        self,
        key: Hashable,
        read: Callable[[], Awaitable[Found]],
        *,
        recall: Callable[[], Awaitable[Found | None]] | None = None,
        store: Callable[[Found], Awaitable[None]] | None = None,
    ) -> Found:
        """Recall the value of a key, else read it, for all who ask meanwhile.

        A value that was read is stored, unless it was outdated meanwhile. The others do not wait
        for that. If the read is cancelled, one of those who wait reads instead.
        """
        while known := self.under_way.get(key):
            await known.is_done.wait()
            if known.error:  # not tried again by everyone who waited
                raise known.error
            if known.found is not None:
                return known.found
        mine = self.under_way[key] = _Read[Found]()
        try:
            mine.found = recalled = await recall() if recall else None
            if mine.found is None:
                mine.found = await read()
        except Unavailable as error:
            mine.error = error
            raise
        finally:
            is_latest = self.under_way.get(key) is mine
            if is_latest:
                del self.under_way[key]
            mine.is_done.set()
        if store and is_latest and recalled is None:
            await store(mine.found)
        return mine.found

    def outdate(self, key: Hashable) -> None:
        """Let the next request read anew: a read that is under way may have begun too early."""
        self.under_way.pop(key, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedReadings(Generic[Found]):
    """Values by key, at most `most` of them and one for each request, that are kept for a time."""

    clock: Clock
    most: int
    reads: ConcurrentReads[Found] = field(default_factory=ConcurrentReads)
    kept: dict[Hashable, tuple[Found, float]] = field(default_factory=dict)  # and until when

    async def find(
        self, key: Hashable, read: Callable[[], Awaitable[Found]], *, life: timedelta
    ) -> Found:
        """Return what was read for a key, or read it for all who ask during `life` from now on."""
        self._forget()
        if key in self.kept:
            return self.kept[key][0]
        until = self.clock.monotonic() + life.total_seconds()

        async def keep(found: Found) -> None:
            self.kept[key] = found, until

        return await self.reads.find(key, read, store=keep)

    def _forget(self) -> None:
        """Remove the values that are too old, and all if there are too many."""
        now = self.clock.monotonic()
        too_many = len(self.kept) > self.most
        for key, (_, until) in list(self.kept.items()):
            if too_many or until < now:
                del self.kept[key]
