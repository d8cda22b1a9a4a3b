"""Groups in which finished tasks are settled, in simulated time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Settlement, Task
from conveyor.steps.dispatch.config import DispatchConfig, config_over_queues
from conveyor.testing.memory.claims import MemoryClaims
from tests.harness import time_lapse
from tests.harness.fleet import Fleet

T = TypeVar("T")
WAIT = timedelta(seconds=1)


def priced(places: int) -> DispatchConfig:
    """Of an engine whose settles have a price."""
    return replace(config_over_queues(places), settle_wait=WAIT)


class Watched:
    """The calls of claims that are under way, and the sizes of settled groups."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.under_way = {"settle": 0, "take": 0}
        self.most = {"settle": 0, "take": 0}
        self.delay = 0.0  # of each call
        settle, take = MemoryClaims.settle, MemoryClaims.take

        async def watched_settle(
            claims: MemoryClaims, settlements: Sequence[Settlement]
        ) -> Sequence[bool]:
            self.sizes.append(len(settlements))
            return await self._delayed("settle", lambda: settle(claims, settlements))

        async def watched_take(
            claims: MemoryClaims, run_id: RunId, task_ids: Sequence[TaskId], *, stamp: str = ""
        ) -> Sequence[Task]:
            return await self._delayed("take", lambda: take(claims, run_id, task_ids, stamp=stamp))

        monkeypatch.setattr(MemoryClaims, "settle", watched_settle)
        monkeypatch.setattr(MemoryClaims, "take", watched_take)

    async def _delayed(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self.under_way[name] += 1
        self.most[name] = max(self.most[name], self.under_way[name])
        await asyncio.sleep(self.delay)
        self.under_way[name] -= 1
        return await call()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


async def drain(fleet: Fleet, tasks: int) -> float:
    await fleet.submit(tasks)
    async with fleet.at_work():
        return await fleet.drained()


def a_fleet(config: Callable[[int], DispatchConfig], *, cap: int = 50) -> Fleet:
    return Fleet(cap=cap, processes=1, places=100, config=config)


def test_finished_tasks_of_a_run_are_settled_together(watched: Watched) -> None:
    drained = time_lapse.run(drain(a_fleet(priced), 400))
    assert sum(watched.sizes) == 400
    assert 400 / len(watched.sizes) > 20
    together = len(watched.sizes)
    watched.sizes.clear()
    alone = time_lapse.run(drain(a_fleet(config_over_queues), 400))
    assert len(watched.sizes) > 4 * together
    assert drained < alone + 1  # no slower: their permits do not wait


def test_a_slow_run_settles_what_it_has_after_a_second(watched: Watched) -> None:
    async def first_settle() -> float:
        fleet = a_fleet(priced, cap=5)
        fleet.gateway.fastest = fleet.gateway.slowest = 2.0
        await fleet.submit(10)
        async with fleet.at_work():
            while not fleet.done():  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
            return fleet.clock.monotonic()

    assert 3.0 < time_lapse.run(first_settle()) < 3.5
    assert watched.sizes[0] == 5


def test_the_last_tasks_of_a_run_do_not_wait(watched: Watched) -> None:
    fleet = a_fleet(priced)
    fleet.gateway.fastest = fleet.gateway.slowest = 0.5
    assert time_lapse.run(drain(fleet, 3)) < 1.0
    assert watched.sizes == [3]


def test_one_group_and_one_claim_of_a_run_are_under_way_at_a_time(watched: Watched) -> None:
    watched.delay = 2.0
    time_lapse.run(drain(a_fleet(priced), 200))
    assert watched.most == {"settle": 1, "take": 1}


def test_a_stop_does_not_wait_for_more_tasks(watched: Watched) -> None:
    async def stopped() -> float:
        fleet = Fleet(cap=5, processes=1, config=priced, is_closed=False)
        fleet.gateway.fastest = fleet.gateway.slowest = 2.0
        await fleet.submit(10)
        async with fleet.at_work():
            await asyncio.sleep(2.5)
            assert watched.sizes == []
        return fleet.clock.monotonic()

    assert time_lapse.run(stopped()) < 5.5
    assert sum(watched.sizes) == 10  # the second five ended within the grace
