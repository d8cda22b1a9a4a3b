"""Events for webhooks are sent until they are delivered, dropped or failed; no receiver delays another."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from unittest.mock import Mock

import pytest
from zenrows.batch import verify_webhook_signature

from conveyor.domain.ids import EventId, JobId
from conveyor.domain.job import Job, JobStatus
from conveyor.domain.outbox import (
    KEPT_DELIVERIES,
    Channel,
    DeliveryResult,
    EventStatus,
    OutboxEvent,
)
from conveyor.domain.webhook import WAITS, Webhook, WebhookRules
from conveyor.errors import Unavailable
from conveyor.ports.metadata import MOST_CHANGES
from conveyor.steps.deliver.sender import PAGE, ChannelSender
from conveyor.testing.factories import a_job, an_event
from tests.harness.memory_service import CALLER, LEASE, SOON, House, a_house, a_webhook_sender
from tests.harness.trace import Crash
from tests.harness.webhooks import GONE

HOST = "hooks.example"
DOWN = DeliveryResult(error="transport_error:Connection refused")
BUSY = DeliveryResult(status_code=429, error="http_4xx:429", retry_after=timedelta(hours=1))
MOVED = DeliveryResult(status_code=302, error="http_3xx:302")
MINUTE = timedelta(minutes=1)


async def test_an_event_that_is_taken_is_sent_once() -> None:
    house = a_house()
    event = await _owed(house)

    assert await house.webhook_sender.step() == 1
    house.clock.advance(timedelta(days=5))
    assert await house.webhook_sender.step() == 0

    [told] = house.told.told
    assert (told.url, told.content) == (f"https://{HOST}/in", event.payload.encode())
    assert told.event_id == event.id
    stored = await _event(house, event.id)
    assert (stored.status, stored.due_at) == (EventStatus.DELIVERED, None)
    [delivery] = stored.deliveries
    assert (delivery.attempt, delivery.status_code, delivery.error) == (1, 200, None)


async def test_a_receiver_that_is_down_is_tried_ten_times_in_three_days_with_one_id() -> None:
    house = a_house()
    house.told.always[HOST] = DOWN
    event = await _owed(house)
    began = house.clock.now()

    at = await _tried_at(house, hours=84)

    assert at == [began + sum(WAITS[1 : n + 1], timedelta()) for n in range(len(WAITS))]
    assert {(one.event_id, one.content) for one in house.told.told} == {
        (event.id, event.payload.encode())
    }
    stored = await _event(house, event.id)
    assert (stored.status, stored.due_at, stored.tries) == (EventStatus.FAILED, None, 10)
    assert [one.attempt for one in stored.deliveries] == list(range(1, 11))
    assert {one.error for one in stored.deliveries} == {DOWN.error}


async def test_a_receiver_that_comes_back_is_told_at_its_next_attempt() -> None:
    house = a_house()
    house.told.results[HOST].extend([DOWN, MOVED, DOWN])
    event = await _owed(house)

    at = await _tried_at(house, hours=84)

    assert len(at) == 4
    stored = await _event(house, event.id)
    assert stored.status is EventStatus.DELIVERED
    assert [one.error for one in stored.deliveries] == [DOWN.error, MOVED.error, DOWN.error, None]


async def test_a_receiver_that_asks_for_a_break_gets_it() -> None:
    house = a_house()
    house.told.results[HOST].append(BUSY)
    await _owed(house)
    began = house.clock.now()

    at = await _tried_at(house, hours=84)

    assert at == [began, began + timedelta(hours=1)]


async def test_a_receiver_that_is_gone_is_told_nothing_more() -> None:
    house = a_house()
    house.told.always[HOST] = GONE
    first = await _owed(house)
    await house.webhook_sender.step()
    second = await _owed(house, job_id=first.job_id)
    await house.webhook_sender.step()

    assert len(house.told.told) == 1
    assert (await _event(house, first.id)).status is EventStatus.FAILED
    assert (await _event(house, second.id)).status is EventStatus.DROPPED
    webhook = (await house.job(first.job_id)).webhook
    assert webhook == Webhook(url=f"https://{HOST}/in", disabled_at=house.clock.now())

    house.told.always.clear()
    await house.manage_webhooks.put(CALLER, first.job_id, f"https://{HOST}/in", signature=False)
    await house.manage_webhooks.redeliver(CALLER, first.job_id, second.id)
    await house.webhook_sender.step()
    assert (await _event(house, second.id)).status is EventStatus.DELIVERED


async def test_a_webhook_that_was_set_meanwhile_is_told_and_not_disabled_for_the_old_one() -> None:
    house = a_house()
    house.told.always[HOST] = GONE
    event = await _owed(house)

    async def set_another() -> None:
        await house.manage_webhooks.put(
            CALLER, event.job_id, "https://new.example/", signature=False
        )

    house.trace.after("webhooks.post", 1, set_another)
    await house.webhook_sender.step()

    assert (await house.job(event.job_id)).webhook == Webhook(url="https://new.example/")
    stored = await _event(house, event.id)
    assert (stored.status, stored.tries, stored.due_at) == (EventStatus.OWED, 0, house.clock.now())

    await house.webhook_sender.step()
    assert [one.url for one in house.told.told] == [f"https://{HOST}/in", "https://new.example/"]
    stored = await _event(house, event.id)
    assert stored.status is EventStatus.DELIVERED
    assert [one.status_code for one in stored.deliveries] == [410, 200]


async def test_a_webhook_that_was_cleared_meanwhile_ends_the_event() -> None:
    house = a_house()
    house.told.always[HOST] = GONE
    event = await _owed(house)

    async def clear() -> None:
        await house.manage_webhooks.clear(CALLER, event.job_id)

    house.trace.after("webhooks.post", 1, clear)
    await house.webhook_sender.step()

    assert (await house.job(event.job_id)).webhook is None
    assert (await _event(house, event.id)).status is EventStatus.FAILED


async def test_where_it_goes_is_read_anew_at_each_attempt() -> None:
    house = a_house()
    house.told.always[HOST] = DOWN
    event = await _owed(house)
    await house.webhook_sender.step()

    await house.manage_webhooks.put(CALLER, event.job_id, "https://new.example/", signature=False)
    await _tried_at(house, hours=1)

    assert [one.url for one in house.told.told] == [f"https://{HOST}/in", "https://new.example/"]


@pytest.mark.parametrize("why", ["cleared", "deleted", "unknown"])
async def test_what_nobody_wants_any_more_is_dropped(why: str) -> None:
    house = a_house()
    event = await _owed(house)
    job = await house.job(event.job_id)
    if why == "cleared":
        await house.manage_webhooks.clear(CALLER, job.id)
    elif why == "deleted":
        await house.delete.job(CALLER, job.id)
    else:
        event = await _owed(house, job_id=JobId("nobody's"), stored=False)

    await _tried_at(house, hours=1)

    assert (await _event(house, event.id)).status is EventStatus.DROPPED
    assert event.id not in {one.event_id for one in house.told.told}


async def test_a_webhook_that_is_cleared_while_its_event_stands_in_line_is_not_told() -> None:
    house = a_house()
    house.told.held[HOST] = asyncio.Event()
    events = [await _owed(house) for _ in range(3)]
    stepping = asyncio.create_task(house.webhook_sender.step())
    await _until(lambda: len(house.told.told) == 2)

    await house.manage_webhooks.clear(CALLER, events[2].job_id)
    house.told.held[HOST].set()
    await stepping

    assert len(house.told.told) == 2
    assert (await _event(house, events[2].id)).status is EventStatus.DROPPED


async def test_a_signed_delivery_bears_the_keys_of_its_moment() -> None:
    house = a_house()
    key, secret = await house.rotate.begin(CALLER)
    await _owed(house, signature=True)
    await house.webhook_sender.step()

    [told] = house.told.told
    now = house.clock.now().timestamp()
    signature = told.headers["X-Signature"]
    assert verify_webhook_signature(told.content, signature, {key.kid: secret}, now=now)
    assert len(told.headers["webhook-signature"].split()) == 1

    await house.rotate.begin(CALLER)
    await _owed(house, signature=True)
    await house.webhook_sender.step()
    assert len(house.told.told[1].headers["webhook-signature"].split()) == 2
    assert f"kid={key.kid}" in house.told.told[1].headers["X-Signature"]


@pytest.mark.parametrize("broken", [False, True])
async def test_what_is_to_be_signed_and_cannot_be_is_not_sent(broken: bool) -> None:
    house = a_house()
    if broken:
        await house.rotate.begin(CALLER)
        house.trace.broken["metadata.get(SigningKeys)"] = Unavailable("away")
    event = await _owed(house, signature=True)
    await house.webhook_sender.step()

    assert not house.told.told
    stored = await _event(house, event.id)
    assert stored.status is EventStatus.OWED
    assert "key" in (stored.deliveries[0].error or "")


@pytest.mark.parametrize("call", ["webhooks.post", "metadata.commit", "metadata.get(Job)"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_sender_that_dies_anywhere_leaves_an_event_that_is_sent_again(
    call: str, moment: str
) -> None:
    for nth in (1, 2):
        house = a_house()
        event = await _owed(house)
        plan = house.trace.before if moment == "before" else house.trace.after
        plan(call, nth, _die)
        died = False
        try:
            await house.webhook_sender.step()
        except (Crash, BaseExceptionGroup):
            died = True

        next_life = _again(house)
        house.clock.advance(LEASE)
        await next_life.step()

        stored = await _event(house, event.id)
        assert stored.status is EventStatus.DELIVERED
        assert {one.event_id for one in house.told.told} == {event.id}
        assert died or call == "webhooks.post"


async def test_of_two_senders_one_has_an_event() -> None:
    house = a_house()
    await _owed(house)
    house.trace.before("metadata.commit", 1, _again(house).step)

    await house.webhook_sender.step()

    assert len(house.told.told) == 1
    assert house.webhook_sender.queue.in_flight == 0


async def test_an_engine_that_is_away_when_it_is_noted_has_it_sent_again() -> None:
    house = a_house()
    event = await _owed(house)

    async def break_commits() -> None:
        house.trace.broken["metadata.commit"] = Unavailable("away")

    house.trace.after("webhooks.post", 1, break_commits)
    await house.webhook_sender.step()
    house.trace.broken.clear()
    assert (await _event(house, event.id)).status is EventStatus.OWED

    house.clock.advance(LEASE)
    await house.webhook_sender.step()
    assert (await _event(house, event.id)).status is EventStatus.DELIVERED
    assert house.webhook_sender.queue.in_flight == 0


@pytest.mark.parametrize(
    "call", ["metadata.get(Job)", "metadata.commit", "metadata.due(OutboxEvent)"]
)
async def test_places_are_free_again_when_an_engine_was_away(call: str) -> None:
    house = a_house()
    for _ in range(5):
        await _owed(house)
    house.trace.broken[call] = Unavailable("away")
    with pytest.raises(Unavailable):
        await house.webhook_sender.step()
    assert house.webhook_sender.queue.in_flight == 0
    house.trace.broken.clear()

    await house.webhook_sender.step()
    assert len(house.told.told) == 5


async def test_a_bug_that_one_event_brings_out_costs_it_an_attempt_and_no_other() -> None:
    house = a_house()
    bad, good = await _owed(house), await _owed(house, host="other.example")

    async def raise_it() -> None:
        raise LookupError("a bug")

    house.trace.before("webhooks.post", 1, raise_it)
    await house.webhook_sender.step()

    stored = await _event(house, bad.id)
    assert (stored.status, stored.tries) == (EventStatus.OWED, 1)
    assert (await _event(house, good.id)).status is EventStatus.DELIVERED


async def test_no_more_than_two_are_sent_to_one_receiver_at_a_time() -> None:
    house = a_house()
    house.told.held[HOST] = asyncio.Event()
    for _ in range(10):
        await _owed(house)

    stepping = asyncio.create_task(house.webhook_sender.step())
    await _until(lambda: len(house.told.told) == 2)
    assert house.webhook_sender.queue.waiting == 8
    house.told.held[HOST].set()
    await stepping

    assert len(house.told.told) == 10
    assert house.told.most_under_way[HOST] == 2
    assert len({one.event_id for one in house.told.told}) == 10


async def test_receivers_on_other_ports_of_a_host_have_places_of_their_own() -> None:
    house = a_house()
    house.told.rules = WebhookRules(ports=(443, 8443))
    house.told.held[HOST] = asyncio.Event()
    for host in (HOST, f"{HOST}:8443"):
        for _ in range(3):
            await _owed(house, host=host)

    stepping = asyncio.create_task(house.webhook_sender.step())
    await _until(lambda: len(house.told.told) == 4)
    assert house.webhook_sender.queue.waiting == 2
    house.told.held[HOST].set()
    await stepping

    assert len(house.told.told) == 6


async def test_a_receiver_that_never_answers_delays_nobody() -> None:
    house = a_house()
    house.told.held["dead.example"] = asyncio.Event()
    for number in range(3 * PAGE):
        await _owed(house, host="dead.example", due=-MINUTE - number * timedelta(milliseconds=1))
    others = [await _owed(house, host=f"host{number}.example") for number in range(49)]
    house.trace.forget()

    stopping = asyncio.Event()
    running = asyncio.create_task(house.webhook_sender.run(stopping))
    told = await _told_of(house, {event.id for event in others})

    assert told == 49
    assert len(house.told.told_of("dead.example")) == 2
    # One write for many of those that wait, and two for each that was sent.
    assert len(house.trace.of("metadata.commit")) <= 4 * PAGE // MOST_CHANGES + 2 * 51
    house.told.held["dead.example"].set()
    stopping.set()
    await running


async def test_what_stands_in_line_when_a_sender_dies_is_sent_by_another() -> None:
    house = a_house()
    house.told.held[HOST] = asyncio.Event()
    events = [await _owed(house) for _ in range(20)]
    stepping = asyncio.create_task(house.webhook_sender.step())
    await _until(lambda: house.webhook_sender.queue.waiting == 18)
    stepping.cancel()
    await asyncio.wait([stepping])
    del house.told.held[HOST]

    other = _again(house)
    for _ in range(30):
        house.clock.advance(MINUTE)
        await other.step()

    for event in events:
        assert (await _event(house, event.id)).status is EventStatus.DELIVERED


async def test_what_still_stands_in_line_is_put_off_again_and_sent_once() -> None:
    house = a_house()
    house.told.held[HOST] = asyncio.Event()
    events = [await _owed(house) for _ in range(10)]
    stepping = asyncio.create_task(house.webhook_sender.step())
    await _until(lambda: house.webhook_sender.queue.waiting == 8)
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            house.clock.advance(timedelta(seconds=20))
            await house.webhook_sender.round(group)
        house.told.held[HOST].set()
    await stepping

    sent = [one.event_id for one in house.told.told]
    # The two under way outlived their lease, and were sent again: that is the price of it.
    assert set(sent) == {event.id for event in events}
    assert len(sent) <= 12


async def test_a_sender_is_woken_and_stops_with_nothing_begun_anew() -> None:
    house = a_house()
    stopping = asyncio.Event()
    house.webhook_sender.idle = timedelta(hours=1)
    running = asyncio.create_task(house.webhook_sender.run(stopping))
    await _until(lambda: "metadata.due(OutboxEvent)" in house.trace.calls)
    event = await _owed(house)
    house.webhook_sender.wake()
    assert await _told_of(house, {event.id}) == 1

    house.told.held[HOST] = asyncio.Event()
    for _ in range(5):
        await _owed(house)
    house.webhook_sender.wake()
    await _until(lambda: house.told.under_way[HOST] == 2)
    stopping.set()
    await asyncio.sleep(0)
    house.told.held[HOST].set()
    await asyncio.wait_for(running, SOON)
    assert len(house.told.told) == 3


async def test_an_event_that_is_sent_again_has_all_its_attempts_before_it() -> None:
    house = a_house()
    house.told.always[HOST] = DOWN
    event = await _owed(house)
    await _tried_at(house, hours=1)
    assert (await _event(house, event.id)).tries == 4

    await house.manage_webhooks.redeliver(CALLER, event.job_id, event.id)
    at = await _tried_at(house, hours=84)

    assert len(at) == len(WAITS)


@pytest.mark.parametrize("result", [DeliveryResult(status_code=200), DOWN, GONE])
async def test_an_attempt_stays_on_record_if_another_is_asked_for_meanwhile(
    result: DeliveryResult,
) -> None:
    house = a_house()
    house.told.results[HOST].append(result)
    event = await _owed(house)

    async def ask_for_another() -> None:
        await house.manage_webhooks.redeliver(CALLER, event.job_id, event.id)

    house.trace.after("webhooks.post", 1, ask_for_another)
    await house.webhook_sender.step()

    stored = await _event(house, event.id)
    assert (stored.status, stored.tries, stored.due_at) == (EventStatus.OWED, 0, house.clock.now())
    assert [one.status_code for one in stored.deliveries] == [result.status_code]

    await house.webhook_sender.step()
    stored = await _event(house, event.id)
    assert stored.status is EventStatus.DELIVERED
    assert [one.attempt for one in stored.deliveries] == [1, 2]


async def test_an_attempt_that_outlived_its_lease_takes_nothing_from_who_has_it_now() -> None:
    house = a_house()
    event = await _owed(house)
    other, taken = _again(house), asyncio.Event()

    async def have_another_take_it() -> None:
        house.clock.advance(LEASE)
        house.told.held[HOST] = asyncio.Event()
        group.create_task(other.step())
        await _until(lambda: other.queue.in_flight == 1 and house.told.under_way[HOST] == 1)
        taken.set()

    house.trace.after("webhooks.post", 1, have_another_take_it)
    async with asyncio.TaskGroup() as group:
        await house.webhook_sender.step()
        assert taken.is_set()
        house.told.held[HOST].set()

    stored = await _event(house, event.id)
    assert stored.status is EventStatus.DELIVERED
    assert [one.attempt for one in stored.deliveries] == [1, 2]
    house.clock.advance(LEASE)
    assert await house.webhook_sender.step() == 0


async def test_an_event_can_be_sent_again_and_again_and_keeps_the_latest_attempts() -> None:
    house = a_house()
    event = await _owed(house)
    for _ in range(KEPT_DELIVERIES[Channel.WEBHOOK] + 5):
        await house.webhook_sender.step()
        await house.manage_webhooks.redeliver(CALLER, event.job_id, event.id)

    stored = await _event(house, event.id)
    assert (stored.status, stored.tries, stored.due_at) == (EventStatus.OWED, 0, house.clock.now())
    assert [one.attempt for one in stored.deliveries] == list(
        range(6, KEPT_DELIVERIES[Channel.WEBHOOK] + 6)
    )


def _again(house: House) -> ChannelSender[Webhook]:
    """The sender of another process."""
    sender = house.manage_webhooks.sender
    return a_webhook_sender(house.metadata, house.clock, sender)


async def _owed(
    house: House,
    *,
    host: str = HOST,
    signature: bool = False,
    job_id: JobId | None = None,
    stored: bool = True,
    due: timedelta = timedelta(),
) -> OutboxEvent:
    """An event for a job with a webhook."""
    if job_id is None:
        job_id = JobId(house.ids.new())
        await house.metadata.commit(_job(job_id, host, signature=signature))
    now = house.clock.now()
    event_id = EventId(house.ids.new())
    event = an_event(
        id=event_id,
        caller=CALLER,
        job_id=job_id,
        due_at=now + due,
        payload=f'{{"id":"{event_id}"}}',
    )
    await house.metadata.commit(event)
    return event


def _job(job_id: JobId, host: str, *, signature: bool) -> Job:
    webhook = Webhook(url=f"https://{host}/in", signature=signature)
    return a_job(
        id=job_id,
        caller=CALLER,
        status=JobStatus.CLOSED,
        latest_run_id=None,
        webhook=webhook,
    )


async def _event(house: House, event_id: EventId) -> OutboxEvent:
    events = await house.metadata.page(OutboxEvent, limit=999)
    return next(event for event in events if event.id == event_id)


async def _tried_at(house: House, *, hours: int) -> list[datetime]:
    """When deliveries were tried, over so many hours; nothing is due in between."""
    at = []
    end = house.clock.now() + timedelta(hours=hours)
    while True:
        before = len(house.told.told)
        await house.webhook_sender.step()
        at += [house.clock.now()] * (len(house.told.told) - before)
        due = [one.due_at for one in await house.metadata.page(OutboxEvent, limit=99) if one.due_at]
        if not due or min(due) > end:
            return at
        house.clock.advance(max(min(due) - house.clock.now(), timedelta()))


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def _told_of(house: House, wanted: set[EventId]) -> int:
    await _until(lambda: {one.event_id for one in house.told.told} >= wanted)
    return len(wanted)


async def _die() -> None:
    raise Crash


async def test_senders_that_read_the_same_events_leave_them_to_each_other_in_few_commits() -> None:
    house = a_house()
    for number in range(100):
        await _owed(house, host=f"host-{number}.example")
    due = await house.metadata.due(OutboxEvent, channel=Channel.WEBHOOK, limit=PAGE)
    await house.webhook_sender.step()  # sends them all
    late = a_webhook_sender(house.metadata, house.clock, house.manage_webhooks.sender)
    new = await _event(house, (await _owed(house, host="last.example")).id)

    async def stale(*_: object, **__: object) -> list[OutboxEvent]:
        return [new, *due]

    commits = Mock(wraps=house.metadata.commit)
    late.metadata = Mock(wraps=house.metadata, due=stale, commit=commits)
    await late.step()

    assert [one.event_id for one in house.told.told[len(due) :]] == [new.id]
    # Of events that start and of those that wait: a commit for each chunk. Besides, a second one for
    # the chunk of the new event, and the result of its delivery.
    assert commits.call_count <= len(due) / MOST_CHANGES + 2 + 2
