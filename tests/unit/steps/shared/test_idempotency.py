"""Two processes that are given the same call with the same key, at once: one effect, one answer.

Each has its own memory of calls under way; only what is stored they share.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from conveyor.app.engines import open_engines
from conveyor.app.services import Service, build_service
from conveyor.settings import Settings
from conveyor.testing.clock import FakeClock, FakeIds

SMALL, LARGE = 3, 12
Two = tuple[httpx.AsyncClient, httpx.AsyncClient, Service]
Ask = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    clock = FakeClock()
    settings = Settings(data=str(tmp_path), durability="process", sync_tasks=10)
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack, clock=clock, ids=FakeIds())
        services = [build_service(settings, engines) for _ in range(2)]
        one, other = [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    transport=httpx.ASGITransport(app=service.app),
                    base_url="http://localhost/v1",
                    headers={"X-API-Key": "a-key"},
                )
            )
            for service in services
        ]
        yield one, other, services[0]


def tasks(count: int) -> list[dict[str, str]]:
    return [{"url": f"https://ok.example/{number}"} for number in range(count)]


async def both(two: Two, ask: Ask) -> bytes:
    """Ask both at once; the one answer there is."""
    answers = await asyncio.gather(ask(two[0]), ask(two[1]), ask(two[0]))
    good = {(one.status_code, one.content) for one in answers if one.is_success}
    assert len(good) == 1, [one.text for one in answers]
    for one in answers:
        assert one.is_success or one.json()["code"] == "idempotency_key_conflict", one.text
    [(status, content)] = good
    for client in two[:2]:
        again = await ask(client)
        assert (again.status_code, again.content) == (status, content)
    return content


async def jobs(two: Two) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await two[0].get("/jobs")).raise_for_status().json()["jobs"]
    return listed


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("round_", range(5))
async def test_a_submit(two: Two, count: int, round_: int) -> None:
    key = {"Idempotency-Key": f"submit-{round_}"}
    await both(two, lambda one: one.post("/jobs", json={"tasks": tasks(count)}, headers=key))
    [job] = await jobs(two)
    assert job["latest_run"]["stats"]["total"] == count


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("last", [False, True])
async def test_an_addition(two: Two, count: int, *, last: bool) -> None:
    body = {"status": "open", "tasks": tasks(1)}
    job_id = (await two[0].post("/jobs", json=body)).json()["job_id"]
    more, key = {"tasks": tasks(count), "last_batch": last}, {"Idempotency-Key": "add"}
    await both(two, lambda one: one.post(f"/jobs/{job_id}/tasks", json=more, headers=key))
    [job] = await jobs(two)
    assert job["latest_run"]["stats"]["total"] == 1 + count


@pytest.mark.parametrize("count", [SMALL, LARGE])
async def test_a_rerun(two: Two, count: int) -> None:
    body = {"tasks": tasks(count)}
    job_id = (await two[0].post("/jobs", json=body)).json()["job_id"]
    while await two[2].steps.control_worker.step():
        pass
    (await two[0].post(f"/jobs/{job_id}/stop")).raise_for_status()
    key = {"Idempotency-Key": "rerun"}
    await both(two, lambda one: one.post(f"/jobs/{job_id}/rerun", headers=key))
    runs = (await two[0].get(f"/jobs/{job_id}/runs")).json()["runs"]
    assert [run["run_sequence"] for run in runs] == [2, 1]


async def test_a_key_in_quotes_is_the_key_without(two: Two) -> None:
    body = {"tasks": tasks(1)}
    told = {
        (await two[0].post("/jobs", json=body, headers={"Idempotency-Key": key})).content
        for key in ("a-key", '"a-key"')
    }
    assert len(told) == 1
    longest = "x" * 128
    for key, status in ((f'"{longest}"', 201), (f'"{longest}x"', 400), ('""', 400), ('"', 201)):
        answer = await two[0].post("/jobs", json=body, headers={"Idempotency-Key": key})
        assert answer.status_code == status, key


async def test_two_keys_in_one_call_are_refused(two: Two) -> None:
    keys = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    answer = await two[0].post("/jobs", json={"tasks": tasks(1)}, headers=keys)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
