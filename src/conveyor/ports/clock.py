"""Clock and ids, injected: no other module reads a clock or makes random ids."""

from datetime import datetime, timedelta
from typing import Protocol

SLEW = timedelta(seconds=1)  # a wall clock that differs by at most this is followed at once


class Clock(Protocol):
    def now(self) -> datetime:
        """The current time in UTC. It may jump: measure durations by `monotonic`."""
        ...

    def monotonic(self) -> float:
        """Seconds since a fixed point; never decreases."""
        ...


class SteppingClock(Clock, Protocol):
    """A clock whose `now` follows `monotonic` when the wall clock is set, until `adopt` is called.

    So no step sees the new time before the due times that were computed by the old one are repaired.
    """

    def step(self) -> timedelta:
        """How far the wall clock was set ahead, or back if negative; zero within `SLEW`."""
        ...

    def adopt(self) -> None:
        """Show the wall time that `step` found last. Safe to repeat."""
        ...


class Ids(Protocol):
    def new(self) -> str:
        """Make a unique ULID; later ones of one source sort after earlier ones."""
        ...
