"""Groups in which finished tasks are settled, and runs whose rows are slow, in simulated time."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.run import Run
from conveyor.domain.task import Settlement, Task
from conveyor.errors import Unavailable
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
        self.slow: dict[RunId, float] = {}  # delays of calls in which these runs have a part
        self.away: frozenset[RunId] = frozenset()  # runs that cannot be claimed
        self.why: Exception = Unavailable("away")
        settle, take = MemoryClaims.settle, MemoryClaims.take

        async def watched_settle(
            claims: MemoryClaims, settlements: Sequence[Settlement]
        ) -> Sequence[bool]:
            self.sizes.append(len(settlements))
            runs = {one.run_id for one in settlements}
            return await self._delayed("settle", runs, lambda: settle(claims, settlements))

        async def watched_take(
            claims: MemoryClaims, run_id: RunId, task_ids: Sequence[TaskId], *, stamp: str = ""
        ) -> Sequence[Task]:
            if run_id in self.away:
                raise self.why
            return await self._delayed(
                "take", {run_id}, lambda: take(claims, run_id, task_ids, stamp=stamp)
            )

        monkeypatch.setattr(MemoryClaims, "settle", watched_settle)
        monkeypatch.setattr(MemoryClaims, "take", watched_take)

    async def _delayed(
        self, name: str, runs: Collection[RunId], call: Callable[[], Awaitable[T]]
    ) -> T:
        self.under_way[name] += 1
        self.most[name] = max(self.most[name], self.under_way[name])
        await asyncio.sleep(max(self.slow.get(run_id, self.delay) for run_id in runs))
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


# Runs whose rows are slow.

TASKS, SLOW_RUNS = 40, 5


async def beside(watched: Watched, *, slow: float) -> tuple[float, list[float]]:
    """When the last of some runs of a caller ended, and when the others did, which are slow."""
    fleet = Fleet(cap=TASKS, processes=1, places=500, config=priced, own_keys=True)
    fleet.gateway.fastest = fleet.gateway.slowest = 1.0
    await fleet.submit(TASKS, jobs=SLOW_RUNS + 1)
    *others, quick = fleet.runs
    watched.slow = dict.fromkeys(others, slow)
    async with fleet.at_work():
        ended = await fleet_ended(fleet, quick)
        return ended, [await fleet_ended(fleet, run_id) for run_id in others]


async def fleet_ended(fleet: Fleet, run_id: RunId) -> float:
    while (run := await fleet.metadata.get(Run, run_id)) and run.is_live:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return fleet.clock.monotonic()


def test_a_run_waits_for_no_slow_ones_beside_it(watched: Watched) -> None:
    alone, _ = time_lapse.run(beside(watched, slow=0.0))
    ended, others = time_lapse.run(beside(watched, slow=5.0))
    assert ended < alone + 0.2
    assert min(others) > alone + 5


def test_slow_runs_advance_at_the_same_pace(watched: Watched) -> None:
    _, others = time_lapse.run(beside(watched, slow=5.0))
    # Four claims of ten tasks, and a settle after each.
    assert max(others) < 60
    assert max(others) < 1.3 * min(others)


@pytest.mark.parametrize("why", [Unavailable("away"), ValueError("a row that cannot be read")])
def test_a_run_that_cannot_be_claimed_delays_no_other(watched: Watched, why: Exception) -> None:
    watched.why = why

    async def ended() -> float:
        fleet = a_fleet(priced)
        await fleet.submit(10, jobs=5)
        *away, last = fleet.runs
        watched.away = frozenset(away)
        async with fleet.at_work():
            return await fleet_ended(fleet, last)

    assert time_lapse.run(ended()) < 2.5


def test_a_group_that_fills_the_window_of_its_run_does_not_wait(watched: Watched) -> None:
    """With quick pages and slow writes, nothing more finishes before the group is settled."""
    watched.delay = 0.6
    fleet = a_fleet(priced)
    fleet.gateway.fastest = fleet.gateway.slowest = 0.01
    assert time_lapse.run(drain(fleet, 200)) < 18  # 21 s with waits


def test_many_short_writes_of_a_claim_are_not_a_slow_one(watched: Watched) -> None:
    """Messages come in tens: five takes of 0.15 s are one claim of 50 tasks."""
    watched.delay = 0.15
    fleet = a_fleet(priced, cap=100)
    fleet.gateway.fastest = fleet.gateway.slowest = 0.2
    assert time_lapse.run(drain(fleet, 1_000)) < 20  # 23 s with a smaller window
