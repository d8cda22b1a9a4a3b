"""Servers short of something: vacuum held up by an old transaction, no connections, a full disk."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from conveyor.adapters.postgres.database import Connection, PostgresDatabase
from conveyor.adapters.postgres.engine import PostgresEngine, open_engine
from conveyor.adapters.postgres.schema import migrate_at
from conveyor.adapters.postgres.table_health import table_health
from conveyor.adapters.postgres.work import RANGES, TAKE_FRESH
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.errors import StorageFull, Unavailable
from conveyor.ports.work import CLAIM_BYTES
from conveyor.testing.factories import RUN, add_rows, held, new_tasks, scraped, settlement
from conveyor.testing.local.servers import server_user
from tests.harness.postgres import TestDatabases, a_postgres, connected

LEASE = timedelta(minutes=10)
IDS = SystemIds(SystemClock())
GROUP = 250
ENTRIES_READ = "SELECT pg_stat_get_xact_tuples_returned('task_pkey'::regclass)"
MANY = 20_000


@pytest.mark.long
async def test_work_goes_on_beside_an_old_transaction_and_the_figures_show_it(
    postgres_18: TestDatabases,
) -> None:
    count, address = 5_000, await postgres_18.empty()
    async with (
        open_engine(address, ids=IDS, lease=LEASE, holder="one") as engine,
        connected(address) as beside,
    ):
        await add_rows(engine.tasks, RUN, new_tasks(RUN, count))
        async with beside.transaction(isolation="repeatable_read"):
            await beside.fetchval("SELECT count(*) FROM task")
            early = await _pages_of_a_claim(engine)
            done = 0
            while done < count - GROUP:
                done += await _worked(engine)
            assert (
                await _pages_of_a_claim(engine) <= 2 * early
            )  # to walk over all tasks before reads three times as many
            assert done + await _drained(engine) == count
            await beside.execute("SELECT pg_stat_force_next_flush()")
            for each in ("held", "fresh"):
                await _vacuumed(engine, each)
            dead, sizes, oldest = await table_health(engine.database)
            assert dead["held"] >= count  # which the vacuum could not remove
            assert sizes["held"] > 0
            assert oldest > 0

        await _vacuumed(engine, "held")
        dead, _, _ = await table_health(engine.database)
        assert dead["held"] == 0


@pytest.mark.long
async def test_a_discard_does_not_pass_over_removed_rows_again(
    postgres_18: TestDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their index entries stay until a vacuum, which must wait for the oldest transaction."""
    count, address, read = 5_000, await postgres_18.empty(), list[int]()
    transact = PostgresDatabase.transact

    async def counting(database: PostgresDatabase, operation: Any) -> Any:
        async def counted(connection: Connection) -> Any:
            outcome = await operation(connection)
            read.append(await connection.fetchval(ENTRIES_READ))
            return outcome

        return await transact(database, counted)

    async with (
        open_engine(address, ids=IDS, lease=LEASE, holder="one") as engine,
        connected(address) as beside,
    ):
        await add_rows(engine.tasks, RUN, new_tasks(RUN, count))
        monkeypatch.setattr(PostgresDatabase, "transact", counting)
        async with beside.transaction(isolation="repeatable_read"):
            await beside.fetchval("SELECT count(*) FROM task")
            for _ in range(count // GROUP):
                assert await engine.tasks.discard(RUN, limit=GROUP) == GROUP
        assert await engine.tasks.runs_held(limit=9) == []
        *early, _ = read  # the last one looks whether all are gone
        # The server adds them up until it passes them on, every second or so.
        assert max(now - before for before, now in pairwise([0, *early])) <= 3 * GROUP


@pytest.mark.long
async def test_a_server_without_free_connections_is_unavailable_until_there_are_some() -> None:
    most = 12
    with a_postgres(18, "-c", f"max_connections={most}") as server:
        address = server.address("postgres")
        await migrate_at(address)
        async with open_engine(address, ids=IDS, lease=LEASE, holder="one") as engine:
            await add_rows(engine.tasks, RUN, new_tasks(RUN, 10))
            [task] = await engine.work.claim({RUN: 1})
            async with AsyncExitStack() as others:
                with suppress(asyncpg.TooManyConnectionsError):
                    while True:
                        await others.enter_async_context(connected(address))
                calls = [engine.tasks.counts([RUN]) for _ in range(5)]
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
                failures = [each for each in outcomes if isinstance(each, BaseException)]
                assert failures
                assert all(isinstance(each, Unavailable) for each in failures)
                assert all("53300" in str(each) for each in failures)
            assert await engine.work.settle([settlement(task, scraped())]) == [True]
            assert await _drained(engine) == 9


@pytest.mark.long
async def test_a_full_disk_is_told_and_loses_nothing() -> None:
    async with _on_small_disk() as (engine, ballast):
        ballast.write_bytes(bytes(50 << 20))
        added = await _added_until_full(engine)
        with pytest.raises(StorageFull, match="53100"):
            await add_rows(engine.tasks, RUN, new_tasks(RUN, GROUP, first=added))

        ballast.unlink()

        await add_rows(engine.tasks, RUN, new_tasks(RUN, GROUP, first=added))
        assert await _drained(engine) == added + GROUP
        assert (await engine.tasks.counts([RUN]))[RUN].successful == added + GROUP


@pytest.mark.long
async def test_claims_and_settles_go_on_once_a_full_disk_has_room_again() -> None:
    async with _on_small_disk() as (engine, ballast):
        for first in range(0, 2 * MANY, GROUP):
            await add_rows(engine.tasks, RUN, new_tasks(RUN, GROUP, first=first))
        left = deque([await engine.work.claim({RUN: GROUP}) for _ in range(MANY // GROUP)])
        _fill(ballast)

        async def settle() -> None:
            await engine.work.settle([settlement(task, scraped()) for task in left[0]])
            left.popleft()

        async def claim() -> None:
            left.append(await engine.work.claim({RUN: GROUP}))

        for call in (settle, claim):
            with pytest.raises(StorageFull):
                await _repeated(call)
        with suppress(StorageFull):
            assert not await engine.work.renew([held(task) for some in left for task in some])

        ballast.unlink()

        for claimed in left:
            assert all(await engine.work.settle([settlement(task, scraped()) for task in claimed]))
        await _drained(engine)
        assert (await engine.tasks.counts([RUN]))[RUN].successful == 2 * MANY


@asynccontextmanager
async def _on_small_disk() -> AsyncIterator[tuple[PostgresEngine, Path]]:
    """An engine whose rows, and not its log, are on a small disk, and the path of a file there."""
    with _small_disk(megabytes=64) as disk, a_postgres(18) as server:
        place = disk / "rows"
        place.mkdir()
        if user := server_user():
            shutil.chown(place, user)
        async with connected(server.address("postgres")) as connection:
            await connection.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
            await connection.execute("CREATE DATABASE small TABLESPACE small")
        address = server.address("small")
        await migrate_at(address)
        async with open_engine(address, ids=IDS, lease=LEASE, holder="one") as engine:
            yield engine, disk / "ballast"


def _fill(ballast: Path) -> None:
    """Write a file until its disk is full."""
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


async def _repeated(call: Callable[[], Awaitable[None]]) -> None:
    for _ in range(MANY // GROUP):
        await call()


async def _added_until_full(engine: PostgresEngine) -> int:
    added = 0
    try:
        while True:
            await add_rows(engine.tasks, RUN, new_tasks(RUN, GROUP, first=added))
            added += GROUP
    except StorageFull:
        return added


async def _drained(engine: PostgresEngine) -> int:
    done = 0
    while claimed := await _worked(engine):
        done += claimed
    return done


async def _worked(engine: PostgresEngine) -> int:
    claimed = await engine.work.claim({RUN: GROUP})
    assert not await engine.work.renew([held(task) for task in claimed])
    assert all(await engine.work.settle([settlement(task, scraped()) for task in claimed]))
    return len(claimed)


async def _pages_of_a_claim(engine: PostgresEngine) -> int:
    """How often a claim of fresh tasks, which is undone, reads a page to find rows."""

    async def operation(connection: Connection) -> int:
        transaction = connection.transaction()
        await transaction.start()
        run_no = await connection.fetchval("SELECT no FROM run_no")
        values = (None, [run_no], [GROUP], LEASE, "one", CLAIM_BYTES, RANGES)
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {TAKE_FRESH}"
        plan = json.loads(await connection.fetchval(explain, *values))[0]["Plan"]
        await transaction.rollback()
        return sum(_pages(plan))

    return await engine.database.run(operation)


def _pages(plan: dict[str, Any]) -> Iterator[int]:
    if "Relation Name" in plan and "Scan" in plan["Node Type"]:
        yield plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    for below in plan.get("Plans", ()):
        yield from _pages(below)


async def _vacuumed(engine: PostgresEngine, table: str) -> None:
    async with connected(engine.database.address) as connection:
        await connection.execute(f"VACUUM (ANALYZE) {table}")


@contextmanager
def _small_disk(*, megabytes: int) -> Iterator[Path]:
    # Not in a folder of pytest, which other users, such as that of the server, may not enter.
    place = Path(tempfile.mkdtemp(prefix="small-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}M,mode=711", "tmpfs", str(place)]
    if os.getuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        place.rmdir()
