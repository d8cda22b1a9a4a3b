"""What every timetable of scheduled jobs must do."""

import msgspec

from conveyor.domain.ids import JobId
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.schedule import (
    Cadence,
    Calendar,
    Rate,
    RateUnit,
    Schedule,
    ScheduleState,
    Weekday,
    Weekly,
)
from conveyor.ports.metadata import Removed
from conveyor.testing.clock import NOON
from conveyor.testing.contracts.engine import SECOND, TICK, Engine
from conveyor.testing.factories import JOB, a_job, as_stored, new_ids

HOURLY = Schedule(rate=Rate(1, RateUnit.HOUR))


class TimetableContract:
    async def test_every_field_comes_back(self, engine: Engine) -> None:
        weekly = Calendar(("09:00", "18:00"), Cadence(weekly=Weekly((Weekday.MON, Weekday.SUN))))
        job = a_scheduled_job(
            schedule=Schedule(calendar=weekly, timezone="Europe/Berlin"),
            skipped=2,
            last_skipped_at=NOON,
        )
        await engine.metadata.commit(job)
        assert list(await engine.timetable.due(limit=9)) == [as_stored(job)]

    async def test_it_is_due_from_its_moment_on(self, engine: Engine) -> None:
        await engine.metadata.commit(a_scheduled_job(next_fire_at=engine.clock.now() + SECOND))

        engine.clock.advance(SECOND - TICK)
        assert not await engine.timetable.due(limit=9)
        engine.clock.advance(TICK)
        assert await engine.timetable.due(limit=9)

    async def test_the_longest_due_come_first_and_no_more_than_asked(self, engine: Engine) -> None:
        names = [JobId(name) for name in new_ids(4)]
        for name, wait in zip(names, [3, 1, 4, 2], strict=True):
            await engine.metadata.commit(
                a_scheduled_job(id=name, next_fire_at=NOON - wait * SECOND)
            )

        due = await engine.timetable.due(limit=3)

        assert [job.id for job in due] == [names[2], names[0], names[3]]

    async def test_paused_deleted_and_spent_ones_are_not_due(self, engine: Engine) -> None:
        job = as_stored(a_scheduled_job())
        await engine.metadata.commit(a_scheduled_job())
        changes: list[dict[str, object]] = [
            {"schedule_state": ScheduleState.PAUSED},
            {"status": JobStatus.DELETED},
            {"next_fire_at": None},
        ]
        for version, change in enumerate(changes, start=1):
            await engine.metadata.commit(msgspec.structs.replace(job, version=version, **change))
            assert not await engine.timetable.due(limit=9)
        await engine.metadata.commit(msgspec.structs.replace(job, version=4))
        assert await engine.timetable.due(limit=9)
        await engine.metadata.commit(Removed(job))
        assert not await engine.timetable.due(limit=9)


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
