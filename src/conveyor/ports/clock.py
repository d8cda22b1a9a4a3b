"""Clock and ids. They are injected, so that tests control both."""

from datetime import datetime, timedelta
from typing import Protocol

SLEW = timedelta(seconds=1)  # a difference of the wall clock up to this is followed at once


class Clock(Protocol):
    """The only source of time. No other code reads the clock of the machine."""

    def now(self) -> datetime:
        """Return the current time in UTC. It may jump: measure durations with `monotonic`."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since a fixed moment of this process. It never decreases."""
        ...


class SteppingClock(Clock, Protocol):
    """A clock that hides a change of the wall clock until due times have been repaired.

    When the wall clock is set, `now` continues from the old time at the pace of `monotonic`, until
    `adopt` is called. Meanwhile `timekeeping` repairs the due times that were computed from the old
    time.
    """

    def step(self) -> timedelta:
        """Return how far the wall clock was set ahead, or back if negative; zero within `SLEW`."""
        ...

    def adopt(self) -> None:
        """Let `now` follow the wall time that `step` found last. The call may be repeated."""
        ...


class Ids(Protocol):
    """The only source of new ids."""

    def new(self) -> str:
        """Return a new ULID, unique over all processes.

        Ids of one source sort in the order in which they were made.
        """
        ...
