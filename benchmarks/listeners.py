"""What do 2,000 listeners of one run cost, against one?

A run that moves all the time, so that every second has news. Rounds without a listener, with one
and with all of them take turns; what the service reads and burns is compared.
"""

import asyncio
import resource
import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
import uvloop
from tests.harness.programs import Program, mock_gateway, service

from benchmarks.load import request

ROUNDS = 5
LISTENERS = 2_000
SECONDS = 8.0
KEY = {"X-API-Key": "benchmark"}


class Cost(msgspec.Struct, frozen=True):
    """What the service did a second."""

    reads: float
    cpu: float
    events: float  # that arrived at each listener


def main() -> None:
    _allow_sockets(LISTENERS + 200)
    found: dict[int, list[Cost]] = {0: [], 1: [], LISTENERS: []}
    with tempfile.TemporaryDirectory() as folder, mock_gateway() as gateway:
        flags = ("--log-level", "warning", "--durability", "process")
        with service(gateway=gateway.url, data=Path(folder) / "data", flags=flags) as program:
            job = _a_long_job(program.url)
            for _ in range(ROUNDS):
                for listeners, costs in found.items():
                    costs.append(uvloop.run(_listen(program, job, listeners)))
    for listeners, costs in found.items():
        _show(listeners, costs)
    pairs = zip(found[0], found[1], found[LISTENERS], strict=True)
    each = statistics.median((many.cpu - none.cpu) / LISTENERS for none, _, many in pairs)
    reads = zip(found[1], found[LISTENERS], strict=True)
    ratio = statistics.median(many.reads / one.reads for one, many in reads)
    print(f"{LISTENERS} against 1: {ratio:.2f} times the reads; {each * 1e6:.0f} µs CPU an event")


def _a_long_job(url: str) -> str:
    """Some twenty pages a second for as long as it takes."""
    tasks = [{"url": f"https://slow.example/{n}?ms=1000"} for n in range(10_000)]
    body = {"tasks": tasks, "max_inflight": 20}
    answer = httpx.post(f"{url}/jobs", headers=KEY, json=body, timeout=60)
    return str(answer.raise_for_status().json()["job_id"])


async def _listen(program: Program, job: str, listeners: int) -> Cost:
    heard: list[int] = []
    connected = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_hear(program.url, job, heard, connected)) for _ in range(listeners)
        ]
        for _ in range(listeners):
            await connected.acquire()
        await asyncio.sleep(1)  # connecting is not what is measured
        began, cpu, reads, events = time.perf_counter(), program.cpu, _reads(program), sum(heard)
        await asyncio.sleep(SECONDS)
        taken = time.perf_counter() - began
        cost = Cost(
            (_reads(program) - reads) / taken,
            (program.cpu - cpu) / taken,
            (sum(heard) - events) / taken / max(listeners, 1),
        )
        for task in tasks:
            task.cancel()
    return cost


async def _hear(url: str, job: str, heard: list[int], connected: asyncio.Semaphore) -> None:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(request("GET", f"/v1/jobs/{job}/events"))
        await reader.readuntil(b"data: ")
        place = len(heard)
        heard.append(1)
        connected.release()
        while True:
            await reader.readuntil(b"data: ")
            heard[place] += 1
    finally:
        writer.transport.abort()


def _reads(program: Program) -> float:
    text = httpx.get(program.url.removesuffix("/v1") + "/metrics").text
    [line] = [one for one in text.splitlines() if one.startswith("conveyor_watch_reads_total ")]
    return float(line.split()[1])


def _allow_sockets(count: int) -> None:
    """For the service too: it inherits the limit."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, min(count, most)), most))


def _show(listeners: int, costs: list[Cost]) -> None:
    reads, cpu, events = (
        statistics.median(getattr(cost, name) for cost in costs)
        for name in ("reads", "cpu", "events")
    )
    print(
        f"{listeners:>5} listeners: {reads:.2f} reads a second, {cpu * 100:.1f} % of a core, "
        f"{events:.2f} events a second to each"
    )


if __name__ == "__main__":
    main()
