"""A clock and ids that a test controls."""

from datetime import UTC, datetime, timedelta
from itertools import count

from conveyor.domain.ids import ulid

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


class FakeClock:
    """A `Clock` that stands still until it is advanced."""

    def __init__(self, start: datetime = NOON) -> None:
        self._start = start
        self._passed = timedelta()
        self._set_by = timedelta()

    def now(self) -> datetime:
        return self._start + self._passed + self._set_by

    def monotonic(self) -> float:
        return self._passed.total_seconds()

    def advance(self, by: timedelta) -> None:
        if by < timedelta():
            raise ValueError(f"time must not run back, got {by}")
        self._passed += by

    def set_wall(self, by: timedelta) -> None:
        """Set the wall clock ahead, or back if negative; monotonic time does not notice."""
        self._set_by += by


class FakeIds:
    """ULIDs of one moment in increasing order: the same in every test run."""

    def __init__(self, moment: datetime = NOON) -> None:
        self._milliseconds = int(moment.timestamp() * 1000)
        self._numbers = count(1)

    def new(self) -> str:
        return ulid(self._milliseconds, next(self._numbers))
