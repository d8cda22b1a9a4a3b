"""Who may be told something now, and who stands in which line.

There are so many places, few for one receiver and a part of them for one caller: whoever is slow
keeps their own places busy and nobody else's. What finds no place stands in the line of its caller
for its receiver. Receivers that answered badly or late share a part of the places, so that any
number of them leaves some for the others.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.ids import CallerId, EventId
from conveyor.domain.outbox import OutboxEvent

PLACES = 50
PLACES_OF_ONE = 2
PLACES_OF_CALLER = 20
POOR_SHARE = 0.6  # of the places, for all receivers whose last answer was bad or late
LATE = 5.0  # seconds
MOST_IN_LINE = 5_000  # over all lines; whatever is beyond comes by again
MOST_KNOWN = 4_096  # receivers of which something is known and nothing is waiting
LOOKED_AT = 16  # of them at most, to make room for another
QUICK = 0.1  # seconds: what is thought of a receiver before it has answered
LEARNING = 0.3  # how much the latest answer counts for how long one takes
SHORTEST_WAIT = timedelta(seconds=5)
LONGEST_WAIT = timedelta(minutes=15)

Line = OrderedDict[EventId, OutboxEvent]


@dataclass(slots=True)
class Receiver:
    under_way: int = 0
    waiting: int = 0  # in the lines of all callers
    seconds: float = QUICK  # that an answer takes, about
    is_poor: bool = False

    @property
    def is_idle(self) -> bool:
        return not self.under_way and not self.waiting


@dataclass(slots=True)
class Waiting:
    """A caller's lines, by receiver: whose turn it is comes first. Those for poor receivers stand
    apart, so that they are passed over at one go when these have no place.
    """

    well: OrderedDict[str, Line] = field(default_factory=OrderedDict)
    poor: OrderedDict[str, Line] = field(default_factory=OrderedDict)

    def lines(self, *, poor: bool) -> OrderedDict[str, Line]:
        return self.poor if poor else self.well

    def move(self, host: str, *, poor: bool) -> None:
        """Its receiver has become poor, or well again."""
        line = self.lines(poor=not poor).pop(host, None)
        if line is not None:
            self.lines(poor=poor)[host] = line


@dataclass(slots=True)
class DeliveryQueue:
    """Kept in the memory of one sender. What stands in a line is put off in storage as well, for
    about as long as it will take: should the sender die, it comes by again.
    """

    chance: Callable[[], float]  # from 0 to 1
    places: int = PLACES
    under_way: int = 0
    _poor_under_way: int = 0
    _of_caller: Counter[CallerId] = field(default_factory=Counter)  # under way
    _known: OrderedDict[str, Receiver] = field(default_factory=OrderedDict)
    _turns: OrderedDict[CallerId, Waiting] = field(default_factory=OrderedDict)
    _line_of: dict[EventId, tuple[CallerId, str]] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        return len(self._line_of)

    def begin(self, host: str, caller: CallerId) -> bool:
        """Take a place, if there is one, and nothing of this caller waits for this receiver."""
        known = self._receiver(host)
        waiting = self._turns.get(caller)
        if waiting and host in waiting.lines(poor=known.is_poor):
            return False
        if not self._has_place(known, caller):
            return False
        self._take(known, caller)
        return True

    def end(self, host: str, caller: CallerId, *, seconds: float, well: bool) -> None:
        """A place is free again; the receiver took so long, and answered well or not."""
        known = self._receiver(host)
        known.seconds += LEARNING * (seconds - known.seconds)
        self._judge(host, known, is_poor=not well or seconds > LATE)
        self.give_back(host, caller)

    def give_back(self, host: str, caller: CallerId) -> None:
        """A place is free again, and nothing was tried."""
        known = self._receiver(host)
        known.under_way -= 1
        self.under_way -= 1
        self._poor_under_way -= known.is_poor
        self._of_caller[caller] -= 1
        if not self._of_caller[caller]:
            del self._of_caller[caller]

    def wait(self, host: str) -> timedelta:
        """About how long it takes until whoever joins the line now has its turn."""
        known = self._receiver(host)
        place = (known.waiting + 1) * known.seconds / PLACES_OF_ONE
        likely = timedelta(seconds=min(place, LONGEST_WAIT.total_seconds()))
        # Spread, so that what comes by again does not come all at once.
        return max(likely, SHORTEST_WAIT) * (1 + 0.5 * self.chance())

    def join(self, host: str, event: OutboxEvent) -> None:
        """Stand in line, or keep its place there; if there is no room, it comes by again."""
        stands = self._line_of.get(event.id)
        if stands and stands[1] != host:
            self._leave(event.id)
            stands = None
        if not stands and len(self._line_of) >= MOST_IN_LINE:
            return
        known = self._receiver(host)
        lines = self._turns.setdefault(event.caller, Waiting()).lines(poor=known.is_poor)
        lines.setdefault(host, OrderedDict())[event.id] = event
        known.waiting += not stands
        self._line_of[event.id] = event.caller, host

    def next(self) -> tuple[str, OutboxEvent] | None:
        """Take a place for the first in a line: each caller in turn, then each of its receivers."""
        if self.under_way >= self.places:
            return None
        for caller, waiting in self._turns.items():
            host = self._next_host(caller, waiting)
            if host is not None:
                return host, self._called(caller, waiting, host)
        return None

    def _next_host(self, caller: CallerId, waiting: Waiting) -> str | None:
        if self._of_caller[caller] >= PLACES_OF_CALLER:
            return None
        # Few are passed over: a receiver has no place only while it has some of the places.
        for lines in (waiting.well, waiting.poor) if self._has_poor_place() else (waiting.well,):
            for host in lines:
                if self._known[host].under_way < PLACES_OF_ONE:
                    return host
        return None

    def _called(self, caller: CallerId, waiting: Waiting, host: str) -> OutboxEvent:
        known = self._receiver(host)
        lines = waiting.lines(poor=known.is_poor)
        event = next(iter(lines[host].values()))
        lines.move_to_end(host)
        self._turns.move_to_end(caller)
        self._leave(event.id)
        self._take(known, caller)
        return event

    def _take(self, known: Receiver, caller: CallerId) -> None:
        known.under_way += 1
        self.under_way += 1
        self._poor_under_way += known.is_poor
        self._of_caller[caller] += 1

    def _leave(self, event_id: EventId) -> None:
        caller, host = self._line_of.pop(event_id)
        known, waiting = self._known[host], self._turns[caller]
        known.waiting -= 1
        lines = waiting.lines(poor=known.is_poor)
        del lines[host][event_id]
        if not lines[host]:
            del lines[host]
        if not waiting.well and not waiting.poor:
            del self._turns[caller]

    def _judge(self, host: str, known: Receiver, *, is_poor: bool) -> None:
        if known.is_poor == is_poor:
            return
        known.is_poor = is_poor
        self._poor_under_way += known.under_way if is_poor else -known.under_way
        if known.waiting:
            for waiting in self._turns.values():
                waiting.move(host, poor=is_poor)

    def _has_place(self, known: Receiver, caller: CallerId) -> bool:
        if known.under_way >= PLACES_OF_ONE or self.under_way >= self.places:
            return False
        if self._of_caller[caller] >= PLACES_OF_CALLER:
            return False
        return not known.is_poor or self._has_poor_place()

    def _has_poor_place(self) -> bool:
        return self._poor_under_way < self.places * POOR_SHARE

    def _receiver(self, host: str) -> Receiver:
        known = self._known.get(host)
        if known is None:
            self._make_room()
            known = self._known[host] = Receiver()
        else:
            self._known.move_to_end(host)
        return known

    def _make_room(self) -> None:
        """Forget the receivers that were of no concern for longest, a few at a time."""
        for _ in range(LOOKED_AT):
            if len(self._known) < MOST_KNOWN:
                return
            host = next(iter(self._known))
            if self._known[host].is_idle:
                del self._known[host]
            else:
                self._known.move_to_end(host)
