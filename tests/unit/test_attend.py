"""Duties: done at least once, tried again later, put aside when they cannot be done."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

import msgspec
import pytest
from structlog.testing import capture_logs

from conveyor.adapters.memory.duties import MemoryDuties
from conveyor.adapters.memory.graves import MemoryGraves
from conveyor.domain.message import Message
from conveyor.errors import (
    ConveyorError,
    InvalidArgument,
    NotFound,
    Stale,
    StorageFull,
    Unavailable,
)
from conveyor.ports.duties import Duties
from conveyor.steps import attend as attend_step
from conveyor.steps.attend import LEASE, LONGEST_DELAY, MOST_DELIVERIES, About, Attend, Handler
from conveyor.steps.shared.turn import Turn
from conveyor.testing.clock import FakeClock
from conveyor.testing.trace import Trace, watched
from tests.unit.kit import (
    away,
    until,
)

KIND = "a kind"
ABOUT = {"run_id": "a run"}
MESSAGE = Message(kind=KIND, subject="a run", caller="a caller", about=ABOUT)


class Desk:
    """One kind of duty, whose handler does what the test says."""

    def __init__(self) -> None:
        self.clock, self.trace = FakeClock(), Trace()
        self.memory = MemoryDuties(self.clock)
        self.graves = MemoryGraves(self.memory)
        self.duties: Duties = watched(self.memory, "duties", self.trace)
        self.attend = self.with_handler(self.handle, self.give_up)
        self.done: list[Mapping[str, str]] = []
        self.given_up: list[Mapping[str, str]] = []
        self.fails_with: Exception | None = None

    def with_handler(
        self,
        do: Callable[[About, Turn], Awaitable[About | None]],
        give_up: Callable[[About], Awaitable[None]],
    ) -> Attend:
        return Attend(self.duties, {KIND: Handler(do, give_up)}, self.clock)

    async def handle(self, about: Mapping[str, str], _: Turn) -> None:
        if self.fails_with:
            raise self.fails_with
        self.done.append(about)

    async def give_up(self, about: Mapping[str, str]) -> None:
        self.given_up.append(about)

    async def is_due(self) -> bool:
        """Whether the duty can be received; looking takes it."""
        return bool(await self.duties.receive(1, lease=LEASE))


async def test_without_duties_there_is_nothing_to_do() -> None:
    desk = Desk()
    assert await desk.attend.step() == 0
    assert desk.trace.calls == ["duties.receive"]


async def test_a_duty_is_done_and_gone() -> None:
    desk = Desk()
    await desk.duties.send(MESSAGE)

    assert await desk.attend.step() == 1

    assert desk.done == [ABOUT]
    desk.clock.advance(timedelta(days=1))
    assert await desk.attend.step() == 0


@pytest.mark.parametrize("error", [Unavailable("away"), StorageFull("no room"), Stale("moved")])
async def test_a_duty_that_cannot_be_done_now_is_tried_later_and_ever_later(
    error: ConveyorError,
) -> None:
    desk = Desk()
    desk.fails_with = error
    await desk.duties.send(MESSAGE)

    waits = []
    for _ in range(MOST_DELIVERIES - 1):
        assert await desk.attend.step() == 1
        waits.append(await _time_until_due(desk))

    doubling = [timedelta(seconds=2**n) for n in range(MOST_DELIVERIES - 1)]
    assert waits == [min(wait, LONGEST_DELAY) for wait in doubling]
    desk.fails_with = None
    assert await desk.attend.step() == 1
    assert desk.done == [ABOUT]


async def test_a_duty_that_failed_ten_times_is_buried_with_why() -> None:
    desk = Desk()
    desk.fails_with = Unavailable("the engine is away")
    await desk.duties.send(MESSAGE)

    for _ in range(MOST_DELIVERIES):
        assert await desk.graves.buried(limit=9) == []
        assert await desk.attend.step() == 1
        desk.clock.advance(LONGEST_DELAY)

    [buried] = await desk.graves.buried(limit=9)
    assert (buried.kind, buried.about) == (KIND, ABOUT)
    assert "the engine is away" in buried.reason
    assert await desk.attend.step() == 0


@pytest.mark.parametrize("error", [NotFound("no list"), InvalidArgument("no sense")])
async def test_a_duty_that_will_never_be_done_is_buried_at_once(error: ConveyorError) -> None:
    desk = Desk()
    desk.fails_with = error
    await desk.duties.send(MESSAGE)

    await desk.attend.step()

    [buried] = await desk.graves.buried(limit=9)
    assert str(error) in buried.reason
    assert desk.given_up == [ABOUT]


async def test_a_duty_that_kills_its_process_again_and_again_is_given_up() -> None:
    desk = Desk()
    await desk.duties.send(MESSAGE)
    for _ in range(MOST_DELIVERIES):  # each received, and its process dead before it was done
        await desk.duties.receive(1, lease=LEASE)
        desk.clock.advance(LEASE)

    await desk.attend.step()

    assert desk.done == []
    assert desk.given_up == [ABOUT]
    [buried] = await desk.graves.buried(limit=9)
    assert "never ended" in buried.reason


async def test_a_duty_of_an_unknown_kind_is_buried() -> None:
    desk = Desk()
    await desk.duties.send(msgspec.structs.replace(MESSAGE, kind="another kind"))

    assert await desk.attend.step() == 1

    [buried] = await desk.graves.buried(limit=9)
    assert "another kind" in buried.reason


async def test_a_bug_in_a_handler_is_a_failed_delivery_and_in_the_end_a_dead_letter() -> None:
    desk = Desk()
    desk.fails_with = ZeroDivisionError("a secret of the row")
    await desk.duties.send(MESSAGE)

    waits = []
    with capture_logs() as logs:
        for _ in range(MOST_DELIVERIES - 1):
            assert await desk.attend.step() == 1
            waits.append(await _time_until_due(desk))
        assert await desk.attend.step() == 1

    assert waits[:3] == [timedelta(seconds=1), timedelta(seconds=2), timedelta(seconds=4)]
    bugs = [line for line in logs if line["event"] == "duty.bug"]
    assert [line["deliveries"] for line in bugs] == [*range(1, MOST_DELIVERIES + 1)]
    assert all(line["log_level"] == "error" and line["exc_info"] for line in bugs)
    [dead] = await desk.graves.buried(limit=9)
    assert dead.reason == "bug: ZeroDivisionError, logged as duty.bug"
    assert desk.given_up == [ABOUT]


async def test_a_bug_in_giving_up_leaves_a_dead_letter_all_the_same() -> None:
    desk = Desk()

    async def fail(_: Mapping[str, str]) -> None:
        raise ZeroDivisionError

    desk.fails_with = NotFound("no list")
    desk.attend = desk.with_handler(desk.handle, fail)
    await desk.duties.send(MESSAGE)

    assert await desk.attend.step() == 1

    assert len(await desk.graves.buried(limit=9)) == 1


async def test_a_bug_in_the_queue_ends_nothing_and_the_message_comes_again() -> None:
    desk = Desk()
    await desk.duties.send(MESSAGE)
    with away(desk.trace, "duties.ack", ZeroDivisionError()):
        assert await desk.attend.step() == 1

    desk.clock.advance(LEASE)
    assert await desk.attend.step() == 1
    assert desk.done == [ABOUT, ABOUT]


async def test_the_lease_of_a_duty_that_takes_long_is_kept_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attend_step, "LEASE", timedelta(milliseconds=30))
    desk = Desk()

    async def take_long(_: Mapping[str, str], __: Turn) -> None:
        for _round in range(3):
            await _next_call(desk, "duties.extend")
            desk.clock.advance(timedelta(milliseconds=25))

    desk.attend = desk.with_handler(take_long, desk.give_up)
    await desk.duties.send(MESSAGE)

    await desk.attend.step()

    assert desk.trace.calls[-1] == "duties.ack"
    assert not await desk.is_due()


async def test_a_lease_that_cannot_be_kept_alive_does_not_stop_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attend_step, "LEASE", timedelta(milliseconds=3))
    desk = Desk()

    async def take_long(about: Mapping[str, str], __: Turn) -> None:
        with away(desk.trace, "duties.extend", Unavailable("away")):
            for _ in range(3):
                await _next_call(desk, "duties.extend")
        desk.done.append(about)

    desk.attend = desk.with_handler(take_long, desk.give_up)
    await desk.duties.send(MESSAGE)

    await desk.attend.step()

    assert desk.done == [ABOUT]


@pytest.mark.parametrize("fails_with", [None, Unavailable("away"), NotFound("gone")])
async def test_a_duty_that_passed_to_another_is_left_to_it(fails_with: Exception | None) -> None:
    desk = Desk()

    async def lose_the_lease(_: Mapping[str, str], __: Turn) -> None:
        desk.clock.advance(LEASE)
        assert await desk.is_due()
        if fails_with:
            raise fails_with

    desk.attend = desk.with_handler(lose_the_lease, desk.give_up)
    await desk.duties.send(MESSAGE)

    assert await desk.attend.step() == 1

    assert await desk.graves.buried(limit=9) == []
    desk.clock.advance(LEASE)
    [again] = await desk.duties.receive(1, lease=LEASE)
    assert again.deliveries == 3


async def test_an_ack_that_fails_leaves_the_duty_to_be_done_again() -> None:
    desk = Desk()
    await desk.duties.send(MESSAGE)
    with away(desk.trace, "duties.ack", Unavailable("away")), pytest.raises(Unavailable):
        await desk.attend.step()

    desk.clock.advance(LEASE)
    await desk.attend.step()

    assert desk.done == [ABOUT, ABOUT]


async def _time_until_due(desk: Desk) -> timedelta:
    """How long the duty waits from now on, found without receiving it."""
    begun = desk.clock.now()
    [waiting] = desk.memory._waiting.values()
    desk.clock.advance(max(waiting.due_at - begun, timedelta()))
    return desk.clock.now() - begun


async def _next_call(desk: Desk, name: str) -> None:
    """Until the call after those seen so far has been made."""
    seen = len(desk.trace.of(name))
    await until(lambda: len(desk.trace.of(name)) > seen)
