"""Time and chance, injected: nothing else in the program reads a clock or rolls dice."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The moment, in UTC. It may jump; durations are measured by `monotonic`."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed point, never falling."""
        ...


class Ids(Protocol):
    def new(self) -> str:
        """A ULID no one else has; later ones of one source sort after earlier ones."""
        ...
