"""What every control queue must do, with its dead letters."""

from collections.abc import Collection
from datetime import timedelta

import msgspec
import pytest

from conveyor.domain.control_queue import MESSAGE_VERSION, ControlMessage, MessageGroup
from conveyor.errors import Stale
from conveyor.ports.control_queue import ControlQueue, ReceivedMessage
from conveyor.testing.contracts.engine import SECOND, TRIES, Engine, joined

LEASE = timedelta(seconds=30)


class ControlQueueContract:
    """An engine passes by providing an `engine` fixture."""

    async def test_a_message_is_delivered_as_it_was_sent(self, engine: Engine) -> None:
        payload = {"job": "ü", "run": "2"}
        sent = ControlMessage(kind="delete", subject="a job", caller="ö", payload=payload)
        assert await engine.control_queue.send(sent)

        [message] = await _receive(engine.control_queue)

        assert (message.kind, message.subject, message.caller) == ("delete", "a job", "ö")
        assert (message.payload, message.deliveries) == (payload, 1)

    async def test_a_message_of_a_newer_version_waits_for_a_newer_process(
        self, engine: Engine
    ) -> None:
        newer = msgspec.structs.replace(a_message("2"), v=MESSAGE_VERSION + 1)
        assert await engine.control_queue.send(newer)
        assert await engine.control_queue.send(a_message("1"))

        [message] = await _receive(engine.control_queue, 5)

        assert (message.subject, message.v) == ("1", MESSAGE_VERSION)
        assert await engine.control_queue.is_live(newer.kind, newer.subject)

    async def test_of_one_subject_one_message_is_live(self, engine: Engine) -> None:
        assert not await engine.control_queue.is_live("delete", "1")
        assert await engine.control_queue.send(a_message())
        assert not await engine.control_queue.send(a_message())  # it waits

        [held] = await _receive(engine.control_queue, 5)
        assert not await engine.control_queue.send(a_message())
        await engine.control_queue.retry_later(held, delay=LEASE)
        assert not await engine.control_queue.send(a_message())

        assert await engine.control_queue.is_live("delete", "1")
        assert not await engine.control_queue.is_live("delete", "2")
        assert not await engine.control_queue.is_live("ingest", "1")
        assert await engine.control_queue.send(a_message(kind="ingest"))

    async def test_a_subject_that_is_done_may_come_again(self, engine: Engine) -> None:
        await engine.control_queue.ack(await _given_message(engine))
        assert not await engine.control_queue.is_live("delete", "1")
        assert await engine.control_queue.send(a_message())

        [held] = await _receive(engine.control_queue)
        await engine.control_queue.dead_letter(held, "because")
        assert not await engine.control_queue.is_live("delete", "1")
        assert await engine.control_queue.send(a_message())

    async def test_a_message_sent_again_by_its_holder_starts_over(self, engine: Engine) -> None:
        first = await _given_message(engine)
        await engine.control_queue.resend(first, {"job": "further"})

        assert await engine.control_queue.is_live("delete", "1")
        [again] = await _receive(engine.control_queue)

        assert (again.payload, again.deliveries, again.group) == (
            {"job": "further"},
            1,
            first.group,
        )
        with pytest.raises(Stale):
            await engine.control_queue.ack(first)

    async def test_a_message_sent_again_starts_with_the_deliveries_it_is_given(
        self, engine: Engine
    ) -> None:
        first = await _given_message(engine)
        await engine.control_queue.resend(first, first.payload, deliveries=4)

        [again] = await _receive(engine.control_queue)

        assert again.deliveries == 5
        with pytest.raises(Stale):
            await engine.control_queue.ack(first)

    async def test_only_kinds_asked_for_and_groups_not_excluded_are_received(
        self, engine: Engine
    ) -> None:
        for caller in "ab":
            for kind in ("delete", "ingest"):
                await engine.control_queue.send(a_message(caller, kind=kind, caller=caller))

        excluded = [("delete", "a"), ("ingest", "b")]
        groups = await _groups(engine.control_queue, kinds=["delete"], excluded=excluded)
        assert groups == [("delete", "b")]
        assert await _groups(engine.control_queue, excluded=excluded) == [("ingest", "a")]
        assert len(await _groups(engine.control_queue)) == 2

    async def test_the_group_served_longest_ago_is_next(self, engine: Engine) -> None:
        for caller in "abc":
            for nth in "12":
                await engine.control_queue.send(a_message(caller + nth, caller=caller))
                await engine.pass_time(SECOND)

        served = [("delete", "b"), ("delete", "a")]
        turns = []
        for _ in range(6):
            [message] = await engine.control_queue.receive(1, lease=LEASE * 9, served=served)
            turns.append(message.subject)
            served = [group for group in served if group != message.group] + [message.group]
        assert turns == ["c1", "b1", "a1", "c2", "b2", "a2"]

    async def test_no_more_is_received_than_asked_for(self, engine: Engine) -> None:
        for n in range(3):
            await engine.control_queue.send(a_message(str(n)))

        assert len(await engine.control_queue.receive(2, lease=LEASE)) <= 2

    async def test_a_message_under_lease_is_not_delivered_again(self, engine: Engine) -> None:
        await _given_message(engine)
        await engine.pass_time(LEASE - SECOND)
        assert await _receive(engine.control_queue) == []

    async def test_a_message_whose_lease_ran_out_is_delivered_again(self, engine: Engine) -> None:
        first = await _given_message(engine)
        await engine.pass_time(LEASE)

        [second] = await _receive(engine.control_queue)

        assert (second.id, second.kind, second.payload) == (first.id, first.kind, first.payload)
        assert second.deliveries == 2
        assert second.receipt != first.receipt

    async def test_an_acked_message_is_gone(self, engine: Engine) -> None:
        message = await _given_message(engine)
        await engine.control_queue.ack(message)
        await engine.pass_time(LEASE)
        assert await _receive(engine.control_queue) == []

    async def test_a_lapsed_delivery_that_nobody_took_over_may_be_acked(
        self, engine: Engine
    ) -> None:
        message = await _given_message(engine)
        await engine.pass_time(2 * LEASE)

        await engine.control_queue.ack(message)

        assert await _receive(engine.control_queue) == []

    async def test_an_extended_lease_lasts_from_then_on(self, engine: Engine) -> None:
        message = await _given_message(engine)
        await engine.pass_time(LEASE - SECOND)
        await engine.control_queue.extend(message, lease=LEASE)

        await engine.pass_time(LEASE - SECOND)
        assert await _receive(engine.control_queue) == []

        await engine.pass_time(SECOND)
        assert len(await _receive(engine.control_queue)) == 1

    async def test_an_extended_message_may_be_acked(self, engine: Engine) -> None:
        message = await _given_message(engine)
        await engine.control_queue.extend(message, lease=LEASE)
        await engine.control_queue.ack(message)
        await engine.pass_time(LEASE)
        assert await _receive(engine.control_queue) == []

    async def test_a_message_to_retry_waits_out_its_delay(self, engine: Engine) -> None:
        message = await _given_message(engine)
        await engine.control_queue.retry_later(message, delay=2 * LEASE)

        await engine.pass_time(2 * LEASE - SECOND)
        assert await _receive(engine.control_queue) == []

        await engine.pass_time(SECOND)
        assert [again.deliveries for again in await _receive(engine.control_queue)] == [2]

    async def test_a_message_to_retry_at_once_is_delivered_at_once(self, engine: Engine) -> None:
        message = await _given_message(engine)
        await engine.control_queue.retry_later(message, delay=timedelta())
        assert [again.id for again in await _receive(engine.control_queue)] == [message.id]

    async def test_a_delivery_that_was_taken_over_can_do_nothing(self, engine: Engine) -> None:
        stale = await _given_message(engine)
        await engine.pass_time(LEASE)
        [held] = await _receive(engine.control_queue)

        with pytest.raises(Stale):
            await engine.control_queue.ack(stale)
        with pytest.raises(Stale):
            await engine.control_queue.extend(stale, lease=LEASE)
        with pytest.raises(Stale):
            await engine.control_queue.retry_later(stale, delay=timedelta())
        with pytest.raises(Stale):
            await engine.control_queue.dead_letter(stale, "because")

        assert await _receive(engine.control_queue) == []
        assert list(await engine.control_queue.dead_letters(limit=9)) == []
        await engine.control_queue.ack(held)


class DeadLettersContract:
    """An engine passes by providing an `engine` fixture."""

    async def test_a_dead_letter_is_shown_with_why_and_never_delivered(
        self, engine: Engine
    ) -> None:
        message = await _given_dead_letter(engine, "it cannot be done")

        [dead] = await engine.control_queue.dead_letters(limit=9)

        assert (dead.id, dead.kind, dead.payload) == (message.id, message.kind, message.payload)
        assert (dead.reason, dead.dead_lettered_at) == ("it cannot be done", engine.clock.now())
        assert await engine.control_queue.find_dead_letter(message.id) == dead
        await engine.pass_time(2 * LEASE)
        assert await _next(engine) is None

    @pytest.mark.parametrize("size", [1, 2, 9])
    async def test_dead_letters_are_listed_in_order_page_by_page(
        self, engine: Engine, size: int
    ) -> None:
        names = [(await _given_dead_letter(engine)).id for _ in range(5)]
        listed = await joined(
            lambda after: engine.control_queue.dead_letters(limit=size, after=after),
            lambda message: message.id,
            size=size,
            start="",
        )

        assert [message.id for message in listed] == sorted(names)

    async def test_a_dead_letter_keeps_the_payload_that_it_is_given(self, engine: Engine) -> None:
        await engine.control_queue.send(a_message())
        message = await _next(engine)
        assert message is not None
        changed = msgspec.structs.replace(message, payload={"id": "changed"})

        await engine.control_queue.dead_letter(changed, "for a test")

        [dead] = await engine.control_queue.dead_letters(limit=9)
        assert dead.payload == changed.payload
        await engine.control_queue.redrive(dead.id)
        again = await _next(engine)
        assert again is not None
        assert again.payload == changed.payload
        await engine.control_queue.ack(again)

    async def test_a_redriven_message_is_due_at_once_and_starts_over(self, engine: Engine) -> None:
        message = await _given_dead_letter(engine)

        assert await engine.control_queue.redrive(message.id)

        assert list(await engine.control_queue.dead_letters(limit=9)) == []
        again = await _next(engine)
        assert again is not None
        assert (again.kind, again.payload, again.deliveries) == (message.kind, message.payload, 1)
        await engine.control_queue.ack(again)

    async def test_a_delivery_from_before_it_was_dead_lettered_cannot_touch_a_redriven_message(
        self, engine: Engine
    ) -> None:
        old = await _given_dead_letter(engine)
        await engine.control_queue.redrive(old.id)
        again = await _next(engine)
        assert again is not None

        with pytest.raises(Stale):
            await engine.control_queue.ack(old)

        await engine.control_queue.ack(again)

    async def test_a_redriven_message_may_be_dead_lettered_again(self, engine: Engine) -> None:
        message = await _given_dead_letter(engine)
        await engine.control_queue.redrive(message.id)
        again = await _next(engine)
        assert again is not None
        await engine.control_queue.dead_letter(again, "still not")

        [dead] = await engine.control_queue.dead_letters(limit=9)

        assert (dead.payload, dead.reason) == (message.payload, "still not")

    async def test_a_dropped_message_is_gone(self, engine: Engine) -> None:
        message, other = await _given_dead_letter(engine), await _given_dead_letter(engine)

        assert await engine.control_queue.drop(message.id)

        assert await engine.control_queue.find_dead_letter(message.id) is None
        assert [one.id for one in await engine.control_queue.dead_letters(limit=9)] == [other.id]
        assert await _next(engine) is None

    async def test_what_is_not_dead_lettered_is_neither_found_nor_redriven_nor_dropped(
        self, engine: Engine
    ) -> None:
        await engine.control_queue.send(a_message())
        held = await _next(engine)
        assert held is not None

        for name in (held.id, "nobody"):
            assert await engine.control_queue.find_dead_letter(name) is None
            assert not await engine.control_queue.redrive(name)
            assert not await engine.control_queue.drop(name)

        await engine.control_queue.ack(held)

    async def test_a_redriven_message_gives_way_to_a_live_one_of_its_subject(
        self, engine: Engine
    ) -> None:
        dead = await _given_dead_letter(engine)
        await engine.control_queue.send(a_message())

        assert await engine.control_queue.redrive(dead.id)

        assert list(await engine.control_queue.dead_letters(limit=9)) == []
        live = await _next(engine)
        assert live is not None
        assert live.id != dead.id
        assert await _next(engine) is None

    async def test_of_two_that_redrive_a_message_one_does(self, engine: Engine) -> None:
        message = await _given_dead_letter(engine)
        assert [await engine.control_queue.redrive(message.id) for _ in range(2)] == [True, False]
        assert not await engine.control_queue.drop(message.id)


def a_message(
    subject: str = "1", *, kind: str = "delete", caller: str = "a caller"
) -> ControlMessage:
    return ControlMessage(kind=kind, subject=subject, caller=caller, payload={"job": subject})


async def _groups(
    control_queue: ControlQueue,
    *,
    kinds: Collection[str] | None = None,
    excluded: Collection[MessageGroup] = (),
) -> list[MessageGroup]:
    """The groups of all messages that can be received."""
    groups = list[MessageGroup]()
    for _ in range(TRIES):
        received = await control_queue.receive(9, lease=LEASE, kinds=kinds, excluded=excluded)
        groups += [message.group for message in received]
    return sorted(groups)


async def _given_message(engine: Engine) -> ReceivedMessage:
    await engine.control_queue.send(a_message())
    [message] = await _receive(engine.control_queue)
    return message


async def _receive(control_queue: ControlQueue, limit: int = 1) -> list[ReceivedMessage]:
    """Receive up to `limit` messages, in many calls: one may return fewer than there are."""
    received: list[ReceivedMessage] = []
    for _ in range(TRIES):
        if len(received) < limit:
            received += await control_queue.receive(limit - len(received), lease=LEASE)
    return received


async def _given_dead_letter(engine: Engine, reason: str = "because") -> ReceivedMessage:
    await engine.control_queue.send(a_message())
    message = await _next(engine)
    assert message is not None
    await engine.control_queue.dead_letter(message, reason)
    return message


async def _next(engine: Engine) -> ReceivedMessage | None:
    return next(iter(await _receive(engine.control_queue)), None)
