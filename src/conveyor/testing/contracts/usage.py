"""What one caller has under way."""

import msgspec
import pytest

from conveyor.domain.export import ExportStatus
from conveyor.domain.file_input import used_by
from conveyor.domain.ids import CallerId, ExportId, InputId, JobId, RunId
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.run import Run, RunStatus
from conveyor.ports.metadata import Removed, Usage
from conveyor.testing.contracts.engine import Engine
from conveyor.testing.factories import (
    CALLER,
    a_file_input,
    a_job,
    a_run,
    an_export,
    as_stored,
    new_ids,
)

OTHER = CallerId("another")


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
        foreign = msgspec.structs.replace(file_input, id=names[3], caller=OTHER)
        await engine.metadata.commit(foreign)
        used = as_stored(msgspec.structs.replace(file_input, id=names[0]))
        await engine.metadata.commit(used_by(used, JobId("a job")))
        await engine.metadata.commit(
            Removed(as_stored(msgspec.structs.replace(file_input, id=names[1])))
        )

        assert (await engine.metadata.usage(CALLER)).unused_inputs == 1
        assert (await engine.metadata.usage(OTHER)).unused_inputs == 1

    async def test_open_exports_are_those_of_the_caller_that_have_not_ended(
        self, engine: Engine
    ) -> None:
        for name, status in zip(new_ids(4), ExportStatus, strict=True):
            export = msgspec.structs.replace(an_export(), id=ExportId(name), status=status)
            await engine.metadata.commit(export)
        foreign = msgspec.structs.replace(an_export(), id=ExportId("foreign"), caller=OTHER)
        await engine.metadata.commit(foreign)

        assert (await engine.metadata.usage(CALLER)).open_exports == 2
        assert (await engine.metadata.usage(OTHER)).open_exports == 1

    async def test_live_runs_are_those_of_the_caller_in_order(self, engine: Engine) -> None:
        names = new_ids(8)
        ours = [await _given_run(engine, *names[at : at + 2]) for at in (0, 2, 4)]
        await _given_run(engine, *names[6:], caller=OTHER)

        assert list((await engine.metadata.usage(CALLER)).live_runs) == ours
        assert len((await engine.metadata.usage(OTHER)).live_runs) == 1

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
        await engine.metadata.commit(_scheduled(names[2], caller=OTHER))
        await engine.metadata.commit(a_job(id=JobId(names[3]), latest_run_id=None))

        assert (await engine.metadata.usage(CALLER)).scheduled_jobs == 2
        assert (await engine.metadata.usage(OTHER)).scheduled_jobs == 1

    async def test_a_deleted_job_does_not_count(self, engine: Engine) -> None:
        [first, second] = new_ids(2)
        for name in (first, second):
            await engine.metadata.commit(_scheduled(name))
        deleted = as_stored(_scheduled(first, status=JobStatus.DELETED))
        await engine.metadata.commit(deleted)
        assert (await engine.metadata.usage(CALLER)).scheduled_jobs == 1
        await engine.metadata.commit(Removed(as_stored(_scheduled(second))))
        assert (await engine.metadata.usage(CALLER)).scheduled_jobs == 0


async def _given_run(engine: Engine, job: str, run: str, *, caller: CallerId = CALLER) -> Run:
    made = a_run(id=RunId(run), job_id=JobId(job), caller=caller)
    owner = a_job(id=JobId(job), latest_run_id=made.id, caller=caller)
    await engine.metadata.commit(owner, made)
    return as_stored(made)


def _scheduled(name: str, **changes: object) -> Job:
    job = a_job(id=JobId(name), type=JobType.SCHEDULED, status=JobStatus.CLOSED, latest_run_id=None)
    return msgspec.structs.replace(job, **changes)
