"""Purges beside an ingest, where either process dies at any request: nothing stays for ever."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random
from typing import Any

from conveyor.adapters.aws.client import AwsClient
from conveyor.adapters.aws.dynamodb.late_rows import LOOK_AFTER
from conveyor.adapters.aws.dynamodb.layout import TTL, ItemKey
from conveyor.adapters.aws.dynamodb.metadata import DynamoMetadata
from conveyor.adapters.aws.dynamodb.table import DynamoTable, key_of_item
from conveyor.adapters.aws.dynamodb.task_engine import DynamoTaskRows, open_task_rows
from conveyor.adapters.aws.dynamodb.tasks import DynamoTasks
from conveyor.domain.ids import RunId
from conveyor.domain.job import TOMBSTONE_LIFE, RunPlace
from conveyor.domain.task import NewRow
from conveyor.steps.purge import Purge
from conveyor.testing.dynamodb.in_process import client_in_process
from conveyor.testing.factories import JOB, RUN, a_task_spec, new_tasks
from tests.harness.aws_service import CALLER, LEASE, TABLE, AwsService, aws_service
from tests.harness.time_lapse import LapseClock
from tests.seed import drawn
from tests.unit.adapters.aws.test_dynamodb_tasks import World, run

MOMENTS = ("before", "after")
SAMPLE = 12  # of the points of each test, in `make test`
LONG_URL = f"https://a.example/{'x' * 500}"  # is beside its row
ENDLESS = 10**6

Act = Callable[[], Awaitable[object]]


class Died(BaseException):
    """The process is killed."""


class DyingClient:
    """The client of a process that dies at a call, and sleeps at one while others go on."""

    def __init__(self, client: AwsClient, *, dies_at: int = ENDLESS, moment: str = "") -> None:
        self._client = client
        self.dies_at, self._moment = dies_at, moment
        self.calls = 0
        self.sleeps_at = ENDLESS
        self.meanwhile: Act | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def call(self, operation: str, request: object, **options: Any) -> Any:
        self.calls += 1
        if self.calls == self.sleeps_at and self.meanwhile:
            await self.meanwhile()
        if self.calls > self.dies_at:
            raise Died  # another task of the process
        if self.calls == self.dies_at and self._moment == "before":
            raise Died
        answer = await self._client.call(operation, request, **options)
        if self.calls == self.dies_at:
            raise Died
        return answer

    def table(self) -> DynamoTable:
        return DynamoTable(self, TABLE)  # type: ignore[arg-type]

    def rows(self, holder: str) -> DynamoTaskRows:
        random = Random(holder)
        return open_task_rows(self.table(), LapseClock(), lease=LEASE, holder=holder, random=random)


async def until_death(act: Awaitable[object]) -> bool:
    """Whether it came to its end."""
    try:
        await act
    except Died:
        return False
    except BaseExceptionGroup as group:
        if group.subgroup(Died) is None:
            raise
        return False
    return True


async def remove_all(tasks: DynamoTasks, run_id: RunId = RUN) -> None:
    while await tasks.discard(run_id, limit=10):
        pass


async def sweep(tasks: DynamoTasks) -> None:
    """What the sweeper does with rows whose run does not exist."""
    for _ in range(6):
        await asyncio.sleep(LOOK_AFTER.total_seconds() + 1)
        for run_id in await tasks.runs_held(limit=9):
            await remove_all(tasks, run_id)


def some_rows(first: int, n: int, run_id: RunId = RUN) -> list[NewRow]:
    new = new_tasks(run_id, first + n)[first:]
    return [NewRow(one.index, one.id, a_task_spec(url=LONG_URL)) for one in new]


async def beside_an_ingest(
    *, sleeper: str, sleeps_at: int, dies_at: int, moment: str
) -> tuple[int, list[ItemKey]]:
    """A purge and an `add` of one run, of which one dies, and the other goes on while it sleeps.

    Return the calls of the sleeper, and what is left when the sweeper has been there.
    """
    world = World()
    others = await world.open("others")
    await others.tasks.lay_out(RUN, RunPlace(JOB, 2))
    await others.tasks.add(RUN, some_rows(0, 2))
    dying = DyingClient(client_in_process(world.fake), moment=moment)
    rows = dying.rows(sleeper)
    # Each in a process of its own, and both know the run.
    await rows.tasks.lay_out(RUN, RunPlace(JOB, 2))
    dying.calls, dying.dies_at = 0, dies_at

    async def add(tasks: DynamoTasks) -> None:
        await tasks.add(RUN, some_rows(2, 2))

    purge, ingest = remove_all, add
    first, second = (purge, ingest) if sleeper == "purge" else (ingest, purge)
    dying.sleeps_at, dying.meanwhile = sleeps_at, lambda: second(others.tasks)
    await until_death(first(rows.tasks))
    await sweep((await world.open("sweeper")).tasks)
    return dying.calls, world.keys


def deaths(calls: int) -> list[tuple[int, int, str]]:
    """At which call a process sleeps, and at which it dies, and when."""
    return [
        (sleeps_at, dies_at, moment)
        for sleeps_at in range(1, calls + 1)
        for dies_at in range(sleeps_at, calls + 1)
        for moment in MOMENTS
    ]


async def die_everywhere(sleeper: str) -> None:
    calls, left = await beside_an_ingest(
        sleeper=sleeper, sleeps_at=ENDLESS, dies_at=ENDLESS, moment=""
    )
    assert (calls >= 4, left) == (True, [])
    points = deaths(calls) + [(sleeps_at, ENDLESS, "") for sleeps_at in range(1, calls + 1)]
    for sleeps_at, dies_at, moment in drawn(points, SAMPLE, of=f"deaths of the {sleeper}"):
        _, left = await beside_an_ingest(
            sleeper=sleeper, sleeps_at=sleeps_at, dies_at=dies_at, moment=moment
        )
        assert not left, f"others went on at call {sleeps_at}; it died {moment} call {dies_at}"


def test_a_purge_that_dies_while_rows_are_added_leaves_nothing_for_ever() -> None:
    run(die_everywhere("purge"))


def test_an_ingest_that_dies_while_its_run_is_purged_leaves_nothing_for_ever() -> None:
    run(die_everywhere("ingest"))


# The whole step, with records and bodies.


async def deleted_service() -> tuple[AwsService, RunId]:
    service = aws_service(shards=2, page=timedelta(milliseconds=50))
    run_id = await service.submit(3)
    async with service.at_work():
        await service.ended(run_id)
    await service.steps.delete.job(CALLER, service.run(run_id).job_id)
    return service, run_id


def purge_by(client: DyingClient, service: AwsService) -> Purge:
    engines, table = service.engines, client.table()
    return Purge(
        metadata=DynamoMetadata(table, service.clock),
        tasks=client.rows("purge").tasks,
        work=engines.work,
        bodies=engines.bodies,
        blobs=engines.blobs,
        clock=service.clock,
    )


async def purged(dies_at: int, moment: str, *, sleeps_at: int) -> tuple[int, list[ItemKey], int]:
    """Purge a job, by a process that dies and by the next one, while rows are added.

    Return the calls of the former, what is left in the table a day later, and how many bodies.
    """
    service, run_id = await deleted_service()
    job_id = service.run(run_id).job_id
    dying = DyingClient(client_in_process(service.fake), dies_at=dies_at, moment=moment)
    dying.sleeps_at = sleeps_at
    dying.meanwhile = lambda: service.engines.tasks.add(run_id, some_rows(3, 2, run_id))
    if not await until_death(purge_by(dying, service).run(job_id)):
        healthy = DyingClient(client_in_process(service.fake))
        assert await purge_by(healthy, service).run(job_id)
    for _ in range(6):
        await asyncio.sleep(TOMBSTONE_LIFE.total_seconds() / 4)
        for _ in range(3):
            await service.steps.sweep.step()
    items = service.fake.tables[TABLE].items()
    lasting = [key_of_item(item) for item in items if TTL not in item]
    return dying.calls, lasting, len(await service.engines.bodies.runs_held(limit=9))


async def purge_everywhere() -> None:
    calls, *left = await purged(ENDLESS, "", sleeps_at=ENDLESS)
    assert (calls > 20, left) == (True, [[], 0])
    for sleeps_at, dies_at, moment in drawn(deaths(calls), SAMPLE // 2, of="deaths of a purge"):
        _, *left = await purged(dies_at, moment, sleeps_at=sleeps_at)
        assert left == [[], 0], f"rows came at call {sleeps_at}; it died {moment} call {dies_at}"


def test_a_purge_that_dies_is_finished_by_the_next_with_records_rows_and_bodies() -> None:
    run(purge_everywhere())
