"""Whoever is slow keeps nobody waiting but those in its own line."""

from datetime import timedelta

from conveyor.domain import receiver_lines
from conveyor.domain.event import Event
from conveyor.domain.ids import EventId
from conveyor.domain.receiver_lines import LATE, MOST_KNOWN, PLACES, PLACES_OF_ONE, Lines
from conveyor.testing.factories import an_event, new_ids


def test_one_receiver_has_two_places_and_the_rest_are_for_others() -> None:
    lines = _lines()
    assert [lines.begin("slow") for _ in range(4)] == [True, True, False, False]
    assert all(lines.begin(f"other{number}") for number in range(PLACES - PLACES_OF_ONE))
    assert not lines.begin("one-too-many")
    assert lines.under_way == PLACES


def test_a_line_is_worked_off_in_order_as_places_come_free() -> None:
    lines, [first, second, third] = _lines(), _events(3)
    lines.begin("slow")
    lines.begin("slow")
    for event in (first, second, third):
        lines.join("slow", event)

    assert lines.next() is None
    lines.end("slow", seconds=0.1, well=True)
    assert lines.next() == ("slow", first)
    assert lines.next() is None
    lines.end("slow", seconds=0.1, well=True)
    lines.end("slow", seconds=0.1, well=True)
    assert [lines.next(), lines.next(), lines.next()] == [("slow", second), ("slow", third), None]
    assert lines.waiting == 0


def test_nobody_overtakes_a_line() -> None:
    lines, [first] = _lines(), _events(1)
    lines.begin("slow")
    lines.join("slow", first)
    assert not lines.begin("slow")


def test_lines_take_turns() -> None:
    lines, events = _lines(places=2), _events(6)
    assert lines.begin("x")
    assert lines.begin("y")
    for host, event in zip("aabbcc", events, strict=True):
        lines.join(host, event)

    served: list[str] = []
    for _ in range(6):
        lines.end(served[-1] if served else "x", seconds=0.1, well=True)
        turn = lines.next()
        assert turn is not None
        served.append(turn[0])

    assert served == ["a", "b", "c", "a", "b", "c"]


def test_any_number_of_dead_receivers_leaves_places_for_the_others() -> None:
    lines = _lines()
    dead = [f"dead{number}" for number in range(100)]
    for host in dead:
        assert lines.begin(host)
        lines.end(host, seconds=15.0, well=False)

    begun = sum(lines.begin(host) for host in dead * 2)
    assert begun == 30
    assert all(lines.begin(f"well{number}") for number in range(PLACES - begun))


def test_a_receiver_that_answers_late_is_poor_until_it_answers_well() -> None:
    lines = _lines(places=1)
    lines.begin("slow")
    lines.end("slow", seconds=LATE + 1, well=True)
    assert lines.begin("slow")  # there is room for one
    lines.end("slow", seconds=0.1, well=True)
    assert lines.begin("slow")


def test_a_line_is_put_off_for_about_as_long_as_it_takes() -> None:
    lines = _lines()
    assert lines.wait("new") == timedelta(seconds=5) * 1.25
    for _ in range(30):
        lines.begin("slow")
        lines.end("slow", seconds=15.0, well=False)
    for event in _events(10):
        lines.join("slow", event)
    assert timedelta(seconds=95) < lines.wait("slow") < timedelta(seconds=105)
    for event in _events(1000):
        lines.join("slow", event)
    assert lines.wait("slow") == timedelta(minutes=15) * 1.25


def test_what_comes_by_again_keeps_its_place_as_it_stands_now() -> None:
    lines, [first, second] = _lines(), _events(2)
    lines.begin("slow")
    for event in (first, second, an_event(id=first.id, version=7)):
        lines.join("slow", event)
    assert lines.waiting == 2
    lines.end("slow", seconds=1.0, well=True)
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
    most = receiver_lines.MOST_IN_LINE
    for event in (an_event(id=EventId(f"{number}")) for number in range(most + 5)):
        lines.join("slow", event)
    assert lines.waiting == most


def test_receivers_of_no_concern_are_forgotten() -> None:
    lines, [event] = _lines(), _events(1)
    lines.begin("busy")
    lines.join("waiting", event)
    for number in range(MOST_KNOWN + 10):
        lines.begin(f"host{number}")
        lines.end(f"host{number}", seconds=0.1, well=True)
    assert len(lines._known) <= MOST_KNOWN
    lines.end("busy", seconds=0.1, well=True)
    assert lines.next() == ("waiting", event)


def _lines(places: int = PLACES) -> Lines:
    return Lines(lambda: 0.5, places=places)


def _events(count: int) -> list[Event]:
    return [an_event(id=EventId(name)) for name in new_ids(count)]
