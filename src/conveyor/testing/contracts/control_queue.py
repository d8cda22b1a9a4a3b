"""What every control queue must do."""

from collections.abc import Collection
from datetime import timedelta

import pytest

from conveyor.domain.control_queue import ControlMessage, MessageGroup
from conveyor.errors import Stale
from conveyor.ports.control_queue import ControlQueue, ReceivedMessage
from conveyor.testing.contracts.engine import Engine

SECOND = timedelta(seconds=1)
LEASE = timedelta(seconds=30)
TRIES = 20


class ControlQueueContract:
    """An engine passes by giving an `engine` fixture."""

    async def test_a_message_is_delivered_as_it_was_sent(self, engine: Engine) -> None:
        payload = {"job": "ü", "run": "2"}
        sent = ControlMessage(kind="delete", subject="a job", caller="ö", payload=payload)
        assert await engine.control_queue.send(sent)

        [message] = await _receive(engine.control_queue)

        assert (message.kind, message.subject, message.caller) == ("delete", "a job", "ö")
        assert (message.payload, message.deliveries) == (payload, 1)

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

    async def test_a_message_sent_again_by_its_holder_begins_anew(self, engine: Engine) -> None:
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
                engine.clock.advance(SECOND)

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
        engine.clock.advance(LEASE - SECOND)
        assert await _receive(engine.control_queue) == []

    async def test_a_message_whose_lease_ran_out_is_delivered_again(self, engine: Engine) -> None:
        first = await _given_message(engine)
        engine.clock.advance(LEASE)

        [second] = await _receive(engine.control_queue)

        assert (second.id, second.kind, second.payload) == (first.id, first.kind, first.payload)
        assert second.deliveries == 2
        assert second.receipt != first.receipt

    async def test_an_acked_message_is_gone(self, engine: Engine) -> None:
        message = await _given_message(engine)
        await engine.control_queue.ack(message)
        engine.clock.advance(LEASE)
        assert await _receive(engine.control_queue) == []

    async def test_a_lapsed_delivery_that_nobody_took_over_may_be_acked(
        self, engine: Engine
    ) -> None:
        message = await _given_message(engine)
        engine.clock.advance(2 * LEASE)

        await engine.control_queue.ack(message)

        assert await _receive(engine.control_queue) == []

    async def test_an_extended_lease_lasts_from_then_on(self, engine: Engine) -> None:
        message = await _given_message(engine)
        engine.clock.advance(LEASE - SECOND)
        await engine.control_queue.extend(message, lease=LEASE)

        engine.clock.advance(LEASE - SECOND)
        assert await _receive(engine.control_queue) == []

        engine.clock.advance(SECOND)
        assert len(await _receive(engine.control_queue)) == 1

    async def test_an_extended_message_may_be_acked(self, engine: Engine) -> None:
        message = await _given_message(engine)
        await engine.control_queue.extend(message, lease=LEASE)
        await engine.control_queue.ack(message)
        engine.clock.advance(LEASE)
        assert await _receive(engine.control_queue) == []

    async def test_a_message_to_retry_waits_out_its_delay(self, engine: Engine) -> None:
        message = await _given_message(engine)
        await engine.control_queue.retry_later(message, delay=2 * LEASE)

        engine.clock.advance(2 * LEASE - SECOND)
        assert await _receive(engine.control_queue) == []

        engine.clock.advance(SECOND)
        assert [again.deliveries for again in await _receive(engine.control_queue)] == [2]

    async def test_a_message_to_retry_at_once_is_delivered_at_once(self, engine: Engine) -> None:
        message = await _given_message(engine)
        await engine.control_queue.retry_later(message, delay=timedelta())
        assert [again.id for again in await _receive(engine.control_queue)] == [message.id]

    async def test_a_delivery_that_was_taken_over_can_do_nothing(self, engine: Engine) -> None:
        stale = await _given_message(engine)
        engine.clock.advance(LEASE)
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
    """Of all messages that can be received."""
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
    """What can be received, asked for again: a receive may come back short."""
    received: list[ReceivedMessage] = []
    for _ in range(TRIES):
        if len(received) < limit:
            received += await control_queue.receive(limit - len(received), lease=LEASE)
    return received
