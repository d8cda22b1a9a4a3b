"""What every place of buried duties must do."""

from datetime import timedelta

import pytest

from conveyor.errors import Stale
from conveyor.ports.duties import Duty
from conveyor.testing.contracts.duties import message
from conveyor.testing.contracts.engine import TRIES, Engine

LEASE = timedelta(seconds=30)


class GravesContract:
    """An engine passes by giving an `engine` fixture."""

    async def test_a_buried_duty_is_shown_with_why_and_never_delivered(
        self, engine: Engine
    ) -> None:
        duty = await _given_buried(engine, "it cannot be done")

        [buried] = await engine.graves.buried(limit=9)

        assert (buried.id, buried.kind, buried.about) == (duty.id, duty.kind, duty.about)
        assert (buried.reason, buried.buried_at) == ("it cannot be done", engine.clock.now())
        assert await engine.graves.find(duty.id) == buried
        engine.clock.advance(2 * LEASE)
        assert await _receive(engine) is None

    @pytest.mark.parametrize("size", [1, 2, 9])
    async def test_buried_duties_are_listed_in_order_page_by_page(
        self, engine: Engine, size: int
    ) -> None:
        names = [(await _given_buried(engine)).id for _ in range(5)]
        listed: list[str] = []
        while page := await engine.graves.buried(limit=size, after=listed[-1] if listed else ""):
            assert len(page) <= size
            listed += [duty.id for duty in page]

        assert listed == sorted(names)

    async def test_a_revived_duty_is_due_at_once_and_begins_anew(self, engine: Engine) -> None:
        duty = await _given_buried(engine)

        assert await engine.graves.revive(duty.id)

        assert list(await engine.graves.buried(limit=9)) == []
        again = await _receive(engine)
        assert again is not None
        assert (again.kind, again.about, again.deliveries) == (duty.kind, duty.about, 1)
        await engine.duties.ack(again)

    async def test_a_delivery_from_before_the_burial_cannot_touch_a_revived_duty(
        self, engine: Engine
    ) -> None:
        old = await _given_buried(engine)
        await engine.graves.revive(old.id)
        again = await _receive(engine)
        assert again is not None

        with pytest.raises(Stale):
            await engine.duties.ack(old)

        await engine.duties.ack(again)

    async def test_a_revived_duty_may_be_buried_again(self, engine: Engine) -> None:
        duty = await _given_buried(engine)
        await engine.graves.revive(duty.id)
        again = await _receive(engine)
        assert again is not None
        await engine.duties.bury(again, "still not")

        [buried] = await engine.graves.buried(limit=9)

        assert (buried.about, buried.reason) == (duty.about, "still not")

    async def test_a_dropped_duty_is_gone(self, engine: Engine) -> None:
        duty, other = await _given_buried(engine), await _given_buried(engine)

        assert await engine.graves.drop(duty.id)

        assert await engine.graves.find(duty.id) is None
        assert [one.id for one in await engine.graves.buried(limit=9)] == [other.id]
        assert await _receive(engine) is None

    async def test_what_is_not_buried_is_neither_found_nor_revived_nor_dropped(
        self, engine: Engine
    ) -> None:
        await engine.duties.send(message())
        held = await _receive(engine)
        assert held is not None

        for name in (held.id, "nobody"):
            assert await engine.graves.find(name) is None
            assert not await engine.graves.revive(name)
            assert not await engine.graves.drop(name)

        await engine.duties.ack(held)

    async def test_a_revived_message_gives_way_to_a_live_one_of_its_subject(
        self, engine: Engine
    ) -> None:
        dead = await _given_buried(engine)
        await engine.duties.send(message())

        assert await engine.graves.revive(dead.id)

        assert list(await engine.graves.buried(limit=9)) == []
        live = await _receive(engine)
        assert live is not None
        assert live.id != dead.id
        assert await _receive(engine) is None

    async def test_of_two_that_revive_a_duty_one_does(self, engine: Engine) -> None:
        duty = await _given_buried(engine)
        assert [await engine.graves.revive(duty.id) for _ in range(2)] == [True, False]
        assert not await engine.graves.drop(duty.id)


async def _given_buried(engine: Engine, reason: str = "because") -> Duty:
    await engine.duties.send(message())
    duty = await _receive(engine)
    assert duty is not None
    await engine.duties.bury(duty, reason)
    return duty


async def _receive(engine: Engine) -> Duty | None:
    """The next duty, asked for again: a receive may come back short."""
    for _ in range(TRIES):
        if received := await engine.duties.receive(1, lease=LEASE):
            return received[0]
    return None
