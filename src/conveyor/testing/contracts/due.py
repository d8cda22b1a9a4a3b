"""Which events and scheduled jobs are due."""

from datetime import timedelta

import msgspec
import pytest

from conveyor.domain.ids import EventId, JobId
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.outbox import Channel, EventStatus, OutboxEvent
from conveyor.domain.schedule import Rate, RateUnit, Schedule, ScheduleState
from conveyor.errors import Stale
from conveyor.ports.metadata import Removed
from conveyor.testing.clock import NOON
from conveyor.testing.contracts.engine import SECOND, TICK, Engine
from conveyor.testing.factories import JOB, a_job, an_event, as_stored, new_ids

HOURLY = Schedule(rate=Rate(1, RateUnit.HOUR))


class DueContract:
    async def test_an_event_is_due_from_its_moment_on(self, engine: Engine) -> None:
        await engine.metadata.commit(an_event(due_at=engine.clock.now() + SECOND))

        engine.clock.advance(SECOND - TICK)
        assert not await engine.metadata.due(OutboxEvent, channel=Channel.WEBHOOK, limit=9)
        engine.clock.advance(TICK)
        assert await engine.metadata.due(OutboxEvent, channel=Channel.WEBHOOK, limit=9)

    async def test_the_longest_due_events_come_first_and_no_more_than_asked(
        self, engine: Engine
    ) -> None:
        names = [EventId(name) for name in new_ids(4)]
        waits = [3, 1, 4, 2]
        for name, wait in zip(names, waits, strict=True):
            await engine.metadata.commit(an_event(id=name, due_at=NOON - wait * SECOND))

        due = await engine.metadata.due(OutboxEvent, channel=Channel.WEBHOOK, limit=3)

        assert [event.id for event in due] == [names[2], names[0], names[3]]

    async def test_an_event_that_is_not_owed_is_never_due(self, engine: Engine) -> None:
        await engine.metadata.commit(an_event())
        await engine.metadata.commit(an_event(status=EventStatus.DELIVERED, due_at=None, version=1))
        engine.clock.advance(timedelta(days=400))
        assert not await engine.metadata.due(OutboxEvent, channel=Channel.WEBHOOK, limit=9)

    async def test_events_are_due_on_their_own_channel(self, engine: Engine) -> None:
        names = [EventId(name) for name in new_ids(3)]
        for name, channel in zip(names, Channel, strict=True):
            await engine.metadata.commit(an_event(id=name, channel=channel))

        for name, channel in zip(names, Channel, strict=True):
            assert [
                event.id
                for event in await engine.metadata.due(OutboxEvent, channel=channel, limit=9)
            ] == [name]

    async def test_of_two_who_take_an_event_one_has_it(self, engine: Engine) -> None:
        await engine.metadata.commit(an_event())
        [event] = await engine.metadata.due(OutboxEvent, channel=Channel.WEBHOOK, limit=9)
        taken = msgspec.structs.replace(event, due_at=engine.clock.now() + engine.lease)
        await engine.metadata.commit(taken)

        with pytest.raises(Stale):
            await engine.metadata.commit(taken)
        assert not await engine.metadata.due(OutboxEvent, channel=Channel.WEBHOOK, limit=9)
        engine.clock.advance(engine.lease)
        assert await engine.metadata.due(OutboxEvent, channel=Channel.WEBHOOK, limit=9)

    async def test_a_schedule_is_due_from_its_moment_on(self, engine: Engine) -> None:
        await engine.metadata.commit(a_scheduled_job(next_fire_at=engine.clock.now() + SECOND))

        engine.clock.advance(SECOND - TICK)
        assert not await engine.metadata.due(Job, limit=9)
        engine.clock.advance(TICK)
        assert await engine.metadata.due(Job, limit=9)

    async def test_the_longest_due_schedules_come_first_and_no_more_than_asked(
        self, engine: Engine
    ) -> None:
        names = [JobId(name) for name in new_ids(4)]
        for name, wait in zip(names, [3, 1, 4, 2], strict=True):
            await engine.metadata.commit(
                a_scheduled_job(id=name, next_fire_at=NOON - wait * SECOND)
            )

        due = await engine.metadata.due(Job, limit=3)

        assert [job.id for job in due] == [names[2], names[0], names[3]]

    async def test_paused_deleted_and_spent_schedules_are_not_due(self, engine: Engine) -> None:
        job = as_stored(a_scheduled_job())
        await engine.metadata.commit(a_scheduled_job())
        changes: list[dict[str, object]] = [
            {"schedule_state": ScheduleState.PAUSED},
            {"status": JobStatus.DELETED},
            {"next_fire_at": None},
        ]
        for version, change in enumerate(changes, start=1):
            await engine.metadata.commit(msgspec.structs.replace(job, version=version, **change))
            assert not await engine.metadata.due(Job, limit=9)
        await engine.metadata.commit(msgspec.structs.replace(job, version=4))
        assert await engine.metadata.due(Job, limit=9)
        await engine.metadata.commit(Removed(job))
        assert not await engine.metadata.due(Job, limit=9)


def a_scheduled_job(**changes: object) -> Job:
    job = a_job(
        id=JOB,
        type=JobType.SCHEDULED,
        status=JobStatus.CLOSED,
        latest_run_id=None,
        schedule=HOURLY,
        next_fire_at=NOON,
    )
    return msgspec.structs.replace(job, **changes)
