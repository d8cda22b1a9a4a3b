"""How much one caller may have under way."""

import msgspec
import pytest

from conveyor.domain.counts import Counts
from conveyor.domain.ids import CallerId, ExportId, InputId, JobId, RunId
from conveyor.domain.job import JobType
from conveyor.domain.run import Inheritance, RunStatus, open_tasks
from conveyor.errors import QuotaExceeded
from conveyor.steps.shared.quotas import QuotaDemand, Quotas
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import CALLER, a_file_input, a_job, a_run, an_export, new_ids
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.tasks import MemoryTasks
from tests.harness.memory_service import LEASE

OTHER = CallerId("another")


async def given(*totals: int, scheduled: int = 0, **limits: int) -> Quotas:
    """A caller with live runs of so many tasks, and scheduled jobs."""
    clock = FakeClock()
    metadata = MemoryMetadata(clock)
    names = new_ids(2 * len(totals) + scheduled)
    for total in totals:
        job_id, run_id = JobId(names.pop()), RunId(names.pop())
        run = a_run(id=run_id, job_id=job_id, total=total)
        await metadata.commit(a_job(id=job_id, latest_run_id=run_id), run)
    for name in names:
        await metadata.commit(a_job(id=JobId(name), type=JobType.SCHEDULED, latest_run_id=None))
    for name in new_ids(3):
        await metadata.commit(msgspec.structs.replace(a_file_input(), id=InputId(name)))
    for name in new_ids(2):
        await metadata.commit(msgspec.structs.replace(an_export(), id=ExportId(name)))
    tasks = MemoryTasks(Rows(clock, LEASE))
    return Quotas(metadata=metadata, tasks=tasks, **limits)


A_JOB = QuotaDemand(caller=CALLER, jobs=1, tasks=5)


@pytest.mark.parametrize(
    ("quota", "most", "demand"),
    [
        ("active_jobs", 3, A_JOB),
        ("scheduled_jobs", 2, QuotaDemand(caller=CALLER, scheduled=1)),
        ("open_tasks", 35, A_JOB),
        ("open_tasks", 35, QuotaDemand(caller=CALLER, tasks=5)),
        ("unused_file_inputs", 4, QuotaDemand(caller=CALLER, file_inputs=1)),
        ("active_exports", 3, QuotaDemand(caller=CALLER, exports=1)),
    ],
)
async def test_a_limit_is_reached_and_not_passed(
    quota: str, most: int, demand: QuotaDemand
) -> None:
    await (await given(10, 20, scheduled=1, **{quota: most})).check_quota(demand)

    with pytest.raises(QuotaExceeded) as refused:
        await (await given(10, 20, scheduled=1, **{quota: most - 1})).check_quota(demand)

    assert refused.value.extras["quota"] == quota
    assert refused.value.extras["limit"] == most - 1
    headers = refused.value.headers
    assert headers["Retry-After"] == "10"
    assert headers["RateLimit-Policy"] == f'"{quota}";q={most - 1}'
    assert headers["RateLimit"].startswith(f'"{quota}";r=')


async def test_what_another_has_does_not_count() -> None:
    quotas = await given(10, 20, scheduled=1, active_jobs=1, scheduled_jobs=1, open_tasks=5)
    await quotas.check_quota(QuotaDemand(caller=OTHER, jobs=1, tasks=5))
    await quotas.check_quota(QuotaDemand(caller=OTHER, scheduled=1))


async def test_a_limit_holds_only_for_what_is_asked() -> None:
    quotas = await given(10, 20, scheduled=1, active_jobs=1, scheduled_jobs=1)
    await quotas.check_quota(QuotaDemand(caller=CALLER, tasks=1_000))
    over = await given(10, 20, active_jobs=1, open_tasks=1_000)
    await over.check_quota(QuotaDemand(caller=CALLER, tasks=1))  # tasks for a job that is there
    full = await given(10, 20, active_jobs=9, open_tasks=1)
    await full.check_quota(QuotaDemand(caller=CALLER, jobs=1))  # an open job without tasks


async def test_without_limits_nothing_is_asked_of_anyone() -> None:
    nowhere: MemoryMetadata = None  # type: ignore[assignment]  # who is asked would fail
    tasks: MemoryTasks = None  # type: ignore[assignment]
    await Quotas(metadata=nowhere, tasks=tasks).check_quota(
        QuotaDemand(caller=CALLER, jobs=1, scheduled=1, tasks=9)
    )


def test_open_tasks_are_those_that_are_still_to_be_done() -> None:
    done = Counts(successful=3)
    run = a_run(total=10, inherited=Inheritance(counts=Counts(successful=2), idle=1))
    assert open_tasks(run, done) == 4
    assert open_tasks(msgspec.structs.replace(run, status=RunStatus.STOPPED), done) == 0
