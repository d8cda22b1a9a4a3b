"""What is owed when a run ends is written with its end: once, or not at all."""

from datetime import timedelta

import msgspec
import pytest

from conveyor.domain.failure import AccountReason
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.outbox import Channel, EventStatus, EventType, OutboxEvent
from conveyor.domain.run import RunStatus
from conveyor.domain.task import AccountBlocked, Task
from conveyor.domain.webhook import Webhook
from conveyor.steps.shared.attempt import CallResult, Fetched
from tests.harness.memory_service import A_PAGE, CALLER, House, a_house
from tests.harness.trace import Crash

HOOK = Webhook(url="https://hooks.example/in")
BLOCKED = AccountBlocked(AccountReason.INSUFFICIENT_CREDITS, "no credits left")


async def test_a_completed_run_owes_its_webhook_one_event_with_what_came_of_it() -> None:
    house = a_house()
    job_id, run_id = await _submitted(house, external_id="mine", metadata={"a": "b"})
    house.clock.advance(timedelta(minutes=5))
    ended = house.clock.now()

    await house.drain(run_id, _page)
    assert not await house.complete.check_completion(run_id)

    [event] = await _events(house, job_id)
    assert (event.channel, event.type, event.run_id) == (
        Channel.WEBHOOK,
        EventType.RUN_COMPLETED,
        run_id,
    )
    assert (event.status, event.due_at, event.occurred_at) == (EventStatus.OWED, ended, ended)
    assert msgspec.json.decode(event.payload) == {
        "schema": "conveyor.event.v1",
        "event_id": event.id,
        "event_type": "run.completed",
        "occurred_at": "2026-03-02T12:05:00Z",
        "job_id": job_id,
        "external_id": "mine",
        "metadata": {"a": "b"},
        "run_id": run_id,
        "run_sequence": 1,
        "stats": {
            "total": 3,
            "completed": 3,
            "successful": 3,
            "failed": 0,
            "spend": {"credits": 0, "cost": 0.0},
        },
    }
    assert house.sender_woken == [ended]


async def test_a_run_that_its_account_fails_owes_an_event_that_says_why() -> None:
    house = a_house()
    job_id, run_id = await _submitted(house)

    await house.drain(run_id, lambda _: BLOCKED)

    [event] = await _events(house, job_id)
    told = msgspec.json.decode(event.payload)
    assert event.type is EventType.RUN_FAILED
    assert (told["event_type"], told["failure_reason"]) == ("run.failed", "insufficient_credits")
    assert told["failure_detail"] == "no credits left"
    assert told["stats"]["total"] == 3
    assert "external_id" not in told
    assert house.sender_woken == [house.clock.now()]


@pytest.mark.parametrize("webhook", [None, Webhook(url=HOOK.url, disabled_at=HOOK.disabled_at)])
async def test_nothing_is_owed_without_a_webhook_that_wants_it(webhook: Webhook | None) -> None:
    house = a_house()
    disabled = webhook and msgspec.structs.replace(webhook, disabled_at=house.clock.now())
    job_id, run_id = await _submitted(house, hook=disabled)

    await house.drain(run_id, _page)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED
    assert not await _events(house, job_id)
    assert not house.sender_woken


async def test_nothing_is_owed_for_a_run_that_was_stopped() -> None:
    house = a_house()
    job_id, run_id = await _submitted(house)

    await house.lifecycle.stop(CALLER, job_id)
    await house.drain(run_id, _page)

    assert not await _events(house, job_id)


@pytest.mark.parametrize("ends_with", [A_PAGE, BLOCKED])
async def test_a_run_has_ended_if_and_only_if_its_event_is_owed(ends_with: CallResult) -> None:
    house = a_house()
    job_id, run_id = await _submitted(house)
    house.trace.after("metadata.commit", 1, _die)

    with pytest.raises(Crash):
        await house.drain(run_id, lambda _: ends_with)

    assert not (await house.run(run_id)).is_live
    assert len(await _events(house, job_id)) == 1


async def test_a_webhook_that_is_set_while_the_run_completes_is_told() -> None:
    house = a_house()
    job_id, run_id = await _submitted(house, hook=None)

    async def set_hook() -> None:
        job, run = await house.job(job_id), await house.run(run_id)
        await house.metadata.commit(msgspec.structs.replace(job, webhook=HOOK), run)

    house.trace.before("metadata.commit", 1, set_hook)
    await house.drain(run_id, _page)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED
    assert len(await _events(house, job_id)) == 1


async def _submitted(
    house: House, *, hook: Webhook | None = HOOK, **given: object
) -> tuple[JobId, RunId]:
    job_id, run_id = await house.submit(3, **given)
    job = await house.job(job_id)
    await house.metadata.commit(msgspec.structs.replace(job, webhook=hook))
    return job_id, run_id


async def _events(house: House, job_id: JobId) -> list[OutboxEvent]:
    return list(await house.metadata.events(job_id, limit=9))


def _page(_: Task) -> Fetched:
    return A_PAGE


async def _die() -> None:
    raise Crash
