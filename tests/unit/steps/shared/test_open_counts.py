"""Live runs tell how many of their tasks are in flight or wait for a retry."""

import asyncio
from contextlib import aclosing
from dataclasses import replace as with_
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

from conveyor.api import render
from conveyor.domain.counts import OpenCounts
from conveyor.domain.ids import ApiKeyId, RunId
from conveyor.domain.task import TaskStatus
from conveyor.errors import Unavailable
from conveyor.ports.tasks import Tasks
from conveyor.steps.progress import ROUND, ProgressFeed
from conveyor.steps.shared import open_counts
from conveyor.steps.shared.open_counts import SHARED_FOR, OpenCountReader
from conveyor.testing.factories import scraped, settlement, to_retry
from tests.harness.memory_service import CALLER, House, a_house


def _reader(house: House) -> OpenCountReader:
    return OpenCountReader(tasks=house.tasks, clock=house.clock)


async def _given_open_tasks(house: House) -> tuple[Any, Any]:
    """Five tasks: one in flight, one that waits for a retry, one done, two pending."""
    job_id, run_id = await house.submit(5)
    flying, waiting, done = await house.work.claim({run_id: 3})
    assert flying.status is TaskStatus.PROCESSING
    decisions = [
        settlement(waiting, to_retry(delay=timedelta(minutes=1))),
        settlement(done, scraped()),
    ]
    assert list(await house.work.settle(decisions)) == [True, True]
    return job_id, run_id


async def test_a_live_run_shows_them_where_it_is_asked_for_but_not_in_listings() -> None:
    house = a_house()
    job_id, run_id = await _given_open_tasks(house)
    read = with_(house.read, open_counts=_reader(house).find)

    job = render.job_shown(await read.job(CALLER, job_id))
    run = render.run_view_shown(await read.run(CALLER, job_id, run_id))
    jobs, _ = await read.jobs(CALLER, limit=5, before=None, status=None, kind=None)
    runs, _ = await read.runs(CALLER, job_id, limit=5, before=None)

    assert job.latest_run == run
    assert (run.stats.in_flight, run.stats.waiting_for_retry) == (1, 1)
    for listed in (render.job_shown(jobs[0]).latest_run, *render.runs_shown(runs, None).runs):
        assert listed
        assert (listed.stats.in_flight, listed.stats.waiting_for_retry) == (None, None)


async def test_events_tell_them_when_they_change() -> None:
    house = a_house()
    job_id, run_id = await house.submit(2)
    feed = ProgressFeed(
        metadata=house.metadata,
        tasks=house.tasks,
        clock=house.clock,
        render=render.event_shown,
        count=lambda _: None,
        is_good=_every_key,
        open_counts=_reader(house).find,
    )
    async with aclosing(await feed.listen(CALLER, job_id, None, seen=None)) as news:
        first = _stats(await anext(news))
        await house.work.claim({run_id: 1})
        house.clock.advance(ROUND)
        await feed.step()
        second = _stats(await anext(news))
    assert [first["in_flight"], second["in_flight"]] == [0, 1]


async def test_all_who_ask_within_a_moment_share_one_read() -> None:
    house = a_house()
    _, run_id = await _given_open_tasks(house)
    run, counted = await house.run(run_id), _Counted(house.tasks)
    reader = OpenCountReader(tasks=cast("Tasks", counted), clock=house.clock)

    for _ in range(3):
        assert await reader.find([run]) == {run_id: OpenCounts(1, 1)}
    assert counted.reads == 1
    house.clock.advance(SHARED_FOR + timedelta(milliseconds=1))
    await reader.find([run])
    assert counted.reads == 2


async def test_who_asks_for_one_run_does_not_wait_for_the_read_of_another() -> None:
    house = a_house()
    _, slow_id = await _given_open_tasks(house)
    _, other_id = await house.submit(1)
    slow, other = await house.run(slow_id), await house.run(other_id)
    tasks = _Held(house.tasks, slow_id)
    reader = OpenCountReader(tasks=cast("Tasks", tasks), clock=house.clock)

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        first, second = (group.create_task(reader.find([slow])) for _ in range(2))
        await tasks.is_asked.wait()
        assert await reader.find([other]) == {other_id: OpenCounts()}
        assert not first.done()
        house.clock.advance(SHARED_FOR * 2)  # the figures are as old as the end of their read
        tasks.let_go.set()
    assert first.result() == second.result() == {slow_id: OpenCounts(1, 1)}
    assert await reader.find([slow]) == {slow_id: OpenCounts(1, 1)}
    assert tasks.reads == 2


async def test_a_read_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_counts, "PATIENCE", timedelta(milliseconds=1))
    house = a_house()
    _, run_id = await _given_open_tasks(house)
    run, tasks = await house.run(run_id), _Held(house.tasks, run_id)
    reader = OpenCountReader(tasks=cast("Tasks", tasks), clock=house.clock)

    async with asyncio.timeout(10):
        assert not any(await asyncio.gather(reader.find([run]), reader.find([run])))
        assert await reader.find([run]) == {}
    assert tasks.reads == 1
    tasks.let_go.set()
    house.clock.advance(SHARED_FOR * 2)
    assert await reader.find([run]) == {run_id: OpenCounts(1, 1)}


async def test_those_who_wait_for_a_request_that_is_cancelled_get_no_figures() -> None:
    house = a_house()
    _, run_id = await _given_open_tasks(house)
    run, tasks = await house.run(run_id), _Held(house.tasks, run_id)
    reader = OpenCountReader(tasks=cast("Tasks", tasks), clock=house.clock)

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        first, second = (group.create_task(reader.find([run])) for _ in range(2))
        await tasks.is_asked.wait()
        first.cancel()
    assert second.result() == {}
    tasks.let_go.set()
    assert await reader.find([run]) == {run_id: OpenCounts(1, 1)}


@pytest.mark.parametrize("fails", [False, True])
async def test_a_run_is_shown_without_them_where_the_engine_does_not_tell(fails: bool) -> None:
    house = a_house()
    job_id, _ = await _given_open_tasks(house)
    reader = OpenCountReader(tasks=cast("Tasks", _Silent(fails=fails)), clock=house.clock)
    read = with_(house.read, open_counts=reader.find)

    shown = msgspec.json.decode(render.encode(render.job_shown(await read.job(CALLER, job_id))))
    assert not {"in_flight", "waiting_for_retry"} & shown["latest_run"]["stats"].keys()


class _Counted:
    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self.reads = 0

    async def open_counts(self, run_ids: Any) -> Any:
        self.reads += 1
        return await self._tasks.open_counts(run_ids)


class _Held(_Counted):
    """Holds back the reads of one run until they are let go."""

    def __init__(self, tasks: Tasks, held: RunId) -> None:
        super().__init__(tasks)
        self._held = held
        self.is_asked = asyncio.Event()
        self.let_go = asyncio.Event()

    async def open_counts(self, run_ids: Any) -> Any:
        self.reads += 1
        if self._held in run_ids:
            self.is_asked.set()
            await self.let_go.wait()
        return await self._tasks.open_counts(run_ids)


class _Silent:
    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    async def open_counts(self, run_ids: Any) -> Any:
        if self._fails:
            raise Unavailable("away")
        return dict.fromkeys(run_ids[:0])


def _stats(event: bytes | None) -> Any:
    assert event
    [data] = [line for line in event.splitlines() if line.startswith(b"data: ")]
    return msgspec.json.decode(data.removeprefix(b"data: "))["stats"]


async def _every_key(_: ApiKeyId) -> bool:
    return True
