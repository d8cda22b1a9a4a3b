"""A run completes exactly once, when nothing is left to do and no more can come."""

import asyncio
from datetime import timedelta

import pytest

from conveyor.domain.counts import Counts
from conveyor.domain.ids import RunId
from conveyor.domain.run import PauseState, RunStatus
from conveyor.domain.task import Task
from conveyor.errors import Unavailable
from conveyor.steps.shared.attempt import CallResult, Fetched
from conveyor.testing.factories import scraped, settlement
from tests.harness.memory_service import CALLER, House, a_call, a_house, away, ids_as_reply


async def test_a_run_completes_once_and_its_counts_are_frozen() -> None:
    house, run_id = await _all_settled(3)

    assert await house.complete.is_due(run_id)
    assert await house.complete.check_completion(run_id)
    assert not await house.complete.check_completion(run_id)

    run = await house.run(run_id)
    assert (run.status, run.frozen) == (RunStatus.COMPLETED, Counts(successful=3))
    assert not await house.complete.is_due(run_id)


@pytest.mark.parametrize("others", [1, 5])
async def test_of_checks_at_the_same_time_one_completes_the_run(others: int) -> None:
    house, run_id = await _all_settled(3)

    async with asyncio.TaskGroup() as group:
        checks = [
            group.create_task(house.complete.check_completion(run_id)) for _ in range(others + 1)
        ]

    assert sum(check.result() for check in checks) == 1
    assert (await house.run(run_id)).version == 2


async def test_a_check_overtaken_by_another_finds_the_run_ended() -> None:
    house, run_id = await _all_settled(3)
    house.trace.before("metadata.commit", 1, lambda: house.complete.check_completion(run_id))

    assert not await house.complete.check_completion(run_id)

    assert (await house.run(run_id)).version == 2


async def test_a_check_overtaken_by_a_stop_leaves_the_run_stopped() -> None:
    house, run_id = await _all_settled(3)
    job_id = (await house.run(run_id)).job_id
    house.trace.before("metadata.commit", 1, lambda: house.lifecycle.stop(CALLER, job_id))

    assert not await house.complete.check_completion(run_id)

    run = await house.run(run_id)
    assert (run.status, run.frozen) == (RunStatus.STOPPED, None)


async def test_a_check_overtaken_by_a_pause_completes_the_run() -> None:
    house, run_id = await _all_settled(3)
    job_id = (await house.run(run_id)).job_id
    house.trace.before(
        "metadata.commit",
        1,
        lambda: house.lifecycle.set_pause(CALLER, job_id, PauseState.PAUSED),
    )

    assert await house.complete.check_completion(run_id)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED


async def test_a_run_with_a_task_left_is_not_complete() -> None:
    house = a_house()
    _, run_id = await house.submit(2)
    [task] = await house.work.claim({run_id: 1})
    await house.work.settle([settlement(task, scraped())])

    assert not await house.complete.is_due(run_id)
    assert not await house.complete.check_completion(run_id)
    assert (await house.run(run_id)).status is RunStatus.RUNNING


async def test_an_open_run_is_not_complete_though_all_is_done() -> None:
    house = a_house()
    _, run_id = await house.submit(2, status="open")
    await house.drain(run_id, _page)

    assert not await house.complete.is_due(run_id)
    assert not await house.complete.check_completion(run_id)


async def test_a_run_with_promised_rows_is_not_complete() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1, status="open")
    with away(house.trace, "tasks.add", Unavailable("away")):
        await house.add_tasks.add(a_call(2, first=1, last_batch=True), job_id, ids_as_reply)
    await house.drain(run_id, _page)
    assert not await house.complete.check_completion(run_id)

    await house.sweep_twice()
    await house.handle_messages()
    await house.drain(run_id, _page)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED
    await house.check_counts(run_id)


async def test_a_run_that_is_not_there_is_nothing_to_complete() -> None:
    house = a_house()
    unknown = RunId(house.ids.new())

    assert not await house.complete.check_completion(unknown)
    assert not await house.complete.is_due(unknown)


async def test_a_completed_run_gives_out_no_more_work() -> None:
    house, run_id = await _all_settled(1)
    await house.complete.check_completion(run_id)
    house.clock.advance(timedelta(days=1))

    assert await house.work.claim({run_id: 9}) == []


async def test_a_close_that_failed_after_the_commit_is_made_up_for_by_the_next_check() -> None:
    house, run_id = await _all_settled(1)
    with away(house.trace, "work.close", Unavailable("away")), pytest.raises(Unavailable):
        await house.complete.check_completion(run_id)
    assert (await house.run(run_id)).status is RunStatus.COMPLETED
    house.trace.forget()

    assert not await house.complete.check_completion(run_id)

    assert house.trace.of("work.close")


async def _all_settled(count: int) -> tuple[House, RunId]:
    """A run whose tasks are settled and whose completion nobody has checked."""
    house = a_house()
    _, run_id = await house.submit(count)
    tasks = await house.work.claim({run_id: count})
    assert all(await house.work.settle([settlement(task, scraped()) for task in tasks]))
    return house, run_id


def _page(_task: Task) -> CallResult:
    return Fetched(content=b"page", format="html")
