"""What every place of dead control_queue must do."""

from datetime import timedelta

import pytest

from conveyor.errors import Stale
from conveyor.ports.control_queue import ReceivedMessage
from conveyor.testing.contracts.control_queue import a_message
from conveyor.testing.contracts.engine import TRIES, Engine

LEASE = timedelta(seconds=30)


class DeadLettersContract:
    """An engine passes by giving an `engine` fixture."""

    async def test_a_dead_letter_is_shown_with_why_and_never_delivered(
        self, engine: Engine
    ) -> None:
        message = await _given_dead_letter(engine, "it cannot be done")

        [dead] = await engine.control_queue.dead_letters(limit=9)

        assert (dead.id, dead.kind, dead.payload) == (message.id, message.kind, message.payload)
        assert (dead.reason, dead.dead_lettered_at) == ("it cannot be done", engine.clock.now())
        assert await engine.control_queue.find_dead_letter(message.id) == dead
        engine.clock.advance(2 * LEASE)
        assert await _receive(engine) is None

    @pytest.mark.parametrize("size", [1, 2, 9])
    async def test_dead_letters_are_listed_in_order_page_by_page(
        self, engine: Engine, size: int
    ) -> None:
        names = [(await _given_dead_letter(engine)).id for _ in range(5)]
        listed: list[str] = []
        while page := await engine.control_queue.dead_letters(
            limit=size, after=listed[-1] if listed else ""
        ):
            assert len(page) <= size
            listed += [message.id for message in page]

        assert listed == sorted(names)

    async def test_a_redriven_message_is_due_at_once_and_begins_anew(self, engine: Engine) -> None:
        message = await _given_dead_letter(engine)

        assert await engine.control_queue.redrive(message.id)

        assert list(await engine.control_queue.dead_letters(limit=9)) == []
        again = await _receive(engine)
        assert again is not None
        assert (again.kind, again.payload, again.deliveries) == (message.kind, message.payload, 1)
        await engine.control_queue.ack(again)

    async def test_a_delivery_from_before_it_was_dead_lettered_cannot_touch_a_redriven_message(
        self, engine: Engine
    ) -> None:
        old = await _given_dead_letter(engine)
        await engine.control_queue.redrive(old.id)
        again = await _receive(engine)
        assert again is not None

        with pytest.raises(Stale):
            await engine.control_queue.ack(old)

        await engine.control_queue.ack(again)

    async def test_a_redriven_message_may_be_dead_lettered_again(self, engine: Engine) -> None:
        message = await _given_dead_letter(engine)
        await engine.control_queue.redrive(message.id)
        again = await _receive(engine)
        assert again is not None
        await engine.control_queue.dead_letter(again, "still not")

        [dead] = await engine.control_queue.dead_letters(limit=9)

        assert (dead.payload, dead.reason) == (message.payload, "still not")

    async def test_a_dropped_message_is_gone(self, engine: Engine) -> None:
        message, other = await _given_dead_letter(engine), await _given_dead_letter(engine)

        assert await engine.control_queue.drop(message.id)

        assert await engine.control_queue.find_dead_letter(message.id) is None
        assert [one.id for one in await engine.control_queue.dead_letters(limit=9)] == [other.id]
        assert await _receive(engine) is None

    async def test_what_is_not_dead_lettered_is_neither_found_nor_redriven_nor_dropped(
        self, engine: Engine
    ) -> None:
        await engine.control_queue.send(a_message())
        held = await _receive(engine)
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
        live = await _receive(engine)
        assert live is not None
        assert live.id != dead.id
        assert await _receive(engine) is None

    async def test_of_two_that_redrive_a_message_one_does(self, engine: Engine) -> None:
        message = await _given_dead_letter(engine)
        assert [await engine.control_queue.redrive(message.id) for _ in range(2)] == [True, False]
        assert not await engine.control_queue.drop(message.id)


async def _given_dead_letter(engine: Engine, reason: str = "because") -> ReceivedMessage:
    await engine.control_queue.send(a_message())
    message = await _receive(engine)
    assert message is not None
    await engine.control_queue.dead_letter(message, reason)
    return message


async def _receive(engine: Engine) -> ReceivedMessage | None:
    """The next message, asked for again: a receive may come back short."""
    for _ in range(TRIES):
        if received := await engine.control_queue.receive(1, lease=LEASE):
            return received[0]
    return None
