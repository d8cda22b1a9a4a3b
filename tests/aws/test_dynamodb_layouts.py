"""An operator changes the number of shards while jobs are live: all of them are finished."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta

from conveyor.domain.ids import RunId
from conveyor.domain.selection import RerunRequest
from conveyor.steps.shared.idempotency import Call
from conveyor.testing.factories import ids_of
from tests.harness import time_lapse
from tests.harness.aws_service import CALLER, TABLE, AwsService, aws_service
from tests.harness.memory_service import figures_as_answer

TASKS = 40


def with_shards(service: AwsService, count: int) -> AwsService:
    """The service as it starts with another `task_shard_count`, which small jobs have too."""
    submit = replace(service.steps.submit, task_shard_count=count, sharded_from=1)
    return replace(service, steps=replace(service.steps, submit=submit))


def shards_of(service: AwsService, run_id: RunId) -> int:
    """Over how many partitions the rows of a run are spread."""
    items = service.fake.tables[TABLE].items()
    rows = Counter(item["pk"]["S"] for item in items if f"T#{run_id}#" in item["sk"]["S"])
    assert sum(rows.values()) == TASKS
    return len(rows)


async def rerun(service: AwsService, run_id: RunId) -> RunId:
    call = Call(caller=CALLER, gateway_key="key", raw=b"", fingerprint=b"", idempotency_key=None)
    job_id = service.run(run_id).job_id
    answer = await service.steps.rerun.rerun(call, job_id, RerunRequest(), figures_as_answer)
    return RunId(answer.body.decode().split()[0])


async def change_the_count() -> None:
    before = with_shards(aws_service(shards=1, page=timedelta(milliseconds=50)), 4)
    old = await before.submit(TASKS)  # its messages wait, with its layout in them
    tasks = before.engines.tasks
    first = await tasks.page(old, limit=15)
    assert first.cursor is not None
    after = with_shards(before, 8)
    new = await after.submit(TASKS)
    async with after.at_work():
        await after.ended(old)
        await after.ended(new)
        again = await rerun(after, old)
        await after.ended(again)
    rest = await tasks.page(old, limit=TASKS, after=first.cursor)
    assert ids_of([*first.tasks, *rest.tasks]) == ids_of(
        (await tasks.page(again, limit=TASKS)).tasks
    )
    assert [shards_of(after, run_id) for run_id in (old, new, again)] == [4, 8, 4]
    counts = await tasks.counts([old, new, again])
    assert {run_id: one.successful for run_id, one in counts.items()} == dict.fromkeys(
        (old, new, again), TASKS
    )


def test_live_jobs_keep_their_shards_and_new_ones_have_the_new_number() -> None:
    time_lapse.run(change_the_count())
