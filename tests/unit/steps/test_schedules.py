"""Scheduled jobs: each moment of a schedule is one run, whoever works and whoever dies."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from conveyor.domain.file_input import FileInput
from conveyor.domain.ids import InputId, JobId
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.run import IngestStatus, Run, RunStatus, Trigger
from conveyor.domain.schedule import Rate, RateUnit, Schedule, ScheduleState, parse_schedule
from conveyor.domain.selection import RerunRequest
from conveyor.errors import (
    Conflict,
    FileInputNotFound,
    InvalidArgument,
    JobNotOpen,
    NoPriorRun,
    NotFound,
    RunNotStoppable,
    RunNotTerminal,
    Unavailable,
)
from conveyor.steps import schedules as module
from conveyor.steps.schedules import CHUNK, FireOutcome
from conveyor.testing.clock import NOON
from tests.harness.file_inputs import sent, submit_list, urls
from tests.harness.memory_service import (
    A_PAGE,
    CALLER,
    KEY,
    LIMITS,
    STRANGER,
    House,
    a_call,
    a_house,
    a_rerun,
    figures_as_answer,
    ids_as_answer,
    ids_as_reply,
    ids_in,
)
from tests.harness.trace import Crash, Moment

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
HOURLY = {"rate": {"every": 1, "unit": "hour"}}
LARGE = LIMITS.sync_tasks


def nightly(zone: str = "Europe/Berlin") -> dict[str, object]:
    return {
        "calendar": {"times_of_day": ["03:00"], "cadence": {"daily": {}}},
        "timezone": zone,
    }


async def schedule(house: House, count: int = 3, given: object = HOURLY, **others: Any) -> JobId:
    call = a_call(count, type="scheduled", schedule=given, **others)
    answer = await house.submit_job.submit(call, ids_as_answer)
    assert answer.status == 201
    job_id, run_id = ids_in(answer)
    assert run_id == "-"
    return job_id


async def schedule_list(house: House, file_input_id: InputId) -> JobId:
    answer = await submit_list(house, file_input_id, type="scheduled", schedule=HOURLY)
    assert answer.status == 201
    return ids_in(answer)[0]


async def latest(house: House, job_id: JobId) -> Run:
    run_id = (await house.job(job_id)).latest_run_id
    assert run_id is not None
    return await house.run(run_id)


async def runs(house: House, job_id: JobId) -> list[Run]:
    return list(await house.metadata.runs(job_id, limit=100))


async def finish(house: House, job_id: JobId) -> Run:
    """Have the latest run take in its list and come to its end."""
    await house.handle_messages()
    run = await latest(house, job_id)
    await house.drain(run.id, lambda _: A_PAGE)
    return await latest(house, job_id)


async def fire(house: House, by: timedelta = HOUR) -> int:
    house.clock.advance(by)
    return await house.fire.step()


# Submitting.


@pytest.mark.parametrize("count", [1, 3, LARGE, 3 * LARGE])
async def test_a_scheduled_job_has_its_list_and_no_run(count: int) -> None:
    house = a_house()
    job = await house.job(await schedule(house, count))
    assert (job.type, job.status, job.latest_run_id, job.runs) == (
        JobType.SCHEDULED, JobStatus.CLOSED, None, 0,
    )  # fmt: skip
    assert (job.schedule, job.schedule_state) == (
        Schedule(rate=Rate(1, RateUnit.HOUR)), ScheduleState.ACTIVE,
    )  # fmt: skip
    assert job.next_fire_at == NOON + HOUR
    assert job.source_list
    assert (await house.lists(), job.source_list.count) == ([job.source_list.blob], count)
    assert not await runs(house, job.id)
    assert not await house.batches()
    assert not await house.tasks.runs_held(limit=9)
    assert not house.woken


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"type": "scheduled"}, "schedule"),
        ({"type": "scheduled", "schedule": None}, "schedule"),
        ({"type": "scheduled", "schedule": {}}, "schedule"),
        ({"type": "scheduled", "schedule": HOURLY, "status": "open"}, "status"),
        ({"type": "scheduled", "schedule": HOURLY, "async": True}, "async"),
        ({"schedule": HOURLY}, "schedule"),
        ({"schedule": {"nonsense": True}}, "schedule"),
        ({"type": "scheduled", "schedule": {"rate": {"every": 0, "unit": "day"}}}, "schedule.rate.every"),
        ({"type": "scheduled", "schedule": {"at": "2026-03-02T12:00", "timezone": "UTC"}}, "schedule.at"),
    ],
)  # fmt: skip
async def test_a_bad_schedule_creates_nothing(given: dict[str, Any], field: str) -> None:
    house = a_house()
    with pytest.raises(InvalidArgument) as refused:
        await house.submit_job.submit(a_call(3, **given), ids_as_answer)
    assert refused.value.extras == {"field": field}
    assert not await house.lists()
    assert not await house.metadata.page(Job, limit=9)


async def test_a_regular_job_may_say_that_it_has_no_schedule() -> None:
    house = a_house()
    job_id, _ = await house.submit(3, schedule=None)
    job = await house.job(job_id)
    assert (job.type, job.schedule, job.next_fire_at) == (JobType.REGULAR, None, None)


async def test_a_bad_task_refuses_a_scheduled_job_as_any_other() -> None:
    house = a_house()
    raw = {"tasks": [{"url": "ftp://x"}], "type": "scheduled", "schedule": HOURLY}
    call = msgspec.structs.replace(a_call(), raw=msgspec.json.encode(raw))
    with pytest.raises(InvalidArgument) as refused:
        await house.submit_job.submit(call, ids_as_answer)
    assert refused.value.extras["invalid_tasks"]
    assert not await house.lists()


async def test_a_repeated_submit_is_one_job() -> None:
    house = a_house()
    assert await schedule(house, 3, key="once") == await schedule(house, 3, key="once")
    assert len(await house.metadata.page(Job, limit=9)) == 1
    assert len(await house.lists()) == 1


@pytest.mark.parametrize("fault", ["blobs.put", "metadata.commit"])
async def test_a_submit_that_fails_leaves_nothing(fault: str) -> None:
    house = a_house()
    house.trace.broken[fault] = Unavailable("away")
    with pytest.raises(Unavailable):
        await schedule(house)
    assert not await house.lists()
    assert not await house.metadata.page(Job, limit=9)


# Firing.


async def test_its_moment_makes_a_run_and_names_the_next() -> None:
    house = a_house()
    job_id = await schedule(house, 3)
    assert await fire(house, HOUR - timedelta(microseconds=1)) == 0
    assert await fire(house, timedelta(microseconds=1)) == 1
    job, run = await house.job(job_id), await latest(house, job_id)
    assert (run.trigger, run.sequence, run.total) == (Trigger.SCHEDULED, 1, 3)
    assert (run.ingest_status, run.caller) == (IngestStatus.PENDING, CALLER)
    assert (job.runs, job.next_fire_at) == (1, NOON + 2 * HOUR)
    assert (
        await house.encryption.decrypt(job.encrypted_gateway_key, context=f"{CALLER}|{job_id}")
        == KEY
    )
    assert (await finish(house, job_id)).status is RunStatus.COMPLETED
    assert await house.done(run.id) == 3
    assert await house.fire.step() == 0
    assert house.fired == {FireOutcome.RUN: 1}


@pytest.mark.parametrize("count", [3, 3 * LARGE])
async def test_every_fire_is_a_fresh_run_of_the_same_list(count: int) -> None:
    house = a_house()
    job_id = await schedule(house, count)
    for sequence in (1, 2, 3):
        assert await fire(house) == 1
        run = await finish(house, job_id)
        assert (run.status, run.sequence, run.total) == (RunStatus.COMPLETED, sequence, count)
        rows = await house.rows(run.id)
        assert [row.spec.url for row in rows] == [
            f"https://ok.example/{number}" for number in range(count)
        ]
        assert not any(row.source_run_id for row in rows)
        await house.check_counts(run.id)
    assert [run.trigger for run in await runs(house, job_id)] == [Trigger.SCHEDULED] * 3
    assert len(await house.lists()) == 1


async def test_a_fire_that_finds_its_last_run_live_is_skipped_and_recorded() -> None:
    house = a_house()
    job_id = await schedule(house)
    await fire(house)
    first = await latest(house, job_id)
    assert await fire(house) == 1
    job = await house.job(job_id)
    assert (job.skipped, job.last_skipped_at) == (1, NOON + 2 * HOUR)
    assert (job.latest_run_id, job.runs, job.next_fire_at) == (first.id, 1, NOON + 3 * HOUR)
    assert len(await runs(house, job_id)) == 1
    await finish(house, job_id)
    assert await fire(house) == 1
    job = await house.job(job_id)
    assert (job.runs, job.skipped) == (2, 1)
    assert house.fired == {FireOutcome.RUN: 2, FireOutcome.SKIPPED: 1}


async def test_what_was_missed_is_fired_once() -> None:
    house = a_house()
    job_id = await schedule(house)
    assert await fire(house, 10 * HOUR + timedelta(minutes=20)) == 1
    await finish(house, job_id)
    assert await house.fire.step() == 0
    assert (await house.job(job_id)).next_fire_at == NOON + 11 * HOUR
    assert len(await runs(house, job_id)) == 1


async def test_a_moment_fires_once_and_names_no_other() -> None:
    house = a_house()
    job_id = await schedule(house, given={"at": "2026-03-02T14:00:00", "timezone": "Europe/Berlin"})
    assert (await house.job(job_id)).next_fire_at == NOON + HOUR
    assert await fire(house) == 1
    await finish(house, job_id)
    assert (await house.job(job_id)).next_fire_at is None
    assert await fire(house, 400 * DAY) == 0
    assert len(await runs(house, job_id)) == 1


async def test_a_clock_that_was_set_back_does_not_bring_a_fire_twice() -> None:
    """The engine's clock is ahead of the worker's: what is due there is a second away here."""
    house = a_house()
    job_id = await schedule(house)
    house.clock.advance(HOUR)
    [job] = await house.metadata.due(Job, limit=1)
    slow = a_house()
    await slow.metadata.commit(msgspec.structs.replace(job, version=0))
    slow.clock.advance(HOUR - timedelta(seconds=1))
    [stored] = await slow.metadata.page(Job, limit=1)
    await slow.fire._process(stored)
    assert (await slow.job(job_id)).next_fire_at == NOON + 2 * HOUR


async def test_many_workers_at_once_fire_once() -> None:
    house = a_house()
    jobs = [await schedule(house) for _ in range(5)]
    house.clock.advance(HOUR)
    done = await asyncio.gather(*(house.fire.step() for _ in range(8)))
    assert sum(done) == 5
    for job_id in jobs:
        assert len(await runs(house, job_id)) == 1
        assert (await house.job(job_id)).skipped == 0
    assert len(await house.batches()) == 5


async def test_a_worker_that_read_before_another_fired_does_nothing() -> None:
    house = a_house()
    job_id = await schedule(house)
    house.clock.advance(HOUR)
    [late] = await house.metadata.due(Job, limit=1)
    assert await house.fire.step() == 1
    assert await house.fire._process(late) == 0
    assert len(await runs(house, job_id)) == 1
    assert house.fired == {FireOutcome.RUN: 1}


async def test_more_than_a_bite_is_fired_bite_by_bite() -> None:
    house = a_house()
    for _ in range(CHUNK + 5):
        await schedule(house, 1)
    assert await fire(house) == CHUNK
    assert await house.fire.step() == 5
    assert await house.fire.step() == 0


CALLS = ("metadata.due(Job)", "metadata.get(Run)", "metadata.commit", "control_queue.send")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(len(CALLS)), ids=CALLS)
async def test_a_death_anywhere_fires_once(number: int, moment: Moment) -> None:
    house = a_house()
    job_id = await schedule(house, LARGE)
    await fire(house)
    await finish(house, job_id)
    house.clock.advance(HOUR)
    house.trace.forget()
    house.trace.break_at(number, moment, Crash())
    with pytest.raises(Crash):
        await house.fire.step()
    assert tuple(house.trace.calls) == CALLS[: number + 1]
    house.trace.forget()
    await house.fire.step()
    await house.handle_messages()
    await house.sweep_later()
    run = await finish(house, job_id)
    assert (run.status, run.sequence, run.total) == (RunStatus.COMPLETED, 2, LARGE)
    assert len(await runs(house, job_id)) == 2
    job = await house.job(job_id)
    assert (job.runs, job.skipped) == (2, 0)


async def test_a_message_that_cannot_be_sent_is_the_sweepers() -> None:
    house = a_house()
    job_id = await schedule(house)
    house.clock.advance(HOUR)
    house.trace.broken["control_queue.send"] = Unavailable("away")
    assert await house.fire.step() == 1
    house.trace.broken.clear()
    assert await house.handle_messages() == 0
    await house.sweep_later()
    assert house.swept == {"unfinished_ingest": 1}
    assert (await finish(house, job_id)).status is RunStatus.COMPLETED


async def test_a_job_that_brings_out_a_bug_is_put_aside_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = a_house()
    odd, well = await schedule(house), await schedule(house)
    made = module._next

    def next_of(job: Job, now: datetime) -> datetime | None:
        if job.id == odd:
            raise RuntimeError("a bug")
        return made(job, now)

    monkeypatch.setattr(module, "_next", next_of)
    assert await fire(house, HOUR) == 2
    assert (await house.job(odd)).schedule_state is ScheduleState.PAUSED
    assert (await house.job(well)).runs == 1
    assert house.fired == {FireOutcome.RUN: 1, FireOutcome.BROKEN: 1}


async def test_a_zone_that_is_gone_pauses_its_schedule_and_holds_up_nobody() -> None:
    house = a_house()
    lost, well = await schedule(house, given=nightly()), await schedule(house)
    await house.metadata.commit(_on_mars(await house.job(lost)))
    assert await fire(house, DAY) == 2
    job = await house.job(lost)
    assert (job.schedule_state, job.next_fire_at, job.runs) == (ScheduleState.PAUSED, None, 0)
    assert (await house.job(well)).runs == 1
    assert house.fired == {FireOutcome.RUN: 1, FireOutcome.BROKEN: 1}
    with pytest.raises(InvalidArgument, match="timezone"):
        await house.rescheduling.set_state(CALLER, lost, ScheduleState.ACTIVE)
    fit = parse_schedule(msgspec.json.encode(nightly()))
    await house.rescheduling.replace(CALLER, lost, fit)
    await house.rescheduling.set_state(CALLER, lost, ScheduleState.ACTIVE)
    assert (await house.job(lost)).fires_at is not None


async def test_a_zone_that_is_gone_is_no_reason_not_to_show_a_job() -> None:
    house = a_house()
    job = await house.job(await schedule(house, given=nightly()))
    await house.metadata.commit(_on_mars(job, schedule_state=ScheduleState.PAUSED))
    house.clock.advance(2 * DAY)
    assert (await house.read.job(CALLER, job.id)).next_run is None


def _on_mars(job: Job, **changes: object) -> Job:
    """The job as it is when a time zone is not known any more."""
    assert job.schedule
    gone = msgspec.structs.replace(job.schedule, timezone="Mars/Olympus")
    return msgspec.structs.replace(job, schedule=gone, **changes)


async def test_a_list_that_is_gone_stops_its_run_and_says_why() -> None:
    house = a_house()
    job_id = await schedule(house)
    await house.blobs.delete(await house.lists())
    await fire(house)
    await house.handle_messages()
    run = await latest(house, job_id)
    assert run.status is RunStatus.STOPPED
    assert "no longer in storage" in (run.ingest_error or "")


# Lists from slots.


async def test_a_small_list_of_a_slot_is_kept_by_the_job() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(2))
    job_id = await schedule_list(house, file_input_id)
    house.clock.advance(3 * DAY)
    await house.sweep_later()
    assert await house.metadata.get(FileInput, file_input_id) is None
    assert await house.fire.step() == 1
    run = await finish(house, job_id)
    assert (run.status, run.total) == (RunStatus.COMPLETED, 2)


async def test_a_long_list_stays_in_its_slot_for_as_long_as_the_job() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(3 * LARGE))
    job_id = await schedule_list(house, file_input_id)
    for _ in range(2):
        house.clock.advance(40 * DAY)
        await house.sweep_later()
        assert await house.fire.step() == 1
        run = await finish(house, job_id)
        assert (run.status, run.total) == (RunStatus.COMPLETED, 3 * LARGE)
    for run in await runs(house, job_id):
        await house.delete.run(CALLER, job_id, run.id)
    await house.handle_messages()
    house.clock.advance(40 * DAY)
    await house.sweep_later()
    file_input = await house.metadata.get(FileInput, file_input_id)
    assert file_input
    assert await house.lists() == [file_input.blob]
    await house.delete.job(CALLER, job_id)
    await house.handle_messages()
    assert not await house.lists()
    with pytest.raises(FileInputNotFound):
        await submit_list(house, file_input_id)


async def test_bad_rows_of_a_long_list_are_told_at_every_fire() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(LARGE + 1, bad=[LARGE]))
    job_id = await schedule_list(house, file_input_id)
    for _ in range(2):
        await fire(house)
        run = await finish(house, job_id)
        assert (run.total, run.ingest_errors) == (LARGE, 1)


# What keeps a list, and what ends it.


@pytest.mark.parametrize("count", [3, LARGE])
async def test_a_list_outlives_all_runs_and_any_age(count: int) -> None:
    house = a_house()
    job_id = await schedule(house, count)
    await fire(house)
    run = await finish(house, job_id)
    await house.delete.run(CALLER, job_id, run.id)
    await house.handle_messages()
    house.clock.advance(1000 * DAY)
    await house.sweep_later()
    await house.sweep.at_start([])
    assert len(await house.lists()) == 1
    assert await house.fire.step() == 1
    again = await finish(house, job_id)
    assert (again.status, again.total, again.sequence) == (RunStatus.COMPLETED, count, 2)


async def test_a_deleted_job_fires_no_more_and_leaves_nothing() -> None:
    house = a_house()
    job_id = await schedule(house)
    await house.delete.job(CALLER, job_id)
    assert await fire(house) == 0
    await house.handle_messages()
    assert not await house.lists()
    assert await fire(house) == 0
    house.clock.advance(2 * DAY)
    await house.sweep_later()
    assert await house.metadata.get(Job, job_id) is None


async def test_a_delete_between_the_reading_and_the_commit_wins() -> None:
    house = a_house()
    job_id = await schedule(house)
    house.clock.advance(HOUR)
    [read] = await house.metadata.due(Job, limit=1)
    await house.delete.job(CALLER, job_id)
    assert await house.fire._process(read) == 0
    assert not await runs(house, job_id)


async def test_stop_ends_the_live_run_and_the_schedule_goes_on() -> None:
    house = a_house()
    job_id = await schedule(house)
    with pytest.raises(RunNotStoppable):
        await house.lifecycle.stop(CALLER, job_id)
    await fire(house)
    assert (await house.lifecycle.stop(CALLER, job_id)).status is RunStatus.STOPPED
    await house.handle_messages()
    assert await fire(house) == 1
    assert (await latest(house, job_id)).sequence == 2
    assert (await finish(house, job_id)).status is RunStatus.COMPLETED


async def test_a_scheduled_job_takes_no_tasks_and_cannot_be_closed() -> None:
    house = a_house()
    job_id = await schedule(house)
    for _ in range(2):
        with pytest.raises(JobNotOpen):
            await house.add_tasks.add(a_call(1), job_id, ids_as_reply)
        with pytest.raises(Conflict):
            await house.lifecycle.close(CALLER, job_id)
        await fire(house)


# By hand.


@pytest.mark.parametrize("count", [3, LARGE])
async def test_a_rerun_without_a_run_fires_from_the_list(count: int) -> None:
    house = a_house()
    job_id = await schedule(house, count)
    answer = await house.rerun_job.rerun(
        a_rerun(key="k"), job_id, RerunRequest(), figures_as_answer
    )
    assert answer.status == (201 if count < LARGE else 202)
    again = await house.rerun_job.rerun(a_rerun(key="k"), job_id, RerunRequest(), figures_as_answer)
    assert again == answer
    run = await latest(house, job_id)
    assert answer.body.decode().split() == [run.id, str(count), "0"]
    assert (run.trigger, run.sequence, run.total) == (Trigger.MANUAL, 1, count)
    if count < LARGE:
        assert len(await house.rows(run.id)) == count
        assert run.last_batch_received
    assert (await house.job(job_id)).next_fire_at == NOON + HOUR
    run = await finish(house, job_id)
    assert (run.status, run.total) == (RunStatus.COMPLETED, count)
    assert await fire(house) == 1
    assert (await latest(house, job_id)).trigger is Trigger.SCHEDULED


async def test_a_long_list_of_a_slot_is_fired_by_hand_too() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(2 * LARGE))
    job_id = await schedule_list(house, file_input_id)
    answer = await house.rerun_job.rerun(a_rerun(), job_id, RerunRequest(), figures_as_answer)
    assert answer.status == 202
    assert (await finish(house, job_id)).total == 2 * LARGE


@pytest.mark.parametrize("count", [3, LARGE, None], ids=["small", "large", "file input"])
async def test_changed_parameters_of_a_run_by_hand_reach_every_task_of_the_list_once(
    count: int | None,
) -> None:
    house = a_house()
    if count is None:
        job_id = await schedule_list(house, await sent(house, urls(LARGE)))
    else:
        job_id = await schedule(house, count)
    await house.rerun(job_id, asked=RerunRequest(params={"premium_proxy": "true"}))
    assert await params_of(house, await finish(house, job_id)) == {'{"premium_proxy":"true"}'}
    await fire(house)
    assert await params_of(house, await finish(house, job_id)) == {None}


async def params_of(house: House, run: Run) -> set[str | None]:
    rows = (await house.tasks.page(run.id, limit=2 * LARGE, whole=True)).tasks
    assert len(rows) == run.total > 0
    return {row.spec.params for row in rows}


async def test_a_rerun_of_some_statuses_needs_a_run() -> None:
    house = a_house()
    job_id = await schedule(house)
    with pytest.raises(NoPriorRun):
        await house.rerun(job_id, "failed")
    await fire(house)
    with pytest.raises(RunNotTerminal):
        await house.rerun(job_id)
    await finish(house, job_id)
    run_id, retried, inherited = await house.rerun(job_id, "successful")
    assert (retried, inherited) == (3, 0)
    assert (await house.run(run_id)).sequence == 2


async def test_when_all_runs_are_deleted_a_rerun_is_from_the_list() -> None:
    house = a_house()
    job_id = await schedule(house)
    await fire(house)
    await house.delete.run(CALLER, job_id, (await finish(house, job_id)).id)
    run_id, retried, _ = await house.rerun(job_id)
    assert (retried, (await house.run(run_id)).sequence) == (3, 2)


@pytest.mark.parametrize("call", ["blobs.read", "tasks.add", "work.enqueue", "metadata.commit"])
async def test_a_fire_by_hand_that_fails_leaves_no_rows(call: str) -> None:
    house = a_house()
    job_id = await schedule(house)
    house.trace.broken[call] = Unavailable("away")
    with pytest.raises(Unavailable):
        await house.rerun(job_id)
    house.trace.broken.clear()
    assert not await house.tasks.runs_held(limit=9)
    assert (await house.job(job_id)).runs == 0
    await house.rerun(job_id)


async def test_a_rerun_and_a_fire_at_once_make_one_run() -> None:
    house = a_house()
    job_id = await schedule(house)
    house.clock.advance(HOUR)
    [read] = await house.metadata.due(Job, limit=1)
    await house.rerun(job_id)
    assert await house.fire._process(read) == 0
    assert await house.fire.step() == 1
    assert len(await runs(house, job_id)) == 1
    assert (await house.job(job_id)).skipped == 1


# What callers change of a schedule.


async def test_a_paused_schedule_does_not_fire_and_tells_what_would_be() -> None:
    house = a_house()
    job_id = await schedule(house)
    await house.rescheduling.set_state(CALLER, job_id, ScheduleState.PAUSED)
    assert (await house.read.job(CALLER, job_id)).next_run == NOON + HOUR
    assert await fire(house, 5 * HOUR + timedelta(minutes=5)) == 0
    assert (await house.read.job(CALLER, job_id)).next_run == NOON + 6 * HOUR
    [view], _ = await house.read.jobs(CALLER, limit=9, before=None, status=None, kind=None)
    assert view.next_run == NOON + 6 * HOUR


async def test_what_a_pause_missed_is_not_made_up() -> None:
    house = a_house()
    job_id = await schedule(house)
    await house.rescheduling.set_state(CALLER, job_id, ScheduleState.PAUSED)
    house.clock.advance(5 * HOUR + timedelta(minutes=5))
    await house.rescheduling.set_state(CALLER, job_id, ScheduleState.ACTIVE)
    assert await house.fire.step() == 0
    assert (await house.job(job_id)).next_fire_at == NOON + 6 * HOUR
    assert await fire(house, timedelta(minutes=55)) == 1


async def test_a_moment_missed_in_a_pause_is_gone() -> None:
    house = a_house()
    job_id = await schedule(house, given={"at": "2026-03-02T13:00:00", "timezone": "UTC"})
    await house.rescheduling.set_state(CALLER, job_id, ScheduleState.PAUSED)
    house.clock.advance(2 * HOUR)
    assert (await house.read.job(CALLER, job_id)).next_run is None
    await house.rescheduling.set_state(CALLER, job_id, ScheduleState.ACTIVE)
    assert (await house.job(job_id)).next_fire_at is None
    assert await house.fire.step() == 0


@pytest.mark.parametrize("state", list(ScheduleState))
async def test_a_state_that_holds_already_changes_nothing(state: ScheduleState) -> None:
    house = a_house()
    job_id = await schedule(house)
    await house.rescheduling.set_state(CALLER, job_id, state)
    before = await house.job(job_id)
    house.clock.advance(timedelta(minutes=1))
    await house.rescheduling.set_state(CALLER, job_id, state)
    assert await house.job(job_id) == before


async def test_another_schedule_counts_from_now_on_and_leaves_a_run_alone() -> None:
    house = a_house()
    job_id = await schedule(house)
    await fire(house)
    run = await latest(house, job_id)
    await house.rescheduling.replace(CALLER, job_id, Schedule(rate=Rate(5, RateUnit.MINUTE)))
    assert (await house.job(job_id)).next_fire_at == NOON + HOUR + timedelta(minutes=5)
    assert await house.run(run.id) == run
    await finish(house, job_id)
    assert await fire(house, timedelta(minutes=5)) == 1


async def test_a_new_moment_fires_again_where_the_old_one_had() -> None:
    house = a_house()
    job_id = await schedule(house, given={"at": "2026-03-02T13:00:00", "timezone": "UTC"})
    await fire(house)
    await finish(house, job_id)
    later = Schedule(at="2026-03-02T15:00:00", timezone="UTC")
    await house.rescheduling.replace(CALLER, job_id, later)
    assert await fire(house, 2 * HOUR) == 1


async def test_a_paused_job_with_another_schedule_stays_paused() -> None:
    house = a_house()
    job_id = await schedule(house)
    await house.rescheduling.set_state(CALLER, job_id, ScheduleState.PAUSED)
    await house.rescheduling.replace(CALLER, job_id, Schedule(rate=Rate(5, RateUnit.MINUTE)))
    job = await house.job(job_id)
    assert (job.schedule_state, job.next_fire_at) == (
        ScheduleState.PAUSED, NOON + timedelta(minutes=5),
    )  # fmt: skip


async def test_a_moment_that_has_passed_replaces_nothing() -> None:
    house = a_house()
    job_id = await schedule(house)
    before = await house.job(job_id)
    past = Schedule(at="2026-03-02T11:59:59", timezone="UTC")
    with pytest.raises(InvalidArgument) as refused:
        await house.rescheduling.replace(CALLER, job_id, past)
    assert refused.value.extras == {"field": "at"}
    assert await house.job(job_id) == before


async def test_regular_jobs_and_those_of_others_have_no_schedule_to_change() -> None:
    house = a_house()
    regular, _ = await house.submit()
    scheduled = await schedule(house)
    new = Schedule(rate=Rate(5, RateUnit.MINUTE))
    with pytest.raises(Conflict):
        await house.rescheduling.replace(CALLER, regular, new)
    with pytest.raises(Conflict):
        await house.rescheduling.set_state(CALLER, regular, ScheduleState.PAUSED)
    with pytest.raises(NotFound):
        await house.rescheduling.replace(STRANGER, scheduled, new)
    with pytest.raises(NotFound):
        await house.rescheduling.set_state(STRANGER, scheduled, ScheduleState.PAUSED)


async def test_a_change_and_a_fire_at_once_both_happen() -> None:
    house = a_house()
    job_id = await schedule(house)
    house.clock.advance(HOUR)
    house.trace.before("metadata.commit", 1, house.fire.step)
    await house.rescheduling.set_state(CALLER, job_id, ScheduleState.PAUSED)
    job = await house.job(job_id)
    assert (job.runs, job.schedule_state) == (1, ScheduleState.PAUSED)
