"""The delivery queue: which deliveries may start now, and which wait for their receiver.

Webhooks use it with many receivers. Step Functions use it with one, and without lines in memory.

A process sends `places` deliveries at a time: at most `per_origin` to one receiver (a host and
port), and at most `per_caller` for one caller. So neither a slow receiver nor a caller with many
of them can occupy every place. Receivers whose last response failed or came late are unhealthy;
together they get at most `unhealthy` places.

An event that finds no place waits in memory, in its caller's line for its receiver. A place that
becomes free goes to the callers in turn, and within a caller to its receivers in turn. The lines are
lost with the process. So the sender also postpones a waiting event in storage, by `delay`, and finds
it there again.

| invariant | kept by |
|---|---|
| `in_flight` is the sum over receivers, and the sum over callers | `_take`, `cancel` |
| `_unhealthy_in_flight` is the sum over unhealthy receivers | `_take`, `cancel`, `_set_health` |
| a line is in `healthy` or `unhealthy` of its caller as its receiver is | `add`, `_set_health` |
| `_line_of` has every event that waits; no line and no caller is empty | `add`, `_remove` |
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.ids import CallerId, EventId
from conveyor.domain.outbox import OutboxEvent

PLACES = 50
PER_ORIGIN = 2
PER_CALLER = 20
UNHEALTHY = 30  # of the places
LATE = 5.0  # seconds
MOST_WAITING = 5_000  # events in memory; those beyond are found in storage when they are due
MOST_REMEMBERED = 4_096  # receivers
EVICTIONS_TRIED = 16  # receivers looked at to make room for another
FIRST_GUESS = 0.1  # seconds that a response takes, before the first has come
SHORTEST_DELAY = timedelta(seconds=5)
LONGEST_DELAY = timedelta(minutes=15)

# The events of one caller for one receiver, in the order in which they came.
Line = OrderedDict[EventId, OutboxEvent]


@dataclass(slots=True)
class Receiver:
    in_flight: int = 0
    waiting: int = 0  # in the lines of all callers
    seconds: float = FIRST_GUESS  # that its latest response took
    is_healthy: bool = True


@dataclass(slots=True)
class CallerLines:
    """A caller's lines by receiver; the next in turn is first.

    Lines of unhealthy receivers are kept apart, so that all of them are skipped in one step while
    there is no place for them.
    """

    healthy: OrderedDict[str, Line] = field(default_factory=OrderedDict)
    unhealthy: OrderedDict[str, Line] = field(default_factory=OrderedDict)

    def of(self, receiver: Receiver) -> OrderedDict[str, Line]:
        return self.healthy if receiver.is_healthy else self.unhealthy


@dataclass(slots=True, kw_only=True)
class DeliveryQueue:
    """The places of one process, and the events that wait for them."""

    chance: Callable[[], float]  # from 0 to 1
    places: int = PLACES
    per_origin: int = PER_ORIGIN
    per_caller: int = PER_CALLER
    unhealthy: int = UNHEALTHY
    most_waiting: int = MOST_WAITING
    in_flight: int = 0
    _unhealthy_in_flight: int = 0
    _of_caller: Counter[CallerId] = field(default_factory=Counter)  # in flight
    _receivers: OrderedDict[str, Receiver] = field(default_factory=OrderedDict)  # latest used last
    _callers: OrderedDict[CallerId, CallerLines] = field(default_factory=OrderedDict)
    _line_of: dict[EventId, tuple[CallerId, str]] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        return len(self._line_of)

    def begin(self, origin: str, caller: CallerId) -> bool:
        """Take a place, if there is one and no event of this caller waits for this receiver."""
        receiver = self._receiver(origin)
        lines = self._callers.get(caller)
        if lines and origin in lines.of(receiver):
            return False
        if self.in_flight >= self.places or receiver.in_flight >= self.per_origin:
            return False
        if self._of_caller[caller] >= self.per_caller:
            return False
        if not receiver.is_healthy and self._unhealthy_in_flight >= self.unhealthy:
            return False
        self._take(receiver, caller)
        return True

    def end(self, origin: str, caller: CallerId, *, seconds: float, succeeded: bool) -> None:
        """Free the place of a delivery that took `seconds`."""
        receiver = self._receiver(origin)
        receiver.seconds = seconds
        # Before the place is freed: `cancel` counts it where the receiver is now.
        self._set_health(origin, receiver, is_healthy=succeeded and seconds <= LATE)
        self.cancel(origin, caller)

    def cancel(self, origin: str, caller: CallerId) -> None:
        """Free the place of a delivery that was not made."""
        receiver = self._receiver(origin)
        receiver.in_flight -= 1
        self.in_flight -= 1
        self._unhealthy_in_flight -= not receiver.is_healthy
        self._of_caller[caller] -= 1
        if not self._of_caller[caller]:
            del self._of_caller[caller]

    def delay(self, origin: str) -> timedelta:
        """About how long an event that is added now will wait for its turn."""
        receiver = self._receiver(origin)
        seconds = (receiver.waiting + 1) * receiver.seconds / self.per_origin
        likely = timedelta(seconds=min(seconds, LONGEST_DELAY.total_seconds()))
        # Jitter, so that the events of a line do not all become due at once if the process ends.
        return max(likely, SHORTEST_DELAY) * (1 + 0.5 * self.chance())

    def add(self, origin: str, event: OutboxEvent) -> None:
        """Let an event wait; one that waits already keeps its place in the line."""
        known = self._line_of.get(event.id)
        if known and known[1] != origin:  # its webhook has changed
            self._remove(event.id)
            known = None
        if not known and self.waiting >= self.most_waiting:
            return
        receiver = self._receiver(origin)
        lines = self._callers.setdefault(event.caller, CallerLines()).of(receiver)
        lines.setdefault(origin, OrderedDict())[event.id] = event
        receiver.waiting += not known
        self._line_of[event.id] = event.caller, origin

    def next(self) -> tuple[str, OutboxEvent] | None:
        """Take a place for the event whose turn it is, if there is one that may start."""
        if self.in_flight >= self.places:
            return None
        for caller, lines in self._callers.items():
            origin = self._next_origin(caller, lines)
            if origin is not None:
                return origin, self._start(caller, lines, origin)
        return None

    def _next_origin(self, caller: CallerId, lines: CallerLines) -> str | None:
        if self._of_caller[caller] >= self.per_caller:
            return None
        has_unhealthy_place = self._unhealthy_in_flight < self.unhealthy
        # This loop is short: a receiver that is skipped occupies `per_origin` places of a process
        # that has `places`.
        for kind in (lines.healthy, lines.unhealthy) if has_unhealthy_place else (lines.healthy,):
            for origin in kind:
                if self._receivers[origin].in_flight < self.per_origin:
                    return origin
        return None

    def _start(self, caller: CallerId, lines: CallerLines, origin: str) -> OutboxEvent:
        receiver = self._receiver(origin)
        kind = lines.of(receiver)
        event = next(iter(kind[origin].values()))
        kind.move_to_end(origin)
        self._callers.move_to_end(caller)
        self._remove(event.id)
        self._take(receiver, caller)
        return event

    def _take(self, receiver: Receiver, caller: CallerId) -> None:
        receiver.in_flight += 1
        self.in_flight += 1
        self._unhealthy_in_flight += not receiver.is_healthy
        self._of_caller[caller] += 1

    def _remove(self, event_id: EventId) -> None:
        caller, origin = self._line_of.pop(event_id)
        receiver, lines = self._receivers[origin], self._callers[caller]
        receiver.waiting -= 1
        kind = lines.of(receiver)
        del kind[origin][event_id]
        if not kind[origin]:
            del kind[origin]
        if not lines.healthy and not lines.unhealthy:
            del self._callers[caller]

    def _set_health(self, origin: str, receiver: Receiver, *, is_healthy: bool) -> None:
        if receiver.is_healthy == is_healthy:
            return
        moved = [
            (lines, line)
            for lines in (self._callers.values() if receiver.waiting else ())
            if (line := lines.of(receiver).pop(origin, None)) is not None
        ]
        receiver.is_healthy = is_healthy
        self._unhealthy_in_flight += -receiver.in_flight if is_healthy else receiver.in_flight
        for lines, line in moved:
            lines.of(receiver)[origin] = line

    def _receiver(self, origin: str) -> Receiver:
        receiver = self._receivers.get(origin)
        if receiver is None:
            self._make_room()
            receiver = self._receivers[origin] = Receiver()
        else:
            self._receivers.move_to_end(origin)
        return receiver

    def _make_room(self) -> None:
        """Forget the receivers used longest ago, unless a delivery to them is in flight or waits.

        At most `EVICTIONS_TRIED` are examined, so that a lookup stays cheap when all are busy.
        """
        for _ in range(EVICTIONS_TRIED):
            if len(self._receivers) < MOST_REMEMBERED:
                return
            origin, receiver = next(iter(self._receivers.items()))
            if receiver.in_flight or receiver.waiting:
                self._receivers.move_to_end(origin)
            else:
                del self._receivers[origin]
