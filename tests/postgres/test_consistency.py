"""Processes that add, claim, renew, abandon, retry and settle the same tasks at the same time."""

import asyncio
import sys
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from conveyor.adapters.postgres.address import PostgresAddress
from conveyor.adapters.postgres.database import open_database
from conveyor.adapters.postgres.schema import migrate_at
from conveyor.adapters.postgres.tasks import PostgresTasks
from conveyor.domain.task import TaskStatus
from tests.harness.postgres import TestDatabases, a_postgres, connected, url_of
from tests.postgres.trial import RUNS, Report, take_part
from tests.seed import run_seed

NAMES = ("one", "two", "three")


async def test_every_task_ends_once_and_is_counted_once(postgres_18: TestDatabases) -> None:
    address = await postgres_18.empty()
    reports = await asyncio.gather(*[take_part(address, name, run_seed(), 200) for name in NAMES])
    await check(address, reports, 200)


@pytest.mark.long
@pytest.mark.parametrize("server", ["postgres_18", "postgres_16", "postgres_15"])
async def test_every_task_of_real_processes_ends_once_and_is_counted_once(
    server: str, request: pytest.FixtureRequest
) -> None:
    databases: TestDatabases = request.getfixturevalue(server)
    address = await databases.empty()
    processes = [await _process(address, name, 12_000) for name in NAMES]
    await check(address, await _reports(processes), 12_000)


@pytest.mark.long
async def test_a_crash_of_the_server_gives_no_claim_out_twice() -> None:
    tasks = 2_000
    with a_postgres(18) as server:
        address = server.address("postgres")
        await migrate_at(address)
        processes = [await _process(address, name, tasks, "patient") for name in NAMES]
        async with open_database(address) as database:
            rows, done = PostgresTasks(database), 0
            while done < tasks * len(RUNS) // 2:
                done = sum(counts.done for counts in (await rows.counts(RUNS)).values())
        server.kill()
        server.start()
        await check(address, await _reports(processes), tasks, crashed=True)


async def _process(address: PostgresAddress, name: str, tasks: int, *more: str) -> Process:
    arguments = (url_of(address), name, run_seed(), str(tasks), *more)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.postgres.trial", *arguments, stdout=asyncio.subprocess.PIPE
    )


async def _reports(processes: Sequence[Process]) -> list[Report]:
    told = await asyncio.gather(*[process.communicate() for process in processes])
    return [msgspec.json.decode(report, type=Report) for report, _ in told]


async def check(
    address: PostgresAddress, reports: Sequence[Report], tasks: int, *, crashed: bool = False
) -> None:
    """Compare what the processes were told with the rows.

    After a crash they know no totals, because the answers of calls that took effect may be lost.
    """
    claims = Counter(claim for report in reports for claim in report.claims)
    assert [claim for claim, times in claims.items() if times > 1] == [], "given out twice"
    assert sum(report.wrong for report in reports) == 0
    assert crashed or sum(report.added for report in reports) == tasks * len(RUNS)
    async with open_database(address) as database:
        rows = PostgresTasks(database)
        counts = (await rows.counts(RUNS)).values()
        tallies = [await rows.tally(run_id) for run_id in RUNS]
        groups = [await rows.failure_groups(run_id) for run_id in RUNS]
    assert [sum(tally.values()) for tally in tallies] == [tasks] * len(RUNS)
    for counted, tally, failed in zip(counts, tallies, groups, strict=True):
        assert counted.successful == tally.get(TaskStatus.SUCCESSFUL, 0)
        assert counted.failed == tally.get(TaskStatus.FAILED, 0)
        assert counted.failed == sum(group.count for group in failed)
    async with connected(address) as connection:
        for table in ("fresh", "held", "later"):
            assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 0
    if crashed:
        return
    assert sum(each.successful for each in counts) == sum(each.successful for each in reports)
    assert sum(each.failed for each in counts) == sum(
        each.failed + each.failed_by_losses for each in reports
    )
    assert sum(each.credits for each in counts) == sum(each.credits for each in reports)
    assert sum(each.nanos for each in counts) == sum(each.nanos for each in reports)
