"""Runs of schedules go when their time is over; the latest, and what others show, stays."""

from datetime import timedelta

import pytest

from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.task import AttemptFailed, Task
from conveyor.steps.shared.attempt import CallResult
from conveyor.steps.sweep import retire
from tests.harness.memory_service import (
    A_PAGE,
    RUN_LIFE,
    House,
    a_call,
    a_house,
    ids_as_answer,
    ids_in,
)

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
HOURLY = {"rate": {"every": 1, "unit": "hour"}}


async def schedule(house: House, ttl: int = 14) -> JobId:
    call = a_call(2, type="scheduled", schedule=HOURLY, result_ttl_days=ttl)
    return ids_in(await house.submit_job.submit(call, ids_as_answer))[0]


async def fire(house: House, job_id: JobId) -> RunId:
    house.clock.advance(HOUR)
    await house.fire.step()
    await house.handle_messages()
    run_id = (await house.job(job_id)).latest_run_id
    assert run_id
    await house.drain(run_id, _one_page_and_a_refusal)
    return run_id


def _one_page_and_a_refusal(task: Task) -> CallResult:
    if task.index:
        return AttemptFailed("{}", FailureReason.BLOCKED, retryable=False)
    return A_PAGE


async def runs(house: House, job_id: JobId) -> list[RunId]:
    return [run.id for run in await house.metadata.runs(job_id, limit=99)]


@pytest.mark.parametrize("ttl", [14, 60])
async def test_a_run_goes_once_its_life_and_that_of_its_results_are_over(ttl: int) -> None:
    house = a_house()
    job_id = await schedule(house, ttl)
    first, second = await fire(house, job_id), await fire(house, job_id)

    life = max(RUN_LIFE, timedelta(days=ttl))
    house.clock.advance(life - HOUR - SECOND)
    await house.sweep.step()
    assert await runs(house, job_id) == [second, first]
    house.clock.advance(SECOND)
    await house.sweep.step()

    assert await runs(house, job_id) == [second]
    assert house.cleared["scheduled_run"] == 1
    await house.handle_messages()
    assert not await house.rows(first)
    assert not house.swept


async def test_the_latest_run_stays_however_old() -> None:
    house = a_house()
    job_id = await schedule(house)
    latest = await fire(house, job_id)

    house.clock.advance(100 * RUN_LIFE)
    await house.sweep.step()

    assert await runs(house, job_id) == [latest]


async def test_a_run_whose_results_a_newer_one_shows_stays_as_long_as_that() -> None:
    house = a_house()
    job_id = await schedule(house)
    source = await fire(house, job_id)
    heir, _, inherited = await house.rerun(job_id, "failed")
    assert inherited == 1
    await house.handle_messages()
    await house.drain(heir, lambda _: A_PAGE)

    house.clock.advance(2 * RUN_LIFE)
    await house.sweep.step()
    assert await runs(house, job_id) == [heir, source]

    latest = await fire(house, job_id)
    await house.sweep.step()
    assert await runs(house, job_id) == [latest]


async def test_a_round_takes_the_oldest_runs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retire, "MOST_RUNS", 2)
    house = a_house()
    job_id = await schedule(house)
    made = [await fire(house, job_id) for _ in range(6)]

    house.clock.advance(2 * RUN_LIFE)
    await house.sweep.step()
    assert await runs(house, job_id) == made[:1:-1]
    for _ in range(3):
        await house.sweep.step()

    assert await runs(house, job_id) == [made[-1]]


async def test_runs_of_other_jobs_stay() -> None:
    house = a_house()
    job_id, first = await house.submit(2)
    await house.drain(first, lambda _: A_PAGE)
    await house.rerun(job_id)

    house.clock.advance(2 * RUN_LIFE)
    await house.sweep.step()

    assert len(await runs(house, job_id)) == 2


async def test_runs_that_others_show_do_not_keep_newer_runs_from_being_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retire, "MOST_RUNS", 1)
    house = a_house()
    job_id = await schedule(house)
    source = await fire(house, job_id)  # the oldest: as many as a round takes
    heir, _, _ = await house.rerun(job_id, "failed")
    await house.handle_messages()
    await house.drain(heir, lambda _: A_PAGE)
    latest = await fire(house, job_id)

    house.clock.advance(2 * RUN_LIFE)
    await house.sweep.step()
    assert await runs(house, job_id) == [latest, source]
    await house.sweep.step()

    assert await runs(house, job_id) == [latest]
