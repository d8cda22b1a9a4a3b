"""Callbacks to Step Functions: sent once if possible, again if necessary, and never lost."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise

import msgspec
import pytest
import structlog

from conveyor.domain.ids import JobId, RunId
from conveyor.domain.outbox import KEPT_DELIVERIES, Channel, EventStatus, OutboxEvent
from conveyor.domain.run import PauseState
from conveyor.domain.task import Task
from conveyor.errors import Unavailable
from conveyor.ports.step_functions import CallbackResult, RetryLater, Sent, TaskClosed
from conveyor.steps.deliver.channels import CALLBACK_LEASE, CALLBACKS
from conveyor.steps.shared.attempt import CallResult
from tests.harness.memory_service import A_PAGE, CALLER, House, a_house, away, survives, until

TOKEN = "a-token-of-mine"
SECOND = timedelta(seconds=1)
BEAT = 30
AWAY = RetryLater("ThrottlingException", 400)


def _page(_task: Task) -> CallResult:
    return A_PAGE


async def _ended(house: House, token: str = TOKEN, **given: object) -> tuple[JobId, RunId]:
    """A run that has completed, while a state waits for it."""
    house.states.waiting.add(token)
    job_id, run_id = await house.submit(3, step_functions={"task_token": token, **given})
    await house.drain(run_id, _page)
    return job_id, run_id


async def _beating(house: House, token: str = TOKEN) -> tuple[JobId, RunId]:
    house.states.waiting.add(token)
    field = {"task_token": token, "heartbeat_seconds": BEAT}
    return await house.submit(3, step_functions=field)


async def _event(house: House, channel: Channel = Channel.STEP_FUNCTIONS) -> OutboxEvent:
    [event] = [
        one for one in await house.metadata.page(OutboxEvent, limit=99) if one.channel is channel
    ]
    return event


class Answering:
    """States whose answers a test gives."""

    def __init__(self, answer: Callable[[str], Awaitable[CallbackResult]]) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def succeed(self, token: str, output: str) -> CallbackResult:
        return await self._asked(token)

    async def fail(self, token: str, *, error: str, cause: str) -> CallbackResult:
        return await self._asked(token)

    async def heartbeat(self, token: str) -> CallbackResult:
        return await self._asked(token)

    async def _asked(self, token: str) -> CallbackResult:
        self.asked.append(token)
        return await self.answer(token)


def _always(house: House, answer: CallbackResult) -> Answering:
    async def say(_token: str) -> CallbackResult:
        return answer

    house.connect(states := Answering(say))
    return states


@contextmanager
def _logged() -> Iterator[list[str]]:
    names: list[str] = []
    with structlog.testing.capture_logs() as lines:
        yield names
    names += [line["event"] for line in lines if line["event"].startswith("outbox.")]
    assert TOKEN not in str(lines)


# Ends of runs.


async def test_a_state_hears_of_the_end_once_and_its_token_is_wiped() -> None:
    house = a_house()
    _, run_id = await _ended(house)
    with _logged() as logged:
        assert await house.callback_sender.step() == 1
        assert await house.callback_sender.step() == 0

    output = msgspec.json.decode(house.states.outcomes[TOKEN]["output"])
    assert (output["run_id"], output["stats"]["successful"]) == (run_id, 3)
    event = await _event(house)
    assert (event.status, event.due_at, event.encrypted_token) == (EventStatus.DELIVERED, None, b"")
    assert (await house.run(run_id)).encrypted_token == b""
    [delivery] = event.deliveries
    assert (delivery.attempt, delivery.started_at, delivery.error) == (1, house.clock.now(), None)
    assert logged == ["outbox.delivered"]


async def test_a_heartbeat_whose_token_is_closed_leaves_it_to_the_end_of_the_run() -> None:
    house = a_house()
    given = {"task_token": TOKEN, "heartbeat_seconds": 5}
    _, run_id = await house.submit(3, step_functions=given)
    house.clock.advance(timedelta(seconds=5))
    _always(house, TaskClosed("TaskTimedOut"))

    assert await house.callback_sender.step() == 1
    assert (await house.run(run_id)).encrypted_token

    await house.drain(run_id, lambda _: A_PAGE)
    assert await house.callback_sender.step() == 1
    assert (await house.run(run_id)).encrypted_token == b""


async def test_a_token_is_wiped_though_its_run_changes_meanwhile() -> None:
    house = a_house()
    _, run_id = await _ended(house)

    async def change() -> None:
        await house.metadata.commit(await house.run(run_id))

    house.trace.after("metadata.get(Job)", 1, change)
    await house.callback_sender.step()

    assert (await house.run(run_id)).encrypted_token == b""
    assert (await _event(house)).status is EventStatus.DELIVERED


async def test_a_state_hears_of_a_failure_by_its_name() -> None:
    house = a_house()
    house.states.waiting.add(TOKEN)
    job_id, _ = await house.submit(3, step_functions={"task_token": TOKEN})
    await house.lifecycle.stop(CALLER, job_id)
    await house.callback_sender.step()

    outcome = house.states.outcomes[TOKEN]
    assert outcome["error"] == "RunStopped"
    assert msgspec.json.decode(outcome["cause"])["job_id"] == job_id


async def test_a_closed_token_is_recorded_and_left_alone() -> None:
    house = a_house()
    await _ended(house)
    states = _always(house, TaskClosed("TaskTimedOut"))
    with _logged() as logged:
        await house.callback_sender.step()
        house.clock.advance(timedelta(days=30))
        await house.callback_sender.step()

    event = await _event(house)
    assert (event.status, event.due_at, event.encrypted_token) == (EventStatus.DROPPED, None, b"")
    assert [one.error for one in event.deliveries] == ["TaskTimedOut"]
    assert states.asked == [TOKEN]
    assert logged == ["outbox.closed"]


async def test_trouble_is_tried_again_later_each_time_and_given_up_after_five_days() -> None:
    house = a_house()
    await _ended(house)
    began = house.clock.now()
    states = _always(house, AWAY)
    waits: list[float] = []
    with _logged() as logged:
        while (due := (await _event(house)).due_at) is not None:
            house.clock.advance(max(due - house.clock.now(), timedelta()))
            waits.append((house.clock.now() - began).total_seconds())
            assert await house.callback_sender.step() == 1

    gaps = [later - earlier for earlier, later in pairwise(waits)]
    assert gaps[:11] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600]
    assert set(gaps[10:]) == {600}
    assert timedelta(days=5) <= house.clock.now() - began <= timedelta(days=5, minutes=10)
    event = await _event(house)
    assert (event.status, event.tries) == (EventStatus.FAILED, len(states.asked))
    assert event.encrypted_token == (await house.run(event.run_id)).encrypted_token == b""
    assert [one.attempt for one in event.deliveries] == list(
        range(event.tries - KEPT_DELIVERIES[Channel.STEP_FUNCTIONS] + 1, event.tries + 1)
    )
    assert {(one.status_code, one.error) for one in event.deliveries} == {
        (400, "ThrottlingException")
    }
    assert logged == ["outbox.retry"] * (len(states.asked) - 1) + ["outbox.failed"]


async def test_after_trouble_a_state_hears_of_it_all_the_same() -> None:
    house = a_house()
    await _ended(house)
    _always(house, AWAY)
    await house.callback_sender.step()
    house.connect(house.states)
    house.clock.advance(SECOND)
    await house.callback_sender.step()

    event = await _event(house)
    assert (event.status, event.tries) == (EventStatus.DELIVERED, 0)
    assert [one.error for one in event.deliveries] == ["ThrottlingException", None]
    assert TOKEN in house.states.outcomes


async def test_no_answer_in_time_is_trouble() -> None:
    house = a_house()
    await _ended(house)

    async def never(_token: str) -> CallbackResult:
        await asyncio.Event().wait()
        raise AssertionError

    house.connect(Answering(never))
    house.callbacks.deadline = timedelta(milliseconds=20)
    await house.callback_sender.step()
    event = await _event(house)
    assert (event.status, event.due_at) == (EventStatus.OWED, house.clock.now() + SECOND)
    assert event.deliveries[0].error == "no answer within 0.02 s"


async def test_a_token_that_does_not_open_is_not_sent_and_waits_for_its_key() -> None:
    house = a_house()
    await _ended(house)
    event = await _event(house)
    spoiled = msgspec.structs.replace(event, encrypted_token=event.encrypted_token[:-1] + b"?")
    await house.metadata.commit(spoiled)
    await house.callback_sender.step()

    assert not house.states.outcomes
    event = await _event(house)
    assert event.status is EventStatus.OWED
    assert "encryption key" in (event.deliveries[0].error or "")


async def test_of_two_senders_one_sends() -> None:
    house = a_house()
    await _ended(house)
    states = _always(house, Sent())
    house.trace.before("metadata.commit", 1, house.callback_sender.step)
    await house.callback_sender.step()
    assert states.asked == [TOKEN]
    assert (await _event(house)).status is EventStatus.DELIVERED


@pytest.mark.parametrize("told", [False, True])
async def test_a_sender_that_dies_leaves_it_to_the_next_when_its_lease_is_over(
    *, told: bool
) -> None:
    house = a_house()
    await _ended(house)
    if told:
        house.trace.die_at("metadata.commit", 2)  # after the lease: with what came of it
    else:
        house.trace.die_at("step_functions.succeed", 1)
    assert not await survives(house.callback_sender.step())
    assert (TOKEN in house.states.outcomes) is told

    house.clock.advance(CALLBACK_LEASE - SECOND)
    assert await house.callback_sender.step() == 0
    house.clock.advance(SECOND)
    assert await house.callback_sender.step() == 1
    assert TOKEN in house.states.outcomes
    status = EventStatus.DROPPED if told else EventStatus.DELIVERED
    assert (await _event(house)).status is status


async def test_an_engine_that_is_away_at_the_lease_delays_it_and_ends_nothing() -> None:
    house = a_house()
    await _ended(house)
    with away(house.trace, "metadata.commit", Unavailable("away")), pytest.raises(Unavailable):
        await house.callback_sender.step()
    assert not house.states.outcomes
    await house.callback_sender.step()
    assert TOKEN in house.states.outcomes


async def test_an_engine_that_is_away_at_the_record_has_it_sent_again() -> None:
    house = a_house()
    await _ended(house)

    async def break_commits() -> None:
        house.trace.broken["metadata.commit"] = Unavailable("away")

    house.trace.after("step_functions.succeed", 1, break_commits)
    with _logged() as logged:
        assert await house.callback_sender.step() == 1
    assert logged == ["outbox.unavailable"]
    house.trace.broken.clear()
    assert (await _event(house)).status is EventStatus.OWED

    house.clock.advance(CALLBACK_LEASE)
    await house.callback_sender.step()
    assert (await _event(house)).status is EventStatus.DROPPED


async def test_a_bug_that_one_row_brings_out_ends_none_of_the_others() -> None:
    house = a_house()
    house.states.waiting.add("bad")
    job_id, _ = await house.submit(3, step_functions={"task_token": "bad"})
    await house.lifecycle.stop(CALLER, job_id)
    event = await _event(house)
    await house.metadata.commit(msgspec.structs.replace(event, payload="{"))
    await _ended(house)
    with _logged() as logged:
        assert await house.callback_sender.step() == 2
    assert sorted(logged) == ["outbox.bug", "outbox.delivered", "outbox.retry"]
    assert TOKEN in house.states.outcomes


# What was deleted.


@pytest.mark.parametrize("what", ["run", "job"])
async def test_what_a_deleted_run_owes_outlives_it_and_goes_when_it_is_sent(what: str) -> None:
    house = a_house()
    job_id, run_id = await _beating(house)
    if what == "job":
        await house.delete.job(CALLER, job_id)
    else:
        await house.delete.run(CALLER, job_id, run_id)
    await house.handle_messages()
    assert [one.channel for one in await house.metadata.page(OutboxEvent, limit=9)] == [
        Channel.STEP_FUNCTIONS
    ]

    await house.callback_sender.step()
    assert house.states.outcomes[TOKEN]["error"] == "RunDeleted"
    assert not await house.metadata.page(OutboxEvent, limit=9)


@pytest.mark.parametrize("answer", [TaskClosed("TaskTimedOut"), AWAY])
async def test_what_a_deleted_run_owes_goes_when_nobody_can_be_told_either(
    answer: CallbackResult,
) -> None:
    house = a_house()
    job_id, _ = await _ended(house)
    await house.delete.job(CALLER, job_id)
    await house.handle_messages()
    _always(house, answer)
    house.clock.advance(timedelta(days=6))
    await house.callback_sender.step()
    assert not await house.metadata.page(OutboxEvent, limit=9)


async def test_what_was_sent_goes_with_its_job_and_no_other_jobs_does() -> None:
    house = a_house()
    job_id, _ = await _ended(house)
    other, _ = await _ended(house, "another")
    await house.callback_sender.step()
    await house.delete.job(CALLER, job_id)
    await house.handle_messages()
    assert [one.job_id for one in await house.metadata.page(OutboxEvent, limit=9)] == [other]


async def test_a_delete_of_one_run_leaves_the_events_of_others() -> None:
    house = a_house()
    job_id, first = await _ended(house)
    await house.callback_sender.step()
    again, _, _ = await house.rerun(job_id)
    await house.drain(again, _page)
    await house.delete.run(CALLER, job_id, again)
    await house.handle_messages()
    assert [one.run_id for one in await house.metadata.page(OutboxEvent, limit=9)] == [first]


@pytest.mark.parametrize("nth", [1, 2])
async def test_a_delete_in_the_middle_of_a_report_leaves_nothing(nth: int) -> None:
    """While the state is told, or while what came of it is being written."""
    house = a_house()
    job_id, _ = await _ended(house)

    async def delete() -> None:
        await house.delete.job(CALLER, job_id)
        await house.handle_messages()

    if nth == 1:
        house.trace.after("step_functions.succeed", 1, delete)
    else:
        house.trace.before("metadata.commit", 2, delete)
    await house.callback_sender.step()
    assert TOKEN in house.states.outcomes
    assert not await house.metadata.page(OutboxEvent, limit=9)


# Heartbeats.


async def test_a_live_run_beats_at_its_interval() -> None:
    house = a_house()
    await _beating(house)
    for beats in range(1, 6):
        house.clock.advance(timedelta(seconds=BEAT) - SECOND)
        assert await house.callback_sender.step() == 0
        house.clock.advance(SECOND)
        assert await house.callback_sender.step() == 1
        assert house.states.heartbeats == [TOKEN] * beats


@pytest.mark.parametrize("how", ["paused", "open"])
async def test_a_run_that_is_paused_or_waits_for_tasks_beats_too(how: str) -> None:
    house = a_house()
    house.states.waiting.add(TOKEN)
    field = {"task_token": TOKEN, "heartbeat_seconds": BEAT}
    job_id, run_id = await house.submit(3, step_functions=field, status="open")
    if how == "paused":
        pause = house.lifecycle
        await pause.set_pause(CALLER, job_id, PauseState.PAUSED)
    else:
        await house.drain(run_id, _page)
    house.clock.advance(timedelta(seconds=BEAT))
    await house.callback_sender.step()
    assert house.states.heartbeats == [TOKEN]


async def test_beats_end_with_the_run_and_leave_nothing() -> None:
    house = a_house()
    _, run_id = await _beating(house)
    await house.drain(run_id, _page)
    house.clock.advance(timedelta(seconds=BEAT))
    await house.callback_sender.step()
    assert not house.states.heartbeats
    assert [one.channel for one in await house.metadata.page(OutboxEvent, limit=9)] == [
        Channel.STEP_FUNCTIONS
    ]


async def test_beats_end_with_the_token_and_the_run_goes_on() -> None:
    house = a_house()
    _, run_id = await _beating(house)
    house.states.waiting.clear()
    house.clock.advance(timedelta(seconds=BEAT))
    with _logged() as logged:
        await house.callback_sender.step()
        house.clock.advance(timedelta(days=1))
        assert await house.callback_sender.step() == 0
    event = await _event(house, Channel.HEARTBEAT)
    assert (event.status, event.due_at, event.encrypted_token) == (EventStatus.DROPPED, None, b"")
    assert logged == ["outbox.closed"]
    assert (await house.run(run_id)).is_live


async def test_a_beat_in_trouble_is_tried_again_within_its_interval_for_ever() -> None:
    house = a_house()
    await _beating(house)
    states = _always(house, AWAY)
    house.clock.advance(timedelta(seconds=BEAT))
    for wait in (1, 2, 4, 8, 16, *[BEAT] * 300):
        assert await house.callback_sender.step() == 1
        due = (await _event(house, Channel.HEARTBEAT)).due_at
        assert due == house.clock.now() + timedelta(seconds=wait)
        house.clock.advance(timedelta(seconds=wait))
    assert (
        len((await _event(house, Channel.HEARTBEAT)).deliveries)
        == KEPT_DELIVERIES[Channel.STEP_FUNCTIONS]
    )
    assert len(states.asked) == 305

    house.connect(house.states)
    await house.callback_sender.step()
    event = await _event(house, Channel.HEARTBEAT)
    assert event.due_at == house.clock.now() + timedelta(seconds=BEAT)

    _always(house, AWAY)
    house.clock.advance(timedelta(seconds=BEAT))
    await house.callback_sender.step()
    assert (await _event(house, Channel.HEARTBEAT)).due_at == house.clock.now() + SECOND


async def test_a_sender_that_dies_at_a_beat_leaves_the_next_one_soon() -> None:
    house = a_house()
    await _beating(house)
    house.clock.advance(timedelta(seconds=BEAT))
    house.trace.die_at("step_functions.heartbeat", 1)
    assert not await survives(house.callback_sender.step())
    house.clock.advance(timedelta(seconds=BEAT))
    await house.callback_sender.step()
    assert house.states.heartbeats == [TOKEN]


# The loop.


async def test_slow_calls_hold_up_their_own_places_only() -> None:
    house = a_house()
    gate = asyncio.Event()
    slow = [f"slow-{n}" for n in range(5)]

    async def say(token: str) -> CallbackResult:
        if token in slow:
            await gate.wait()
        return Sent()

    for token in slow:
        await _ended(house, token)
    house.connect(states := Answering(say))
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(house.callback_sender.run(stopping))
        await until(lambda: len(states.asked) == 5)
        await _ended(house, "quick")
        await until(lambda: "quick" in states.asked)
        assert house.callback_sender.channels[0].queue.in_flight >= 5
        stopping.set()
        gate.set()
    events = await house.metadata.page(OutboxEvent, limit=99)
    assert {one.status for one in events} == {EventStatus.DELIVERED}


async def test_no_more_than_its_places_are_under_way_and_beats_have_their_own() -> None:
    house = a_house()
    gate = asyncio.Event()
    most = CALLBACKS

    async def say(token: str) -> CallbackResult:
        if token != "beats":
            await gate.wait()
        return Sent()

    for number in range(most + 5):
        await _ended(house, f"ends-{number}")
    house.connect(states := Answering(say))
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(house.callback_sender.run(stopping))
        await until(lambda: len(states.asked) == most)
        await _beating(house, "beats")
        house.clock.advance(timedelta(seconds=BEAT))
        await until(lambda: "beats" in states.asked)
        assert len([one for one in states.asked if one != "beats"]) == most
        gate.set()
        await until(lambda: len([one for one in states.asked if one != "beats"]) == most + 5)
        stopping.set()


async def test_a_place_that_is_free_again_is_used_at_once() -> None:
    house = a_house()
    house.callback_sender.channels[0].idle = timedelta(hours=1)
    count = 3 * CALLBACKS
    for number in range(count):
        await _ended(house, f"ends-{number}")
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        loop = group.create_task(house.callback_sender.run(stopping))
        await until(lambda: len(house.states.outcomes) == count)
        loop.cancel()


async def test_what_is_on_its_way_is_not_begun_again() -> None:
    house = a_house()
    await _ended(house)
    with _logged() as logged:
        async with asyncio.TaskGroup() as group:
            sender = house.callback_sender.channels[0]
            assert await sender.round(group) == 1
            assert await sender.round(group) == 0
    assert logged == ["outbox.delivered"]
    assert not sender.queue.in_flight


async def test_the_loop_outlives_an_engine_that_is_away() -> None:
    house = a_house()
    await _ended(house)
    house.trace.broken["metadata.due(OutboxEvent)"] = Unavailable("away")
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(house.callback_sender.run(stopping))
        await until(lambda: "metadata.due(OutboxEvent)" in house.trace.calls)
        house.trace.broken.clear()
        await until(lambda: TOKEN in house.states.outcomes)
        stopping.set()
