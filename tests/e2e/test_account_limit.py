"""An account that takes 20 calls at once: used to its limit, and hardly ever asked for more.

How much of it is used on average is tested in simulated time, by `unit/test_limiter.py`: here
that would depend on the speed of the machine.
"""

import asyncio
from pathlib import Path

import httpx
import pytest

from conveyor.mock_gateway.server import MockGateway
from tests.harness.programs import Program, service

LIMIT = 20
LASTING = 200  # milliseconds
TASKS = 500
SETTLED_IN = 200  # pages, after which it is counted
SOON = 200.0  # seconds


@pytest.mark.parametrize("tells", [True, False], ids=["told", "found out"])
async def test_an_account_is_used_to_its_limit_and_seldom_refuses(
    tmp_path: Path, tells: bool
) -> None:
    async with MockGateway(concurrency=LIMIT, tells=tells) as gateway:
        with service(data=tmp_path, gateway=gateway.url) as running:
            async with httpx.AsyncClient(
                base_url=running.url, headers={"X-API-Key": "a-key"}, timeout=SOON
            ) as api:
                job_id = await _submit(api)
                await _pages(gateway, SETTLED_IN)
                asked, refused = gateway.load.calls, await _refused(api, running)
                used = await _used(gateway)
                refused = await _refused(api, running) - refused
                await _completed(api, job_id)  # the gateway is in this process, and waited for
    assert used == LIMIT
    assert refused / (gateway.load.calls - asked) < 0.05


async def _submit(api: httpx.AsyncClient) -> str:
    urls = [f"https://slow.example/{number}?ms={LASTING}" for number in range(TASKS)]
    body = {"tasks": [{"url": url} for url in urls], "max_inflight": 100}
    return str((await api.post("jobs", json=body)).raise_for_status().json()["job_id"])


async def _completed(api: httpx.AsyncClient, job_id: str) -> None:
    async with asyncio.timeout(SOON):
        while True:
            told = (await api.get(f"jobs/{job_id}")).raise_for_status().json()
            if told["latest_run"]["status"] == "completed":
                return
            await asyncio.sleep(0.02)


async def _pages(gateway: MockGateway, count: int) -> None:
    async with asyncio.timeout(SOON):
        while gateway.load.calls < count:  # noqa: ASYNC110 - the mock has no event for it
            await asyncio.sleep(0.02)


async def _used(gateway: MockGateway) -> int:
    """How much of the account is in use at most, until the end is near."""
    most = 0
    async with asyncio.timeout(SOON):
        while gateway.load.calls < TASKS - LIMIT:
            most = max(most, min(gateway.load.in_flight, LIMIT))
            await asyncio.sleep(0.005)
    return most


async def _refused(api: httpx.AsyncClient, running: Program) -> float:
    told = await api.get(running.url.replace("/v1", "/metrics"))
    [line] = [
        line
        for line in told.text.splitlines()
        if line.startswith('conveyor_gateway_answers_total{answer="AUTH006"}')
    ]
    return float(line.split()[1])
