"""Close, stop, pause and resume: each takes effect once, however often it is called."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from msgspec import structs

from conveyor.domain import job as job_rules
from conveyor.domain.ids import JobId
from conveyor.domain.job import JobStatus
from conveyor.domain.run import IngestStatus, PauseState, RunStatus
from conveyor.domain.task import Task, TaskStatus
from conveyor.errors import Conflict, NotFound, RunNotStoppable, Unavailable
from conveyor.steps.shared.attempt import CallResult, Fetched
from conveyor.testing.factories import scraped, settlement
from tests.harness.memory_service import (
    CALLER,
    STRANGER,
    House,
    a_call,
    a_house,
    away,
    ids_as_reply,
)

Ask = Callable[[House, JobId], Awaitable[None]]


async def _close(house: House, job_id: JobId) -> None:
    await house.lifecycle.close(CALLER, job_id)


async def _stop(house: House, job_id: JobId) -> None:
    await house.lifecycle.stop(CALLER, job_id)


BOTH = pytest.mark.parametrize("ask", [_close, _stop])


async def test_closing_an_empty_job_completes_its_run() -> None:
    house = a_house()
    job_id, run_id = await house.submit(0, status="open")

    await house.lifecycle.close(CALLER, job_id)

    assert (await house.job(job_id)).status is JobStatus.CLOSED
    run = await house.run(run_id)
    assert (run.status, run.total) == (RunStatus.COMPLETED, 0)


async def test_closing_a_job_whose_tasks_are_done_completes_its_run() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3, status="open")
    await house.drain(run_id, _page)
    assert (await house.run(run_id)).status is RunStatus.RUNNING

    await house.lifecycle.close(CALLER, job_id)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED


async def test_closing_a_job_with_work_left_lets_its_last_task_complete_the_run() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3, status="open")

    await house.lifecycle.close(CALLER, job_id)
    assert (await house.run(run_id)).status is RunStatus.RUNNING
    await house.drain(run_id, _page)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED


async def test_closing_again_changes_nothing() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3, status="open")
    await house.lifecycle.close(CALLER, job_id)
    before = await house.job(job_id), await house.run(run_id)

    await house.lifecycle.close(CALLER, job_id)

    assert (await house.job(job_id), await house.run(run_id)) == before


async def test_a_close_that_dies_after_its_write_is_made_up_for_by_the_next() -> None:
    house = a_house()
    job_id, run_id = await house.submit(0, status="open")
    with away(house.trace, "tasks.counts", Unavailable("away")), pytest.raises(Unavailable):
        await house.lifecycle.close(CALLER, job_id)
    assert (await house.run(run_id)).status is RunStatus.RUNNING

    await house.lifecycle.close(CALLER, job_id)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED


async def test_a_close_that_loses_a_race_against_an_addition_closes_after_it() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1, status="open")
    house.trace.before(
        "metadata.commit", 1, lambda: house.add_tasks.add(a_call(2, first=1), job_id, ids_as_reply)
    )

    await house.lifecycle.close(CALLER, job_id)

    assert (await house.job(job_id)).status is JobStatus.CLOSED
    run = await house.run(run_id)
    assert (run.total, run.last_batch_received) == (3, True)
    await house.drain(run_id, _page)
    assert (await house.run(run_id)).status is RunStatus.COMPLETED


async def test_a_job_whose_run_was_stopped_can_still_be_closed() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1, status="open")
    await house.lifecycle.stop(CALLER, job_id)
    stopped = await house.run(run_id)

    await house.lifecycle.close(CALLER, job_id)

    assert (await house.job(job_id)).status is JobStatus.CLOSED
    assert await house.run(run_id) == stopped


@BOTH
async def test_strangers_and_the_mistaken_find_no_job(ask: Ask) -> None:
    house = a_house()
    job_id, run_id = await house.submit(1, status="open")
    before = await house.run(run_id)

    with pytest.raises(NotFound):
        await ask(house, JobId(house.ids.new()))
    with pytest.raises(NotFound):
        await house.lifecycle.close(STRANGER, job_id)
    with pytest.raises(NotFound):
        await house.lifecycle.stop(STRANGER, job_id)

    assert await house.run(run_id) == before


@BOTH
async def test_a_deleted_job_is_not_there(ask: Ask) -> None:
    house = a_house()
    job_id, _ = await house.submit(1, status="open")
    await house.metadata.commit(job_rules.delete(await house.job(job_id), house.clock.now()))

    with pytest.raises(NotFound):
        await ask(house, job_id)


async def test_a_job_without_a_run_is_closed_and_has_nothing_to_stop() -> None:
    house = a_house()
    job_id, _ = await house.submit(1, status="open")
    await house.metadata.commit(structs.replace(await house.job(job_id), latest_run_id=None))

    await house.lifecycle.close(CALLER, job_id)
    with pytest.raises(RunNotStoppable):
        await house.lifecycle.stop(CALLER, job_id)

    assert (await house.job(job_id)).status is JobStatus.CLOSED


async def test_a_stopped_run_gives_out_nothing_and_what_was_in_flight_counts() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    [task] = await house.work.claim({run_id: 1})
    house.woken.clear()

    run = await house.lifecycle.stop(CALLER, job_id)

    assert run.status is RunStatus.STOPPED
    assert house.woken == [run_id]
    assert await house.work.claim({run_id: 9}) == []
    assert await house.work.settle([settlement(task, scraped())]) == [True]
    assert await house.done(run_id) == 1
    assert not await house.complete.check_completion(run_id)
    statuses = [row.status for row in await house.rows(run_id)]
    assert statuses == [TaskStatus.SUCCESSFUL, TaskStatus.PENDING, TaskStatus.PENDING]


async def test_stopping_again_gives_the_same_run() -> None:
    house = a_house()
    job_id, _ = await house.submit(3)

    first = await house.lifecycle.stop(CALLER, job_id)
    house.clock.advance(timedelta(days=1))

    assert await house.lifecycle.stop(CALLER, job_id) == first


async def test_a_stop_whose_work_could_not_be_closed_closes_it_when_repeated() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    with away(house.trace, "work.close", Unavailable("away")), pytest.raises(Unavailable):
        await house.lifecycle.stop(CALLER, job_id)
    assert (await house.run(run_id)).status is RunStatus.STOPPED

    await house.lifecycle.stop(CALLER, job_id)

    assert await house.work.claim({run_id: 9}) == []


async def test_a_run_that_has_ended_cannot_be_stopped() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1)
    await house.drain(run_id, _page)

    with pytest.raises(RunNotStoppable, match="completed"):
        await house.lifecycle.stop(CALLER, job_id)


async def test_a_stop_that_loses_a_race_against_completion_says_so() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1)
    house.trace.before("metadata.commit", 1, lambda: house.drain(run_id, _page))

    with pytest.raises(RunNotStoppable):
        await house.lifecycle.stop(CALLER, job_id)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED


async def test_a_stop_before_the_list_is_in_cuts_the_total_to_nothing() -> None:
    house = a_house()
    job_id, run_id = await house.submit(20)
    await house.lifecycle.stop(CALLER, job_id)

    await house.handle_messages()

    run = await house.run(run_id)
    assert (run.status, run.total, run.ingest_status, run.last_batch_received) == (
        RunStatus.STOPPED,
        0,
        IngestStatus.DONE,
        True,
    )
    assert await house.rows(run_id) == []
    assert await house.loose_lists() == []


def _page(_task: Task) -> CallResult:
    return Fetched(content=b"page", format="html")


async def test_a_run_is_paused_and_resumed_and_the_dispatcher_is_woken() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    house.woken.clear()

    paused = await house.lifecycle.set_pause(CALLER, job_id, PauseState.PAUSED)
    assert paused.is_paused
    assert house.woken == [run_id]
    resumed = await house.lifecycle.set_pause(CALLER, job_id, PauseState.ACTIVE)

    assert not resumed.is_paused
    assert (await house.run(run_id)).status is RunStatus.RUNNING


async def test_pausing_twice_writes_once() -> None:
    house = a_house()
    job_id, _ = await house.submit(3)
    first = await house.lifecycle.set_pause(CALLER, job_id, PauseState.PAUSED)

    assert await house.lifecycle.set_pause(CALLER, job_id, PauseState.PAUSED) == first


async def test_an_ended_run_cannot_be_paused_and_a_stranger_sees_no_job() -> None:
    house = a_house()
    job_id, _ = await house.submit(3)
    await house.lifecycle.stop(CALLER, job_id)

    with pytest.raises(Conflict):
        await house.lifecycle.set_pause(CALLER, job_id, PauseState.PAUSED)
    with pytest.raises(NotFound):
        await house.lifecycle.set_pause(STRANGER, job_id, PauseState.PAUSED)


async def test_a_run_that_moved_on_meanwhile_is_read_again() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)

    async def stop_first() -> None:
        await house.lifecycle.stop(CALLER, job_id)

    house.trace.before("metadata.commit", 1, stop_first)
    with pytest.raises(Conflict):
        await house.lifecycle.set_pause(CALLER, job_id, PauseState.PAUSED)
    assert (await house.run(run_id)).status is RunStatus.STOPPED


async def test_pausing_reports_an_engine_that_is_away() -> None:
    house = a_house()
    job_id, _ = await house.submit(3)
    with away(house.trace, "metadata.commit", Unavailable("away")), pytest.raises(Unavailable):
        await house.lifecycle.set_pause(CALLER, job_id, PauseState.PAUSED)
