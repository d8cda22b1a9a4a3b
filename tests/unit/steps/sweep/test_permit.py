"""Of several processes one sweeps; when it is gone another does."""

from datetime import timedelta

import pytest

from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.errors import Unavailable
from conveyor.steps.sweep.permit import NAME, SweeperPermit
from conveyor.testing.clock import FakeClock
from tests.harness.memory_service import a_house, away

LEASE = timedelta(seconds=30)


def permits(clock: FakeClock) -> tuple[SweeperPermit, SweeperPermit]:
    coordination = MemoryCoordination(clock, lease=LEASE)
    one, other = (
        SweeperPermit(coordination=coordination, clock=clock, lease=LEASE) for _ in range(2)
    )
    return one, other


async def test_the_holder_keeps_its_permit_from_round_to_round() -> None:
    clock = FakeClock()
    one, other = permits(clock)
    for _ in range(20):
        assert await one.take()
        assert not await other.take()
        for _ in range(6):
            clock.advance(LEASE / 3)
            await one.renew()
            await other.renew()


async def test_another_process_sweeps_once_the_holder_has_stopped() -> None:
    one, other = permits(FakeClock())
    assert await one.take()
    await one.release()
    assert await other.take()
    assert not await one.take()


async def test_another_process_sweeps_once_the_permit_of_a_dead_one_has_lapsed() -> None:
    clock = FakeClock()
    one, other = permits(clock)
    assert await one.take()
    clock.advance(LEASE)
    assert await other.take()
    await one.renew()  # it was suspended, and must not take the permit back
    assert not await one.take()
    assert await one.coordination.held(NAME) == 1


async def test_no_round_is_made_without_the_permit_or_without_coordination() -> None:
    house = a_house()
    assert house.sweep.permit
    other = SweeperPermit(coordination=house.coordination, clock=house.clock, lease=LEASE)
    assert await other.take()
    await house.sweep.step()
    assert not house.sweep.cursors

    await other.release()
    with away(house.trace, "coordination.reserve", Unavailable("away")), pytest.raises(Unavailable):
        await house.sweep.step()
    assert not house.sweep.cursors

    await house.sweep.step()
    assert house.sweep.cursors
