"""Places: how many messages of the control queue one process works on, and of which callers.

Each kind of message has places of its own, so that none waits behind another kind. Of those, one
caller has a bounded number. When a place comes free, the caller that was served longest ago is
next. A caller with a thousand messages and one with a single message are then served in turn.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from conveyor.domain.message import Line

MOST_REMEMBERED = 10_000  # callers whose last turn is remembered


class Share(msgspec.Struct, frozen=True):
    """Places for one kind of message in one process."""

    places: int
    per_caller: int


class Places:
    def __init__(self, shares: Mapping[str, Share]) -> None:
        self._shares = shares
        self._taken: Counter[Line] = Counter()
        self._served: dict[Line, None] = {}  # in the order of their last turn

    @property
    def count(self) -> int:
        """How many messages can be worked on at once."""
        return sum(share.places for share in self._shares.values())

    @property
    def served(self) -> list[Line]:
        """Who had a turn, the longest ago first."""
        return list(self._served)

    def open_kinds(self) -> frozenset[str] | None:
        """The kinds that have a free place; None while all have, so that any kind may come."""
        taken: Counter[str] = Counter()
        for (kind, _), count in self._taken.items():
            taken[kind] += count
        free = {kind for kind, share in self._shares.items() if taken[kind] < share.places}
        return None if free == self._shares.keys() else frozenset(free)

    def full_lines(self) -> frozenset[Line]:
        """Callers that have all the places one caller may have, by kind."""
        return frozenset(
            line
            for line, count in self._taken.items()
            if line[0] in self._shares and count >= self._shares[line[0]].per_caller
        )

    def take(self, line: Line) -> None:
        self._taken[line] += 1
        self._served.pop(line, None)
        self._served[line] = None
        if len(self._served) > MOST_REMEMBERED:
            del self._served[next(iter(self._served))]

    def free(self, line: Line) -> None:
        self._taken[line] -= 1
        if not self._taken[line]:
            del self._taken[line]
