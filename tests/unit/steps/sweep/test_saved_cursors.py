"""The next sweeper goes on where the last one ended."""

from dataclasses import replace

import pytest

from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.errors import Unavailable
from conveyor.steps.sweep import sweeper as sweep_step
from conveyor.steps.sweep.checks import YOUNG, SweepCursor
from conveyor.steps.sweep.permit import SweeperPermit
from conveyor.steps.sweep.saved_cursors import LIFE, MOST_SUSPECTS, NAME, SavedCursors
from conveyor.steps.sweep.sweeper import Sweeper
from conveyor.testing.clock import FakeClock
from tests.harness.memory_service import House, a_house, away
from tests.unit.steps.sweep.test_permit import LEASE
from tests.unit.steps.sweep.test_sweeper_bounds import A_MINUTE, _die_before_commit, _ended_runs


def next_sweeper(house: House) -> Sweeper:
    """The sweeper of another process."""
    return replace(
        house.sweep,
        permit=SweeperPermit(coordination=house.coordination, clock=house.clock, lease=LEASE),
        saved=SavedCursors(coordination=house.coordination),
        resumed=None,
        cursors={},
        counts={},
        idle={},
    )


async def one_round(sweeper: Sweeper) -> None:
    await sweeper.step()
    assert sweeper.permit
    await sweeper.permit.release()


async def test_a_long_listing_is_swept_to_its_end_although_each_sweeper_makes_one_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep_step, "ROUND", 2)
    house = a_house()
    await _ended_runs(house, 5)
    orphan = await _die_before_commit(house)
    house.clock.advance(YOUNG + A_MINUTE)

    for _ in range(12):  # two passes
        await one_round(next_sweeper(house))

    assert orphan not in await house.tasks.runs_held(limit=99)
    assert house.swept == {"orphan_rows": 1}


async def test_a_sweeper_begins_again_if_the_cursors_are_lost_or_of_another_release() -> None:
    house = a_house()
    first = next_sweeper(house)
    await one_round(first)
    for value in (b"{", b'{"rows":{"after":7}}', b"[]"):
        await house.coordination.remember({NAME: value}, life=LIFE)
        sweeper = next_sweeper(house)
        await one_round(sweeper)
        assert sweeper.cursors.keys() == first.cursors.keys()


async def test_cursors_are_saved_although_an_engine_or_coordination_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep_step, "ROUND", 2)
    house = a_house()
    await _ended_runs(house, 5)
    sweeper = next_sweeper(house)
    with away(house.trace, "metadata.live_runs", Unavailable("away")), pytest.raises(Unavailable):
        await sweeper.step()
    saved = await SavedCursors(coordination=house.coordination).load()
    assert saved["rows"].after == sweeper.cursors["rows"].after != ""

    with away(house.trace, "coordination.remember", Unavailable("away")):
        await sweeper.step()
    assert sweeper.cursors["rows"].after > saved["rows"].after
    await sweeper.step()
    saved = await SavedCursors(coordination=house.coordination).load()
    assert saved["rows"].after == sweeper.cursors["rows"].after


async def test_cursors_that_have_not_changed_are_not_written_again() -> None:
    house = a_house()
    await _ended_runs(house, 2)
    sweeper = next_sweeper(house)
    for _ in range(3):
        await sweeper.step()
    house.trace.forget()
    for _ in range(4):
        await sweeper.step()
    # The cursor over ended runs is at their end and at their beginning in turn.
    assert len(house.trace.of("coordination.remember")) <= 4
    assert not house.trace.of("coordination.recall")


async def test_the_value_stays_small() -> None:
    coordination = MemoryCoordination(FakeClock(), lease=LEASE)
    many = {f"rows {number:026}" for number in range(5_000)}
    cursors = {f"listing {number}": SweepCursor("x" * 100, many, many) for number in range(12)}
    await SavedCursors(coordination=coordination).save(cursors)
    value = (await coordination.recall([NAME]))[NAME]
    assert len(value) < 200_000
    loaded = await SavedCursors(coordination=coordination).load()
    assert {len(cursor.suspects) for cursor in loaded.values()} == {MOST_SUSPECTS}
