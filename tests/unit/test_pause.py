"""Pause and resume over the memory engine."""

import pytest

from conveyor.domain.run import PauseState, RunStatus
from conveyor.errors import Conflict, NotFound, Unavailable
from conveyor.steps.pause import Pause
from tests.unit.kit import CALLER, House, a_house, away


def a_pause(house: House) -> Pause:
    return Pause(metadata=house.metadata, clock=house.clock, wake=house.woken.append)


async def test_a_run_is_paused_and_resumed_and_the_pump_is_told() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    house.woken.clear()

    paused = await a_pause(house).turn(CALLER, job_id, PauseState.PAUSED)
    assert paused.is_paused
    assert house.woken == [run_id]
    resumed = await a_pause(house).turn(CALLER, job_id, PauseState.ACTIVE)

    assert not resumed.is_paused
    assert (await house.run(run_id)).status is RunStatus.RUNNING


async def test_pausing_twice_writes_once() -> None:
    house = a_house()
    job_id, _ = await house.submit(3)
    first = await a_pause(house).turn(CALLER, job_id, PauseState.PAUSED)

    assert await a_pause(house).turn(CALLER, job_id, PauseState.PAUSED) == first


async def test_an_ended_run_cannot_be_paused_and_a_stranger_sees_no_job() -> None:
    house = a_house()
    job_id, _ = await house.submit(3)
    await house.close.stop(CALLER, job_id)

    with pytest.raises(Conflict):
        await a_pause(house).turn(CALLER, job_id, PauseState.PAUSED)
    with pytest.raises(NotFound):
        await a_pause(house).turn(type(CALLER)("a stranger"), job_id, PauseState.PAUSED)


async def test_a_run_that_moved_on_meanwhile_is_read_again() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)

    async def stop_first() -> None:
        await house.close.stop(CALLER, job_id)

    house.trace.before("metadata.commit", 1, stop_first)
    with pytest.raises(Conflict):
        await a_pause(house).turn(CALLER, job_id, PauseState.PAUSED)
    assert (await house.run(run_id)).status is RunStatus.STOPPED


async def test_an_engine_that_is_away_is_told() -> None:
    house = a_house()
    job_id, _ = await house.submit(3)
    with away(house.trace, "metadata.commit", Unavailable("away")), pytest.raises(Unavailable):
        await a_pause(house).turn(CALLER, job_id, PauseState.PAUSED)
