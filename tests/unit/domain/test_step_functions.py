"""Task tokens: what is taken, what is encrypted, and what the state is told when its run ends."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from conveyor.domain import step_functions
from conveyor.domain.counts import COUNT_COLUMNS, Counts
from conveyor.domain.failure import AccountReason
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.job import JobType
from conveyor.domain.json_bodies import finish
from conveyor.domain.outbox import Channel, EventStatus, EventType, OutboxEvent
from conveyor.domain.run import RunStatus
from conveyor.domain.step_functions import (
    LONGEST_HEARTBEAT,
    LONGEST_TOKEN,
    SHORTEST_HEARTBEAT,
    TaskToken,
)
from conveyor.domain.submission import Limits
from conveyor.domain.task import AccountBlocked, Task
from conveyor.domain.task_bodies import read_submission
from conveyor.errors import InvalidArgument, RunNotStoppable, StorageFull, Unavailable
from conveyor.steps.shared.attempt import CallResult
from conveyor.testing.factories import a_job, a_run
from tests.harness.file_inputs import submitted_list, urls
from tests.harness.memory_service import (
    A_PAGE,
    CALLER,
    LIMITS,
    STRANGER,
    House,
    a_call,
    a_house,
    ids_as_answer,
    ids_in,
)
from tests.harness.trace import Crash

TOKEN = "AQCEAAAAKgAAAAMAAAAA-a-token-of-mine"
FIELD: dict[str, Any] = {"step_functions": {"task_token": TOKEN}}

Ending = Callable[[House, JobId, RunId], Awaitable[None]]


def _page(_task: Task) -> CallResult:
    return A_PAGE


# What is taken.


def _parsed(**field: object) -> Any:
    raw = msgspec.json.encode({"tasks": [{"url": "https://ok.example/"}], "step_functions": field})
    return finish(read_submission(raw, {}, Limits())).body.step_functions


@pytest.mark.parametrize("length", [1, LONGEST_TOKEN])
def test_a_token_of_any_length_that_aws_gives_is_taken(length: int) -> None:
    assert _parsed(task_token="t" * length).task_token == "t" * length


BAD = [
    ({"task_token": ""}, "task_token"),
    ({"task_token": "t" * (LONGEST_TOKEN + 1)}, "task_token"),
    ({"task_token": f"{TOKEN} "}, "task_token"),
    ({"task_token": f"{TOKEN}\n"}, "task_token"),
    ({"task_token": f"{TOKEN}é"}, "task_token"),
    ({"task_token": 7}, "task_token"),
    ({"task_token": [TOKEN]}, "task_token"),
    ({}, "task_token"),
    ({"task_token": TOKEN, "heartbeat_seconds": SHORTEST_HEARTBEAT - 1}, "heartbeat_seconds"),
    ({"task_token": TOKEN, "heartbeat_seconds": LONGEST_HEARTBEAT + 1}, "heartbeat_seconds"),
    ({"task_token": TOKEN, "heartbeat_seconds": -5}, "heartbeat_seconds"),
    ({"task_token": TOKEN, "heartbeat_seconds": 5.5}, "heartbeat_seconds"),
    ({"task_token": TOKEN, "heartbeat_seconds": True}, "heartbeat_seconds"),
    ({"task_token": TOKEN, "heartbeat": 9}, "heartbeat"),
]


@pytest.mark.parametrize(("field", "named"), BAD)
def test_what_cannot_be_a_token_or_an_interval_is_refused_by_name_and_not_quoted(
    field: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        _parsed(**field)
    assert named in refused.value.detail
    assert "step_functions" in refused.value.detail
    assert TOKEN not in refused.value.detail


@pytest.mark.parametrize("seconds", [SHORTEST_HEARTBEAT, LONGEST_HEARTBEAT, None])
def test_heartbeats_are_taken_within_their_bounds(seconds: int | None) -> None:
    given = _parsed(task_token=TOKEN, heartbeat_seconds=seconds)
    assert given.heartbeat_seconds == seconds


def test_a_scheduled_job_is_refused_a_token() -> None:
    with pytest.raises(InvalidArgument, match="scheduled"):
        step_functions.check_task_token(TaskToken(task_token=TOKEN), JobType.SCHEDULED)
    step_functions.check_task_token(TaskToken(task_token=TOKEN), JobType.REGULAR)


def test_a_token_is_not_shown_by_whoever_prints_what_holds_it() -> None:
    raw = msgspec.json.encode({"tasks": [{"url": "https://ok.example/"}], **FIELD})
    assert TOKEN not in repr(finish(read_submission(raw, {}, Limits())))


async def test_a_service_without_step_functions_refuses_a_token_and_creates_nothing() -> None:
    house = a_house()
    accept = replace(house.submit_job, takes_tokens=False)
    with pytest.raises(InvalidArgument, match="not connected to Step Functions"):
        await accept.submit(a_call(3, **FIELD), ids_as_answer)
    assert not await house.metadata.jobs(CALLER, limit=9)
    assert not await house.tasks.runs_held(limit=9)


# What is kept.


async def test_a_token_is_kept_encrypted_for_its_caller_and_run_alone() -> None:
    house = a_house()
    answer = await house.submit_job.submit(a_call(3, key="a key", **FIELD), ids_as_answer)
    _, run_id = ids_in(answer)
    run = await house.run(run_id)

    opened = await house.encryption.decrypt(
        run.encrypted_token, context=step_functions.token_context(CALLER, run_id)
    )
    assert opened == TOKEN
    for context in (
        step_functions.token_context(STRANGER, run_id),
        step_functions.token_context(CALLER, RunId("another")),
    ):
        with pytest.raises(Unavailable):
            await house.encryption.decrypt(run.encrypted_token, context=context)
    again = await house.submit_job.submit(a_call(3, key="a key", **FIELD), ids_as_answer)
    assert again == answer
    assert TOKEN.encode() not in answer.body


async def test_a_header_is_as_good_as_the_field() -> None:
    house = a_house()
    call = msgspec.structs.replace(
        a_call(3), extensions={"step_functions": TaskToken(task_token=TOKEN)}
    )
    _, run_id = ids_in(await house.submit_job.submit(call, ids_as_answer))
    await house.drain(run_id, _page)
    assert [one.channel for one in await _owed(house)] == [Channel.STEP_FUNCTIONS]


async def test_a_rerun_does_not_have_the_token() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3, **FIELD)
    await house.drain(run_id, _page)
    again, _, _ = await house.rerun(job_id)
    await house.drain(again, _page)

    assert not (await house.run(again)).encrypted_token
    assert [one.run_id for one in await _owed(house)] == [run_id]


# What is owed at the end.


async def test_a_completed_run_owes_its_token_success_with_its_figures() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3, external_id="mine", metadata={"team": "prices"}, **FIELD)
    house.clock.advance(timedelta(minutes=5))
    await house.drain(run_id, _page)

    [event] = await _owed(house)
    assert (event.type, event.run_id, event.job_id) == (EventType.RUN_COMPLETED, run_id, job_id)
    assert (event.status, event.due_at) == (EventStatus.OWED, house.clock.now())
    assert event.encrypted_token == (await house.run(run_id)).encrypted_token
    assert msgspec.json.decode(event.payload) == {
        "job_id": job_id,
        "run_id": run_id,
        "status": "completed",
        "ended_at": "2026-03-02T12:05:00Z",
        "stats": {
            "total": 3,
            "completed": 3,
            "successful": 3,
            "failed": 0,
            "spend": {"credits": 0, "cost": 0.0},
        },
        "external_id": "mine",
        "metadata": {"team": "prices"},
    }
    assert house.sender_woken == [house.clock.now()]


async def test_a_run_without_a_token_owes_nothing() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    await house.drain(run_id, _page)
    await house.delete.job(CALLER, job_id)
    assert not await _owed(house)
    assert not house.sender_woken


async def _stop(house: House, job_id: JobId, _run_id: RunId) -> None:
    await house.lifecycle.stop(CALLER, job_id)
    await house.lifecycle.stop(CALLER, job_id)


async def _delete_run(house: House, job_id: JobId, run_id: RunId) -> None:
    await house.delete.run(CALLER, job_id, run_id)
    await house.delete.run(CALLER, job_id, run_id)


async def _delete_job(house: House, job_id: JobId, _run_id: RunId) -> None:
    await house.delete.job(CALLER, job_id)
    await house.delete.job(CALLER, job_id)


def _blocked_for(reason: AccountReason) -> Ending:
    async def end(house: House, _job_id: JobId, run_id: RunId) -> None:
        await house.drain(run_id, lambda _task: AccountBlocked(reason, "so they say"))

    return end


async def _give_up_the_list(house: House, _job_id: JobId, run_id: RunId) -> None:
    await house.ingest.abandon(run_id, 0)


ENDINGS: list[tuple[Ending, EventType, str, dict[str, str]]] = [
    (_stop, EventType.RUN_STOPPED, "RunStopped", {"status": "stopped"}),
    (_delete_run, EventType.RUN_DELETED, "RunDeleted", {"status": "deleted"}),
    (_delete_job, EventType.RUN_DELETED, "RunDeleted", {"status": "deleted"}),
    (_give_up_the_list, EventType.RUN_STOPPED, "IngestFailed", {"status": "stopped"}),
    *(
        (
            _blocked_for(reason),
            EventType.RUN_FAILED,
            name,
            {"status": "failed", "failure_reason": reason, "failure_detail": "so they say"},
        )
        for reason, name in (
            (AccountReason.INSUFFICIENT_CREDITS, "InsufficientCredits"),
            (AccountReason.SUBSCRIPTION_INACTIVE, "SubscriptionInactive"),
            (AccountReason.API_KEY_CAP_REACHED, "ApiKeyCapReached"),
        )
    ),
]


@pytest.mark.parametrize(("end", "kind", "error", "why"), ENDINGS)
async def test_every_other_end_owes_its_token_one_failure_by_name(
    end: Ending, kind: EventType, error: str, why: dict[str, str]
) -> None:
    house = a_house()
    large = end is _give_up_the_list
    job_id, run_id = await house.submit(LIMITS.sync_tasks if large else 3, **FIELD)
    await end(house, job_id, run_id)

    [event] = await _owed(house)
    assert (event.type, event.run_id, event.job_id) == (kind, run_id, job_id)
    failure = step_functions.failure_in(event.payload)
    cause = msgspec.json.decode(failure.cause)
    assert failure.error == error
    assert cause.items() >= {"job_id": job_id, "run_id": run_id, **why}.items()
    assert cause["message"]
    assert ("ingest_error" in cause) == (error == "IngestFailed")
    assert len(house.sender_woken) == 1


def test_every_reason_of_an_account_has_a_name_to_catch() -> None:
    for reason in AccountReason:
        failed = step_functions.error_of(a_run(status=RunStatus.FAILED, failure_reason=reason))
        assert failed.error == "".join(word.title() for word in reason.split("_"))


async def test_a_list_that_is_bad_by_its_callers_rule_fails_the_state() -> None:
    house = a_house()
    await submitted_list(house, urls(20, bad=[17]), on_invalid="fail", **FIELD)
    await house.handle_messages()

    [event] = await _owed(house)
    assert step_functions.failure_in(event.payload).error == "IngestFailed"


@pytest.mark.parametrize("after", [_delete_run, _delete_job])
async def test_what_becomes_of_a_run_after_its_end_is_not_told(after: Ending) -> None:
    house = a_house()
    job_id, run_id = await house.submit(3, **FIELD)
    await house.drain(run_id, _page)
    await after(house, job_id, run_id)

    assert [one.type for one in await _owed(house)] == [EventType.RUN_COMPLETED]


@pytest.mark.parametrize("end", [_stop, _delete_run, _delete_job])
async def test_an_end_and_what_is_owed_for_it_are_one_write(end: Ending) -> None:
    house = a_house()
    job_id, run_id = await house.submit(3, **FIELD)
    house.trace.die_at("metadata.commit", 1)
    with pytest.raises(Crash):
        await end(house, job_id, run_id)
    assert (await house.run(run_id)).is_live
    assert not await _owed(house)

    house.trace.after("metadata.commit", 1, _die)
    with pytest.raises(Crash):
        await end(house, job_id, run_id)
    assert not (await house.run(run_id)).is_live
    assert len(await _owed(house)) == 1


async def test_of_a_stop_and_a_completion_at_once_one_is_told() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3, **FIELD)

    async def complete() -> None:
        await house.drain(run_id, _page)

    house.trace.before("metadata.commit", 1, complete)
    with pytest.raises(RunNotStoppable):
        await house.lifecycle.stop(CALLER, job_id)
    assert [one.type for one in await _owed(house)] == [EventType.RUN_COMPLETED]


async def test_the_largest_output_and_cause_are_within_what_aws_takes() -> None:
    job = a_job(
        external_id="x" * 128,
        metadata=msgspec.json.encode({f"{n:0>128}": '"' * 1024 for n in range(20)}).decode(),
    )
    counts = Counts(**dict.fromkeys(COUNT_COLUMNS, 10**12))
    run = a_run(
        status=RunStatus.COMPLETED, frozen=counts, encrypted_token=b"x", ingest_error="é" * 500
    )
    failed = msgspec.structs.replace(
        run,
        status=RunStatus.FAILED,
        failure_reason=AccountReason.API_KEY_CAP_REACHED,
        failure_detail="\x01" * 500,
    )
    success = step_functions.payload(job, run, counts)
    failure = step_functions.failure_in(step_functions.payload(job, failed, counts))

    assert len(success.encode()) <= 262_144
    assert len(failure.cause.encode()) <= 32_768
    assert len(failure.error) <= 256


# Heartbeats.


async def test_heartbeats_are_stored_with_the_submission_when_they_are_wanted() -> None:
    house = a_house()
    job_id, run_id = await house.submit(
        3, step_functions={"task_token": TOKEN, "heartbeat_seconds": 30}
    )
    [event] = await house.metadata.events(job_id, limit=9)
    assert (event.channel, event.type) == (Channel.HEARTBEAT, EventType.RUN_ALIVE)
    assert (event.run_id, event.every_seconds) == (run_id, 30)
    assert event.due_at == house.clock.now() + timedelta(seconds=30)
    assert event.encrypted_token == (await house.run(run_id)).encrypted_token


async def test_without_room_there_is_no_submission_and_no_heartbeat() -> None:
    house = a_house()
    house.trace.broken["metadata.commit"] = StorageFull("no room")
    with pytest.raises(StorageFull):
        await house.submit(3, step_functions={"task_token": TOKEN, "heartbeat_seconds": 30})
    assert not await house.metadata.page(OutboxEvent, limit=9)


async def _owed(house: House) -> list[OutboxEvent]:
    return [
        one
        for one in await house.metadata.page(OutboxEvent, limit=99)
        if one.status is EventStatus.OWED
    ]


async def _die() -> None:
    raise Crash
