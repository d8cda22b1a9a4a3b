"""What the sweeper's rounds are made of: listings whose entries are judged one by one.

Values that stations share; no station itself.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.finding import Lost

YOUNG = timedelta(minutes=10)  # what is not older may still be under way
MOST_MARKS = 100_000  # of one listing; what is beyond waits until those are repaired

Do = Callable[[], Awaitable[int]]  # and say how many there were


@dataclass(frozen=True, slots=True)
class Broken:
    """A step that was lost, and how it is made to happen."""

    lost: Lost
    repair: Do
    at_once: bool = False  # judged by its age alone


@dataclass(frozen=True, slots=True)
class Over:
    """Something whose time is over: nothing went wrong, and it goes."""

    kind: str
    remove: Do


Found = Broken | Over
Judge = Callable[[bool], Awaitable[Found | None]]  # with patience, or without
Entry = tuple[str, Judge]  # its place in the listing, and what is to be thought of it
Listing = Callable[[str, int], Awaitable[Sequence[Entry]]]  # from above a place, up to so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A listing in order of place. A long one is gone through in bites, a bite a round."""

    name: str
    listing: Listing
    long: bool = False
    prefix: str = ""  # before the id that leads each place
    most: int = 5_000  # to be removed in one round


@dataclass(slots=True)
class Walk:
    """One listing, gone through again and again: how far this time, and what looked broken.

    Marks are kept from one whole time to the next, however many rounds each takes.
    """

    after: str = ""
    suspects: set[str] = field(default_factory=set)  # the whole time before
    seen: set[str] = field(default_factory=set)  # this time, as far as it got

    def note(self, mark: str) -> None:
        if len(self.seen) < MOST_MARKS:
            self.seen.add(mark)

    def end(self) -> None:
        self.after = ""
        self.suspects, self.seen = self.seen, set()
