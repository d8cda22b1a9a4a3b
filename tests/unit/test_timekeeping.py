"""A wall clock that is set while the service runs or is stopped: work goes on, delays last."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import pytest

from conveyor.adapters.sqlite.engine import SqliteEngine, open_engine
from conveyor.adapters.system.clock import SteadyClock
from conveyor.domain.job import Job, JobType, after_clock_set_back
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.domain.schedule import Cadence, Calendar, Daily, Rate, RateUnit, Schedule
from conveyor.domain.task import SettleDecision, TaskStatus
from conveyor.errors import StorageFull
from conveyor.testing.clock import NOON, FakeClock, FakeIds
from conveyor.testing.contracts.control_queue import a_message
from conveyor.testing.factories import (
    RUN,
    a_job,
    a_run,
    add_rows,
    an_event,
    held,
    new_tasks,
    scraped,
    settlement,
)
from conveyor.timekeeping import Timekeeper

LEASE = timedelta(seconds=30)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
HOURLY = Schedule(rate=Rate(every=1, unit=RateUnit.HOUR))
NOW_AND_THEN = Schedule(rate=Rate(every=5, unit=RateUnit.MINUTE))
AT_NOON = Schedule(
    calendar=Calendar(times_of_day=("12:00",), cadence=Cadence(daily=Daily())), timezone="UTC"
)


async def test_a_restart_keeps_the_time_of_a_retry(tmp_path: Path) -> None:
    clock = FakeClock()
    async with _engine(tmp_path, clock) as engine:
        await _wait_for_a_retry(engine, 10 * MINUTE)

    async with _engine(tmp_path, clock) as engine:
        assert not await engine.work.claim({RUN: 9})
        clock.advance(10 * MINUTE)
        assert len(await engine.work.claim({RUN: 9})) == 1


async def test_a_restart_frees_held_messages_and_keeps_the_back_off_of_others(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    async with _engine(tmp_path, clock) as engine:
        for name in ("held", "postponed"):
            await engine.control_queue.send(a_message(name))
        _, second = await engine.control_queue.receive(2, lease=LEASE)
        await engine.control_queue.retry_later(second, delay=5 * MINUTE)

    async with _engine(tmp_path, clock) as engine:
        assert [
            one.payload["job"] for one in await engine.control_queue.receive(9, lease=LEASE)
        ] == ["held"]
        clock.advance(5 * MINUTE)
        names = [one.payload["job"] for one in await engine.control_queue.receive(9, lease=LEASE)]
        assert "postponed" in names


@pytest.mark.parametrize("tasks", [1, 25_000])
async def test_a_clock_set_back_while_stopped_delays_nothing(tmp_path: Path, tasks: int) -> None:
    clock = FakeClock()
    async with _engine(tmp_path, clock) as engine:
        await _wait_for_a_retry(engine, 10 * MINUTE)
        await add_rows(engine.tasks, RUN, new_tasks(n=tasks, first=1))
        await engine.due_times.note()

    clock.set_wall(-HOUR)
    async with _engine(tmp_path, clock) as engine:
        assert len(await engine.work.claim({RUN: 2 * tasks})) == tasks
        clock.advance(10 * MINUTE - SECOND)
        await engine.work.release_lapsed(RUN, overdue=timedelta(), limit=0)
        assert 0 not in {task.index for task in await engine.work.claim({RUN: 2 * tasks})}
        clock.advance(SECOND)
        assert 0 in {task.index for task in await engine.work.claim({RUN: 2 * tasks})}


async def test_a_clock_set_back_while_running_delays_no_task(tmp_path: Path) -> None:
    async with _running(tmp_path) as (engine, wall, keeper):
        await _wait_for_a_retry(engine, 10 * MINUTE)
        await add_rows(engine.tasks, RUN, new_tasks(n=2, first=1))

        wall.set_wall(-HOUR)
        await keeper.step()

        assert keeper.clock.now() == NOON - HOUR
        assert len(await engine.work.claim({RUN: 9})) == 2
        wall.advance(10 * MINUTE)
        assert 0 in {task.index for task in await engine.work.claim({RUN: 9})}


async def test_a_claim_whose_worker_dies_after_a_step_back_lapses_in_a_lease(
    tmp_path: Path,
) -> None:
    async with _running(tmp_path) as (engine, wall, keeper):
        await add_rows(engine.tasks, RUN, new_tasks(n=1))
        await engine.work.claim({RUN: 1})

        wall.set_wall(-HOUR)
        await keeper.step()

        assert not await engine.work.claim({RUN: 1})
        wall.advance(LEASE)
        [again] = await engine.work.claim({RUN: 1})
        assert (again.claim_no, again.lost) == (2, 1)


async def test_a_clock_set_back_delays_no_message(tmp_path: Path) -> None:
    async with _running(tmp_path) as (engine, wall, keeper):
        for name in ("waiting", "postponed"):
            await engine.control_queue.send(a_message(name))
        both = await engine.control_queue.receive(2, lease=LEASE)
        [postponed] = [one for one in both if one.payload["job"] == "postponed"]
        [waiting] = [one for one in both if one.payload["job"] == "waiting"]
        await engine.control_queue.retry_later(waiting, delay=timedelta())
        await engine.control_queue.retry_later(postponed, delay=5 * MINUTE)

        wall.set_wall(-HOUR)
        await keeper.step()

        [first] = await engine.control_queue.receive(9, lease=LEASE)
        assert first.payload["job"] == "waiting"
        await engine.control_queue.ack(first)
        wall.advance(5 * MINUTE)
        [second] = await engine.control_queue.receive(9, lease=LEASE)
        assert second.payload["job"] == "postponed"


async def test_a_clock_set_back_delays_no_event_and_lets_its_sender_record_it(
    tmp_path: Path,
) -> None:
    async with _running(tmp_path) as (engine, wall, keeper):
        await engine.metadata.commit(an_event(due_at=NOON))
        [before] = await engine.metadata.due(OutboxEvent, channel=Channel.WEBHOOK, limit=9)

        wall.set_wall(-HOUR)
        await keeper.step()

        [event] = await engine.metadata.due(OutboxEvent, channel=Channel.WEBHOOK, limit=9)
        assert (event.due_at, event.version) == (NOON - HOUR, before.version)
        await engine.metadata.commit(before)


async def test_a_clock_set_back_delays_no_schedule(tmp_path: Path) -> None:
    async with _running(tmp_path) as (engine, wall, keeper):
        job = _scheduled(NOW_AND_THEN, NOON + 3 * MINUTE)
        await engine.metadata.commit(job, a_run())

        wall.set_wall(-HOUR)
        await keeper.step()
        wall.advance(5 * MINUTE)

        [due] = await engine.metadata.due(Job, limit=9)
        assert due.next_fire_at == NOON - HOUR + 3 * MINUTE


async def test_a_clock_set_ahead_ends_no_lease(tmp_path: Path) -> None:
    async with _running(tmp_path) as (engine, wall, keeper):
        await add_rows(engine.tasks, RUN, new_tasks(n=1))
        await engine.control_queue.send(a_message())
        [claimed] = await engine.work.claim({RUN: 1})
        [received] = await engine.control_queue.receive(1, lease=LEASE)

        wall.set_wall(HOUR)
        assert not await engine.work.claim({RUN: 1})
        await keeper.step()

        assert keeper.clock.now() == NOON + HOUR
        assert not await engine.work.claim({RUN: 1})
        assert not await engine.control_queue.receive(1, lease=LEASE)
        assert not await engine.work.renew([held(claimed)])
        assert await engine.work.settle([settlement(claimed, scraped())]) == [True]
        await engine.control_queue.ack(received)
        [task] = (await engine.tasks.page(RUN, limit=1)).tasks
        assert (task.status, task.lost) == (TaskStatus.SUCCESSFUL, 0)


async def test_the_time_is_not_adopted_before_the_new_leases_are_durable(tmp_path: Path) -> None:
    async with _running(tmp_path) as (engine, wall, keeper):
        await add_rows(engine.tasks, RUN, new_tasks(n=1))
        [claimed] = await engine.work.claim({RUN: 1})
        assert engine.database._writer
        connection = engine.database._writer.connection

        connection.set_commit_hook(lambda: True)
        wall.set_wall(HOUR)
        with pytest.raises(apsw.ConstraintError):
            await keeper.step()
        assert keeper.clock.now() == NOON
        connection.set_commit_hook(None)

        assert not await engine.work.claim({RUN: 1})
        await keeper.step()
        assert keeper.clock.now() == NOON + HOUR
        assert not await engine.work.claim({RUN: 1})
        assert not await engine.work.renew([held(claimed)])


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_without_due_times_to_repair_the_clock_still_follows(step: timedelta) -> None:
    wall = FakeClock()
    keeper = Timekeeper(clock=SteadyClock(wall), due_times=None)
    wall.set_wall(step)
    await keeper.step()
    assert keeper.clock.now() == NOON + step
    wall.set_wall(SECOND)
    await keeper.step()
    assert keeper.clock.now() == NOON + step + SECOND


async def test_a_repair_that_failed_is_made_up_for(tmp_path: Path) -> None:
    async with _running(tmp_path) as (engine, wall, keeper):
        await add_rows(engine.tasks, RUN, new_tasks(n=1))
        keeper.due_times = _FullOnce(engine)

        wall.set_wall(-HOUR)
        with pytest.raises(StorageFull):
            await keeper.step()
        await keeper.step()

        assert len(await engine.work.claim({RUN: 1})) == 1


async def test_a_bug_in_a_repair_does_not_end_the_keeping_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conveyor.timekeeping.EVERY", timedelta(milliseconds=1))
    async with _running(tmp_path) as (engine, wall, keeper):
        await add_rows(engine.tasks, RUN, new_tasks(n=1))
        keeper.due_times = _FullOnce(engine, ZeroDivisionError())
        stopping = asyncio.Event()
        wall.set_wall(-HOUR)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(keeper.run(stopping))
            while not await engine.work.claim({RUN: 1}):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.001)
            stopping.set()


def test_the_time_holds_its_course_until_a_step_is_adopted() -> None:
    wall = FakeClock()
    clock = SteadyClock(wall)
    wall.set_wall(-HOUR)
    wall.advance(SECOND)

    assert clock.now() == NOON + SECOND
    assert clock.step() == -HOUR
    assert clock.now() == NOON + SECOND
    clock.adopt()
    clock.adopt()
    assert clock.now() == NOON + SECOND - HOUR
    assert clock.step() == timedelta()


def test_a_small_correction_is_no_step() -> None:
    wall = FakeClock()
    clock = SteadyClock(wall)
    wall.set_wall(-SECOND)

    assert clock.step() == timedelta()
    assert clock.now() == NOON - SECOND


@pytest.mark.parametrize(
    ("schedule", "stored", "now", "expected"),
    [
        pytest.param(
            NOW_AND_THEN, NOON + 5 * MINUTE, NOON - HOUR, NOON - HOUR + 5 * MINUTE, id="far off"
        ),
        pytest.param(HOURLY, NOON + HOUR, NOON - SECOND, NOON + HOUR, id="one passed over"),
        pytest.param(HOURLY, NOON + HOUR, NOON, NOON + HOUR, id="as it should be"),
        pytest.param(
            Schedule(at="2027-01-01T00:00", timezone="UTC"),
            datetime(2027, 1, 1, tzinfo=UTC),
            NOON - HOUR,
            datetime(2027, 1, 1, tzinfo=UTC),
            id="one moment",
        ),
        pytest.param(
            AT_NOON,
            NOON + timedelta(days=1),
            NOON - HOUR,
            NOON + timedelta(days=1),
            id="today's fire was",
        ),
        pytest.param(
            AT_NOON,
            NOON + timedelta(days=365),
            NOON - HOUR,
            NOON,
            id="the clock was a year ahead",
        ),
    ],
)
def test_a_schedule_keeps_its_next_fire_if_the_clock_can_have_led_to_it(
    schedule: Schedule, stored: datetime, now: datetime, expected: datetime
) -> None:
    assert after_clock_set_back(_scheduled(schedule, stored), now).next_fire_at == expected


class _FullOnce:
    """Due times on a disk that is full the first time, or that fail in another way."""

    def __init__(self, engine: SqliteEngine, error: Exception | None = None) -> None:
        self._error = error or StorageFull("no room")
        self._due_times = engine.due_times
        self._full = True

    async def note(self) -> None:
        await self._due_times.note()

    async def set_back(self, by: timedelta) -> None:
        if self._full:
            self._full = False
            raise self._error
        await self._due_times.set_back(by)

    async def set_ahead(self, by: timedelta, adopt: Callable[[], None]) -> None:
        await self._due_times.set_ahead(by, adopt)


def _scheduled(schedule: Schedule, at: datetime) -> Job:
    return a_job(type=JobType.SCHEDULED, schedule=schedule, next_fire_at=at)


async def _wait_for_a_retry(engine: SqliteEngine, delay: timedelta) -> None:
    """The first task of the run, put back after an attempt."""
    await add_rows(engine.tasks, RUN, new_tasks(n=1))
    [claimed] = await engine.work.claim({RUN: 1})
    later = SettleDecision(status=TaskStatus.PENDING, charged=True, delay=delay)
    assert await engine.work.settle([settlement(claimed, later)]) == [True]


@asynccontextmanager
async def _engine(folder: Path, clock: FakeClock) -> AsyncIterator[SqliteEngine]:
    async with open_engine(folder, clock=clock, ids=FakeIds(), lease=LEASE) as engine:
        yield engine


@asynccontextmanager
async def _running(folder: Path) -> AsyncIterator[tuple[SqliteEngine, FakeClock, Timekeeper]]:
    wall = FakeClock()
    clock = SteadyClock(wall)
    async with open_engine(folder, clock=clock, ids=FakeIds(), lease=LEASE) as engine:
        yield engine, wall, Timekeeper(clock=clock, due_times=engine.due_times)
