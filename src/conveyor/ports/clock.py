"""Time and chance, injected: nothing else in the program reads a clock or rolls dice."""

from datetime import datetime, timedelta
from typing import Protocol

SLEW = timedelta(seconds=1)  # a wall clock that differs by no more is taken as it is


class Clock(Protocol):
    def now(self) -> datetime:
        """The moment, in UTC. It may jump; durations are measured by `monotonic`."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed point, never falling."""
        ...


class SteppingClock(Clock, Protocol):
    """A clock whose `now` keeps step with `monotonic` when the wall clock is set, until told.

    So nobody sees the new time before the due times that were made by the old one are repaired.
    """

    def step(self) -> timedelta:
        """How far the wall clock was set ahead, or back if negative; zero within `SLEW`."""
        ...

    def adopt(self) -> None:
        """Show the wall time that `step` found last. To be safe to repeat."""
        ...


class Ids(Protocol):
    def new(self) -> str:
        """A ULID no one else has; later ones of one source sort after earlier ones."""
        ...
