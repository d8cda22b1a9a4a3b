"""What every record of what is owed to the outside must do."""

from datetime import timedelta

import msgspec
import pytest

from conveyor.domain.ids import EventId, JobId
from conveyor.domain.outbox import Channel, Delivery, EventStatus, EventType, OutboxEvent
from conveyor.errors import Stale
from conveyor.ports.metadata import Removed
from conveyor.testing.clock import NOON
from conveyor.testing.contracts.engine import SECOND, TICK, Engine
from conveyor.testing.factories import EVENT, JOB, an_event, as_stored, new_ids


class OutboxContract:
    async def test_every_field_comes_back(self, engine: Engine) -> None:
        event = _rich_event()
        await engine.metadata.commit(event)
        assert await engine.outbox.find(event.id) == as_stored(event)

    async def test_what_was_never_stored_or_is_removed_is_none(self, engine: Engine) -> None:
        assert await engine.outbox.find(EVENT) is None
        await engine.metadata.commit(an_event())
        await engine.metadata.commit(Removed(an_event(version=1)))
        assert await engine.outbox.find(EVENT) is None
        assert not await engine.outbox.page(limit=9)
        assert not await engine.outbox.due(Channel.WEBHOOK, limit=9)

    async def test_it_is_due_from_its_moment_on(self, engine: Engine) -> None:
        await engine.metadata.commit(an_event(due_at=engine.clock.now() + SECOND))

        engine.clock.advance(SECOND - TICK)
        assert not await engine.outbox.due(Channel.WEBHOOK, limit=9)
        engine.clock.advance(TICK)
        assert await engine.outbox.due(Channel.WEBHOOK, limit=9)

    async def test_the_longest_due_come_first_and_no_more_than_asked(self, engine: Engine) -> None:
        names = [EventId(name) for name in new_ids(4)]
        waits = [3, 1, 4, 2]
        for name, wait in zip(names, waits, strict=True):
            await engine.metadata.commit(an_event(id=name, due_at=NOON - wait * SECOND))

        due = await engine.outbox.due(Channel.WEBHOOK, limit=3)

        assert [event.id for event in due] == [names[2], names[0], names[3]]

    async def test_what_is_not_owed_is_never_due(self, engine: Engine) -> None:
        await engine.metadata.commit(an_event())
        await engine.metadata.commit(an_event(status=EventStatus.DELIVERED, due_at=None, version=1))
        engine.clock.advance(timedelta(days=400))
        assert not await engine.outbox.due(Channel.WEBHOOK, limit=9)

    async def test_channels_are_told_apart(self, engine: Engine) -> None:
        names = [EventId(name) for name in new_ids(3)]
        for name, channel in zip(names, Channel, strict=True):
            await engine.metadata.commit(an_event(id=name, channel=channel))

        for name, channel in zip(names, Channel, strict=True):
            assert [event.id for event in await engine.outbox.due(channel, limit=9)] == [name]

    async def test_of_two_who_take_it_one_has_it(self, engine: Engine) -> None:
        await engine.metadata.commit(an_event())
        [event] = await engine.outbox.due(Channel.WEBHOOK, limit=9)
        taken = msgspec.structs.replace(event, due_at=engine.clock.now() + engine.lease)
        await engine.metadata.commit(taken)

        with pytest.raises(Stale):
            await engine.metadata.commit(taken)
        assert not await engine.outbox.due(Channel.WEBHOOK, limit=9)
        engine.clock.advance(engine.lease)
        assert await engine.outbox.due(Channel.WEBHOOK, limit=9)

    async def test_a_jobs_events_come_newest_first_and_pages_join(self, engine: Engine) -> None:
        names = [EventId(name) for name in new_ids(6)]
        for number, name in enumerate(names):
            other = number == 2
            await engine.metadata.commit(
                an_event(id=name, job_id=JobId("other") if other else JOB, due_at=None)
            )

        first = await engine.outbox.of_job(JOB, limit=2)
        rest = await engine.outbox.of_job(JOB, limit=9, before=first[-1].id)

        assert [event.id for event in [*first, *rest]] == [
            name for number, name in reversed(list(enumerate(names))) if number != 2
        ]

    async def test_pages_are_in_order_and_join(self, engine: Engine) -> None:
        events = [an_event(id=EventId(name)) for name in new_ids(5)]
        await engine.metadata.commit(*reversed(events))

        first = await engine.outbox.page(limit=2)
        rest = await engine.outbox.page(limit=9, after=first[-1].id)

        assert [*first, *rest] == [as_stored(event) for event in events]


def _rich_event() -> OutboxEvent:
    delivery = Delivery(
        attempt=2, started_at=NOON, elapsed_ms=7, status_code=500, error="http_5xx:500"
    )
    return an_event(
        channel=Channel.TASK_TOKEN,
        type=EventType.RUN_FAILED,
        payload='{"stats": {}}',
        due_at=NOON + TICK,
        encrypted_token=b"\x00\xff",
        every_seconds=30,
        status=EventStatus.OWED,
        tries=1,
        deliveries=(delivery,),
    )
