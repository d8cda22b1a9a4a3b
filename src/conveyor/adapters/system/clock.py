"""The machine's own clock and dice."""

import os
import threading
import time
from datetime import UTC, datetime

from conveyor.domain.ids import ulid
from conveyor.ports.clock import Clock

RANDOM_BITS = 80


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class SystemIds:
    """ULIDs that rise: within a millisecond, or when the clock falls back, by counting on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._moment = 0
        self._chance = 0
        self._lock = threading.Lock()  # large submissions are checked in a thread

    def new(self) -> str:
        with self._lock:
            return self._next()

    def _next(self) -> str:
        moment = int(self._clock.now().timestamp() * 1000)
        if moment > self._moment:
            self._moment = moment
            # The top bit stays free, so that counting on never runs over.
            self._chance = int.from_bytes(os.urandom(10)) >> 1
        else:
            self._chance += 1 + int.from_bytes(os.urandom(4))
        return ulid(self._moment, self._chance)
