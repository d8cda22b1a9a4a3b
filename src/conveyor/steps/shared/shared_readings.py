"""Readings of runs that are shared by all who ask for them within a time."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock

Found = TypeVar("Found")


@dataclass(slots=True, eq=False)
class _Reading(Generic[Found]):
    """A reading that is under way, or was made within its time."""

    until: float
    is_done: asyncio.Event = field(default_factory=asyncio.Event)
    found: Found | None = None  # None if it failed, or if its request was cancelled
    error: Unavailable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedReadings(Generic[Found]):
    """Readings by key, at most `most` of them that are done and one for each request."""

    clock: Clock
    most: int
    readings: dict[Hashable, _Reading[Found]] = field(default_factory=dict)

    async def find(
        self, key: Hashable, read: Callable[[], Awaitable[Found]], *, life: timedelta
    ) -> Found:
        """Return what was read for a key, or read it for all who ask during `life` from now on."""
        self._forget()
        while known := self.readings.get(key):
            await known.is_done.wait()
            if known.error:  # not tried again by everyone who waited
                raise known.error
            if known.found is not None:
                return known.found
        return await self._read_for_all(key, read, life)

    async def _read_for_all(
        self, key: Hashable, read: Callable[[], Awaitable[Found]], life: timedelta
    ) -> Found:
        mine = _Reading[Found](self.clock.monotonic() + life.total_seconds())
        self.readings[key] = mine
        try:
            mine.found = await read()
        except Unavailable as error:
            mine.error = error
            raise
        finally:
            if mine.found is None:
                del self.readings[key]
            mine.is_done.set()
        return mine.found

    def _forget(self) -> None:
        """Remove the readings that are too old, and all that are done if there are too many."""
        now = self.clock.monotonic()
        too_many = len(self.readings) > self.most
        for key, reading in list(self.readings.items()):
            if reading.found is not None and (too_many or reading.until < now):
                del self.readings[key]
