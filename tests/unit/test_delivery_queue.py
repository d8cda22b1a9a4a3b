"""Whoever is slow keeps nobody waiting but those in its own line."""

from collections import OrderedDict
from datetime import timedelta

import msgspec
import pytest

from conveyor.domain.delivery_queue import (
    LATE,
    MOST_IN_LINE,
    MOST_KNOWN,
    PLACES,
    PLACES_OF_CALLER,
    PLACES_OF_ONE,
    DeliveryQueue,
    Receiver,
)
from conveyor.domain.ids import CallerId, EventId
from conveyor.domain.outbox import OutboxEvent
from conveyor.testing.factories import an_event, new_ids

CALLER = an_event().caller
OTHER = CallerId("another")


def test_one_receiver_has_two_places_and_the_rest_are_for_others() -> None:
    lines = _lines()
    assert [lines.begin("slow", CALLER) for _ in range(4)] == [True, True, False, False]
    assert all(
        lines.begin(f"other{number}", _caller(number)) for number in range(PLACES - PLACES_OF_ONE)
    )
    assert not lines.begin("one-too-many", OTHER)
    assert lines.under_way == PLACES


def test_a_line_is_worked_off_in_order_as_places_come_free() -> None:
    lines, [first, second, third] = _lines(), _events(3)
    lines.begin("slow", CALLER)
    lines.begin("slow", CALLER)
    for event in (first, second, third):
        lines.join("slow", event)

    assert lines.next() is None
    lines.end("slow", CALLER, seconds=0.1, well=True)
    assert lines.next() == ("slow", first)
    assert lines.next() is None
    lines.end("slow", CALLER, seconds=0.1, well=True)
    lines.end("slow", CALLER, seconds=0.1, well=True)
    assert [lines.next(), lines.next(), lines.next()] == [("slow", second), ("slow", third), None]
    assert lines.waiting == 0


def test_nobody_overtakes_a_line() -> None:
    lines, [first] = _lines(), _events(1)
    lines.begin("slow", CALLER)
    lines.join("slow", first)
    assert not lines.begin("slow", CALLER)


def test_lines_take_turns() -> None:
    lines, events = _lines(places=2), _events(6)
    assert lines.begin("x", CALLER)
    assert lines.begin("y", CALLER)
    for host, event in zip("aabbcc", events, strict=True):
        lines.join(host, event)

    served: list[str] = []
    for _ in range(6):
        lines.end(served[-1] if served else "x", CALLER, seconds=0.1, well=True)
        turn = lines.next()
        assert turn is not None
        served.append(turn[0])

    assert served == ["a", "b", "c", "a", "b", "c"]


def test_any_number_of_dead_receivers_leaves_places_for_the_others() -> None:
    lines = _lines()
    dead = [f"dead{number}" for number in range(100)]
    for host in dead:
        assert lines.begin(host, CALLER)
        lines.end(host, CALLER, seconds=15.0, well=False)

    begun = sum(lines.begin(host, _caller(number)) for number, host in enumerate(dead * 2))
    assert begun == 30
    assert all(lines.begin(f"well{number}", _caller(number)) for number in range(PLACES - begun))


def test_one_caller_leaves_places_for_the_others_however_many_hosts_it_names() -> None:
    lines = _lines()
    begun = sum(lines.begin(f"tarpit{number}", CALLER) for number in range(1000))
    assert begun == PLACES_OF_CALLER
    for number, event in enumerate(_events(1000)):
        lines.join(f"tarpit{number}", event)
    assert lines.next() is None
    assert all(lines.begin(f"well{number}", OTHER) for number in range(PLACES_OF_CALLER))
    lines.end("tarpit0", CALLER, seconds=15.0, well=False)
    assert lines.next() is not None


def test_callers_take_turns_before_their_receivers_do() -> None:
    lines, events = _lines(places=1), _events(9)
    assert lines.begin("x", OTHER)
    for number, event in enumerate(events[:6]):
        lines.join(f"many{number}", event)
    for event in events[6:]:
        lines.join("one", msgspec.structs.replace(event, caller=OTHER))

    served, last = [], ("x", OTHER)
    for _ in range(6):
        lines.end(*last, seconds=0.1, well=True)
        turn = lines.next()
        assert turn is not None
        served.append(turn[0])
        last = turn[0], turn[1].caller

    assert served == ["many0", "one", "many1", "one", "many2", "one"]


def test_a_caller_without_a_place_does_not_keep_others_from_its_receivers() -> None:
    lines, [event] = _lines(), _events(1)
    for number in range(PLACES_OF_CALLER):
        lines.begin(f"tarpit{number}", CALLER)
    lines.join("shared", event)
    assert lines.next() is None
    assert lines.begin("shared", OTHER)


def test_a_receiver_that_is_well_again_leaves_the_lines_of_the_poor() -> None:
    lines, [event] = _lines(places=1), _events(1)
    lines.begin("mending", CALLER)
    lines.join("mending", event)
    lines.end("mending", CALLER, seconds=15.0, well=False)
    assert lines.next() == ("mending", event)
    lines.join("mending", event)
    lines.end("mending", CALLER, seconds=0.1, well=True)
    assert lines.next() == ("mending", event)
    assert (lines.under_way, lines.waiting, lines._poor_under_way) == (1, 0, 0)


@pytest.mark.parametrize("busy", ["all", "the caller's", "those of the poor"])
def test_to_find_that_nobody_has_a_turn_takes_no_walk_past_the_lines(busy: str) -> None:
    lines = _lines()
    for number in range(PLACES):
        one = _caller(number) if busy != "the caller's" else CALLER
        host = f"busy{number}"
        if busy == "those of the poor":
            lines.begin(host, one)
            lines.end(host, one, seconds=15.0, well=False)
        lines.begin(host, one)
    for number, event in enumerate(_events(MOST_IN_LINE)):
        host = f"host{number}"
        if busy == "those of the poor":
            lines._receiver(host).is_poor = True
        lines.join(host, event)
    looked_at = _CountedKnown(lines._known)
    lines._known = looked_at

    assert lines.next() is None
    assert looked_at.count <= PLACES


def test_a_receiver_that_answers_late_is_poor_until_it_answers_well() -> None:
    lines = _lines(places=1)
    lines.begin("slow", CALLER)
    lines.end("slow", CALLER, seconds=LATE + 1, well=True)
    assert lines.begin("slow", CALLER)  # there is room for one
    lines.end("slow", CALLER, seconds=0.1, well=True)
    assert lines.begin("slow", CALLER)


def test_a_line_is_put_off_for_about_as_long_as_it_takes() -> None:
    lines = _lines()
    assert lines.wait("new") == timedelta(seconds=5) * 1.25
    for _ in range(30):
        lines.begin("slow", CALLER)
        lines.end("slow", CALLER, seconds=15.0, well=False)
    for event in _events(10):
        lines.join("slow", event)
    assert timedelta(seconds=95) < lines.wait("slow") < timedelta(seconds=105)
    for event in _events(1000):
        lines.join("slow", event)
    assert lines.wait("slow") == timedelta(minutes=15) * 1.25


def test_what_comes_by_again_keeps_its_place_as_it_stands_now() -> None:
    lines, [first, second] = _lines(), _events(2)
    lines.begin("slow", CALLER)
    for event in (first, second, an_event(id=first.id, version=7)):
        lines.join("slow", event)
    assert lines.waiting == 2
    lines.end("slow", CALLER, seconds=1.0, well=True)
    assert lines.next() == ("slow", an_event(id=first.id, version=7))


def test_what_goes_elsewhere_by_now_leaves_its_old_line() -> None:
    lines, [event] = _lines(), _events(1)
    lines.join("old", event)
    lines.join("new", event)
    assert lines.waiting == 1
    assert lines.next() == ("new", event)
    assert lines.next() is None


def test_lines_are_bounded() -> None:
    lines = _lines()
    for event in (an_event(id=EventId(f"{number}")) for number in range(MOST_IN_LINE + 5)):
        lines.join("slow", event)
    assert lines.waiting == MOST_IN_LINE


def test_receivers_of_no_concern_are_forgotten() -> None:
    lines, [event] = _lines(), _events(1)
    lines.begin("busy", CALLER)
    lines.join("waiting", event)
    for number in range(MOST_KNOWN + 10):
        lines.begin(f"host{number}", CALLER)
        lines.end(f"host{number}", CALLER, seconds=0.1, well=True)
    assert len(lines._known) <= MOST_KNOWN
    lines.end("busy", CALLER, seconds=0.1, well=True)
    assert lines.next() == ("waiting", event)


def _lines(places: int = PLACES) -> DeliveryQueue:
    return DeliveryQueue(lambda: 0.5, places=places)


def _events(count: int) -> list[OutboxEvent]:
    return [an_event(id=EventId(name)) for name in new_ids(count)]


def _caller(number: int) -> CallerId:
    """Each has a few places."""
    return CallerId(f"caller{number % 10}")


class _CountedKnown(OrderedDict[str, Receiver]):
    """How many were looked at."""

    count = 0

    def __getitem__(self, host: str) -> Receiver:
        self.count += 1
        return super().__getitem__(host)
