"""Who may be told something now, and who stands in which line.

There are so many places, and few for one receiver: a slow one keeps its own places busy and
nobody else's. What finds its receiver busy stands in that receiver's line. Those that answered
badly or late share a part of the places, so that any number of them leaves some for the others.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.event import Event
from conveyor.domain.ids import EventId

PLACES = 50
PLACES_OF_ONE = 2
POOR_SHARE = 0.6  # of the places, for all receivers whose last answer was bad or late
LATE = 5.0  # seconds
MOST_IN_LINE = 20_000  # over all lines; whatever is beyond comes by again
MOST_KNOWN = 4_096  # receivers of which something is known and nothing is waiting
QUICK = 0.1  # seconds: what is thought of a receiver before it has answered
LEARNING = 0.3  # how much the latest answer counts for how long one takes
SHORTEST_WAIT = timedelta(seconds=5)
LONGEST_WAIT = timedelta(minutes=15)


@dataclass(slots=True)
class Receiver:
    under_way: int = 0
    seconds: float = QUICK  # that an answer takes, about
    is_poor: bool = False
    line: OrderedDict[EventId, Event] = field(default_factory=OrderedDict)

    @property
    def is_idle(self) -> bool:
        return not self.under_way and not self.line


@dataclass(slots=True)
class Lines:
    """Kept in the memory of one sender. What stands in a line is put off in storage as well, for
    about as long as it will take: should the sender die, it comes by again.
    """

    chance: Callable[[], float]  # from 0 to 1
    places: int = PLACES
    _known: OrderedDict[str, Receiver] = field(default_factory=OrderedDict)
    _busy: set[str] = field(default_factory=set)  # receivers with something under way
    _turns: deque[str] = field(default_factory=deque)  # receivers with a line
    _line_of: dict[EventId, str] = field(default_factory=dict)

    @property
    def under_way(self) -> int:
        return sum(self._known[host].under_way for host in self._busy)

    @property
    def waiting(self) -> int:
        return len(self._line_of)

    def begin(self, host: str) -> bool:
        """Take a place for a receiver, if there is one, and nobody stands in its line."""
        known = self._receiver(host)
        if known.line or not self._has_place(known):
            return False
        self._take(host)
        return True

    def end(self, host: str, *, seconds: float, well: bool) -> None:
        """A place is free again; the receiver took so long, and answered well or not."""
        known = self._receiver(host)
        known.seconds += LEARNING * (seconds - known.seconds)
        known.is_poor = not well or seconds > LATE
        self.give_back(host)

    def give_back(self, host: str) -> None:
        """A place is free again, and nothing was tried."""
        known = self._receiver(host)
        known.under_way -= 1
        if not known.under_way:
            self._busy.discard(host)

    def wait(self, host: str) -> timedelta:
        """About how long it takes until whoever joins the line now has its turn."""
        known = self._receiver(host)
        place = (len(known.line) + 1) * known.seconds / PLACES_OF_ONE
        likely = timedelta(seconds=min(place, LONGEST_WAIT.total_seconds()))
        # Spread, so that what comes by again does not come all at once.
        return max(likely, SHORTEST_WAIT) * (1 + 0.5 * self.chance())

    def join(self, host: str, event: Event) -> None:
        """Stand in line, or keep its place there; if there is no room, it comes by again."""
        if self._line_of.get(event.id, host) != host:
            self._leave(event.id)
        if event.id not in self._line_of and len(self._line_of) >= MOST_IN_LINE:
            return
        known = self._receiver(host)
        if not known.line:
            self._turns.append(host)
        known.line[event.id] = event
        self._line_of[event.id] = host

    def next(self) -> tuple[str, Event] | None:
        """Take a place for the first in a line, each receiver in its turn."""
        for _ in range(len(self._turns)):
            host = self._turns[0]
            self._turns.rotate(-1)
            known = self._receiver(host)
            if self._has_place(known):
                event = next(iter(known.line.values()))
                self._leave(event.id)
                self._take(host)
                return host, event
        return None

    def _take(self, host: str) -> None:
        self._known[host].under_way += 1
        self._busy.add(host)

    def _leave(self, event_id: EventId) -> None:
        host = self._line_of.pop(event_id)
        line = self._known[host].line
        del line[event_id]
        if not line:
            self._turns.remove(host)

    def _has_place(self, known: Receiver) -> bool:
        if known.under_way >= PLACES_OF_ONE or self.under_way >= self.places:
            return False
        return not known.is_poor or self._of_poor() < self.places * POOR_SHARE

    def _of_poor(self) -> int:
        busy = (self._known[host] for host in self._busy)
        return sum(one.under_way for one in busy if one.is_poor)

    def _receiver(self, host: str) -> Receiver:
        known = self._known.get(host)
        if known is None:
            self._make_room()
            known = self._known[host] = Receiver()
        else:
            self._known.move_to_end(host)
        return known

    def _make_room(self) -> None:
        """Forget the receiver that was of no concern for longest."""
        if len(self._known) >= MOST_KNOWN:
            idle = next((host for host, one in self._known.items() if one.is_idle), None)
            if idle is not None:
                del self._known[idle]
