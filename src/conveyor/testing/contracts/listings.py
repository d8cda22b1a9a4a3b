"""How metadata is listed: jobs, runs and events in pages, what is due, and the usage of a caller."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
import pytest

from conveyor.domain import job as job_rules
from conveyor.domain import run as run_rules
from conveyor.domain.batch import Batch
from conveyor.domain.export import Export, ExportStatus
from conveyor.domain.file_input import used_by
from conveyor.domain.ids import CallerId, EventId, ExportId, InputId, JobId, RunId
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.outbox import Channel, EventStatus, OutboxEvent
from conveyor.domain.run import Run, RunStatus
from conveyor.domain.schedule import Rate, RateUnit, Schedule, ScheduleState
from conveyor.errors import Stale
from conveyor.ports.metadata import LISTING_BYTES, DueRow, Removed, RowOfRun, Usage, key_of
from conveyor.testing.clock import NOON, FakeIds
from conveyor.testing.contracts.engine import SECOND, Engine, joined
from conveyor.testing.factories import (
    CALLER,
    JOB,
    OTHER_RUN,
    RUN,
    a_batch,
    a_file_input,
    a_job,
    a_run,
    an_event,
    an_export,
    as_stored,
    new_ids,
)

STRANGER = CallerId("stranger")
HOURLY = Schedule(rate=Rate(1, RateUnit.HOUR))


class ListingContract:
    async def test_jobs_are_listed_newest_first_with_their_latest_runs(
        self, engine: Engine
    ) -> None:
        jobs = await _given_jobs(engine, 3)

        listed = await engine.metadata.jobs(CALLER, limit=9)

        assert [job.id for job, _ in listed] == [job.id for job in reversed(jobs)]
        assert all(run and run.id == job.latest_run_id for job, run in listed)
        assert listed[0] == (
            await engine.metadata.get(Job, jobs[2].id),
            await engine.metadata.get(Run, _run_of(jobs[2])),
        )

    async def test_a_job_is_listed_with_the_run_it_came_to_last(self, engine: Engine) -> None:
        [job] = await _given_jobs(engine, 1)
        rerun = a_run(id=RunId(FakeIds(NOON + 2 * SECOND).new()), job_id=job.id)
        await engine.metadata.commit(
            msgspec.structs.replace(job, latest_run_id=rerun.id, version=1), rerun
        )

        [(_, run)] = await engine.metadata.jobs(CALLER, limit=9)

        assert run is not None
        assert run.id == rerun.id

    async def test_a_job_without_a_run_is_listed_too(self, engine: Engine) -> None:
        await engine.metadata.commit(a_job(latest_run_id=None))

        assert list(await engine.metadata.jobs(CALLER, limit=9)) == [
            (a_job(latest_run_id=None, version=1), None)
        ]

    async def test_deleted_runs_are_listed_only_when_asked_for(self, engine: Engine) -> None:
        names = [RunId(name) for name in new_ids(4)]
        gone = [a_run(id=name, status=RunStatus.DELETED) for name in names[::2]]
        await engine.metadata.commit(a_job(), *gone, *[a_run(id=name) for name in names[1::2]])

        full = await engine.metadata.runs(JOB, limit=2)
        everything = await engine.metadata.runs(JOB, limit=9, deleted=True)

        assert [run.id for run in full] == [names[3], names[1]]
        assert [run.id for run in everything] == names[::-1]

    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    async def test_pages_of_jobs_give_each_once(self, engine: Engine, size: int) -> None:
        jobs = await _given_jobs(engine, 7)
        listed = await joined(
            lambda before: engine.metadata.jobs(CALLER, limit=size, before=before),
            lambda row: row[0].id,
            size=size,
        )

        assert [job.id for job, _ in listed] == [job.id for job in reversed(jobs)]

    async def test_callers_see_their_own_jobs_only(self, engine: Engine) -> None:
        await _given_jobs(engine, 2)
        assert list(await engine.metadata.jobs(STRANGER, limit=9)) == []

    async def test_deleted_jobs_are_listed_only_when_asked_for(self, engine: Engine) -> None:
        first, second, third = await _given_jobs(engine, 3)
        now = engine.clock.now()
        await engine.metadata.commit(
            job_rules.delete(as_stored(first), now), job_rules.close(as_stored(second), now)
        )

        assert await _listed(engine, None) == [third.id, second.id]
        assert await _listed(engine, JobStatus.OPEN) == [third.id]
        assert await _listed(engine, JobStatus.CLOSED) == [second.id]
        assert await _listed(engine, JobStatus.DELETED) == [first.id]

    async def test_filtered_pages_of_jobs_are_full(self, engine: Engine) -> None:
        jobs = await _given_jobs(engine, 6)
        now = engine.clock.now()
        closed = jobs[::2]
        await engine.metadata.commit(*[job_rules.close(as_stored(job), now) for job in closed])

        page = await engine.metadata.jobs(CALLER, limit=3, status=JobStatus.CLOSED)

        assert [job.id for job, _ in page] == [job.id for job in reversed(closed)]

    async def test_jobs_are_listed_by_type(self, engine: Engine) -> None:
        regular, scheduled = await _given_jobs(engine, 2)
        await engine.metadata.commit(
            msgspec.structs.replace(scheduled, type=JobType.SCHEDULED, version=1)
        )

        for kind, job in ((JobType.REGULAR, regular), (JobType.SCHEDULED, scheduled)):
            listed = await engine.metadata.jobs(CALLER, limit=9, kind=kind)
            assert [each.id for each, _ in listed] == [job.id]

    @pytest.mark.parametrize("size", [1, 2, 100])
    async def test_runs_of_a_job_are_listed_newest_first(self, engine: Engine, size: int) -> None:
        names = new_ids(5)
        await engine.metadata.commit(a_job(), *[a_run(id=RunId(name)) for name in names])
        await engine.metadata.commit(a_run(id=OTHER_RUN, job_id=JobId("another")))
        listed = await joined(
            lambda before: engine.metadata.runs(JOB, limit=size, before=before),
            lambda run: run.id,
            size=size,
        )

        assert [run.id for run in listed] == names[::-1]

    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    async def test_live_runs_are_listed_in_order(self, engine: Engine, size: int) -> None:
        jobs = await _given_jobs(engine, 7)
        listed = await _live(engine, size)

        assert [run.id for run in listed] == sorted(_run_of(job) for job in jobs)

    @pytest.mark.parametrize("status", list(RunStatus))
    async def test_a_run_is_listed_as_live_as_the_domain_says(
        self, engine: Engine, status: RunStatus
    ) -> None:
        run = a_run(status=status)
        await engine.metadata.commit(a_job(), run)

        assert [each.id for each in await _live(engine, 9)] == [RUN] * run.is_live

    async def test_a_run_that_ended_is_no_longer_live(self, engine: Engine) -> None:
        await engine.metadata.commit(a_job(), a_run())
        await engine.metadata.commit(run_rules.stop(a_run(version=1), engine.clock.now()))

        assert await _live(engine, 9) == []

    async def test_changes_between_pages_hide_no_live_run(self, engine: Engine) -> None:
        jobs = await _given_jobs(engine, 4)
        [first] = await engine.metadata.live_runs(limit=1)
        now = engine.clock.now()
        await engine.metadata.commit(run_rules.stop(first, now))
        await engine.metadata.commit(a_run(id=RunId("7" * 26), job_id=jobs[0].id))

        rest = await engine.metadata.live_runs(limit=9, after=first.id)

        assert [run.id for run in rest] == [job.latest_run_id for job in jobs[1:]] + ["7" * 26]

    async def test_a_listing_after_an_empty_key_begins_at_its_start(self, engine: Engine) -> None:
        jobs = await _given_jobs(engine, 2)
        listed = await engine.metadata.page(Job, limit=9, after="")
        assert [job.id for job in listed] == [job.id for job in jobs]

    async def test_jobs_are_listed_in_pages_of_bounded_size(self, engine: Engine) -> None:
        size = min(LISTING_BYTES * 2 // 5, (engine.largest_record or LISTING_BYTES) * 9 // 10)
        jobs = await _given_jobs(engine, LISTING_BYTES // size + 2, metadata="x" * size)
        ids = [job.id for job in jobs]

        first = [job.id for job, _ in await engine.metadata.jobs(CALLER, limit=99)]
        every = [job.id for job in await engine.metadata.page(Job, limit=99)]

        assert first == ids[: -len(first) - 1 : -1]
        assert every == ids[: len(every)]
        for page in (first, every):
            assert LISTING_BYTES // 2 < len(page) * size < LISTING_BYTES

    async def test_a_job_larger_than_a_page_is_listed(self, engine: Engine) -> None:
        if engine.largest_record:
            pytest.skip("a record is never larger than a page")
        jobs = await _given_jobs(engine, 2, metadata="x" * (2 * LISTING_BYTES))

        listed = await joined(
            lambda after: engine.metadata.page(Job, limit=9, after=after),
            lambda job: job.id,
            size=9,
        )

        assert [job.id for job in listed] == [job.id for job in jobs]

    async def test_a_jobs_events_come_newest_first_and_pages_join(self, engine: Engine) -> None:
        names = [EventId(name) for name in new_ids(6)]
        for number, name in enumerate(names):
            other = number == 2
            await engine.metadata.commit(
                an_event(id=name, job_id=JobId("other") if other else JOB, due_at=None)
            )

        first = await engine.metadata.events(JOB, limit=2)
        rest = await engine.metadata.events(JOB, limit=9, before=first[-1].id)

        assert [event.id for event in [*first, *rest]] == [
            name for number, name in reversed(list(enumerate(names))) if number != 2
        ]

    @pytest.mark.parametrize("size", [1, 2, 9])
    async def test_the_exports_of_a_run_are_listed_in_pages(
        self, engine: Engine, size: int
    ) -> None:
        names = [ExportId(name) for name in new_ids(5)]
        runs = [RUN, OTHER_RUN, RUN, OTHER_RUN, RUN]
        for name, run_id in zip(names, runs, strict=True):
            await engine.metadata.commit(an_export(id=name, run_id=run_id))

        assert [export.id for export in await _of_run(engine, Export, RUN, size)] == names[::2]
        assert not await _of_run(engine, Export, RunId("another"), size)

    @pytest.mark.parametrize("size", [1, 2, 9])
    async def test_the_batches_of_a_run_are_listed_in_pages(
        self, engine: Engine, size: int
    ) -> None:
        places = [(run_id, first) for run_id in (RUN, OTHER_RUN) for first in (0, 9, 10, 200)]
        batches = [a_batch(run_id=run_id, first=first) for run_id, first in reversed(places)]
        await engine.metadata.commit(*batches)

        for run_id in (RUN, OTHER_RUN):
            listed = await _of_run(engine, Batch, run_id, size)
            assert [key_of(batch) for batch in listed] == [at for at in places if at[0] == run_id]
        assert not await _of_run(engine, Batch, RunId("another"), size)


DUE_KINDS: Mapping[type, Channel | None] = {OutboxEvent: Channel.WEBHOOK, Job: None}
each_due_kind = pytest.mark.parametrize("kind", DUE_KINDS)


class DueContract:
    @each_due_kind
    async def test_a_row_is_due_from_its_moment_on(
        self, engine: Engine, kind: type[DueRow]
    ) -> None:
        await engine.metadata.commit(_due_row(kind, engine.clock.now() + SECOND))

        await engine.pass_time(SECOND - engine.moment)
        assert not await _due(engine, kind)
        await engine.pass_time(engine.moment)
        assert await _due(engine, kind)

    @each_due_kind
    async def test_the_longest_due_come_first_and_no_more_than_asked(
        self, engine: Engine, kind: type[DueRow]
    ) -> None:
        names = new_ids(4)
        for name, wait in zip(names, [3, 1, 4, 2], strict=True):
            await engine.metadata.commit(_due_row(kind, NOON - wait * SECOND, id=name))

        due = await _due(engine, kind, limit=3)

        assert [row.id for row in due] == [names[2], names[0], names[3]]

    async def test_an_event_that_is_not_owed_is_never_due(self, engine: Engine) -> None:
        await engine.metadata.commit(an_event())
        await engine.metadata.commit(an_event(status=EventStatus.DELIVERED, due_at=None, version=1))
        await engine.pass_time(timedelta(days=400))
        assert not await _due(engine, OutboxEvent)

    async def test_events_are_due_on_their_own_channel(self, engine: Engine) -> None:
        names = [EventId(name) for name in new_ids(3)]
        for name, channel in zip(names, Channel, strict=True):
            await engine.metadata.commit(an_event(id=name, channel=channel))

        for name, channel in zip(names, Channel, strict=True):
            due = await engine.metadata.due(OutboxEvent, channel=channel, limit=9)
            assert [event.id for event in due] == [name]

    async def test_of_two_who_take_an_event_one_has_it(self, engine: Engine) -> None:
        await engine.metadata.commit(an_event())
        [event] = await _due(engine, OutboxEvent)
        taken = msgspec.structs.replace(event, due_at=engine.clock.now() + engine.lease)
        await engine.metadata.commit(taken)

        with pytest.raises(Stale):
            await engine.metadata.commit(taken)
        assert not await _due(engine, OutboxEvent)
        await engine.pass_time(engine.lease)
        assert await _due(engine, OutboxEvent)

    async def test_paused_deleted_and_spent_schedules_are_not_due(self, engine: Engine) -> None:
        job = as_stored(a_scheduled_job())
        await engine.metadata.commit(a_scheduled_job())
        changes: list[dict[str, object]] = [
            {"schedule_state": ScheduleState.PAUSED},
            {"status": JobStatus.DELETED},
            {"next_fire_at": None},
        ]
        for version, change in enumerate(changes, start=1):
            await engine.metadata.commit(msgspec.structs.replace(job, version=version, **change))
            assert not await _due(engine, Job)
        await engine.metadata.commit(msgspec.structs.replace(job, version=4))
        assert await _due(engine, Job)
        await engine.metadata.commit(Removed(job))
        assert not await _due(engine, Job)


class UsageContract:
    async def test_a_caller_without_anything_has_nothing(self, engine: Engine) -> None:
        assert await engine.metadata.usage(CALLER) == Usage(live_runs=[])

    async def test_unused_inputs_are_those_of_the_caller_that_no_job_uses(
        self, engine: Engine
    ) -> None:
        file_input = msgspec.structs.replace(a_file_input(), blob="a list")
        names = [InputId(name) for name in new_ids(4)]
        for name in names[:3]:
            await engine.metadata.commit(msgspec.structs.replace(file_input, id=name))
        foreign = msgspec.structs.replace(file_input, id=names[3], caller=STRANGER)
        await engine.metadata.commit(foreign)
        used = as_stored(msgspec.structs.replace(file_input, id=names[0]))
        await engine.metadata.commit(used_by(used, JobId("a job")))
        await engine.metadata.commit(
            Removed(as_stored(msgspec.structs.replace(file_input, id=names[1])))
        )

        assert (await engine.metadata.usage(CALLER)).unused_inputs == 1
        assert (await engine.metadata.usage(STRANGER)).unused_inputs == 1

    async def test_open_exports_are_those_of_the_caller_that_have_not_ended(
        self, engine: Engine
    ) -> None:
        for name, status in zip(new_ids(4), ExportStatus, strict=True):
            export = msgspec.structs.replace(an_export(), id=ExportId(name), status=status)
            await engine.metadata.commit(export)
        foreign = msgspec.structs.replace(an_export(), id=ExportId("foreign"), caller=STRANGER)
        await engine.metadata.commit(foreign)

        assert (await engine.metadata.usage(CALLER)).open_exports == 2
        assert (await engine.metadata.usage(STRANGER)).open_exports == 1

    async def test_live_runs_are_those_of_the_caller_in_order(self, engine: Engine) -> None:
        names = new_ids(8)
        ours = [await _given_run(engine, *names[at : at + 2]) for at in (0, 2, 4)]
        await _given_run(engine, *names[6:], caller=STRANGER)

        assert list((await engine.metadata.usage(CALLER)).live_runs) == ours
        assert len((await engine.metadata.usage(STRANGER)).live_runs) == 1

    @pytest.mark.parametrize(
        "status", [RunStatus.COMPLETED, RunStatus.STOPPED, RunStatus.FAILED, RunStatus.DELETED]
    )
    async def test_a_run_that_is_over_is_not_among_them(
        self, engine: Engine, status: RunStatus
    ) -> None:
        run = await _given_run(engine, *new_ids(2))
        await engine.metadata.commit(msgspec.structs.replace(run, status=status))
        assert not (await engine.metadata.usage(CALLER)).live_runs

    async def test_scheduled_jobs_are_those_of_the_caller(self, engine: Engine) -> None:
        names = new_ids(4)
        for name in names[:2]:
            await engine.metadata.commit(_scheduled(name))
        await engine.metadata.commit(_scheduled(names[2], caller=STRANGER))
        await engine.metadata.commit(a_job(id=JobId(names[3]), latest_run_id=None))

        assert (await engine.metadata.usage(CALLER)).scheduled_jobs == 2
        assert (await engine.metadata.usage(STRANGER)).scheduled_jobs == 1

    async def test_a_deleted_job_does_not_count(self, engine: Engine) -> None:
        [first, second] = new_ids(2)
        for name in (first, second):
            await engine.metadata.commit(_scheduled(name))
        deleted = as_stored(_scheduled(first, status=JobStatus.DELETED))
        await engine.metadata.commit(deleted)
        assert (await engine.metadata.usage(CALLER)).scheduled_jobs == 1
        await engine.metadata.commit(Removed(as_stored(_scheduled(second))))
        assert (await engine.metadata.usage(CALLER)).scheduled_jobs == 0


def _run_of(job: Job) -> RunId:
    assert job.latest_run_id
    return job.latest_run_id


async def _given_jobs(engine: Engine, n: int, *, metadata: str | None = None) -> list[Job]:
    """Jobs with a run each, the oldest first."""
    names = new_ids(2 * n)
    jobs = [
        a_job(id=JobId(names[i]), latest_run_id=RunId(names[i + 1]), metadata=metadata)
        for i in range(0, 2 * n, 2)
    ]
    for job in jobs:
        await engine.metadata.commit(job, a_run(id=job.latest_run_id, job_id=job.id))
    return jobs


async def _listed(engine: Engine, status: JobStatus | None) -> list[str]:
    return [job.id for job, _ in await engine.metadata.jobs(CALLER, limit=9, status=status)]


async def _live(engine: Engine, size: int) -> Sequence[Run]:
    return await joined(
        lambda after: engine.metadata.live_runs(limit=size, after=after),
        lambda run: run.id,
        size=size,
        start="",
    )


async def _of_run(engine: Engine, kind: type[RowOfRun], run_id: RunId, size: int) -> list[RowOfRun]:
    return await joined(
        lambda after: engine.metadata.of_run(kind, run_id, limit=size, after=after),
        key_of,
        size=size,
    )


def _due_row(kind: type, at: datetime, **changes: object) -> OutboxEvent | Job:
    if kind is Job:
        return a_scheduled_job(next_fire_at=at, **changes)
    return an_event(due_at=at, **changes)


async def _due(engine: Engine, kind: type[DueRow], *, limit: int = 9) -> Sequence[DueRow]:
    return await engine.metadata.due(kind, channel=DUE_KINDS[kind], limit=limit)


def a_scheduled_job(**changes: object) -> Job:
    job = a_job(
        id=JOB,
        type=JobType.SCHEDULED,
        status=JobStatus.CLOSED,
        latest_run_id=None,
        schedule=HOURLY,
        next_fire_at=NOON,
    )
    return msgspec.structs.replace(job, **changes)


async def _given_run(engine: Engine, job: str, run: str, *, caller: CallerId = CALLER) -> Run:
    made = a_run(id=RunId(run), job_id=JobId(job), caller=caller)
    owner = a_job(id=JobId(job), latest_run_id=made.id, caller=caller)
    await engine.metadata.commit(owner, made)
    return as_stored(made)


def _scheduled(name: str, **changes: object) -> Job:
    return a_scheduled_job(id=JobId(name), **changes)
