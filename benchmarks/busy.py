"""While a large job drains: how soon are status polls and submits answered, and a small job done?

A gateway that takes 50 ms, and a job that keeps 400 pages in flight. Meanwhile 100 polls and 10
submits a second, and now and then a job of ten pages, of the same caller and of another.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import msgspec
import uvloop
from tests.harness.programs import service

from benchmarks.fast_gateway import fast_gateway

COUNT = 100_000
SIZE = 20_480
LATENCY = 0.05
IN_FLIGHT = 400
POLLS = 100  # a second
SUBMITS = 10
SMALL = 10  # pages
SETTLED_IN = 1.0  # seconds


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        fast_gateway(SIZE, latency=LATENCY) as gateway,
        service(gateway=gateway, data=Path(folder), flags=("--log-level", "warning")) as program,
    ):
        uvloop.run(_measure(program.url))


async def _measure(url: str) -> None:
    async with _client(url, "large") as same, _client(url, "other") as other:
        alone = [await _small_job(other) for _ in range(5)]
        job_id = await _submit(same, COUNT, max_inflight=IN_FLIGHT)
        stop, polls, submits = asyncio.Event(), list[float](), list[float]()
        small: dict[str, list[float]] = {"another caller": [], "the same caller": []}
        await asyncio.sleep(SETTLED_IN)
        before, started = await _done(same, job_id), time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(_pace(POLLS, stop, polls, lambda: _done(same, job_id)))
            group.create_task(_pace(SUBMITS, stop, submits, lambda: _submit(other, 3)))
            while await _done(same, job_id) < COUNT // 2:
                small["another caller"].append(await _small_job(other))
                small["the same caller"].append(await _small_job(same))
            stop.set()
        rate = (await _done(same, job_id) - before) / (time.monotonic() - started)
        print(f"drained meanwhile: {rate:.0f} pages a second")
        _tell("status polls", polls, "p99 under 50 ms")
        _tell("submits of 3 tasks", submits)
        for whose, times in small.items():
            late = max(times) - median(alone)
            goal = "goal: under 1 s"
            print(
                f"a job of {SMALL} of {whose}: {median(times) * 1000:.0f} ms in the median of "
                f"{len(times)}, {median(alone) * 1000:.0f} alone; at most {late:.2f} s late; {goal}"
            )


def _client(url: str, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers={"X-API-Key": key}, timeout=60)


async def _submit(api: httpx.AsyncClient, count: int, **given: object) -> str:
    tasks = [{"url": f"https://ok.example/{number}"} for number in range(count)]
    body = msgspec.json.encode({"tasks": tasks, **given})
    return str((await api.post("/jobs", content=body)).raise_for_status().json()["job_id"])


async def _run(api: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    told = (await api.get(f"/jobs/{job_id}")).raise_for_status().json()
    return dict(told["latest_run"])


async def _done(api: httpx.AsyncClient, job_id: str) -> int:
    return int((await _run(api, job_id))["stats"]["completed"])


async def _small_job(api: httpx.AsyncClient) -> float:
    """Seconds from the submit of a small job to its end."""
    started = time.monotonic()
    job_id = await _submit(api, SMALL)
    while True:
        if (await _run(api, job_id))["status"] == "completed":
            return time.monotonic() - started
        await asyncio.sleep(0.02)


async def _pace(
    rate: int, stop: asyncio.Event, times: list[float], call: Callable[[], Awaitable[object]]
) -> None:
    """So many calls a second, each begun in its time though others are not answered yet."""

    async def one() -> None:
        began = time.monotonic()
        await call()
        times.append(time.monotonic() - began)

    async with asyncio.TaskGroup() as group:
        while not stop.is_set():
            group.create_task(one())
            await asyncio.sleep(1 / rate)


def _tell(what: str, times: list[float], goal: str = "") -> None:
    times = sorted(times)
    p99 = times[len(times) * 99 // 100] * 1000
    aim = f"; goal: {goal}" if goal else ""
    print(f"{what}: median {median(times) * 1000:.1f} ms, p99 {p99:.1f} ms of {len(times)}{aim}")


if __name__ == "__main__":
    main()
