"""Scheduled jobs by the official client, against a real service."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from zenrows.batch import (
    At,
    BatchAPIError,
    Calendar,
    Daily,
    Monthly,
    Rate,
    Weekly,
    ZenRowsBatchClient,
)
from zenrows.batch._schedule import Schedule
from zenrows.batch._typed_dicts import TaskInputDict
from zenrows.batch.models import (
    JobStatus,
    JobType,
    RunStatus,
    RunTrigger,
    ScheduleState,
)

from conveyor.client import Conveyor
from tests.e2e.polling import until
from tests.harness.programs import Program

URLS: list[str | TaskInputDict] = [
    "https://ok.example/1",
    "https://ok.example/2",
    "https://permanent.example/3",
]
NEW_YORK = "America/New_York"
HOURLY = Rate(every=1, unit="hour")
HOUR = timedelta(hours=1)


def code_of(call: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(BatchAPIError) as caught:
        call()
    return caught.value.status_code, caught.value.code


def soon(zone: str = NEW_YORK, *, seconds: int = 4) -> At:
    """A moment that comes within a test."""
    local = datetime.now(ZoneInfo(zone)) + timedelta(seconds=seconds)
    return At(local.replace(tzinfo=None, microsecond=0), timezone=zone)


EVERY_KIND = [
    At(datetime(2099, 9, 1, 9, 0), timezone="Europe/Berlin"),  # noqa: DTZ001
    Rate(every=15, unit="minute"),
    HOURLY,
    Rate(every=2, unit="day"),
    Calendar(["09:00", "18:00"], Daily(), timezone="UTC"),
    Calendar(["00:00"], Weekly(days=["mon", "wed"]), timezone=NEW_YORK),
    Calendar(["23:00"], Monthly(days=[1, 31]), timezone="Asia/Kathmandu"),
]


@pytest.mark.parametrize("schedule", EVERY_KIND, ids=lambda one: type(one).__name__)
def test_every_kind_of_schedule_is_taken_and_told(
    client: ZenRowsBatchClient, schedule: Schedule
) -> None:
    job = client.submit_scheduled(schedule, URLS, name="by itself")
    assert job.accepted_tasks == 3
    data = client.get_job(job.job_id).data
    assert (data.type, data.status, data.name) == (
        JobType.SCHEDULED, JobStatus.CLOSED, "by itself",
    )  # fmt: skip
    assert data.latest_run is None
    assert data.schedule_state is ScheduleState.ACTIVE
    assert data.schedule is not None
    assert data.schedule.model_dump(mode="json", exclude_none=True) == schedule.to_dict()
    assert data.next_scheduled_run is not None
    assert data.next_scheduled_run > datetime.now(UTC)
    listed = client.list_jobs(job_type="scheduled").jobs
    assert job.job_id in {one.job_id for one in listed}
    assert not client.list_runs(job.job_id).runs


def test_a_moment_that_comes_is_one_run_and_none_after(client: ZenRowsBatchClient) -> None:
    job = client.submit_scheduled(soon(), URLS)
    until(lambda: client.get_job(job.job_id).data.latest_run)
    run = job.run.wait(timeout=200, poll_interval=0.05)
    assert run.data.status is RunStatus.COMPLETED
    assert (run.data.trigger, run.data.run_sequence) == (RunTrigger.SCHEDULED, 1)
    assert (run.data.stats.total, run.data.stats.successful) == (3, 2)
    data = client.get_job(job.job_id).data
    assert data.next_scheduled_run is None
    assert data.schedule_state is ScheduleState.ACTIVE
    assert len(client.list_runs(job.job_id).runs) == 1


def test_a_schedule_is_paused_resumed_and_replaced(client: ZenRowsBatchClient) -> None:
    job = client.submit_scheduled(HOURLY, URLS)
    before = client.get_job(job.job_id).data.next_scheduled_run
    paused = client.job(job.job_id).schedule.pause()
    assert paused.data.schedule_state is ScheduleState.PAUSED
    assert paused.data.next_scheduled_run == before
    assert client.job(job.job_id).schedule.pause().data.schedule_state is ScheduleState.PAUSED
    resumed = client.job(job.job_id).schedule.resume()
    assert resumed.data.schedule_state is ScheduleState.ACTIVE
    assert resumed.data.next_scheduled_run == before
    client.job(job.job_id).schedule.pause()
    at = soon()
    replaced = client.job(job.job_id).schedule.update(at)
    assert replaced.data.schedule_state is ScheduleState.PAUSED
    assert replaced.data.schedule is not None
    assert replaced.data.schedule.at == at.to_dict()["at"]
    assert replaced.data.schedule.rate is None
    client.job(job.job_id).schedule.resume()
    until(lambda: client.get_job(job.job_id).data.latest_run)


def test_a_job_that_never_ran_is_fired_by_hand_and_again(client: ZenRowsBatchClient) -> None:
    job = client.submit_scheduled(HOURLY, URLS)
    first = client.job(job.job_id).rerun()
    assert (first.data.trigger, first.data.run_sequence) == (RunTrigger.MANUAL, 1)
    assert first.data.stats.total == 3
    done = job.run.wait(timeout=200, poll_interval=0.05)
    assert done.data.status is RunStatus.COMPLETED
    again = client.job(job.job_id).rerun(status=["failed"]).wait(timeout=200, poll_interval=0.05)
    assert (again.data.run_sequence, again.data.stats.total) == (2, 3)
    data = client.get_job(job.job_id).data
    assert data.next_scheduled_run is not None
    assert data.next_scheduled_run - data.created_at == HOUR


def test_what_a_scheduled_job_does_not_take(client: ZenRowsBatchClient) -> None:
    job = client.submit_scheduled(HOURLY, URLS)
    regular = client.submit_regular(URLS)
    one = client.job(job.job_id)
    assert code_of(lambda: one.add_tasks({"tasks": [{"url": "https://ok.example/4"}]})) == (
        409,
        "job_not_open",
    )
    assert code_of(one.close) == (409, "conflict")
    assert code_of(one.run.stop) == (409, "run_not_stoppable")
    assert code_of(lambda: one.rerun(status=["failed"])) == (409, "no_prior_run")
    other = client.job(regular.job_id).schedule
    assert code_of(other.pause) == (409, "conflict")
    assert code_of(other.resume) == (409, "conflict")
    assert code_of(lambda: other.update(HOURLY)) == (409, "conflict")


def test_what_is_wrong_with_a_schedule_is_told(client: ZenRowsBatchClient) -> None:
    past = At(datetime(2020, 1, 1), timezone="UTC")  # noqa: DTZ001
    assert code_of(lambda: client.submit_scheduled(past, URLS)) == (400, "invalid_argument")
    job = client.submit_scheduled(HOURLY, URLS)
    update = client.job(job.job_id).schedule.update
    assert code_of(lambda: update(past)) == (400, "invalid_argument")
    data = client.get_job(job.job_id).data
    assert data.schedule is not None
    assert data.schedule.rate is not None


def test_a_schedule_of_another_caller_is_not_there(
    client: ZenRowsBatchClient, stranger: ZenRowsBatchClient
) -> None:
    job = client.submit_scheduled(HOURLY, URLS)
    theirs = stranger.job(job.job_id).schedule
    assert code_of(theirs.pause) == (404, "not_found")
    assert code_of(lambda: theirs.update(HOURLY)) == (404, "not_found")


def test_a_deleted_job_fires_no_more(client: ZenRowsBatchClient) -> None:
    job = client.submit_scheduled(soon(seconds=4), URLS)
    client.job(job.job_id).delete()
    witness = client.submit_scheduled(soon(seconds=5), URLS)
    until(lambda: client.get_job(witness.job_id).data.latest_run)
    assert code_of(lambda: client.get_job(job.job_id)) == (404, "not_found")


def test_a_job_with_a_line_of_cron_is_listed_and_has_no_calendar(
    client: ZenRowsBatchClient, running: Program
) -> None:
    """The extension is not written into `calendar`, which the official client checks."""
    with Conveyor(running.url, "an-api-key") as own:
        made = own.submit(
            ["https://ok.example/1"], schedule={"cron": "*/20 6 * * 1-5", "timezone": NEW_YORK}
        )
    listed = {one.job_id: one for one in client.list_jobs(job_type="scheduled").jobs}
    for data in (listed[made.job_id], client.get_job(made.job_id).data):
        assert data.schedule is not None
        assert (data.schedule.at, data.schedule.rate, data.schedule.calendar) == (None,) * 3
        assert data.schedule.timezone == NEW_YORK
        assert data.next_scheduled_run is not None
    replaced = client.job(made.job_id).schedule.update(HOURLY).data
    assert replaced.schedule is not None
    assert replaced.schedule.rate is not None
