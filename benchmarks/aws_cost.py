"""What does a task cost on DynamoDB: capacity units, rows read, CPU, and the limit of a partition?

Units come from the meter of the strict fake, which bills as AWS documents, under the real dispatcher in
simulated time: 5 ms a request, `max_inflight` 100, queues and permits in memory. CPU is measured in real
time, over HTTP, with the fake in a process of its own. Nothing here was billed by AWS.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import structlog
from tests.harness import time_lapse
from tests.harness.aws_server import client_of
from tests.harness.aws_service import CALLER, AwsService, aws_service

from conveyor.adapters.aws.dynamodb.setup import set_up_table
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.adapters.aws.dynamodb.task_engine import DynamoTaskRows, open_task_rows
from conveyor.adapters.system.clock import SystemClock
from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.domain.job import RunPlace
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.task import Scraped, Settlement, StoredBody, Task, decide
from conveyor.testing.dynamodb.capacity import Units
from conveyor.testing.dynamodb.engine import Knobs
from conveyor.testing.factories import new_tasks

STEPS = ("insert", "claim", "settle", "renew", "retry", "record")
PAGE = 100  # rows of a page of results
CPU_TASKS = int(os.environ.get("BENCH_TASKS", "5000"))
LOAD_TASKS = int(os.environ.get("BENCH_TASKS", "5000"))
PARTITION = 100.0  # write units a second for each partition key, a tenth of AWS's
SMALL = 10  # tasks of a job beside a large one
JOB, RUN = JobId("01J0000000000000000000000A"), RunId("01J0000000000000000000000B")
BODY = StoredBody(
    locator=f"s3:jobs/{JOB}/runs/{RUN}/00000000-8f14e45f.00000001.abcdefghij",
    length=20_000,
    checksum="sha256:" + "0" * 64,
    format="html",
    content_type="text/html",
)


class Figure(msgspec.Struct, frozen=True):
    """A figure beside its goal."""

    name: str
    value: float
    goal: float
    is_least: bool = False  # the goal: else it is the most

    @property
    def is_kept(self) -> bool:
        return self.value >= self.goal if self.is_least else self.value <= self.goal

    def __str__(self) -> str:
        sign = "≥" if self.is_least else "≤"
        verdict = "" if self.is_kept else " **missed**"
        return f"| {self.name} | {self.value:.3g} | {sign} {self.goal:g}{verdict} |"


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    _writes()
    print("\n| figure | measured | goal |\n|---|---|---|")
    for figure in (*_reads(), *throughput_figures(LOAD_TASKS), cpu_of_calls(CPU_TASKS)):
        print(figure)


# Writes.


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """Pages of a job, and the most WCU that a task of it may cost."""

    page: float  # seconds
    shards: int
    tasks: int
    goal: float
    refuses_first: bool = False

    def __str__(self) -> str:
        retried = ", one retry" if self.refuses_first else ""
        page = f"{1_000 * self.page:.0f} ms" if self.page < 1 else f"{self.page:g} s"
        return f"{page}, {_shards(self.shards)}, {self.tasks:,} tasks{retried}"


def _shards(count: int) -> str:
    return "1 shard" if count == 1 else f"{count} shards"


def scenes() -> list[Scene]:
    return [
        *(
            Scene(page=page, shards=shards, tasks=tasks, goal=goal)
            for tasks, goal in ((100, 4.7), (1_000, 4.3), (5_000, 4.3))
            for page in (0.05, 1.0, 5.0)
            for shards in (1, 8)
        ),
        Scene(page=20.0, shards=1, tasks=1_000, goal=4.5),
        Scene(page=20.0, shards=8, tasks=1_000, goal=4.5),
        Scene(page=1.0, shards=1, tasks=1_000, goal=6.5, refuses_first=True),
        Scene(page=1.0, shards=8, tasks=1_000, goal=6.5, refuses_first=True),
    ]


async def finished(scene: Scene) -> AwsService:
    """The service after a job has ended."""
    service = aws_service(shards=scene.shards, page=timedelta(seconds=scene.page))
    service.gateway.refuses_first = scene.refuses_first
    async with service.at_work():
        await service.ended(await service.submit(scene.tasks))
    return service


def written(service: AwsService, tasks: int) -> float:
    """WCU of a task, the records of its job included."""
    return service.fake.meter.units.written / tasks


def _writes() -> None:
    names = " | ".join((*STEPS, "all", "goal", "tasks of a settle", "RCU"))
    print(f"\n| pages, shards, tasks | {names} |\n|{'---|' * (len(STEPS) + 5)}")
    for scene in scenes():
        service = time_lapse.run(finished(scene))
        used, meter = service.used(), service.fake.meter
        each = [used.get(step, Units()).written / scene.tasks for step in STEPS]
        shown = [f"{value:.2f}" for value in each]
        figure = Figure(str(scene), written(service, scene.tasks), scene.goal)
        goal = f"{scene.goal:g}" if figure.is_kept else f"{scene.goal:g} **missed**"
        group = f"{scene.tasks / meter.requests['settle']:.0f}"
        rcu = f"{meter.units.consumed / scene.tasks:.2f}"
        columns = " | ".join([*shown, f"**{figure.value:.2f}**", goal, group, rcu])
        print(f"| {scene} | {columns} |", flush=True)


# Reads.


async def listed(shards: int, tasks: int) -> dict[str, Units]:
    """What listing all results takes, in the middle of a run and after its end: units by rows."""
    service = aws_service(shards=shards, page=timedelta(seconds=1))
    async with service.at_work():
        run_id = await service.submit(tasks)
        await asyncio.sleep(tasks / 100 / 2)
        live = await _list_all(service, run_id)
        assert service.run(run_id).is_live
        await service.ended(run_id)
        await asyncio.sleep(120)  # from then on copies that lag are good enough
        return {"live": live, "ended": await _list_all(service, run_id)}


async def _list_all(service: AwsService, run_id: RunId) -> Units:
    before = service.used().get("list", Units())
    run, after, rows = service.run(run_id), -1, 0
    while True:
        _, parts = await service.steps.read.results(
            CALLER, run.job_id, run_id, limit=PAGE, after=after
        )
        found = [part async for part in parts]
        rows += sum(len(part.tasks) for part in found)
        after = found[-1].tasks[-1].index
        if found[-1].next_cursor is None:
            break
    assert rows == run.total
    used = service.used()["list"]
    return Units(
        read={"": used.consumed - before.consumed},
        items=used.items - before.items,
    )


def reading_figures(shards: int, tasks: int) -> list[Figure]:
    found = time_lapse.run(listed(shards, tasks))
    most = 0.06 if shards == 1 else 0.08
    where = _shards(shards)
    return [
        Figure(f"rows read for a row served, {where}", found["ended"].items / tasks, 1.05),
        Figure(f"RCU of a row, ended run, {where}", found["ended"].consumed / tasks, most),
        Figure(f"RCU of a row, live run, {where}", found["live"].consumed / tasks, 2 * most),
    ]


def _reads() -> list[Figure]:
    return [figure for shards in (1, 8) for figure in reading_figures(shards, 2_000)]


# The limit of a partition.


class Drained(msgspec.Struct, frozen=True):
    """A large job over throttled partitions, and small ones beside it."""

    seconds: float
    slowest_small: float
    throttled: int


async def drained(shards: int, tasks: int) -> Drained:
    """A job of so many tasks, as fast as its partitions allow, and a small job every 5 seconds."""
    service = throttled_service(shards)
    small: list[float] = []
    async with service.at_work():
        run_id = await service.submit(tasks, max_inflight=500)
        since = service.clock.monotonic()
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(_small_jobs(service, small))
            ended = await service.ended(run_id)
            beside.cancel()
    await _check_nothing_lost(service, run_id, tasks)
    refused = service.fake.meter.refused
    return Drained(ended - since, max(small, default=0.0), refused.total())


async def _small_jobs(service: AwsService, took: list[float]) -> None:
    while True:
        took.append(await small_job(service))
        await asyncio.sleep(5)


async def small_job(service: AwsService) -> float:
    """The seconds from the submit of a small job to its completion."""
    since = service.clock.monotonic()
    return await service.ended(await service.submit(SMALL)) - since


async def _check_nothing_lost(service: AwsService, run_id: RunId, tasks: int) -> None:
    run = service.run(run_id)
    counts = (await service.engines.tasks.counts([run_id]))[run_id]
    tally = await service.engines.tasks.tally(run_id)
    assert run.total == counts.successful == tasks
    assert {status.value: number for status, number in tally.items()} == {"successful": tasks}


def throttled_service(shards: int) -> AwsService:
    knobs = Knobs(writes_per_second=PARTITION)
    # Staged lists, whose rows the control worker inserts: a submit would not wait so long for them.
    return aws_service(shards=shards, page=timedelta(seconds=0.2), knobs=knobs, sync_tasks=100)


async def alone() -> float:
    service = throttled_service(8)
    async with service.at_work():
        return await small_job(service)


def throughput_figures(tasks: int) -> list[Figure]:
    one, eight = (time_lapse.run(drained(shards, tasks)) for shards in (1, 8))
    quiet = time_lapse.run(alone())
    ideal = tasks * 4 / PARTITION  # seconds of one partition, for rows alone
    where = f"{tasks:,} tasks at {PARTITION:g} WCU/s for each key"
    return [
        Figure(f"{where}, 1 shard: times the least possible", one.seconds / ideal, 1.5),
        Figure(f"{where}, 8 shards: times as fast", one.seconds / eight.seconds, 6, is_least=True),
        Figure("a small job beside it, 1 shard: seconds late", one.slowest_small - quiet, 0.2),
        Figure("a small job beside it, 8 shards: seconds late", eight.slowest_small - quiet, 0.2),
    ]


# CPU.


def cpu_of_calls(tasks: int) -> Figure:
    """Milliseconds of CPU in this process for the calls of a task: insert, claim, settle, counts."""
    spent = min(asyncio.run(_cpu(tasks)) for _ in range(3))  # the one that was disturbed least
    return Figure("CPU of a worker for the calls of a task, ms", 1_000 * spent / tasks, 0.3)


async def _cpu(tasks: int) -> float:
    async with _fake() as url, client_of(url, connections=32) as client:
        await set_up_table(client, "conveyor")
        rows = open_task_rows(
            DynamoTable(client, "conveyor"),
            SystemClock(),
            lease=timedelta(seconds=90),
            holder="w",
        )
        await rows.tasks.lay_out(RUN, RunPlace(JOB, 8))
        new = new_tasks(RUN, tasks)
        since = time.process_time()
        await rows.tasks.add(RUN, new)
        await _in_groups([task.id for task in new], 50, lambda names: _work(rows, names))
        return time.process_time() - since


async def _work(rows: DynamoTaskRows, names: Sequence[TaskId]) -> None:
    """Claim in tens, settle as one group, look whether the run is complete."""
    stamp = await rows.claims.stamp(RUN)
    taken: list[Task] = []
    for first in range(0, len(names), 10):
        taken += await rows.claims.take(RUN, names[first : first + 10], stamp=stamp)
    outcome = Scraped(BODY)
    await rows.claims.settle(
        [
            Settlement(
                run_id=RUN,
                task_id=task.id,
                claim_no=task.claim_no,
                decision=decide(task, outcome, RetryPolicy()),
            )
            for task in taken
        ]
    )
    await rows.tasks.counts([RUN])


async def _in_groups(names: Sequence[TaskId], size: int, work: Callable[..., Any]) -> None:
    places = asyncio.Semaphore(8)

    async def do(first: int) -> None:
        async with places:
            await work(names[first : first + size])

    async with asyncio.TaskGroup() as group:
        for first in range(0, len(names), size):
            group.create_task(do(first))


@asynccontextmanager
async def _fake() -> AsyncIterator[str]:
    """The fake in a process of its own; its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "conveyor.testing.dynamodb", "fake", "--writes-per-second", "1e9"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()


if __name__ == "__main__":
    main()
