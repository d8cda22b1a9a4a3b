"""What every control queue must do."""

from collections.abc import Collection
from datetime import timedelta

import pytest

from conveyor.domain.message import Line, Message
from conveyor.errors import Stale
from conveyor.ports.duties import Duties, Duty
from conveyor.testing.contracts.engine import Engine

SECOND = timedelta(seconds=1)
LEASE = timedelta(seconds=30)
TRIES = 20


class DutiesContract:
    """An engine passes by giving an `engine` fixture."""

    async def test_a_duty_is_delivered_as_it_was_sent(self, engine: Engine) -> None:
        about = {"job": "ü", "run": "2"}
        sent = Message(kind="delete", subject="a job", caller="ö", about=about)
        assert await engine.duties.send(sent)

        [duty] = await _receive(engine.duties)

        assert (duty.kind, duty.subject, duty.caller) == ("delete", "a job", "ö")
        assert (duty.about, duty.deliveries) == (about, 1)

    async def test_of_one_subject_one_message_is_live(self, engine: Engine) -> None:
        assert not await engine.duties.is_live("delete", "1")
        assert await engine.duties.send(message())
        assert not await engine.duties.send(message())  # it waits

        [held] = await _receive(engine.duties, 5)
        assert not await engine.duties.send(message())
        await engine.duties.retry_later(held, delay=LEASE)
        assert not await engine.duties.send(message())

        assert await engine.duties.is_live("delete", "1")
        assert not await engine.duties.is_live("delete", "2")
        assert not await engine.duties.is_live("ingest", "1")
        assert await engine.duties.send(message(kind="ingest"))

    async def test_a_subject_that_is_done_may_come_again(self, engine: Engine) -> None:
        await engine.duties.ack(await _given_duty(engine))
        assert not await engine.duties.is_live("delete", "1")
        assert await engine.duties.send(message())

        [held] = await _receive(engine.duties)
        await engine.duties.bury(held, "because")
        assert not await engine.duties.is_live("delete", "1")
        assert await engine.duties.send(message())

    async def test_a_message_sent_again_by_its_holder_begins_anew(self, engine: Engine) -> None:
        first = await _given_duty(engine)
        await engine.duties.resend(first, {"job": "further"})

        assert await engine.duties.is_live("delete", "1")
        [again] = await _receive(engine.duties)

        assert (again.about, again.deliveries, again.line) == ({"job": "further"}, 1, first.line)
        with pytest.raises(Stale):
            await engine.duties.ack(first)

    async def test_only_kinds_asked_for_and_lines_not_barred_are_received(
        self, engine: Engine
    ) -> None:
        for caller in "ab":
            for kind in ("delete", "ingest"):
                await engine.duties.send(message(caller, kind=kind, caller=caller))

        barred = [("delete", "a"), ("ingest", "b")]
        lines = await _lines(engine.duties, kinds=["delete"], barred=barred)
        assert lines == [("delete", "b")]
        assert await _lines(engine.duties, barred=barred) == [("ingest", "a")]
        assert len(await _lines(engine.duties)) == 2

    async def test_the_line_served_longest_ago_is_next(self, engine: Engine) -> None:
        for caller in "abc":
            for nth in "12":
                await engine.duties.send(message(caller + nth, caller=caller))
                engine.clock.advance(SECOND)

        served = [("delete", "b"), ("delete", "a")]
        turns = []
        for _ in range(6):
            [duty] = await engine.duties.receive(1, lease=LEASE * 9, served=served)
            turns.append(duty.subject)
            served = [line for line in served if line != duty.line] + [duty.line]
        assert turns == ["c1", "b1", "a1", "c2", "b2", "a2"]

    async def test_no_more_is_received_than_asked_for(self, engine: Engine) -> None:
        for n in range(3):
            await engine.duties.send(message(str(n)))

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


def message(subject: str = "1", *, kind: str = "delete", caller: str = "a caller") -> Message:
    return Message(kind=kind, subject=subject, caller=caller, about={"job": subject})


async def _lines(
    duties: Duties, *, kinds: Collection[str] | None = None, barred: Collection[Line] = ()
) -> list[Line]:
    """Of all messages that can be received."""
    lines = list[Line]()
    for _ in range(TRIES):
        received = await duties.receive(9, lease=LEASE, kinds=kinds, barred=barred)
        lines += [duty.line for duty in received]
    return sorted(lines)


async def _given_duty(engine: Engine) -> Duty:
    await engine.duties.send(message())
    [duty] = await _receive(engine.duties)
    return duty


async def _receive(duties: Duties, limit: int = 1) -> list[Duty]:
    """What can be received, asked for again: a receive may come back short."""
    received: list[Duty] = []
    for _ in range(TRIES):
        if len(received) < limit:
            received += await duties.receive(limit - len(received), lease=LEASE)
    return received
