"""The parts of a sweep: listings whose entries are judged one by one, and cursors over them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.audit import MissedStep

YOUNG = timedelta(minutes=10)  # anything younger may still be under way
MOST_KEYS = 100_000  # suspects of one listing; others wait until those are repaired

Act = Callable[[], Awaitable[int]]  # returns how many things it repaired or removed


@dataclass(frozen=True, slots=True)
class Repair:
    """A step that did not happen because a process died, and how to make it happen."""

    step: MissedStep
    act: Act
    at_first_sight: bool = False  # judged by age alone: no second pass is needed
    is_precaution: bool = False  # made at a start, without a sign that the step is missing


@dataclass(frozen=True, slots=True)
class Removal:
    """Something that has expired. Nothing went wrong."""

    kind: str
    act: Act


SweepAction = Repair | Removal
Judge = Callable[[bool], Awaitable[SweepAction | None]]  # its argument: see `Sweeper.step`
Entry = tuple[str, Judge]  # a position in the listing, and how to judge what is there
Listing = Callable[[str, int], Awaitable[Sequence[Entry]]]  # from above a position, up to a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCheck:
    """A listing in order of position. A long one is swept in parts, over many rounds."""

    name: str
    listing: Listing
    long: bool = False
    prefix: str = ""  # before the id that leads each position
    most: int = 5_000  # repaired or removed in one round


@dataclass(slots=True)
class SweepCursor:
    """How far the current pass over a listing is, and what looked broken.

    Keys are kept from one complete pass to the next, however many rounds a pass takes.
    """

    after: str = ""
    suspects: set[str] = field(default_factory=set)  # of the previous pass
    seen: set[str] = field(default_factory=set)  # of this pass so far

    def note(self, key: str) -> None:
        if len(self.seen) < MOST_KEYS:
            self.seen.add(key)

    def end_pass(self) -> None:
        self.after = ""
        self.suspects, self.seen = self.seen, set()
