"""The clock of the machine, and ids from its clock and its randomness."""

import os
import threading
import time
from datetime import UTC, datetime, timedelta

from conveyor.domain.ids import ulid
from conveyor.ports.clock import SLEW, Clock

READINGS = 3
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class SteadyClock:
    """A `SteppingClock` over another clock: its monotonic time plus an offset."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._found = self._measured()
        self.adopt()

    def now(self) -> datetime:
        # A sum of seconds: it takes a quarter of the time of a sum of timedeltas, and every task needs
        # the time more than once.
        return datetime.fromtimestamp(self._clock.monotonic() + self._seconds, UTC)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def step(self) -> timedelta:
        self._found = self._measured()
        if abs(self._found - self._offset) <= SLEW:
            self.adopt()
        return self._found - self._offset

    def adopt(self) -> None:
        self._offset = self._found
        self._seconds = self._found.total_seconds()

    def _measured(self) -> timedelta:
        """Wall time less monotonic time, by the fastest of a few readings.

        A pause of the process between the two clocks would look like a step of the wall clock.
        """
        return min((self._reading() for _ in range(READINGS)), key=lambda one: one[0])[1]

    def _reading(self) -> tuple[float, timedelta]:
        before = self._clock.monotonic()
        wall = self._clock.now() - EPOCH
        after = self._clock.monotonic()
        return after - before, wall - timedelta(seconds=(before + after) / 2)


class SystemIds:
    """ULIDs in increasing order: within a millisecond, or after a step back, by counting up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._moment = 0
        self._chance = 0
        self._lock = threading.Lock()  # an engine may call `new` in a thread

    def new(self) -> str:
        with self._lock:
            return self._next()

    def _next(self) -> str:
        moment = int(self._clock.now().timestamp() * 1000)
        if moment > self._moment:
            self._moment = moment
            # The top bit stays 0, so that counting up never overflows.
            self._chance = int.from_bytes(os.urandom(10)) >> 1
        else:
            self._chance += 1 + int.from_bytes(os.urandom(4))
        return ulid(self._moment, self._chance)
