"""What every control queue must do."""

from datetime import timedelta

import pytest

from conveyor.errors import Stale
from conveyor.ports.duties import Duties, Duty
from conveyor.testing.contracts.engine import Engine

SECOND = timedelta(seconds=1)
LEASE = timedelta(seconds=30)
TRIES = 20


class DutiesContract:
    """An engine passes by giving an `engine` fixture."""

    async def test_a_duty_is_delivered_as_it_was_sent(self, engine: Engine) -> None:
        await engine.duties.send("delete", {"job": "ü", "run": "2"})

        [duty] = await _receive(engine.duties)

        assert (duty.kind, duty.about) == ("delete", {"job": "ü", "run": "2"})
        assert duty.deliveries == 1

    async def test_like_duties_are_delivered_each(self, engine: Engine) -> None:
        await engine.duties.send("delete", {"job": "1"})
        await engine.duties.send("delete", {"job": "1"})

        duties = await _receive(engine.duties, 5)

        assert len({duty.id for duty in duties}) == 2

    async def test_no_more_is_received_than_asked_for(self, engine: Engine) -> None:
        for n in range(3):
            await engine.duties.send("delete", {"job": str(n)})

        assert len(await engine.duties.receive(2, lease=LEASE)) <= 2

    async def test_a_duty_under_lease_is_not_delivered_again(self, engine: Engine) -> None:
        await _given_duty(engine)
        engine.clock.advance(LEASE - SECOND)
        assert await _receive(engine.duties) == []

    async def test_a_duty_whose_lease_ran_out_is_delivered_again(self, engine: Engine) -> None:
        first = await _given_duty(engine)
        engine.clock.advance(LEASE)

        [second] = await _receive(engine.duties)

        assert (second.id, second.kind, second.about) == (first.id, first.kind, first.about)
        assert second.deliveries == 2
        assert second.receipt != first.receipt

    async def test_an_acked_duty_is_gone(self, engine: Engine) -> None:
        duty = await _given_duty(engine)
        await engine.duties.ack(duty)
        engine.clock.advance(LEASE)
        assert await _receive(engine.duties) == []

    async def test_a_lapsed_delivery_that_nobody_took_over_may_be_acked(
        self, engine: Engine
    ) -> None:
        duty = await _given_duty(engine)
        engine.clock.advance(2 * LEASE)

        await engine.duties.ack(duty)

        assert await _receive(engine.duties) == []

    async def test_an_extended_lease_lasts_from_then_on(self, engine: Engine) -> None:
        duty = await _given_duty(engine)
        engine.clock.advance(LEASE - SECOND)
        await engine.duties.extend(duty, lease=LEASE)

        engine.clock.advance(LEASE - SECOND)
        assert await _receive(engine.duties) == []

        engine.clock.advance(SECOND)
        assert len(await _receive(engine.duties)) == 1

    async def test_an_extended_duty_may_be_acked(self, engine: Engine) -> None:
        duty = await _given_duty(engine)
        await engine.duties.extend(duty, lease=LEASE)
        await engine.duties.ack(duty)
        engine.clock.advance(LEASE)
        assert await _receive(engine.duties) == []

    async def test_a_duty_to_retry_waits_out_its_delay(self, engine: Engine) -> None:
        duty = await _given_duty(engine)
        await engine.duties.retry_later(duty, delay=2 * LEASE)

        engine.clock.advance(2 * LEASE - SECOND)
        assert await _receive(engine.duties) == []

        engine.clock.advance(SECOND)
        assert [again.deliveries for again in await _receive(engine.duties)] == [2]

    async def test_a_duty_to_retry_at_once_is_delivered_at_once(self, engine: Engine) -> None:
        duty = await _given_duty(engine)
        await engine.duties.retry_later(duty, delay=timedelta())
        assert [again.id for again in await _receive(engine.duties)] == [duty.id]

    async def test_a_delivery_that_was_taken_over_can_do_nothing(self, engine: Engine) -> None:
        stale = await _given_duty(engine)
        engine.clock.advance(LEASE)
        [held] = await _receive(engine.duties)

        with pytest.raises(Stale):
            await engine.duties.ack(stale)
        with pytest.raises(Stale):
            await engine.duties.extend(stale, lease=LEASE)
        with pytest.raises(Stale):
            await engine.duties.retry_later(stale, delay=timedelta())
        with pytest.raises(Stale):
            await engine.duties.bury(stale, "because")

        assert await _receive(engine.duties) == []
        assert list(await engine.graves.buried(limit=9)) == []
        await engine.duties.ack(held)


async def _given_duty(engine: Engine) -> Duty:
    await engine.duties.send("delete", {"job": "1"})
    [duty] = await _receive(engine.duties)
    return duty


async def _receive(duties: Duties, limit: int = 1) -> list[Duty]:
    """What can be received, asked for again: a receive may come back short."""
    received: list[Duty] = []
    for _ in range(TRIES):
        if len(received) < limit:
            received += await duties.receive(limit - len(received), lease=LEASE)
    return received
