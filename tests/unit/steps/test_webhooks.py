"""Where a job's news go: set, shown, cleared, listed, sent again and tried out."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from conveyor.domain.ids import CallerId, EventId, JobId, RunId
from conveyor.domain.outbox import Channel, DeliveryResult, EventStatus, OutboxEvent
from conveyor.domain.run import PauseState, RunStatus
from conveyor.domain.webhook import Webhook
from conveyor.errors import (
    CallbackUrlMustBeHttps,
    CallbackUrlUnresolvable,
    Conflict,
    NotFound,
    Overloaded,
    SigningRequiresActiveKey,
)
from conveyor.steps.webhooks import MOST_TESTS, MOST_TRIES, TESTS_PER_CALLER, WebhookTests
from conveyor.testing.factories import an_event
from tests.harness.memory_service import (
    A_PAGE,
    CALLER,
    SOON,
    STRANGER,
    House,
    a_call,
    a_house,
    ids_as_answer,
)

URL = "https://hooks.example/in"
SHORT = timedelta(milliseconds=50)


async def test_a_webhook_comes_with_the_submission_and_is_told_of_the_end() -> None:
    house = a_house()
    job_id, run_id = await house.submit(2, webhook={"url": URL})
    assert await house.manage_webhooks.get(CALLER, job_id) == Webhook(url=URL)

    await house.drain(run_id, lambda _: A_PAGE)
    await house.webhook_sender.step()

    [told] = house.told.told
    assert msgspec.json.decode(told.content)["run_id"] == run_id


@pytest.mark.parametrize(
    ("webhook", "error"),
    [
        ({"url": "http://hooks.example/"}, CallbackUrlMustBeHttps),
        ({"url": "https://private.example/"}, CallbackUrlUnresolvable),
        ({"url": URL, "signature": True}, SigningRequiresActiveKey),
    ],
)
async def test_a_submission_with_a_bad_webhook_creates_nothing(
    webhook: dict[str, object], error: type[Exception]
) -> None:
    house = a_house()
    house.told.refuse = _private
    with pytest.raises(error):
        await house.submit_job.submit(a_call(1, webhook=webhook), ids_as_answer)
    with pytest.raises(error):
        await house.manage_webhooks.test(
            CALLER, str(webhook["url"]), signature=bool(webhook.get("signature"))
        )
    assert not await house.metadata.jobs(CALLER, limit=9)
    assert not house.told.told


async def test_a_signed_webhook_is_taken_with_an_active_key() -> None:
    house = a_house()
    await house.rotate.begin(CALLER)
    job_id, _ = await house.submit(1, webhook={"url": URL, "signature": True})
    assert await house.manage_webhooks.get(CALLER, job_id) == Webhook(url=URL, signature=True)


async def test_a_webhook_is_set_replaced_and_cleared() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1)
    with pytest.raises(NotFound):
        await house.manage_webhooks.get(CALLER, job_id)

    for url in (URL, "https://other.example/", "https://other.example/"):
        await house.manage_webhooks.put(CALLER, job_id, url, signature=False)
        assert (await house.manage_webhooks.get(CALLER, job_id)).url == url
    for _ in range(2):
        await house.manage_webhooks.clear(CALLER, job_id)
    with pytest.raises(NotFound):
        await house.manage_webhooks.get(CALLER, job_id)

    await house.drain(run_id, lambda _: A_PAGE)
    assert not await house.metadata.events(job_id, limit=9)


async def test_a_bad_webhook_leaves_the_one_there_is() -> None:
    house = a_house()
    house.told.refuse = _private
    job_id, _ = await house.submit(1, webhook={"url": URL})
    with pytest.raises(CallbackUrlUnresolvable):
        await house.manage_webhooks.put(CALLER, job_id, "https://private.example/", signature=False)
    assert (await house.manage_webhooks.get(CALLER, job_id)).url == URL


async def test_a_webhook_that_is_set_while_the_run_completes_is_told() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1)

    async def put() -> None:
        await house.manage_webhooks.put(CALLER, job_id, URL, signature=False)

    house.trace.before("metadata.commit", 1, put)
    await house.drain(run_id, lambda _: A_PAGE)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED
    assert len(await house.metadata.events(job_id, limit=9)) == 1


async def test_a_run_that_completes_while_its_webhook_is_set_is_not_disturbed() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1)
    house.trace.before("metadata.commit", 1, lambda: house.drain(run_id, lambda _: A_PAGE))

    await house.manage_webhooks.put(CALLER, job_id, URL, signature=False)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED
    assert (await house.manage_webhooks.get(CALLER, job_id)).url == URL


async def test_a_change_that_other_changes_always_come_before_is_a_conflict() -> None:
    house = a_house()
    pausing = house.lifecycle
    job_id, _ = await house.submit(1)
    turns = 0

    async def turn_the_run() -> None:
        nonlocal turns
        turns += 1
        state = PauseState.PAUSED if turns % 2 else PauseState.ACTIVE
        await pausing.set_pause(CALLER, job_id, state)

    for number in range(2 * MOST_TRIES):  # a turn is a commit as well
        house.trace.before("metadata.commit", 2 * number + 1, turn_the_run)
    with pytest.raises(Conflict, match="try again"):
        await house.manage_webhooks.put(CALLER, job_id, URL, signature=False)
    assert turns == MOST_TRIES


async def test_a_strangers_job_is_not_there() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1, webhook={"url": URL})
    await house.drain(run_id, lambda _: A_PAGE)
    [event] = await house.metadata.events(job_id, limit=9)
    other, _ = await house.submit(1, webhook={"url": URL})
    for call in (
        house.manage_webhooks.get(STRANGER, job_id),
        house.manage_webhooks.put(STRANGER, job_id, URL, signature=False),
        house.manage_webhooks.clear(STRANGER, job_id),
        house.manage_webhooks.deliveries(STRANGER, job_id, limit=9, before=None),
        house.manage_webhooks.redeliver(STRANGER, job_id, event.id),
        house.manage_webhooks.redeliver(CALLER, other, event.id),
        house.manage_webhooks.redeliver(CALLER, job_id, EventId("nothing")),
    ):
        with pytest.raises(NotFound):
            await call


async def test_deliveries_are_listed_newest_first_and_pages_join() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1, webhook={"url": URL})
    names = [EventId(house.ids.new()) for _ in range(7)]
    for number, name in enumerate(names):
        channel = Channel.HEARTBEAT if number in {1, 5} else Channel.WEBHOOK
        await house.metadata.commit(
            an_event(id=name, job_id=job_id, run_id=RunId(run_id), channel=channel)
        )

    seen, before = list[str](), None
    for _ in range(9):
        page, before = await house.manage_webhooks.deliveries(
            CALLER, job_id, limit=2, before=before
        )
        seen += [event.id for event in page]
        if before is None:
            break

    assert seen == [name for number, name in reversed(list(enumerate(names))) if number % 4 != 1]


async def test_a_short_page_of_events_is_not_the_end_of_the_list() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1, webhook={"url": URL})
    names = [EventId(house.ids.new()) for _ in range(7)]
    for name in names:
        await house.metadata.commit(an_event(id=name, job_id=job_id, run_id=RunId(run_id)))
    whole = house.metadata.events

    async def bounded(job_id: JobId, *, limit: int, before: str | None) -> object:
        """Engines also bound the bytes of a page."""
        return await whole(job_id, limit=min(limit, 2), before=before)

    house.metadata.events = bounded  # type: ignore[method-assign,assignment]
    page, before = await house.manage_webhooks.deliveries(CALLER, job_id, limit=5, before=None)
    rest, end = await house.manage_webhooks.deliveries(CALLER, job_id, limit=5, before=before)

    assert [event.id for event in page] == names[:1:-1]
    assert [event.id for event in rest] == names[1::-1]
    assert end is None


async def test_an_event_can_be_sent_again_whatever_came_of_it() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1, webhook={"url": URL})
    await house.drain(run_id, lambda _: A_PAGE)
    await house.webhook_sender.step()
    [event] = await house.metadata.events(job_id, limit=9)

    house.sender_woken.clear()
    again = await house.manage_webhooks.redeliver(CALLER, job_id, event.id)
    assert (again.status, again.due_at) == (EventStatus.OWED, house.clock.now())
    assert house.sender_woken
    await house.webhook_sender.step()

    assert [one.event_id for one in house.told.told] == [event.id] * 2
    await house.manage_webhooks.clear(CALLER, job_id)
    with pytest.raises(Conflict):
        await house.manage_webhooks.redeliver(CALLER, job_id, event.id)


async def test_a_test_tells_what_came_of_it_and_stores_nothing() -> None:
    house = a_house()
    event_id, delivery = await house.manage_webhooks.test(CALLER, URL, signature=False)
    [told] = house.told.told
    assert msgspec.json.decode(told.content) == {
        "schema": "conveyor.event.v1",
        "event_id": event_id,
        "event_type": "webhook.test",
        "occurred_at": "2026-03-02T12:00:00Z",
        "job_id": "test",
        "run_id": "test",
        "run_sequence": 1,
    }
    assert (delivery.status_code, delivery.error) == (200, None)
    assert not await house.metadata.page(OutboxEvent, limit=9)

    house.told.results["hooks.example"].append(
        DeliveryResult(status_code=503, error="http_5xx:503")
    )
    other_id, delivery = await house.manage_webhooks.test(CALLER, URL, signature=False)
    assert other_id != event_id
    assert (delivery.status_code, delivery.error) == (503, "http_5xx:503")


async def test_few_tests_are_under_way_at_a_time() -> None:
    house = a_house()
    house.told.held["hooks.example"] = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(MOST_TESTS + 5):
            caller = CallerId(f"caller{number}")
            group.create_task(house.manage_webhooks.test(caller, URL, signature=False))
        await _told(house, MOST_TESTS)
        house.told.held["hooks.example"].set()
    assert len(house.told.told) == MOST_TESTS + 5


async def test_a_caller_whose_receiver_is_silent_keeps_nobody_else_from_testing() -> None:
    house = a_house()
    subscribe = replace(house.manage_webhooks, tests=WebhookTests(SHORT))
    house.told.held["tarpit.example"] = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(TESTS_PER_CALLER):
            test = subscribe.test(CALLER, "https://tarpit.example/", signature=False)
            group.create_task(test)
        await _told(house, TESTS_PER_CALLER)

        for _ in range(MOST_TESTS):
            with pytest.raises(Overloaded):
                await subscribe.test(CALLER, URL, signature=False)
        await subscribe.test(STRANGER, URL, signature=False)
        assert [one.url for one in house.told.told_of("hooks.example")] == [URL]
        house.told.held["tarpit.example"].set()
    await subscribe.test(CALLER, URL, signature=False)


async def test_a_test_that_finds_no_place_is_told_so_soon() -> None:
    house = a_house()
    subscribe = replace(house.manage_webhooks, tests=WebhookTests(SHORT))
    house.told.held["hooks.example"] = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(MOST_TESTS):
            caller = CallerId(f"caller{number}")
            group.create_task(subscribe.test(caller, URL, signature=False))
        await _told(house, MOST_TESTS)
        with pytest.raises(Overloaded):
            await subscribe.test(STRANGER, URL, signature=False)
        house.told.held["hooks.example"].set()
    await subscribe.test(STRANGER, URL, signature=False)


async def test_a_deleted_jobs_events_are_cleared_away_but_for_others_channels() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1, webhook={"url": URL})
    await house.drain(run_id, lambda _: A_PAGE)
    token = an_event(job_id=job_id, channel=Channel.STEP_FUNCTIONS)
    await house.metadata.commit(token)

    await house.delete.job(CALLER, JobId(job_id))
    while await house.control_worker.step():
        pass

    assert [event.id for event in await house.metadata.page(OutboxEvent, limit=9)] == [token.id]


def _private(url: str) -> None:
    if "private" in url:
        raise CallbackUrlUnresolvable("not public")


async def _told(house: House, count: int) -> None:
    """So many, and no more for the moment."""
    async with asyncio.timeout(SOON):
        while len(house.told.told) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(house.told.told) == count
