"""Lists, results and exports on S3: how soon accepted, how fast kept, in how much memory?

The server is SeaweedFS on the same machine and shares its cores. Segments are compared with objects
in alternating rounds.
"""

import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
from tests.harness.programs import mock_gateway, service
from tests.s3_server import S3Server, seaweedfs_at

from benchmarks.export import export, fill
from conveyor.adapters.s3.address import Layout
from conveyor.adapters.s3.bodies import S3Bodies
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.app.engines import open_engines
from conveyor.domain.ids import JobId, RunId, task_ids
from conveyor.ports.bodies import Bodies, Body, BodyName
from conveyor.settings import Settings

ROWS = int(os.environ.get("BENCH_ROWS", "1000000"))
EXPORTED = int(os.environ.get("BENCH_EXPORT_BYTES", "1000000000"))
SUBMITS = 10
SIZE = 20_480
COUNT, GROUP, AT_ONCE, ROUNDS = 1_920, 64, 2, 3
JOB, RUN = JobId("01J0000000000000000000000A"), RunId("01J0000000000000000000000B")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, seaweedfs_at(Path(folder)) as server:
        asyncio.run(_bodies(server))
        _lists(server, Path(folder))
        _exports(server, Path(folder))


# Bodies.


async def _bodies(server: S3Server) -> None:
    rates: dict[Layout, list[float]] = {layout: [] for layout in Layout}
    reads: dict[Layout, list[float]] = {layout: [] for layout in Layout}
    for _ in range(ROUNDS):
        for layout in Layout:
            bodies = S3Bodies(server.bucket(), SystemIds(SystemClock()), layout=layout)
            put, read = await _kept(bodies)
            rates[layout].append(put)
            reads[layout].append(read)
    for layout in Layout:
        put, read = statistics.median(rates[layout]), statistics.median(reads[layout])
        print(f"bodies of 20 KB as {layout}: {put:.0f} kept, {read:.0f} loaded a second")
    pairs = zip(rates[Layout.SEGMENTS], rates[Layout.OBJECTS], strict=True)
    ratios = [segments / objects for segments, objects in pairs]
    print(
        f"  median ratio of segments to objects: {statistics.median(ratios):.1f} "
        f"(rounds: {min(ratios):.1f} to {max(ratios):.1f}); goal: 3"
    )


async def _kept(bodies: Bodies) -> tuple[float, float]:
    """How many bodies are kept a second, and loaded."""
    page, task_id = os.urandom(SIZE), task_ids(RUN)
    whole = [Body(BodyName(JOB, RUN, task_id(n), 1), page) for n in range(COUNT)]
    groups = iter([whole[start : start + GROUP] for start in range(0, COUNT, GROUP)])
    locators: list[str] = []

    async def put() -> None:
        for group in groups:
            locators.extend([kept.locator for kept in await bodies.put_many(group)])

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(put())
    kept = COUNT / (time.perf_counter() - started)
    started = time.perf_counter()
    for start in range(0, COUNT, GROUP):
        loaded = await bodies.load_many(locators[start : start + GROUP])
        assert all(content == page for content in loaded)
    read = COUNT / (time.perf_counter() - started)
    while await bodies.delete_run(JOB, RUN, limit=1_000):
        pass
    return kept, read


# Lists.


def _lists(server: S3Server, folder: Path) -> None:
    address = f"s3:{server.new_address()}"
    environ = {**server.environ, "CONVEYOR_BLOBS": address, "CONVEYOR_BODIES": address}
    flags = ("--log-level", "warning", "--durability", "process")
    with (
        mock_gateway() as gateway,
        service(
            gateway=gateway.url, data=folder / "lists", flags=flags, environ=environ
        ) as program,
        httpx.Client(base_url=program.url, headers={"X-API-Key": "benchmark"}, timeout=600) as api,
    ):
        idle, cpu = program.memory, program.cpu
        created = api.post("/job_inputs", json={"type": "txt"}).raise_for_status().json()
        upload = created["upload"]
        content = b"".join(b"https://ok.example/%d\n" % n for n in range(ROWS))
        started = time.perf_counter()
        put = httpx.put(upload["url"], content=content, headers=upload["headers"], timeout=600)
        put.raise_for_status()
        sent = time.perf_counter() - started
        print(
            f"a list of {ROWS:,} rows, {len(content) / 1e6:.0f} MB: PUT in {sent:.2f} s, which cost "
            f"the service {program.cpu - cpu:.2f} s of CPU and {program.memory - idle:.1f} MB"
        )
        accepted = [_accepted(api, created["file_input_id"]) for _ in range(SUBMITS)]
        print(
            f"  accepted in {statistics.median(accepted) * 1000:.0f} ms, at most "
            f"{max(accepted) * 1000:.0f} ms; goal: 300 ms"
        )


def _accepted(api: httpx.Client, file_input_id: str) -> float:
    started = time.perf_counter()
    answer = api.post("/jobs", json={"file_input_id": file_input_id})
    taken = time.perf_counter() - started
    assert answer.status_code == 202, answer.text
    api.delete(f"/jobs/{answer.json()['job_id']}").raise_for_status()
    return taken


# Exports.


def _exports(server: S3Server, folder: Path) -> None:
    told = {}
    for share in (10, 1):
        address = f"s3:{server.new_address()}"
        data = folder / f"export-{share}"
        for verb in ("fill", "export"):
            command = [sys.executable, "-m", "benchmarks.s3", verb, str(data), address]
            environ = {**os.environ, **server.environ, "BENCH_EXPORT_BYTES": str(EXPORTED // share)}
            done = subprocess.run(command, check=True, capture_output=True, env=environ)
            told[share] = json.loads(done.stdout.splitlines()[-1])
    tenth, whole = told[10], told[1]
    print(
        f"an export of {whole['length'] / 1e6:.0f} MB: {whole['seconds']:.1f} s, "
        f"{whole['length'] / 1e6 / whole['seconds']:.0f} MB/s, CPU {whole['cpu']:.1f} s"
    )
    print(f"  {whole['memory']:.0f} MB of memory at most, {tenth['memory']:.0f} MB for a tenth")


def _settings(data: str, address: str) -> Settings:
    return Settings(
        data=data,
        bodies=f"{address}&layout=segments",
        blobs=address,
        durability="process",
        log_level="error",
    )


async def _fill(settings: Settings) -> None:
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        await fill(engines, EXPORTED // SIZE, _pages())
    print(json.dumps({}))


def _pages() -> Iterator[bytes]:
    """Pages that do not shrink, so that the file is as large as they are."""
    noise = os.urandom(16 * SIZE)
    for n in itertools.count():
        yield noise[n % SIZE * 15 : n % SIZE * 15 + SIZE]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["fill", data, address]:
            asyncio.run(_fill(_settings(data, address)))
        case ["export", data, address]:
            asyncio.run(export(_settings(data, address)))
        case _:
            main()
