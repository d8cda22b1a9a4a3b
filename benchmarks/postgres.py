"""How fast are tasks added, claimed, settled, listed and removed on PostgreSQL?

Commits are synchronous and the server syncs its disk. Two worker processes claim and settle, with two
loops each. The CPU time of the server's processes is shown beside the rates, because the rates depend
on what else the machine does.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path

from tests.harness.postgres import a_postgres, url_of
from tests.harness.programs import TICKS

from conveyor.adapters.postgres.address import PostgresAddress, parse_address
from conveyor.adapters.postgres.engine import PostgresEngine, open_engine
from conveyor.adapters.postgres.schema import migrate_at
from conveyor.adapters.postgres.table_health import table_health
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.domain.counts import Spend
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.job import RunPlace
from conveyor.domain.task import NewRow, SettleDecision, StoredBody, TaskSpec, TaskStatus, new_tasks
from conveyor.steps.purge import CHUNK as PURGED
from conveyor.testing.factories import settlement

# Half of them are in the run that is listed and removed.
TASKS = int(os.environ.get("TASKS", "2000000"))
MANY_RUNS = 1_000
CHUNK = 2_000
GROUPS = (250, 100)
PROCESSES, LOOPS = 2, 2
GOALS = {"add": 50_000, 250: 20_000, 100: 12_000, "many runs": 8_000, "discard": 50_000}
# As docs/storage/postgres.md has it.
SETTINGS = (
    "-c", "shared_buffers=1GB", "-c", "max_wal_size=4GB", "-c", "autovacuum_naptime=5s",
)  # fmt: skip
PAGE_GOAL = 2.0  # ms for a page of 100
PAGES = 50
PENDING = frozenset({TaskStatus.PENDING})
BODY = StoredBody(locator="segment/1/2", length=20_000, checksum="0" * 64, format="html")
DONE = SettleDecision(
    status=TaskStatus.SUCCESSFUL, charged=True, result=BODY, spend=Spend(1, 1_000_000)
)


def main() -> None:
    print(f"load average before: {_load()}")
    with a_postgres(18, *SETTINGS) as server:
        address = server.address("postgres")
        asyncio.run(_measure(address, server.process.pid))
    print(f"load average after: {_load()}")


async def _measure(address: PostgresAddress, server: int) -> None:
    await migrate_at(address)
    async with _opened(address) as engine:
        for group in GROUPS:
            run_id = RunId(f"group-{group}")
            await _add(engine, run_id, TASKS // len(GROUPS), server)
            if group == GROUPS[0]:
                await _read(engine, run_id)  # while all of them are pending
            rate = await _drain(address, [run_id], group, server)
            print(f"claim and settle, groups of {group}: {rate} (goal {GOALS[group]:,}/s)")
        runs = [RunId(f"run-{number:04}") for number in range(MANY_RUNS)]
        for run_id in runs:
            await _add(engine, run_id, max(1, TASKS // 10 // MANY_RUNS))
        rate = await _drain(address, runs, 250, server)
        print(f"claim and settle, {MANY_RUNS:,} runs: {rate} (goal {GOALS['many runs']:,}/s)")
        dead, sizes, _ = await table_health(engine.database)
        for table in ("fresh", "held", "later"):
            print(f"{table}: {dead[table]:,} dead rows, {sizes[table] / 2**20:,.0f} MiB")
        await _read(engine, RunId("group-250"))
        await _discard(engine, RunId("group-250"), server)


def _opened(
    address: PostgresAddress, name: str = "benchmark"
) -> AbstractAsyncContextManager[PostgresEngine]:
    ids = SystemIds(SystemClock())
    return open_engine(address, ids=ids, lease=timedelta(minutes=5), holder=name)


async def _add(engine: PostgresEngine, run_id: RunId, count: int, server: int = 0) -> None:
    await engine.tasks.lay_out(run_id, RunPlace(JobId("job")))
    specs = [TaskSpec(url=f"https://example.com/a/page?number={n}") for n in range(CHUNK)]
    took, cpu = 0.0, server_cpu(server)
    for first in range(0, count, CHUNK):
        chunk: list[NewRow] = new_tasks(run_id, first, specs[: count - first])
        before = time.perf_counter()
        await engine.tasks.add(run_id, chunk)
        took += time.perf_counter() - before
    if server:
        goal = f"goal {GOALS['add']:,}/s"
        print(f"add {count:,} tasks: {_rate(count, took, server_cpu(server) - cpu)} ({goal})")


async def _drain(address: PostgresAddress, runs: list[RunId], group: int, server: int) -> str:
    async with _opened(address) as engine:
        tallies = [await engine.tasks.tally(run_id) for run_id in runs]
        count = sum(tally.get(TaskStatus.PENDING, 0) for tally in tallies)
    command = [sys.executable, "-m", "benchmarks.postgres", url_of(address), str(group)]
    processes = [
        await asyncio.create_subprocess_exec(
            *command, str(number), *runs, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for number in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout
        await process.stdout.readline()  # it is ready
    before, cpu = time.perf_counter(), server_cpu(server)
    for process in processes:
        assert process.stdin
        process.stdin.write(b"go\n")
    async with asyncio.TaskGroup() as watching:
        fifths = watching.create_task(_time_of_fifths(address, runs, count))
        for process in processes:
            await process.wait()
    took = time.perf_counter() - before
    first, *_, last = fifths.result()
    steadiness = f"first fifth {count / 5 / first:,.0f}/s, last {count / 5 / last:,.0f}/s"
    return f"{_rate(count, took, server_cpu(server) - cpu)}, {steadiness}"


async def _time_of_fifths(
    address: PostgresAddress, runs: Sequence[RunId], count: int
) -> list[float]:
    """How long each fifth of the tasks took, to a tenth of a second."""
    took, start = list[float](), time.perf_counter()
    async with _opened(address, "watch") as engine:
        while len(took) < 5:
            await asyncio.sleep(0.1)
            counts = await engine.tasks.counts(runs)
            done = sum(each.done for each in counts.values())
            if done >= count * (len(took) + 1) // 5:
                took.append(time.perf_counter() - start)
                start = time.perf_counter()
    return took


async def _work(address: PostgresAddress, group: int, number: int, runs: list[RunId]) -> None:
    async def loop(engine: PostgresEngine, nth: int) -> None:
        own = runs[nth :: PROCESSES * LOOPS] or runs
        while own:
            some = own[:20]
            given = await engine.work.claim(dict.fromkeys(some, max(1, group // len(some))))
            if given:
                await engine.work.settle([settlement(task, DONE) for task in given])
                continue
            tallies = [await engine.tasks.tally(run_id) for run_id in some]
            if not any(tally.get(TaskStatus.PENDING) for tally in tallies):
                own = own[20:]

    async with _opened(address, f"worker-{number}") as engine:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        async with asyncio.TaskGroup() as loops:
            for nth in range(LOOPS):
                loops.create_task(loop(engine, LOOPS * number + nth))


async def _read(engine: PostgresEngine, run_id: RunId) -> None:
    count = sum((await engine.tasks.tally(run_id)).values())
    for limit, statuses in ((100, None), (1_000, None), (100, PENDING)):
        for name, start in (("start", 0), ("end", max(0, count - PAGES * limit))):
            times = []
            for page in range(PAGES):
                before, after = time.perf_counter(), start + page * limit - 1
                await engine.tasks.page(run_id, limit=limit, after=after, statuses=statuses)
                times.append(time.perf_counter() - before)
            kind = "of pending tasks " if statuses else ""
            goal = f" (goal {PAGE_GOAL} ms)" if limit == 100 else ""
            print(
                f"page of {limit} {kind}at the {name}: median "
                f"{sorted(times)[PAGES // 2] * 1e3:.1f} ms{goal}"
            )


async def _discard(engine: PostgresEngine, run_id: RunId, server: int) -> None:
    before, cpu, gone = time.perf_counter(), server_cpu(server), 0
    while portion := await engine.tasks.discard(run_id, limit=PURGED):
        gone += portion
    rate = _rate(gone, time.perf_counter() - before, server_cpu(server) - cpu)
    print(f"discard: {rate} (goal {GOALS['discard']:,}/s)")


def _rate(count: int, seconds: float, cpu: float) -> str:
    return f"{count / seconds:,.0f}/s, {cpu / count * 1e6:.1f} µs of the server's CPU time each"


def server_cpu(postmaster: int) -> float:
    """CPU seconds of the server, with its sessions, those that have ended included."""
    if not postmaster:
        return 0.0
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    ticks = 0
    for process in (str(postmaster), *children):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        except FileNotFoundError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


def _load() -> str:
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        url, size, own, *names = sys.argv[1:]
        mine = [RunId(name) for name in names]
        asyncio.run(_work(parse_address(url), int(size), int(own), mine))
    else:
        main()
