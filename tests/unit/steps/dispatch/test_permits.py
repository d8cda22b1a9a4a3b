"""Idle permits are released when their run cannot use them, and never used after their lease."""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest

from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.domain.run import PauseState
from conveyor.errors import Unavailable
from conveyor.steps.dispatch.permits import permit_name
from tests.harness.dispatchers import a_dispatcher, quick, running, waking
from tests.harness.memory_service import CALLER, ScriptedAttempts, a_house, away, until
from tests.harness.permits import permits_held, reserve

AGES = timedelta(hours=1)


async def test_the_idle_permits_of_a_paused_run_are_released() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    job_id, run_id = await house.submit(9, max_inflight=2)
    dispatcher = a_dispatcher(house, gateway.attempt)
    pausing = dataclasses.replace(house.lifecycle, notifier=waking(dispatcher))

    async with running(dispatcher):
        await until(lambda: len(gateway.started) == 2)
        await pausing.set_pause(CALLER, job_id, PauseState.PAUSED)
        await until(lambda: dispatcher.runs[run_id].run.is_paused)
        gateway.gate.set()
        await until(lambda: not dispatcher.inflight)
        await until(lambda: not dispatcher.runs[run_id].idle_permits)
        assert await permits_held(house.coordination, job_id) == 0


async def test_permits_that_are_idle_when_their_run_is_paused_are_released() -> None:
    house, gateway = a_house(), ScriptedAttempts()
    job_id, run_id = await house.submit(1, status="open")
    dispatcher = a_dispatcher(house, gateway.attempt)
    pausing = dataclasses.replace(house.lifecycle, notifier=waking(dispatcher))

    async with running(dispatcher):
        await until(lambda: gateway.started and not dispatcher.inflight)
        active = dispatcher.runs[run_id]
        active.idle_until = dispatcher.clock.monotonic() + 3600  # no claim releases them
        active.idle_permits += await reserve(house.coordination, job_id, want=2, cap=9)
        await pausing.set_pause(CALLER, job_id, PauseState.PAUSED)
        await until(lambda: not active.idle_permits)
        assert await permits_held(house.coordination, job_id) == 0


async def test_idle_permits_are_renewed_though_no_task_is_in_flight() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt)
    await dispatcher.discovery.refresh()
    permits = await reserve(house.coordination, job_id, want=2, cap=9)
    dispatcher.runs[run_id].idle_permits += permits

    house.clock.advance(dispatcher.config.lease / 2)
    await dispatcher.renew()
    house.clock.advance(dispatcher.config.lease * 0.75)

    assert await permits_held(house.coordination, job_id) == 2


async def test_permits_are_renewed_though_the_leases_cannot_be() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    job_id, _ = await house.submit(1)
    dispatcher = a_dispatcher(house, gateway.attempt)
    async with running(dispatcher):
        await until(lambda: gateway.started)
        house.clock.advance(dispatcher.config.lease / 2)
        with away(house.trace, "work.renew", Unavailable("away")), pytest.raises(Unavailable):
            await dispatcher.renew()
        house.clock.advance(dispatcher.config.lease * 0.75)

        assert await permits_held(house.coordination, job_id) == 1
        gateway.gate.set()


async def test_idle_permits_that_were_not_renewed_in_time_are_not_used() -> None:
    house = a_house()
    job_id, run_id = await house.submit(9, max_inflight=2)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(lease=timedelta()))
    await dispatcher.discovery.refresh()
    active = dispatcher.runs[run_id]
    lapsed = await reserve(house.coordination, job_id, want=2, cap=2)
    active.idle_permits += lapsed

    permits = await dispatcher.permits.reserve({active: active.begin_claim(2, 0)})

    assert permits == {active: 2}
    assert not set(lapsed) & set(active.idle_permits)
    assert await permits_held(house.coordination, job_id) == 2


async def test_a_late_renewal_takes_no_lapsed_permit_for_a_call_that_does_not_run() -> None:
    house = a_house()
    job_id, run_id = await house.submit(9, max_inflight=2)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(lease=timedelta()))
    await dispatcher.discovery.refresh()
    active = dispatcher.runs[run_id]
    active.idle_permits += await reserve(house.coordination, job_id, want=2, cap=2)
    with away(house.trace, "coordination.release", Unavailable("away")):
        house.clock.advance(AGES)
        await dispatcher.renew()

    assert not active.idle_permits
    assert await permits_held(house.coordination, job_id) == 0


async def test_permits_of_all_runs_of_a_round_are_reserved_and_released_in_one_call() -> None:
    house = a_house()
    jobs = [(await house.submit(5, max_inflight=cap))[0] for cap in (2, 3, 4)]
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt)
    await dispatcher.discovery.refresh()
    runs = list(dispatcher.runs.values())
    house.trace.forget()

    reserved = await dispatcher.permits.reserve({run: run.begin_claim(3, 0) for run in runs})

    assert sorted(reserved.values()) == [2, 3, 3]
    assert [await permits_held(house.coordination, job_id) for job_id in jobs] == [2, 3, 3]
    assert house.trace.of("coordination.reserve") == ["coordination.reserve"]

    await dispatcher.permits.release_idle(runs)

    assert [await permits_held(house.coordination, job_id) for job_id in jobs] == [0, 0, 0]
    assert house.trace.of("coordination.release") == ["coordination.release"]


async def test_runs_of_one_job_share_its_cap_within_a_call() -> None:
    house = a_house()
    job_id, run_id = await house.submit(5, max_inflight=4)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt)
    await dispatcher.discovery.refresh()
    one = dispatcher.runs[run_id]
    other = dataclasses.replace(one, idle_permits=[])

    reserved = await dispatcher.permits.reserve(
        {run: run.begin_claim(3, 0) for run in (one, other)}
    )

    assert list(reserved.values()) == [3, 1]
    assert not set(one.idle_permits) & set(other.idle_permits)
    assert await permits_held(house.coordination, job_id) == 4


async def test_an_outage_shorter_than_a_lease_ends_the_use_of_idle_permits() -> None:
    house = a_house()
    job_id, run_id = await house.submit(9, max_inflight=2)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt)
    await dispatcher.discovery.refresh()
    active = dispatcher.runs[run_id]
    idle = await reserve(house.coordination, job_id, want=2, cap=2)
    active.idle_permits += idle
    with away(house.trace, "coordination.renew", Unavailable("away")), pytest.raises(Unavailable):
        await dispatcher.renew()
    # It returns empty, and another process is first.
    await house.coordination.release({permit_name(job_id): idle})
    await reserve(house.coordination, job_id, want=2, cap=2)

    await dispatcher.renew()

    assert not active.idle_permits
    assert await permits_held(house.coordination, job_id) == 2


async def test_idle_permits_of_an_outage_are_released_when_the_engine_answers() -> None:
    house = a_house()
    job_id, run_id = await house.submit(9, max_inflight=2)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt)
    await dispatcher.discovery.refresh()
    active = dispatcher.runs[run_id]
    active.idle_permits += await reserve(house.coordination, job_id, want=2, cap=2)
    with away(house.trace, "coordination.renew", Unavailable("away")), pytest.raises(Unavailable):
        await dispatcher.renew()

    assert await dispatcher.permits.reserve({active: active.begin_claim(2, 0)}) == {active: 2}
    assert await permits_held(house.coordination, job_id) == 2


async def test_a_permit_that_is_released_during_its_renewal_is_not_taken_again() -> None:
    house = a_house()
    job_id, run_id = await house.submit(9, max_inflight=2)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt)
    await dispatcher.discovery.refresh()
    active = dispatcher.runs[run_id]
    active.idle_permits += await reserve(house.coordination, job_id, want=2, cap=2)

    class Overtaken(MemoryCoordination):
        async def renew(self, permits: Mapping[str, Sequence[str]]) -> None:
            await dispatcher.permits.release_idle([active])
            await house.coordination.renew(permits)

        async def release(self, permits: Mapping[str, Sequence[str]]) -> None:
            await house.coordination.release(permits)

    dispatcher.permits.coordination = Overtaken(house.clock)
    await dispatcher.renew()

    assert await permits_held(house.coordination, job_id) == 0
