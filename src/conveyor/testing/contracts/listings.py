"""How jobs and runs are listed, page by page."""

from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from conveyor.domain import job as job_life
from conveyor.domain import run as run_life
from conveyor.domain.batch import Batch
from conveyor.domain.export import Export
from conveyor.domain.ids import CallerId, EventId, ExportId, JobId, RunId
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.run import Run, RunStatus
from conveyor.ports.metadata import LISTING_BYTES, Key, RowOfRun, key_of
from conveyor.testing.clock import NOON, FakeIds
from conveyor.testing.contracts.engine import Engine
from conveyor.testing.factories import (
    CALLER,
    JOB,
    OTHER_RUN,
    RUN,
    a_batch,
    a_job,
    a_run,
    an_event,
    an_export,
    as_stored,
    new_ids,
)

SECOND = timedelta(seconds=1)
STRANGER = CallerId("stranger")


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
        listed: list[str] = []
        before = None
        while page := await engine.metadata.jobs(CALLER, limit=size, before=before):
            listed += [job.id for job, _ in page]
            before = listed[-1]

        assert listed == [job.id for job in reversed(jobs)]

    async def test_callers_see_their_own_jobs_only(self, engine: Engine) -> None:
        await _given_jobs(engine, 2)
        assert list(await engine.metadata.jobs(STRANGER, limit=9)) == []

    async def test_deleted_jobs_are_listed_only_when_asked_for(self, engine: Engine) -> None:
        first, second, third = await _given_jobs(engine, 3)
        now = engine.clock.now()
        await engine.metadata.commit(
            job_life.delete(as_stored(first), now), job_life.close(as_stored(second), now)
        )

        assert await _listed(engine, None) == [third.id, second.id]
        assert await _listed(engine, JobStatus.OPEN) == [third.id]
        assert await _listed(engine, JobStatus.CLOSED) == [second.id]
        assert await _listed(engine, JobStatus.DELETED) == [first.id]

    async def test_filtered_pages_of_jobs_are_full(self, engine: Engine) -> None:
        jobs = await _given_jobs(engine, 6)
        now = engine.clock.now()
        closed = jobs[::2]
        await engine.metadata.commit(*[job_life.close(as_stored(job), now) for job in closed])

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
        listed: list[str] = []
        before = None
        while page := await engine.metadata.runs(JOB, limit=size, before=before):
            listed += [run.id for run in page]
            before = listed[-1]

        assert listed == names[::-1]

    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    async def test_live_runs_are_listed_in_order_with_their_jobs(
        self, engine: Engine, size: int
    ) -> None:
        jobs = await _given_jobs(engine, 7)
        listed = await _live(engine, size)

        assert [run.id for run, _ in listed] == sorted(_run_of(job) for job in jobs)
        assert [job for _, job in listed] == [as_stored(job) for job in jobs]

    @pytest.mark.parametrize("status", list(RunStatus))
    async def test_a_run_is_listed_as_live_as_the_domain_says(
        self, engine: Engine, status: RunStatus
    ) -> None:
        run = a_run(status=status)
        await engine.metadata.commit(a_job(), run)

        assert [each.id for each, _ in await _live(engine, 9)] == [RUN] * run.is_live

    async def test_a_run_that_ended_is_no_longer_live(self, engine: Engine) -> None:
        await engine.metadata.commit(a_job(), a_run())
        await engine.metadata.commit(run_life.stop(a_run(version=1), engine.clock.now()))

        assert await _live(engine, 9) == []

    async def test_changes_between_pages_hide_no_live_run(self, engine: Engine) -> None:
        jobs = await _given_jobs(engine, 4)
        [(first, _)] = await engine.metadata.live_runs(limit=1)
        now = engine.clock.now()
        await engine.metadata.commit(run_life.stop(first, now))
        await engine.metadata.commit(a_run(id=RunId("7" * 26), job_id=jobs[0].id))

        rest = await engine.metadata.live_runs(limit=9, after=first.id)

        assert [run.id for run, _ in rest] == [job.latest_run_id for job in jobs[1:]] + ["7" * 26]

    async def test_jobs_are_listed_in_pages_of_bounded_size(self, engine: Engine) -> None:
        """Two fit into a page."""
        large = "x" * (LISTING_BYTES * 2 // 5)
        jobs = await _given_jobs(engine, 5, metadata=large)
        ids = [job.id for job in jobs]

        first = await engine.metadata.jobs(CALLER, limit=9)
        live = await engine.metadata.live_runs(limit=9)
        every = await engine.metadata.page(Job, limit=9)

        assert [job.id for job, _ in first] == ids[:-3:-1]
        assert [job.id for _, job in live] == ids[:2]
        assert [job.id for job in every] == ids[:2]
        assert [job.id for _, job in await _live(engine, 9)] == ids

    async def test_a_job_larger_than_a_page_is_listed(self, engine: Engine) -> None:
        jobs = await _given_jobs(engine, 2, metadata="x" * (2 * LISTING_BYTES))

        assert [job.id for _, job in await _live(engine, 9)] == [job.id for job in jobs]

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


async def _live(engine: Engine, size: int) -> Sequence[tuple[Run, Job]]:
    listed: list[tuple[Run, Job]] = []
    after = ""
    while page := await engine.metadata.live_runs(limit=size, after=after):
        listed += page
        after = page[-1][0].id
    return listed


async def _of_run(engine: Engine, kind: type[RowOfRun], run_id: RunId, size: int) -> list[RowOfRun]:
    listed: list[RowOfRun] = []
    after: Key | None = None
    while page := await engine.metadata.of_run(kind, run_id, limit=size, after=after):
        listed += page
        after = key_of(listed[-1])
    return listed
