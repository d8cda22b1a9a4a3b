"""Scheduled jobs, as scripts to die in."""

from datetime import timedelta
from typing import Any

from tests.crash.life import Answer, Life
from tests.crash.list_scenarios import filled_file_input, submit_list, urls
from tests.crash.scenarios import FULL, LARGE, on, pages, scenario, submit
from tests.crash.snapshot import Picture

DAY = timedelta(days=1)
DAILY = {"rate": {"every": 1, "unit": "day"}}
WEEKLY = {
    "calendar": {"times_of_day": ["09:00"], "cadence": {"weekly": {"days": ["mon"]}}},
    "timezone": "Europe/Berlin",
}


async def submit_scheduled(life: Life, count: int = 3, name: str = "job") -> Answer:
    job = await submit(life, pages(count), name, type="scheduled", schedule=DAILY)
    assert (job.status, job["accepted_tasks"]) == (201, count)
    return job


async def turn(life: Life, job: Answer, state: str) -> None:
    path = f"/v1/jobs/{job['job_id']}/schedule/state"
    assert (await life.call(state, "POST", path, {"schedule_state": state})).status == 200


def _checked(picture: Picture) -> Picture:
    """No more runs than fires, each with a number of its own."""
    for job in picture["job"]:
        numbers = [run.get("sequence", 1) for run in picture["run"]]
        assert sorted(numbers) == list(range(1, job["runs"] + 1))
    return picture


@scenario(_checked)
async def submit_a_scheduled_job(life: Life) -> None:
    life.begin()
    await submit_scheduled(life)


@scenario()
async def submit_a_scheduled_job_without_room(life: Life) -> None:
    life.begin()
    body = {"tasks": pages(3), "type": "scheduled", "schedule": DAILY}
    refused: Any = {"metadata.commit": FULL}
    answer = await life.call("refused", "POST", "/v1/jobs", body, key="k", faults=refused)
    assert answer.status == 503


@scenario(_checked)
async def fire_a_small_list(life: Life) -> None:
    await submit_scheduled(life)
    life.advance(DAY)
    life.begin()
    await life.fire()
    await life.handle_messages()
    await life.drain()


@scenario(_checked)
async def fire_a_large_list_twice(life: Life) -> None:
    await submit_scheduled(life, LARGE)
    life.advance(DAY)
    await life.fire()
    await life.handle_messages()
    await life.drain()
    life.advance(DAY)
    life.begin()
    await life.fire()
    await life.handle_messages()


@scenario()
async def retire_an_old_run_of_a_schedule(life: Life) -> None:
    job = await submit_scheduled(life)
    for _ in range(2):
        life.advance(DAY)
        await life.fire()
        await life.handle_messages()
        await life.drain()
    life.advance(30 * DAY)
    life.begin()
    await life.sweep()
    await life.handle_messages()
    told = await life.call("runs", "GET", f"/v1/jobs/{job['job_id']}/runs")
    assert [run["run_sequence"] for run in told["runs"]] == [2]


@scenario(_checked)
async def two_workers_fire_at_once(life: Life) -> None:
    await submit_scheduled(life)
    life.advance(DAY)
    life.begin()
    life.deaths.before("metadata.commit", 1, life.service.steps.fire.step)  # another worker
    await life.fire()
    await life.handle_messages()


@scenario(_checked)
async def fire_a_list_that_lies_in_its_slot(life: Life) -> None:
    file_input_id = await filled_file_input(life, urls(14, (3,)))
    await submit_list(life, file_input_id, type="scheduled", schedule=DAILY, on_invalid="skip")
    life.advance(DAY)
    life.begin()
    await life.fire()
    await life.handle_messages()
    await life.drain()


@scenario(_checked)
async def skip_a_fire(life: Life) -> None:
    job = await submit_scheduled(life)
    life.advance(DAY)
    await life.fire()
    life.advance(DAY)
    life.begin()
    await life.fire()
    told = await life.call("get", "GET", f"/v1/jobs/{job['job_id']}")
    assert told["skipped_fires"] == 1
    await life.handle_messages()


@scenario(_checked)
async def fire_a_small_list_by_hand(life: Life) -> None:
    job = await submit_scheduled(life)
    life.begin()
    assert (await on(life, job, "rerun")).status == 201
    await life.drain()


@scenario(_checked)
async def fire_a_large_list_by_hand(life: Life) -> None:
    job = await submit_scheduled(life, LARGE)
    life.begin()
    assert (await on(life, job, "rerun")).status == 202
    await life.handle_messages()


@scenario(_checked)
async def pause_resume_and_replace_a_schedule(life: Life) -> None:
    job = await submit_scheduled(life)
    life.begin()
    await turn(life, job, "paused")
    await turn(life, job, "active")
    path = f"/v1/jobs/{job['job_id']}/schedule"
    assert (await life.call("replace", "PUT", path, WEEKLY)).status == 200


@scenario()
async def delete_a_scheduled_job_that_never_ran(life: Life) -> None:
    job = await submit_scheduled(life)
    life.begin()
    assert (await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}")).status == 202
    await life.handle_messages()


@scenario()
async def delete_a_scheduled_job_between_two_fires(life: Life) -> None:
    job = await submit_scheduled(life)
    life.advance(DAY)
    await life.fire()
    await life.handle_messages()
    life.begin()
    assert (await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}")).status == 202
    await life.fire()
    await life.handle_messages()
