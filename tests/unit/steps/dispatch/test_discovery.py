"""The map of live runs stays true although reads lag, fail, or never happen."""

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from conveyor.domain.failure import AccountReason
from conveyor.domain.ids import RunId
from conveyor.domain.run import PauseState
from conveyor.errors import Unavailable
from conveyor.ports.coordination import PermitRequest
from conveyor.steps.dispatch.discovery import MOST_CHANGED, MOST_UNKNOWN
from conveyor.steps.dispatch.permits import permit_name
from tests.harness.dispatchers import a_dispatcher, quick
from tests.harness.memory_service import CALLER, KEY, ScriptedAttempts, a_house, away

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


async def test_a_listing_that_lags_does_not_let_an_ended_run_join() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    before = await house.run(run_id)
    await house.lifecycle.stop(CALLER, job_id)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(resync=AT_ONCE))
    pages = [[before], []]

    async def lagging(**_: object) -> object:
        return pages.pop(0)

    dispatcher.discovery.metadata.live_runs = lagging  # type: ignore[method-assign,assignment]
    await dispatcher.discovery.refresh()

    assert run_id not in dispatcher.runs


async def test_the_permits_of_all_runs_that_ended_are_released_in_one_call() -> None:
    house = a_house()
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(refresh=AT_ONCE))
    jobs = [await house.submit(1) for _ in range(3)]
    await dispatcher.discovery.refresh()
    for active in dispatcher.runs.values():
        name = permit_name(active.job.id)
        granted = await house.coordination.reserve({name: PermitRequest(1, 1)})
        active.idle_permits += granted[name]
    for job_id, _ in jobs:
        await house.lifecycle.stop(CALLER, job_id)
    await dispatcher.discovery.refresh()

    assert not dispatcher.runs
    assert len(house.trace.of("coordination.release")) == 1
    assert [await house.coordination.held(permit_name(job_id)) for job_id, _ in jobs] == [0, 0, 0]


async def test_a_key_that_is_served_again_wakes_the_claim_loops() -> None:
    house = a_house()
    _, run_id = await house.submit(1)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick())
    discovery = dispatcher.discovery
    await discovery.refresh()
    digest = dispatcher.runs[run_id].key_state.digest
    now = discovery.clock.monotonic()
    discovery.refused_keys.refuse(
        digest, AccountReason.INSUFFICIENT_CREDITS, "no credits", now, discovery.clock.now()
    )
    dispatcher.runs[run_id].key_state.limiter.close(now, LATER)
    discovery.has_changed = False
    discovery.woken.clear()

    discovery.keys_served([digest])

    assert discovery.woken.is_set()
    assert discovery.has_changed
    assert discovery.refused(dispatcher.runs[run_id]) is None
    assert dispatcher.runs[run_id].may_start(discovery.clock.monotonic())


async def test_a_run_follows_the_changes_of_its_job() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3, max_inflight=9, max_per_host=5)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(resync=LATER))
    await dispatcher.discovery.refresh()
    active = dispatcher.runs[run_id]
    job = await house.job(job_id)
    await house.metadata.commit(replace(job, max_inflight=2, max_per_host=1, retries=7))

    dispatcher.wake(run_id)
    await dispatcher.discovery.refresh()

    assert active.room() == 2
    assert active.claim_size == 1
    assert active.hosts.limit == 1
    assert active.assignment.policy.retries == 7
    assert active.assignment.gateway_key == KEY


async def test_a_notification_of_many_runs_is_read_as_a_page() -> None:
    house = a_house()
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(resync=LATER, refresh=LATER))
    await dispatcher.discovery.refresh()
    _, run_id = await house.submit(1)
    others = [f"run-{number}" for number in range(MOST_UNKNOWN)]

    dispatcher.discovery.notified([run_id, *others])
    await dispatcher.discovery.refresh()

    assert dispatcher.runs.keys() == {run_id}
    assert not dispatcher.discovery.changed


async def test_a_notification_that_names_nothing_is_answered_by_a_look_at_all_runs() -> None:
    house = a_house()
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(resync=LATER, refresh=LATER))
    await dispatcher.discovery.refresh()
    _, run_id = await house.submit(1)

    dispatcher.discovery.notified(None)
    await dispatcher.discovery.refresh()

    assert dispatcher.runs.keys() == {run_id}


async def test_changes_are_read_on_after_a_short_page() -> None:
    house = a_house()
    dispatcher = a_dispatcher(
        house, ScriptedAttempts().attempt, quick(resync=LATER, refresh=AT_ONCE)
    )
    await dispatcher.discovery.refresh()
    runs = {(await house.submit(1))[1] for _ in range(3)}
    whole = dispatcher.discovery.metadata.changed_runs

    async def short(since: str | None, *, limit: int) -> object:
        return await whole(since, limit=min(limit, 1))

    dispatcher.discovery.metadata.changed_runs = short  # type: ignore[method-assign,assignment]
    await dispatcher.discovery.refresh()

    assert dispatcher.runs.keys() == runs


async def test_a_run_that_leaves_the_map_during_a_read_is_not_forgotten_twice() -> None:
    house = a_house()
    _, run_id = await house.submit(3)
    config = quick(serve_idle=timedelta(microseconds=1))
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, config)
    await dispatcher.discovery.refresh()
    active = dispatcher.runs[run_id]
    active.empty_since = house.clock.monotonic() - 1
    await asyncio.gather(*[dispatcher.discovery.leave_ended([active]) for _ in range(2)])
    assert run_id not in dispatcher.runs
    assert active.key_state.limiter.runs == 0
