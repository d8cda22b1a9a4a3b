"""Claims ahead of their time: where pages end quickly the next are at hand, and only there."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from conveyor.domain.ids import RunId
from conveyor.domain.run import PauseState
from conveyor.domain.submission import Limits
from conveyor.domain.task import Task, TaskStatus
from conveyor.steps.attempt import Assignment, Result
from conveyor.steps.dispatch import Pump
from conveyor.steps.lane import Lane, Pace
from conveyor.steps.pause import Pause
from tests.unit.kit import A_PAGE, CALLER, LEASE, House, ScriptedAttempts, a_house, until
from tests.unit.test_dispatch import a_pump, quick, running

LEAD = timedelta(seconds=10)  # so long that any pace at all fills it
MOMENT = timedelta(milliseconds=5)


async def _going(pump: Pump, gateway: ScriptedAttempts, run_id: RunId) -> Lane:
    """A run whose pages have ended at some pace, and then stand still, the next ones at hand."""
    await until(lambda: run_id in pump.lanes and pump.lanes[run_id].rate > 1)
    gateway.gate.clear()
    lane = pump.lanes[run_id]
    await until(lambda: lane.calls == 3 and len(lane.ahead) == 6)
    return lane


async def _house(pace: Pace) -> tuple[House, ScriptedAttempts, Pump, RunId]:
    house, gateway = a_house(limits=Limits()), ScriptedAttempts(lasting=MOMENT)
    _, run_id = await house.submit(400, max_inflight=3)
    return house, gateway, a_pump(house, gateway.attempt, pace), run_id


async def test_as_a_page_ends_the_next_begins_though_the_engine_gives_none() -> None:
    _, gateway, pump, run_id = await _house(quick(lead=LEAD))
    async with running(pump):
        lane = await _going(pump, gateway, run_id)
        begun, at_hand = len(gateway.started), [flight.task.id for flight in lane.ahead]
        pump.work = Silent(pump.work)  # type: ignore[assignment]
        gateway.gate.set()
        await until(lambda: len(gateway.started) == begun + 6)
        assert [task.id for task in gateway.started[begun:]] == at_hand
    assert gateway.most[run_id] == 3


async def test_what_was_claimed_ahead_goes_back_uncharged_when_the_program_stops() -> None:
    house, gateway, pump, run_id = await _house(quick(lead=LEAD, grace=timedelta()))
    async with running(pump):
        lane = await _going(pump, gateway, run_id)
        ahead = {flight.task.id for flight in lane.ahead}
    rows = {row.id: row for row in await house.rows(run_id)}
    assert {rows[task_id].status for task_id in ahead} == {TaskStatus.PENDING}
    assert {(rows[task_id].attempts, rows[task_id].lost) for task_id in ahead} == {(0, 0)}
    await house.check_counts(run_id)


async def test_what_was_claimed_ahead_goes_back_when_the_run_is_paused() -> None:
    house, gateway, pump, run_id = await _house(quick(lead=LEAD))
    pausing = Pause(metadata=house.metadata, clock=house.clock, wake=pump.wake)
    async with running(pump):
        lane = await _going(pump, gateway, run_id)
        await pausing.turn(CALLER, lane.job.id, PauseState.PAUSED)
        await until(lambda: len(pump.flights) == 3)
        begun = len(gateway.started)
        gateway.gate.set()
        await until(lambda: not pump.flights)
        assert len(gateway.started) == begun


async def test_a_claim_that_another_worker_took_over_is_not_begun() -> None:
    house, gateway, pump, run_id = await _house(quick(lead=LEAD))
    async with running(pump):
        lane = await _going(pump, gateway, run_id)
        lost = lane.ahead[0].task
        house.clock.advance(LEASE * 2)
        taken = await house.work.claim({run_id: 400})
        assert lost.id in {task.id for task in taken}
        await until(lambda: (run_id, lost.id) not in pump.flights)
        gateway.gate.set()
    assert lost not in gateway.started


@pytest.mark.parametrize("lead", [timedelta(), timedelta(milliseconds=1)])
async def test_pages_that_end_slowly_are_not_claimed_ahead(lead: timedelta) -> None:
    _, gateway, pump, run_id = await _house(quick(lead=lead))
    async with running(pump):
        await until(lambda: run_id in pump.lanes and pump.lanes[run_id].rate > 1)
        gateway.gate.clear()
        await until(lambda: pump.lanes[run_id].calls == 3)
        assert not pump.lanes[run_id].ahead


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

    async def attempt(task: Task, assignment: Assignment) -> Result:
        await gateway.attempt(task, assignment)
        return replace(A_PAGE, limit=2)

    _, long = await house.submit(400, max_inflight=3)
    pump = a_pump(house, attempt, quick(lead=LEAD))
    async with running(pump):
        await until(lambda: long in pump.lanes and pump.lanes[long].ahead)
        begun = len(gateway.started)
        _, short = await house.submit(10)
        pump.wake(short)
        await until(lambda: sum(task.run_id == short for task in gateway.started) == 10)
    ours = sum(task.run_id == long for task in gateway.started[begun:])
    assert ours < 60  # of 390, as many as the other's but for what was under way
