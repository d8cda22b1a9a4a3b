"""Those who poll the failures of a live run share one reading a second."""

import asyncio
from datetime import timedelta
from typing import Any, cast

from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import RunId
from conveyor.domain.run import Run
from conveyor.domain.task import AttemptFailed, Task
from conveyor.errors import Unavailable
from conveyor.ports.tasks import Tasks
from conveyor.steps.shared.attempt import CallResult
from conveyor.steps.shared.failure_reads import (
    MOST_SHARED,
    SHARED_FOR,
    FailureReader,
    FoundFailures,
)
from conveyor.steps.shared.shared_readings import SharedReadings
from conveyor.testing.factories import a_problem, refused, settlement
from tests.harness.memory_service import House, a_house

LIMIT = 10


async def _a_live_run(house: House) -> Run:
    """One of three tasks has failed."""
    _, run_id = await house.submit(3)
    await _fail_one(house, run_id)
    return await house.run(run_id)


async def _fail_one(house: House, run_id: RunId) -> None:
    [task] = await house.work.claim({run_id: 1})
    assert list(await house.work.settle([settlement(task, refused())])) == [True]


def _reader(house: House, tasks: Any) -> FailureReader:
    shared: SharedReadings[FoundFailures] = SharedReadings(clock=house.clock, most=MOST_SHARED)
    return FailureReader(tasks=cast("Tasks", tasks), count=lambda _: None, shared=shared)


async def test_all_who_ask_within_a_second_share_one_reading() -> None:
    house = a_house()
    run = await _a_live_run(house)
    tasks = _Counted(house.tasks)
    reader = _reader(house, tasks)

    asked = [reader.find(run, LIMIT) for _ in range(3)]
    assert [groups[0].count for groups, _ in await asyncio.gather(*asked)] == [1, 1, 1]
    await _fail_one(house, run.id)
    assert (await reader.find(run, LIMIT))[0][0].count == 1
    assert tasks.reads == 1
    house.clock.advance(SHARED_FOR + timedelta(milliseconds=1))
    assert (await reader.find(run, LIMIT))[0][0].count == 2
    assert tasks.reads == 2
    assert len(reader.shared.kept) == 1


async def test_the_last_failures_of_a_run_are_seen_as_soon_as_it_has_ended() -> None:
    house = a_house()
    run = await _a_live_run(house)
    reader = _reader(house, house.tasks)
    assert (await reader.find(run, LIMIT))[0][0].count == 1

    await house.drain(run.id, _refusal)
    ended = await house.run(run.id)
    assert not ended.is_live
    groups, _ = await reader.find(ended, LIMIT)
    assert sum(group.count for group in groups) == 3


async def test_a_reading_that_fails_is_told_to_all_who_wait_and_is_then_tried_again() -> None:
    house = a_house()
    run = await _a_live_run(house)
    tasks = _Held(house.tasks)
    reader = _reader(house, tasks)

    async with asyncio.timeout(10):
        asked = [asyncio.create_task(reader.find(run, LIMIT)) for _ in range(3)]
        await tasks.is_asked.wait()
        tasks.error = Unavailable("away")
        tasks.let_go.set()
        told = await asyncio.gather(*asked, return_exceptions=True)
    assert told == [tasks.error] * 3
    assert tasks.reads == 1
    tasks.error = None
    assert (await reader.find(run, LIMIT))[0][0].count == 1


async def test_those_who_wait_for_a_request_that_is_cancelled_read_for_themselves() -> None:
    house = a_house()
    run = await _a_live_run(house)
    tasks = _Held(house.tasks)
    reader = _reader(house, tasks)

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        first, second, third = (group.create_task(reader.find(run, LIMIT)) for _ in range(3))
        await tasks.is_asked.wait()
        first.cancel()
        tasks.let_go.set()
    assert second.result()[0][0].count == third.result()[0][0].count == 1
    assert tasks.reads == 2


async def test_few_readings_are_kept() -> None:
    house = a_house()
    run = await _a_live_run(house)
    reader = _reader(house, house.tasks)
    for limit in range(2 * MOST_SHARED):
        await reader.find(run, limit)
    assert len(reader.shared.kept) <= MOST_SHARED + 1


class _Counted:
    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self.get = tasks.get
        self.reads = 0

    async def failure_groups(self, run_id: RunId) -> Any:
        self.reads += 1
        return await self._tasks.failure_groups(run_id)


class _Held(_Counted):
    """Holds back its reads until they are let go."""

    def __init__(self, tasks: Tasks) -> None:
        super().__init__(tasks)
        self.is_asked = asyncio.Event()
        self.let_go = asyncio.Event()
        self.error: Unavailable | None = None

    async def failure_groups(self, run_id: RunId) -> Any:
        self.is_asked.set()
        found = await super().failure_groups(run_id)
        await self.let_go.wait()
        if self.error:
            raise self.error
        return found


def _refusal(_: Task) -> CallResult:
    return AttemptFailed(a_problem("RESP002"), FailureReason.BAD_TARGET, retryable=False)
