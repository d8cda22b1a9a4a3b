"""Claims ahead of their time: where pages end quickly the next are at hand, and only there."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from conveyor.domain.concurrency import ConcurrencyLimiter
from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.domain.run import PauseState
from conveyor.domain.submission import Limits
from conveyor.domain.task import Interrupted, Task, TaskStatus
from conveyor.errors import Conflict, StorageFull, Unavailable
from conveyor.ports.work import Held
from conveyor.steps.dispatch.active_run import ActiveRun
from conveyor.steps.dispatch.config import DispatchConfig
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.shared.attempt import Assignment, CallResult, FinishedAttempt
from conveyor.testing.factories import a_task
from tests.harness.dispatchers import a_dispatcher, quick, running, waking
from tests.harness.memory_service import (
    A_PAGE,
    CALLER,
    LEASE,
    House,
    ScriptedAttempts,
    a_house,
    away,
    until,
)
from tests.harness.permits import permits_held, reserve

HORIZON = timedelta(seconds=10)  # so long that any config at all fills it
MOMENT = timedelta(milliseconds=5)


async def _going(dispatcher: Dispatcher, gateway: ScriptedAttempts, run_id: RunId) -> ActiveRun:
    """A run whose pages have ended at some config, and then stand still, the next ones at hand."""
    await until(lambda: run_id in dispatcher.runs and dispatcher.runs[run_id].prefetch.rate > 1)
    gateway.gate.clear()
    run = dispatcher.runs[run_id]
    # A call that passed the gate before it was closed still ends, and another begins.
    await until(lambda: gateway.waiting == run.calls == 3 and len(run.prefetch.tasks) == 6)
    return run


async def _house(config: DispatchConfig) -> tuple[House, ScriptedAttempts, Dispatcher, RunId]:
    house, gateway = a_house(limits=Limits()), ScriptedAttempts(lasting=MOMENT)
    _, run_id = await house.submit(400, max_inflight=3)
    return house, gateway, a_dispatcher(house, gateway.attempt, config), run_id


async def test_as_a_page_ends_the_next_begins_though_the_engine_gives_none() -> None:
    _, gateway, dispatcher, run_id = await _house(quick(prefetch=HORIZON))
    async with running(dispatcher):
        run = await _going(dispatcher, gateway, run_id)
        begun, at_hand = len(gateway.started), [one.task.id for one in run.prefetch.tasks]
        dispatcher.claimer.work = Silent(dispatcher.work)  # type: ignore[assignment]
        gateway.gate.set()
        await until(lambda: len(gateway.started) == begun + 6)
        assert [task.id for task in gateway.started[begun:]] == at_hand
    assert gateway.most[run_id] == 3


async def test_while_coordination_is_unavailable_no_task_starts_and_running_ones_end() -> None:
    house, gateway, dispatcher, run_id = await _house(quick(prefetch=HORIZON))
    async with running(dispatcher):
        run = await _going(dispatcher, gateway, run_id)
        begun = len(gateway.started)
        with ExitStack() as outage:
            for call in ("reserve", "renew", "release"):
                name = f"coordination.{call}"
                outage.enter_context(away(house.trace, name, Unavailable("away")))
            await until(lambda: dispatcher.permits.is_unavailable)  # a renewal has failed
            gateway.gate.set()
            await until(lambda: not run.calls and len(dispatcher.inflight) == 6)
            tried = len(house.trace.of("coordination.reserve"))
            await until(lambda: len(house.trace.of("coordination.reserve")) > tried + 5)
            assert len(gateway.started) == begun
            assert len(run.prefetch.tasks) == 6
        # The permits whose release failed lapse; the claims of prefetched tasks were renewed.
        house.clock.advance(LEASE)
        await until(lambda: len(gateway.started) == 400)
    await house.check_counts(run_id)
    assert gateway.most[run_id] == 3


async def test_what_was_claimed_ahead_goes_back_uncharged_when_the_program_stops() -> None:
    house, gateway, dispatcher, run_id = await _house(quick(prefetch=HORIZON, grace=timedelta()))
    async with running(dispatcher):
        run = await _going(dispatcher, gateway, run_id)
        ahead = {one.task.id for one in run.prefetch.tasks}
    rows = {row.id: row for row in await house.rows(run_id)}
    assert {rows[task_id].status for task_id in ahead} == {TaskStatus.PENDING}
    assert {(rows[task_id].attempts, rows[task_id].lost) for task_id in ahead} == {(0, 0)}
    await house.check_counts(run_id)


async def test_what_was_claimed_ahead_goes_back_when_the_run_is_paused() -> None:
    house, gateway, dispatcher, run_id = await _house(quick(prefetch=HORIZON))
    pausing = dataclasses.replace(house.lifecycle, notifier=waking(dispatcher))
    async with running(dispatcher):
        run = await _going(dispatcher, gateway, run_id)
        await pausing.set_pause(CALLER, run.job.id, PauseState.PAUSED)
        await until(lambda: len(dispatcher.inflight) == 3)
        begun = len(gateway.started)
        gateway.gate.set()
        await until(lambda: not dispatcher.inflight)
        assert len(gateway.started) == begun


async def test_a_claim_that_another_worker_took_over_is_not_begun() -> None:
    house, gateway, dispatcher, run_id = await _house(quick(prefetch=HORIZON))
    async with running(dispatcher):
        run = await _going(dispatcher, gateway, run_id)
        lost = run.prefetch.tasks[0].task
        house.clock.advance(LEASE * 2)
        taken = await house.work.claim({run_id: 400})
        assert lost.id in {task.id for task in taken}
        await until(lambda: (run_id, lost.id) not in dispatcher.inflight)
        gateway.gate.set()
    assert lost not in gateway.started


@pytest.mark.parametrize("horizon", [timedelta(), timedelta(milliseconds=1)])
async def test_pages_that_end_slowly_are_not_claimed_ahead(horizon: timedelta) -> None:
    _, gateway, dispatcher, run_id = await _house(quick(prefetch=horizon))
    async with running(dispatcher):
        await until(lambda: run_id in dispatcher.runs and dispatcher.runs[run_id].prefetch.rate > 1)
        gateway.gate.clear()
        await until(lambda: dispatcher.runs[run_id].calls == 3)
        assert not dispatcher.runs[run_id].prefetch.tasks


async def test_a_renewal_during_a_settle_cuts_off_nobody_else() -> None:
    """The worker of a finished call runs another one by then."""
    _, gateway, dispatcher, _ = await _house(quick(prefetch=HORIZON))
    dispatcher.settle = _lingering(dispatcher.settle)
    async with running(dispatcher):
        await until(lambda: len(gateway.started) > 200)
        assert not gateway.cancelled


async def test_a_renewal_during_a_hand_back_does_no_harm() -> None:
    house, gateway, dispatcher, run_id = await _house(quick(prefetch=HORIZON))
    dispatcher.settle = _lingering(dispatcher.settle)
    pausing = dataclasses.replace(house.lifecycle, notifier=waking(dispatcher))
    async with running(dispatcher):
        run = await _going(dispatcher, gateway, run_id)
        await pausing.set_pause(CALLER, run.job.id, PauseState.PAUSED)
        # At most: calls that had passed the gate before it was closed finish as well.
        await until(lambda: len(dispatcher.inflight) <= 3)
        gateway.gate.set()
    await house.check_counts(run_id)


async def test_a_run_that_ends_while_tasks_are_claimed_ahead_of_it_ends_alone() -> None:
    house, gateway, dispatcher, run_id = await _house(quick(prefetch=HORIZON, claim_loops=1))
    async with running(dispatcher):
        run = await _going(dispatcher, gateway, run_id)
        dispatcher.claimer.work = gated = Gated(dispatcher.work)
        run.prefetch.rate *= 100
        run.calls += 1  # as if one more were under way: there is more to claim ahead
        dispatcher.fetcher.capacity_changed.set()
        await until(lambda: gated.asked)
        run.calls -= 1
        await house.lifecycle.stop(CALLER, run.job.id)
        dispatcher.wake(run_id)
        gateway.gate.set()
        await until(lambda: not run.unsettled)
        for _ in range(2):  # whole looks at the live runs, in which ended ones are left
            looked = dispatcher.discovery.resync_at
            await until(lambda looked=looked: dispatcher.discovery.resync_at > looked)  # type: ignore[misc]
        gated.gate.set()
        await until(lambda: run_id not in dispatcher.runs)
    await house.check_counts(run_id)


async def test_nothing_claimed_ahead_begins_while_there_is_no_room_for_results() -> None:
    house, gateway, dispatcher, run_id = await _house(quick(prefetch=HORIZON))
    async with running(dispatcher):
        await _going(dispatcher, gateway, run_id)
        dispatcher.storage.learn(stored=False)
        begun = len(gateway.started)
        with away(house.trace, "bodies.put_many", StorageFull("no room")):
            gateway.gate.set()
            await until(lambda: not dispatcher.inflight)
            assert len(gateway.started) == begun


async def test_a_claim_lost_as_its_page_begins_leaves_nothing_behind() -> None:
    _, gateway, dispatcher, run_id = await _house(quick(prefetch=HORIZON))
    async with running(dispatcher):
        run = await _going(dispatcher, gateway, run_id)
        one = run.take_prefetched()
        run.idle_permits += await reserve(
            dispatcher.permits.coordination, run.job.id, want=1, cap=9
        )
        dispatcher.fetcher.start_call(one)
        dispatcher.fetcher.drop_lost(Held(run_id, one.task.id, one.task.claim_no))
        gateway.gate.set()
        await until(lambda: one not in dispatcher.inflight.values())


async def test_a_short_run_is_not_kept_waiting_by_a_long_one_of_its_caller() -> None:
    house, dice, started = a_house(limits=Limits()), Random(3), list[RunId]()

    async def attempt(task: Task, _: Assignment) -> CallResult:
        started.append(task.run_id)
        await asyncio.sleep(0.1 + 0.2 * dice.random())
        return replace(A_PAGE, limit=1000)

    _, long = await house.submit(9000, max_inflight=500)
    idle = {"shortest_idle": MOMENT * 4, "longest_idle": MOMENT * 100}
    config = quick(concurrency=100, renewal=timedelta(seconds=10), grace=timedelta(), **idle)
    dispatcher = a_dispatcher(house, attempt, config)
    async with running(dispatcher):
        await until(lambda: len(started) > 600)
        begun = len(started)
        _, short = await house.submit(10)
        dispatcher.wake(short)
        await until(lambda: started.count(short) == 10)
    assert started[begun:].count(long) < 400  # half a second's worth


@pytest.mark.parametrize("runs", [1, 4])
async def test_one_place_in_five_is_kept_from_a_caller_whatever_it_has_claimed_ahead(
    runs: int,
) -> None:
    house, held = a_house(limits=Limits()), list[int]()

    async def attempt(_: Task, __: Assignment) -> CallResult:
        served = dispatcher.runs.values()
        held.append(sum(run.unsettled - len(run.prefetch.tasks) for run in served))
        await asyncio.sleep(MOMENT.total_seconds())
        return replace(A_PAGE, limit=1000)

    for _ in range(runs):
        await house.submit(2000, max_inflight=500)
    dispatcher = a_dispatcher(house, attempt, quick(prefetch=HORIZON, concurrency=50))
    dispatcher.settle = _lingering(dispatcher.settle)
    async with running(dispatcher):
        await until(lambda: len(held) > 1000)
    assert 30 < max(held) <= 40


@pytest.mark.parametrize("seed", range(3))
async def test_dispatchers_that_pause_and_cross_each_other_lose_nothing(seed: int) -> None:
    dice, house, under_way = Random(seed), a_house(limits=Limits()), Counter[RunId]()

    async def attempt(task: Task, _: Assignment) -> CallResult:
        under_way[task.run_id] += 1
        assert under_way[task.run_id] <= 7
        try:
            await asyncio.sleep(dice.random() * 0.006)
            limit = dice.choice([None, None, 9, 30])
            return Interrupted() if dice.random() < 0.05 else replace(A_PAGE, limit=limit)
        finally:
            under_way[task.run_id] -= 1

    jobs = [
        await house.submit(200, max_inflight=7, max_per_host=dice.choice([None, None, 3]))
        for _ in range(4)
    ]
    horizons = (timedelta(milliseconds=40), HORIZON)
    configs = [
        quick(prefetch=horizon, concurrency=dice.choice([10, 20, 50])) for horizon in horizons
    ]
    dispatchers = [a_dispatcher(house, attempt, config) for config in configs]
    for dispatcher in dispatchers:
        dispatcher.settle = _lingering(dispatcher.settle)
    limiters: dict[int, ConcurrencyLimiter] = {}
    async with running(*dispatchers), asyncio.timeout(300):
        while any([(await house.run(run_id)).is_live for _, run_id in jobs]):
            # Collected here: after its last run a key is soon dropped.
            for dispatcher in dispatchers:
                limiters |= {
                    id(key.limiter): key.limiter for key in dispatcher.discovery.key_states.values()
                }
            await _pause_for_a_moment(house, dispatchers, dice.choice(jobs)[0], dice)
    for job_id, run_id in jobs:
        await house.check_counts(run_id)
        assert await permits_held(house.coordination, job_id) == 0
    assert {limiter.under_way for limiter in limiters.values()} == {0}


async def _pause_for_a_moment(
    house: House, dispatchers: Sequence[Dispatcher], job_id: JobId, dice: Random
) -> None:
    with suppress(Conflict):  # it is over
        for state in (PauseState.PAUSED, PauseState.ACTIVE):
            dispatcher = dice.choice(dispatchers)
            pausing = dataclasses.replace(house.lifecycle, notifier=waking(dispatcher))
            await pausing.set_pause(CALLER, job_id, state)
            await asyncio.sleep(dice.random() * 0.01)


SettleCall = Callable[[Sequence[FinishedAttempt], Callable[[bool], None]], Awaitable[bool | None]]


def _lingering(settle: SettleCall) -> SettleCall:
    """Rows are written, and what comes after that takes longer than a renewal is away."""

    async def lingering(
        ended: Sequence[FinishedAttempt], writing: Callable[[bool], None]
    ) -> bool | None:
        hold = await settle(ended, writing)
        await asyncio.sleep(0.01)
        return hold

    return lingering


class Gated:
    """An engine that gives tasks when the gate is open."""

    def __init__(self, work: object) -> None:
        self._work = work
        self.gate = asyncio.Event()
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        self.asked += 1
        await self.gate.wait()
        return list(await self.__getattr__("claim")(wants))


class Silent:
    """An engine that gives no tasks any more, and takes everything else."""

    def __init__(self, work: object) -> None:
        self._work = work

    def __getattr__(self, name: str) -> object:
        return getattr(self._work, name)

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        await asyncio.Event().wait()
        raise AssertionError


async def test_runs_of_one_key_take_turns_though_one_has_claimed_ahead() -> None:
    house, gateway = a_house(limits=Limits()), ScriptedAttempts(lasting=MOMENT)

    async def attempt(task: Task, assignment: Assignment) -> CallResult:
        await gateway.attempt(task, assignment)
        return replace(A_PAGE, limit=2)

    _, long = await house.submit(400, max_inflight=3)
    dispatcher = a_dispatcher(house, attempt, quick(prefetch=HORIZON))
    async with running(dispatcher):
        await until(lambda: long in dispatcher.runs and dispatcher.runs[long].prefetch.tasks)
        begun = len(gateway.started)
        _, short = await house.submit(10)
        dispatcher.wake(short)
        await until(lambda: sum(task.run_id == short for task in gateway.started) == 10)
    ours = sum(task.run_id == long for task in gateway.started[begun:])
    assert ours < 60  # of 390, as many as the other's but for what was under way


async def test_the_reserve_is_that_of_a_caller_however_many_runs_it_has() -> None:
    house = a_house(limits=Limits())
    for _ in range(4):
        await house.submit(1)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(concurrency=500))
    await dispatcher.discovery.refresh()
    fetcher, group = dispatcher.fetcher, asyncio.TaskGroup()
    runs, now = list(dispatcher.runs.values()), dispatcher.clock.monotonic()
    for number in range(400):
        run = runs[number % 4]
        assert fetcher._has_place(run, now)
        task = a_task(id=TaskId(f"{number}"), run_id=run.id)
        fetcher.inflight[run.id, task.id] = run.accept(task, group)

    assert not any(fetcher._has_place(run, now) for run in runs)
