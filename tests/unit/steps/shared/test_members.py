"""Each process is listed while it lives, and sees the others."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.errors import Unavailable
from conveyor.ports.coordination import Member
from conveyor.steps.shared.members import ANNOUNCE_EVERY, LIFE, Members
from conveyor.testing.clock import FakeClock


def members_of(clock: FakeClock, coordination: MemoryCoordination, name: str) -> Members:
    me = Member(id=name, role="worker", host="host", version="1", started_at=clock.now())
    return Members(coordination=coordination, clock=clock, me=me)


class Outage(MemoryCoordination):
    is_away = False

    async def members(self) -> Sequence[Member]:
        if self.is_away:
            raise Unavailable("away")
        return await super().members()


async def test_live_processes_see_each_other_until_they_leave() -> None:
    clock = FakeClock()
    coordination = MemoryCoordination(clock)
    one, other = (members_of(clock, coordination, name) for name in ("one", "other"))
    assert one.count == 1

    for members in (one, other, one):
        await members.step()
    assert one.count == 2
    assert one.is_alive("other")

    await other.leave()
    await one.step()
    assert one.count == 1
    assert not one.is_alive("other")


async def test_a_process_that_died_is_dead_after_a_life_without_announcements() -> None:
    clock = FakeClock()
    coordination = MemoryCoordination(clock)
    one, other = (members_of(clock, coordination, name) for name in ("one", "other"))
    await other.step()
    for seconds in range(0, 60, 5):
        await one.step()
        is_over = seconds >= 2 * LIFE.total_seconds() - ANNOUNCE_EVERY.total_seconds()
        assert one.is_dead("other") is is_over, seconds
        clock.advance(ANNOUNCE_EVERY)
    assert not one.is_dead("one")


async def test_no_process_is_dead_before_a_whole_life_was_read() -> None:
    clock = FakeClock()
    coordination = Outage(clock)
    one = members_of(clock, coordination, "one")
    assert not one.is_dead("unknown")
    await one.step()
    clock.advance(LIFE - timedelta(seconds=1))
    coordination.is_away = True
    await one.step()
    clock.advance(LIFE)
    assert not one.is_dead("unknown")

    coordination.is_away = False
    await one.step()
    clock.advance(LIFE - timedelta(seconds=1))
    assert not one.is_dead("unknown")
    clock.advance(timedelta(seconds=1))
    assert one.is_dead("unknown")


@pytest.mark.parametrize("times", [1, 3])
async def test_an_outage_is_logged_once(*, times: int) -> None:
    clock = FakeClock()
    coordination = Outage(clock)
    one = members_of(clock, coordination, "one")
    coordination.is_away = True
    with capture_logs() as logs:
        for _ in range(times):
            await one.step()
    assert [line["event"] for line in logs] == ["members.unavailable"]


async def test_the_keys_that_a_process_has_are_announced_as_they_change() -> None:
    clock = FakeClock()
    coordination = MemoryCoordination(clock)
    one = members_of(clock, coordination, "one")
    keys = ["first"]
    one.keys = lambda: keys
    await one.step()
    keys = ["first", "second"]
    await one.step()
    [member] = await coordination.members()
    assert member.keys == ("first", "second")
