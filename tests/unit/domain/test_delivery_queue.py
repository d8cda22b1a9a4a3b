"""Whoever is slow keeps nobody waiting but those in its own line."""

from collections import OrderedDict
from datetime import timedelta

import msgspec
import pytest

from conveyor.domain.delivery_queue import (
    LATE,
    MOST_REMEMBERED,
    MOST_WAITING,
    PER_CALLER,
    PER_ORIGIN,
    PLACES,
    DeliveryQueue,
    Receiver,
)
from conveyor.domain.ids import CallerId, EventId
from conveyor.domain.outbox import OutboxEvent
from conveyor.testing.factories import an_event, new_ids

CALLER = an_event().caller
OTHER = CallerId("another")


def test_one_receiver_has_two_places_and_the_rest_are_for_others() -> None:
    queue = _queue()
    assert [queue.begin("slow", CALLER) for _ in range(4)] == [True, True, False, False]
    assert all(
        queue.begin(f"other{number}", _caller(number)) for number in range(PLACES - PER_ORIGIN)
    )
    assert not queue.begin("one-too-many", OTHER)
    assert queue.in_flight == PLACES


def test_a_line_is_worked_off_in_order_as_places_come_free() -> None:
    queue, [first, second, third] = _queue(), _events(3)
    queue.begin("slow", CALLER)
    queue.begin("slow", CALLER)
    for event in (first, second, third):
        queue.add("slow", event)

    assert queue.next() is None
    queue.end("slow", CALLER, seconds=0.1, succeeded=True)
    assert queue.next() == ("slow", first)
    assert queue.next() is None
    queue.end("slow", CALLER, seconds=0.1, succeeded=True)
    queue.end("slow", CALLER, seconds=0.1, succeeded=True)
    assert [queue.next(), queue.next(), queue.next()] == [("slow", second), ("slow", third), None]
    assert queue.waiting == 0


def test_nobody_overtakes_a_line() -> None:
    queue, [first] = _queue(), _events(1)
    queue.begin("slow", CALLER)
    queue.add("slow", first)
    assert not queue.begin("slow", CALLER)


def test_lines_take_turns() -> None:
    queue, events = _queue(places=2), _events(6)
    assert queue.begin("x", CALLER)
    assert queue.begin("y", CALLER)
    for host, event in zip("aabbcc", events, strict=True):
        queue.add(host, event)

    served: list[str] = []
    for _ in range(6):
        queue.end(served[-1] if served else "x", CALLER, seconds=0.1, succeeded=True)
        turn = queue.next()
        assert turn is not None
        served.append(turn[0])

    assert served == ["a", "b", "c", "a", "b", "c"]


def test_any_number_of_dead_receivers_leaves_places_for_the_others() -> None:
    queue = _queue()
    dead = [f"dead{number}" for number in range(100)]
    for host in dead:
        assert queue.begin(host, CALLER)
        queue.end(host, CALLER, seconds=15.0, succeeded=False)

    begun = sum(queue.begin(host, _caller(number)) for number, host in enumerate(dead * 2))
    assert begun == 30
    assert all(queue.begin(f"well{number}", _caller(number)) for number in range(PLACES - begun))


def test_one_caller_leaves_places_for_the_others_however_many_hosts_it_names() -> None:
    queue = _queue()
    begun = sum(queue.begin(f"tarpit{number}", CALLER) for number in range(1000))
    assert begun == PER_CALLER
    for number, event in enumerate(_events(1000)):
        queue.add(f"tarpit{number}", event)
    assert queue.next() is None
    assert all(queue.begin(f"well{number}", OTHER) for number in range(PER_CALLER))
    queue.end("tarpit0", CALLER, seconds=15.0, succeeded=False)
    assert queue.next() is not None


def test_callers_take_turns_before_their_receivers_do() -> None:
    queue, events = _queue(places=1), _events(9)
    assert queue.begin("x", OTHER)
    for number, event in enumerate(events[:6]):
        queue.add(f"many{number}", event)
    for event in events[6:]:
        queue.add("one", msgspec.structs.replace(event, caller=OTHER))

    served, last = [], ("x", OTHER)
    for _ in range(6):
        queue.end(*last, seconds=0.1, succeeded=True)
        turn = queue.next()
        assert turn is not None
        served.append(turn[0])
        last = turn[0], turn[1].caller

    assert served == ["many0", "one", "many1", "one", "many2", "one"]


def test_a_caller_without_a_place_does_not_keep_others_from_its_receivers() -> None:
    queue, [event] = _queue(), _events(1)
    for number in range(PER_CALLER):
        queue.begin(f"tarpit{number}", CALLER)
    queue.add("shared", event)
    assert queue.next() is None
    assert queue.begin("shared", OTHER)


def test_a_receiver_that_is_well_again_leaves_the_lines_of_the_poor() -> None:
    queue, [event] = _queue(places=1), _events(1)
    queue.begin("mending", CALLER)
    queue.add("mending", event)
    queue.end("mending", CALLER, seconds=15.0, succeeded=False)
    assert queue.next() == ("mending", event)
    queue.add("mending", event)
    queue.end("mending", CALLER, seconds=0.1, succeeded=True)
    assert queue.next() == ("mending", event)
    assert (queue.in_flight, queue.waiting, queue._unhealthy_in_flight) == (1, 0, 0)


@pytest.mark.parametrize("busy", ["all", "the caller's", "those of the poor"])
def test_to_find_that_nobody_has_a_turn_takes_no_walk_past_the_lines(busy: str) -> None:
    queue = _queue()
    for number in range(PLACES):
        one = _caller(number) if busy != "the caller's" else CALLER
        host = f"busy{number}"
        if busy == "those of the poor":
            queue.begin(host, one)
            queue.end(host, one, seconds=15.0, succeeded=False)
        queue.begin(host, one)
    for number, event in enumerate(_events(MOST_WAITING)):
        host = f"host{number}"
        if busy == "those of the poor":
            queue._receiver(host).is_healthy = False
        queue.add(host, event)
    looked_at = _CountedReceivers(queue._receivers)
    queue._receivers = looked_at

    assert queue.next() is None
    assert looked_at.count <= PLACES


def test_a_receiver_that_answers_late_is_poor_until_it_answers_well() -> None:
    queue = _queue(places=1)
    queue.begin("slow", CALLER)
    queue.end("slow", CALLER, seconds=LATE + 1, succeeded=True)
    assert queue.begin("slow", CALLER)  # there is room for one
    queue.end("slow", CALLER, seconds=0.1, succeeded=True)
    assert queue.begin("slow", CALLER)


def test_a_line_is_put_off_for_about_as_long_as_it_takes() -> None:
    queue = _queue()
    assert queue.delay("new") == timedelta(seconds=5) * 1.25
    for _ in range(30):
        queue.begin("slow", CALLER)
        queue.end("slow", CALLER, seconds=15.0, succeeded=False)
    for event in _events(10):
        queue.add("slow", event)
    assert timedelta(seconds=95) < queue.delay("slow") < timedelta(seconds=105)
    for event in _events(1000):
        queue.add("slow", event)
    assert queue.delay("slow") == timedelta(minutes=15) * 1.25


def test_what_comes_by_again_keeps_its_place_as_it_stands_now() -> None:
    queue, [first, second] = _queue(), _events(2)
    queue.begin("slow", CALLER)
    for event in (first, second, an_event(id=first.id, version=7)):
        queue.add("slow", event)
    assert queue.waiting == 2
    queue.end("slow", CALLER, seconds=1.0, succeeded=True)
    assert queue.next() == ("slow", an_event(id=first.id, version=7))


def test_what_goes_elsewhere_by_now_leaves_its_old_line() -> None:
    queue, [event] = _queue(), _events(1)
    queue.add("old", event)
    queue.add("new", event)
    assert queue.waiting == 1
    assert queue.next() == ("new", event)
    assert queue.next() is None


def test_lines_are_bounded() -> None:
    queue = _queue()
    for event in (an_event(id=EventId(f"{number}")) for number in range(MOST_WAITING + 5)):
        queue.add("slow", event)
    assert queue.waiting == MOST_WAITING


def test_receivers_of_no_concern_are_forgotten() -> None:
    queue, [event] = _queue(), _events(1)
    queue.begin("busy", CALLER)
    queue.add("waiting", event)
    for number in range(MOST_REMEMBERED + 10):
        queue.begin(f"host{number}", CALLER)
        queue.end(f"host{number}", CALLER, seconds=0.1, succeeded=True)
    assert len(queue._receivers) <= MOST_REMEMBERED
    queue.end("busy", CALLER, seconds=0.1, succeeded=True)
    assert queue.next() == ("waiting", event)


def _queue(places: int = PLACES) -> DeliveryQueue:
    return DeliveryQueue(chance=lambda: 0.5, places=places)


def _events(count: int) -> list[OutboxEvent]:
    return [an_event(id=EventId(name)) for name in new_ids(count)]


def _caller(number: int) -> CallerId:
    """Each has a few places."""
    return CallerId(f"caller{number % 10}")


class _CountedReceivers(OrderedDict[str, Receiver]):
    """How many were looked at."""

    count = 0

    def __getitem__(self, host: str) -> Receiver:
        self.count += 1
        return super().__getitem__(host)
