"""The control worker: messages are handled at least once, retried later, or dead-lettered."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

import msgspec
import pytest
from structlog.testing import capture_logs

from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.domain.control_queue import ControlMessage
from conveyor.errors import (
    ConveyorError,
    InvalidArgument,
    NotFound,
    Stale,
    StorageFull,
    Unavailable,
)
from conveyor.ports.control_queue import ControlQueue
from conveyor.steps import control as control_step
from conveyor.steps.control import (
    LEASE,
    LONGEST_DELAY,
    MOST_DELIVERIES,
    ControlWorker,
    Handler,
    Payload,
)
from conveyor.steps.shared.work_limits import Turn
from conveyor.testing.clock import FakeClock
from tests.harness.memory_service import (
    away,
    until,
)
from tests.harness.trace import Trace, watched

KIND = "a kind"
PAYLOAD = {"run_id": "a run"}
MESSAGE = ControlMessage(kind=KIND, subject="a run", caller="a caller", payload=PAYLOAD)


class Desk:
    """One kind of message, whose handler does what the test says."""

    def __init__(self) -> None:
        self.clock, self.trace = FakeClock(), Trace()
        self.memory = MemoryControlQueue(self.clock)
        self.control_queue: ControlQueue = watched(self.memory, "control_queue", self.trace)
        self.control_worker = self.with_handler(self.handle, self.give_up)
        self.done: list[Mapping[str, str]] = []
        self.given_up: list[Mapping[str, str]] = []
        self.fails_with: Exception | None = None

    def with_handler(
        self,
        do: Callable[[Payload, Turn], Awaitable[Payload | None]],
        give_up: Callable[[Payload], Awaitable[None]],
    ) -> ControlWorker:
        handler = Handler(do, give_up, longest_outage=timedelta(days=1))
        return ControlWorker(self.control_queue, {KIND: handler}, self.clock)

    async def handle(self, payload: Mapping[str, str], _: Turn) -> None:
        if self.fails_with:
            raise self.fails_with
        self.done.append(payload)

    async def give_up(self, payload: Mapping[str, str]) -> None:
        self.given_up.append(payload)

    async def is_due(self) -> bool:
        """Whether the message can be received; looking takes it."""
        return bool(await self.control_queue.receive(1, lease=LEASE))


async def test_without_messages_there_is_nothing_to_do() -> None:
    desk = Desk()
    assert await desk.control_worker.step() == 0
    assert desk.trace.calls == ["control_queue.receive"]


async def test_a_message_is_done_and_gone() -> None:
    desk = Desk()
    await desk.control_queue.send(MESSAGE)

    assert await desk.control_worker.step() == 1

    assert desk.done == [PAYLOAD]
    desk.clock.advance(timedelta(days=1))
    assert await desk.control_worker.step() == 0


@pytest.mark.parametrize("error", [Unavailable("away"), StorageFull("no room"), Stale("moved")])
async def test_a_message_that_cannot_be_done_now_is_tried_later_and_ever_later(
    error: ConveyorError,
) -> None:
    desk = Desk()
    desk.fails_with = error
    await desk.control_queue.send(MESSAGE)

    waits = []
    for _ in range(MOST_DELIVERIES - 1):
        assert await desk.control_worker.step() == 1
        waits.append(await _time_until_due(desk))

    doubling = [timedelta(seconds=2**n) for n in range(MOST_DELIVERIES - 1)]
    assert waits == [min(wait, LONGEST_DELAY) for wait in doubling]
    desk.fails_with = None
    assert await desk.control_worker.step() == 1
    assert desk.done == [PAYLOAD]


async def test_a_message_that_failed_ten_times_is_dead_lettered_with_why() -> None:
    desk = Desk()
    desk.fails_with = Stale("it has moved")
    await desk.control_queue.send(MESSAGE)

    for _ in range(MOST_DELIVERIES):
        assert await desk.control_queue.dead_letters(limit=9) == []
        assert await desk.control_worker.step() == 1
        desk.clock.advance(LONGEST_DELAY)

    [dead] = await desk.control_queue.dead_letters(limit=9)
    assert (dead.kind, dead.payload) == (KIND, PAYLOAD)
    assert "it has moved" in dead.reason
    assert await desk.control_worker.step() == 0


@pytest.mark.parametrize("hours", [1, 23])
async def test_a_message_outlives_an_outage_of_hours(hours: int) -> None:
    desk = Desk()
    desk.fails_with = Unavailable("the engine is away")
    await desk.control_queue.send(MESSAGE)
    end = desk.clock.now() + timedelta(hours=hours)

    tries = 0
    while desk.clock.now() < end:
        tries += await desk.control_worker.step()
        await _time_until_due(desk)
    desk.fails_with = None
    await desk.control_worker.step()

    [done] = desk.done
    assert PAYLOAD.items() <= done.items()
    assert await desk.control_queue.dead_letters(limit=9) == []
    assert tries <= hours * 80 + 10


async def test_a_message_is_given_up_when_its_engine_is_away_for_over_a_day() -> None:
    desk = Desk()
    desk.fails_with = Unavailable("the engine is away")
    await desk.control_queue.send(MESSAGE)
    begun = desk.clock.now()

    while not await desk.control_queue.dead_letters(limit=9):
        await desk.control_worker.step()
        desk.clock.advance(LONGEST_DELAY)

    [dead] = await desk.control_queue.dead_letters(limit=9)
    assert "the engine is away" in dead.reason
    assert timedelta(days=1) <= desk.clock.now() - begun < timedelta(days=1, hours=2)


async def test_a_message_that_is_redriven_outlives_another_outage() -> None:
    desk = Desk()
    desk.fails_with = Unavailable("the engine is away")
    await desk.control_queue.send(MESSAGE)
    while not await desk.control_queue.dead_letters(limit=9):
        await desk.control_worker.step()
        desk.clock.advance(LONGEST_DELAY)

    [dead] = await desk.control_queue.dead_letters(limit=9)
    assert dead.payload == PAYLOAD
    await desk.control_queue.redrive(dead.id)
    for _ in range(2 * MOST_DELIVERIES):
        await desk.control_worker.step()
        desk.clock.advance(LONGEST_DELAY)

    assert await desk.control_queue.dead_letters(limit=9) == []


async def test_progress_ends_the_count_of_an_outage() -> None:
    desk = Desk()

    async def go_on(payload: Mapping[str, str], _: Turn) -> Mapping[str, str]:
        return payload

    desk.control_worker = desk.with_handler(go_on, desk.give_up)
    since = {"unavailable_since": desk.clock.now().isoformat()}
    await desk.control_queue.send(msgspec.structs.replace(MESSAGE, payload={**PAYLOAD, **since}))

    await desk.control_worker.step()

    [message] = await desk.control_queue.receive(1, lease=LEASE)
    assert message.payload == PAYLOAD


@pytest.mark.parametrize("error", [NotFound("no list"), InvalidArgument("no sense")])
async def test_a_message_that_will_never_be_done_is_dead_lettered_at_once(
    error: ConveyorError,
) -> None:
    desk = Desk()
    desk.fails_with = error
    await desk.control_queue.send(MESSAGE)

    await desk.control_worker.step()

    [dead] = await desk.control_queue.dead_letters(limit=9)
    assert str(error) in dead.reason
    assert desk.given_up == [PAYLOAD]


async def test_a_message_that_kills_its_process_again_and_again_is_given_up() -> None:
    desk = Desk()
    await desk.control_queue.send(MESSAGE)
    for _ in range(MOST_DELIVERIES):  # each received, and its process dead before it was done
        await desk.control_queue.receive(1, lease=LEASE)
        desk.clock.advance(LEASE)

    await desk.control_worker.step()

    assert desk.done == []
    assert desk.given_up == [PAYLOAD]
    [dead] = await desk.control_queue.dead_letters(limit=9)
    assert "never acknowledged" in dead.reason


async def test_a_message_of_an_unknown_kind_is_dead_lettered() -> None:
    desk = Desk()
    await desk.control_queue.send(msgspec.structs.replace(MESSAGE, kind="another kind"))

    assert await desk.control_worker.step() == 1

    [dead] = await desk.control_queue.dead_letters(limit=9)
    assert "another kind" in dead.reason


async def test_a_bug_in_a_handler_is_a_failed_delivery_and_in_the_end_a_dead_letter() -> None:
    desk = Desk()
    desk.fails_with = ZeroDivisionError("a secret of the row")
    await desk.control_queue.send(MESSAGE)

    waits = []
    with capture_logs() as logs:
        for _ in range(MOST_DELIVERIES - 1):
            assert await desk.control_worker.step() == 1
            waits.append(await _time_until_due(desk))
        assert await desk.control_worker.step() == 1

    assert waits[:3] == [timedelta(seconds=1), timedelta(seconds=2), timedelta(seconds=4)]
    bugs = [line for line in logs if line["event"] == "control.bug"]
    assert [line["deliveries"] for line in bugs] == [*range(1, MOST_DELIVERIES + 1)]
    assert all(line["log_level"] == "error" and line["exc_info"] for line in bugs)
    [dead] = await desk.control_queue.dead_letters(limit=9)
    assert dead.reason == "bug: ZeroDivisionError, logged as control.bug"
    assert desk.given_up == [PAYLOAD]


async def test_a_bug_in_giving_up_leaves_a_dead_letter_all_the_same() -> None:
    desk = Desk()

    async def fail(_: Mapping[str, str]) -> None:
        raise ZeroDivisionError

    desk.fails_with = NotFound("no list")
    desk.control_worker = desk.with_handler(desk.handle, fail)
    await desk.control_queue.send(MESSAGE)

    assert await desk.control_worker.step() == 1

    assert len(await desk.control_queue.dead_letters(limit=9)) == 1


async def test_a_bug_in_the_queue_ends_nothing_and_the_message_comes_again() -> None:
    desk = Desk()
    await desk.control_queue.send(MESSAGE)
    with away(desk.trace, "control_queue.ack", ZeroDivisionError()):
        assert await desk.control_worker.step() == 1

    desk.clock.advance(LEASE)
    assert await desk.control_worker.step() == 1
    assert desk.done == [PAYLOAD, PAYLOAD]


async def test_the_lease_of_a_message_that_takes_long_is_kept_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_step, "LEASE", timedelta(milliseconds=30))
    desk = Desk()

    async def take_long(_: Mapping[str, str], __: Turn) -> None:
        for _round in range(3):
            await _next_call(desk, "control_queue.extend")
            desk.clock.advance(timedelta(milliseconds=25))

    desk.control_worker = desk.with_handler(take_long, desk.give_up)
    await desk.control_queue.send(MESSAGE)

    await desk.control_worker.step()

    assert desk.trace.calls[-1] == "control_queue.ack"
    assert not await desk.is_due()


async def test_a_lease_that_cannot_be_kept_alive_does_not_stop_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_step, "LEASE", timedelta(milliseconds=3))
    desk = Desk()

    async def take_long(payload: Mapping[str, str], __: Turn) -> None:
        with away(desk.trace, "control_queue.extend", Unavailable("away")):
            for _ in range(3):
                await _next_call(desk, "control_queue.extend")
        desk.done.append(payload)

    desk.control_worker = desk.with_handler(take_long, desk.give_up)
    await desk.control_queue.send(MESSAGE)

    await desk.control_worker.step()

    assert desk.done == [PAYLOAD]


@pytest.mark.parametrize("fails_with", [None, Unavailable("away"), NotFound("gone")])
async def test_a_message_that_passed_to_another_is_left_to_it(fails_with: Exception | None) -> None:
    desk = Desk()

    async def lose_the_lease(_: Mapping[str, str], __: Turn) -> None:
        desk.clock.advance(LEASE)
        assert await desk.is_due()
        if fails_with:
            raise fails_with

    desk.control_worker = desk.with_handler(lose_the_lease, desk.give_up)
    await desk.control_queue.send(MESSAGE)

    assert await desk.control_worker.step() == 1

    assert await desk.control_queue.dead_letters(limit=9) == []
    desk.clock.advance(LEASE)
    [again] = await desk.control_queue.receive(1, lease=LEASE)
    assert again.deliveries == 3


async def test_an_ack_that_fails_leaves_the_message_to_be_done_again() -> None:
    desk = Desk()
    await desk.control_queue.send(MESSAGE)
    with away(desk.trace, "control_queue.ack", Unavailable("away")), pytest.raises(Unavailable):
        await desk.control_worker.step()

    desk.clock.advance(LEASE)
    await desk.control_worker.step()

    assert desk.done == [PAYLOAD, PAYLOAD]


async def _time_until_due(desk: Desk) -> timedelta:
    """How long the message waits from now on, found without receiving it."""
    begun = desk.clock.now()
    [waiting] = desk.memory._live.values()
    desk.clock.advance(max(waiting.due_at - begun, timedelta()))
    return desk.clock.now() - begun


async def _next_call(desk: Desk, name: str) -> None:
    """Until the call after those seen so far has been made."""
    seen = len(desk.trace.of(name))
    await until(lambda: len(desk.trace.of(name)) > seen)


async def test_a_worker_that_receives_a_message_wakes_the_next() -> None:
    """There may be more messages than notifications."""
    desk, woken = Desk(), list[bool]()
    handlers = {KIND: Handler(desk.handle, desk.give_up)}
    worker = ControlWorker(
        desk.control_queue, handlers, desk.clock, lambda: woken.append(not desk.done)
    )
    await worker.step()
    assert woken == []
    await desk.control_queue.send(MESSAGE)
    await worker.step()
    assert woken == [True]  # before it was handled
