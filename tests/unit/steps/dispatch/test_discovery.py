"""The map of live runs stays true although reads lag, fail, or never happen."""

from datetime import timedelta

import pytest

from conveyor.domain.ids import RunId
from conveyor.domain.run import PauseState
from conveyor.errors import Unavailable
from conveyor.steps.dispatch.discovery import MOST_CHANGED
from tests.harness.dispatchers import a_dispatcher, quick
from tests.harness.memory_service import CALLER, ScriptedAttempts, a_house, away

AT_ONCE = timedelta()
LATER = timedelta(hours=1)


async def test_a_listing_that_lags_does_not_end_the_service_of_a_live_run() -> None:
    house = a_house()
    _, run_id = await house.submit(3)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(resync=AT_ONCE))
    await dispatcher.discovery.refresh()
    active = dispatcher.runs[run_id]
    active.unsettled += 1  # a task in flight keeps the run in the map

    async def lagging(**_: object) -> list[object]:
        return []

    dispatcher.discovery.metadata.live_runs = lagging  # type: ignore[method-assign,assignment]
    await dispatcher.discovery.refresh()

    assert dispatcher.runs[run_id] is active
    assert active.is_open


@pytest.mark.parametrize("woken", [True, False])
async def test_a_run_that_is_seen_live_again_is_served_again(*, woken: bool) -> None:
    house = a_house()
    _, run_id = await house.submit(3)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(resync=AT_ONCE))
    await dispatcher.discovery.refresh()
    dispatcher.runs[run_id].is_gone = True

    if woken:
        await dispatcher.discovery.look_at(run_id)
    else:
        await dispatcher.discovery.refresh()

    assert dispatcher.runs[run_id].is_open


async def test_a_listing_that_lags_does_not_undo_a_pause() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(resync=AT_ONCE))
    await dispatcher.discovery.refresh()
    before = await house.run(run_id)
    await house.lifecycle.set_pause(CALLER, job_id, PauseState.PAUSED)
    await dispatcher.discovery.look_at(run_id)
    active = dispatcher.runs[run_id]
    assert not active.is_open

    pages = [[before], []]

    async def lagging(**_: object) -> object:
        return pages.pop(0)

    dispatcher.discovery.metadata.live_runs = lagging  # type: ignore[method-assign,assignment]
    await dispatcher.discovery.refresh()

    assert not active.is_open


async def test_changed_runs_that_could_not_be_read_are_read_later() -> None:
    house = a_house()
    runs = {(await house.submit(1))[1] for _ in range(3)}
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(resync=LATER, refresh=LATER))
    discovery = dispatcher.discovery
    discovery.resync_at = discovery.refresh_at = discovery.clock.monotonic() + 3600
    for run_id in runs:
        dispatcher.wake(run_id)

    with away(house.trace, "metadata.get(Run)", Unavailable("away")), pytest.raises(Unavailable):
        await discovery.refresh()
    assert discovery.changed == runs
    await discovery.refresh()

    assert dispatcher.runs.keys() == runs
    assert not discovery.changed


async def test_a_process_that_reads_no_runs_keeps_few_changed_ones() -> None:
    house = a_house()
    _, run_id = await house.submit(1)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(resync=LATER, refresh=LATER))
    discovery = dispatcher.discovery
    discovery.resync_at = discovery.refresh_at = discovery.clock.monotonic() + 3600
    dispatcher.wake(run_id)
    for number in range(2 * MOST_CHANGED):
        dispatcher.wake(RunId(f"run-{number}"))
    assert len(discovery.changed) <= MOST_CHANGED

    discovery.changed.clear()
    await discovery.refresh()

    assert run_id in dispatcher.runs


async def test_changes_that_another_process_made_are_seen_by_the_next_refresh() -> None:
    """Nothing wakes this dispatcher, and it lists all live runs only once."""
    house = a_house()
    job_id, run_id = await house.submit(3)
    dispatcher = a_dispatcher(
        house, ScriptedAttempts().attempt, quick(resync=LATER, refresh=AT_ONCE)
    )
    await dispatcher.discovery.refresh()
    active = dispatcher.runs[run_id]

    _, later = await house.submit(2)
    await house.lifecycle.set_pause(CALLER, job_id, PauseState.PAUSED)
    await dispatcher.discovery.refresh()
    assert dispatcher.runs.keys() == {run_id, later}
    assert not active.is_open

    await house.lifecycle.stop(CALLER, job_id)
    await dispatcher.discovery.refresh()
    assert dispatcher.runs.keys() == {later}


async def test_changes_that_could_not_be_read_are_read_later() -> None:
    house = a_house()
    dispatcher = a_dispatcher(
        house, ScriptedAttempts().attempt, quick(resync=LATER, refresh=AT_ONCE)
    )
    await dispatcher.discovery.refresh()
    _, run_id = await house.submit(1)

    with away(house.trace, "metadata.get(Run)", Unavailable("away")), pytest.raises(Unavailable):
        await dispatcher.discovery.refresh()
    await dispatcher.discovery.refresh()

    assert run_id in dispatcher.runs


async def test_a_change_that_this_process_knows_is_not_read_again() -> None:
    house = a_house()
    _, run_id = await house.submit(1)
    dispatcher = a_dispatcher(
        house, ScriptedAttempts().attempt, quick(resync=LATER, refresh=AT_ONCE)
    )
    await dispatcher.discovery.refresh()
    await dispatcher.discovery.look_at(run_id)
    reads = len(house.trace.of("metadata.get(Run)"))

    await dispatcher.discovery.refresh()

    assert len(house.trace.of("metadata.get(Run)")) == reads
