"""Each process is listed while it lives, and sees the others."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.errors import Unavailable
from conveyor.ports.coordination import Member
from conveyor.steps.shared.members import LIFE, Members
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


async def test_a_process_is_dead_once_it_was_missing_for_a_whole_life() -> None:
    clock = FakeClock()
    coordination = Outage(clock)
    one, other = (members_of(clock, coordination, name) for name in ("one", "other"))
    assert one.is_alive("one")
    assert one.is_alive("other") is None, "nothing was read"

    for members in (other, one):
        await members.step()
    assert one.is_alive("other")
    await other.leave()
    await one.step()
    assert one.is_alive("other") is None, "the list may have been lost"
    clock.advance(LIFE)
    await one.step()
    assert one.is_alive("other") is False

    coordination.is_away = True
    await one.step()
    assert one.is_alive("other") is None
    coordination.is_away = False
    await one.step()
    assert one.is_alive("other") is None
    clock.advance(LIFE)
    assert one.is_alive("other") is False
    one.is_shared = False
    assert one.is_alive("other") is None, "each process has a list of its own"


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


async def test_processes_are_counted_by_their_roles() -> None:
    clock = FakeClock()
    coordination = MemoryCoordination(clock)
    one, other = (members_of(clock, coordination, name) for name in ("one", "other"))
    other.me = replace(other.me, role="api")
    assert one.count_with({"worker"}) == 1, "nothing was read"

    for members in (other, one):
        await members.step()

    assert one.count_with({"worker"}) == 1
    assert one.count_with({"worker", "api"}) == 2
