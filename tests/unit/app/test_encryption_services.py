"""Three services over one store in one process, of the real composition, while keys are rotated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from conveyor.app import services
from conveyor.app.roles import coordinated, open_service, work
from conveyor.app.services import Service
from conveyor.domain.credentials import RotationResult
from conveyor.domain.encryption_keys import RECORD, EncryptionKeys
from conveyor.domain.ids import CallerId
from conveyor.domain.job import Job
from conveyor.mock_gateway.server import MockGateway
from conveyor.steps import rotate_encryption
from tests.harness.shared_engines import SharedEngines

KEY = "a key"
TASKS = {"tasks": [{"url": f"https://ok.example/{number}"} for number in range(2)]}


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> SharedEngines:
    monkeypatch.setattr(rotate_encryption, "LOOK_AGAIN", 0.02)
    monkeypatch.setattr(services, "LISTING_LAG", rotate_encryption.LISTING_LAG / 600)
    return SharedEngines(monkeypatch)


@asynccontextmanager
async def running(shared: SharedEngines, gateway: str, folder: Path) -> AsyncIterator[Service]:
    """A service with its API and its dispatcher, and the loops that follow the others."""
    settings = shared.settings(gateway=gateway, data=str(folder))
    stopping = asyncio.Event()
    async with open_service(settings) as service, coordinated(service):
        working = asyncio.create_task(work(service, stopping, ("dispatch", "control")))
        try:
            yield service
        finally:
            stopping.set()
            await working


def client(service: Service) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=service.app)
    return httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers={"X-API-Key": KEY}
    )


async def rotate(service: Service) -> None:
    last: object = None
    async for event in service.rotate_encryption.rotate():
        last = event
    assert isinstance(last, RotationResult)
    assert last.old_key_removed


async def ended(api: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            job: dict[str, Any] = (await api.get(f"/v1/jobs/{job_id}")).raise_for_status().json()
            if job["latest_run"]["status"] == "completed":
                return job
            await asyncio.sleep(0.02)


async def test_services_read_each_others_credentials_and_links_while_each_rotates(
    shared: SharedEngines, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(MockGateway("127.0.0.1"))
        three = [
            await stack.enter_async_context(running(shared, gateway.url, tmp_path / str(number)))
            for number in range(3)
        ]
        apis = [await stack.enter_async_context(client(service)) for service in three]
        await apis[0].post("/v1/hmac/keys/rotate")
        jobs: list[str] = []
        is_done = asyncio.Event()

        async def keep_submitting(api: httpx.AsyncClient) -> None:
            while not is_done.is_set():
                answer = (await api.post("/v1/jobs", json=TASKS)).raise_for_status()
                jobs.append(answer.json()["job_id"])
                await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as group:
            for api in apis:
                group.create_task(keep_submitting(api))
            for service in three:
                await rotate(service)
            await asyncio.gather(*(rotate(service) for service in three))
            await apis[1].post("/v1/hmac/keys/rotate")
            is_done.set()

        for number, job_id in enumerate(jobs):
            await ended(apis[number % 3], job_id)
        caller = CallerId((await _job(shared, jobs[0])).caller)
        secrets = [await one.steps.manage_webhooks.sender._secrets(caller) for one in three]
        assert len(secrets[0]) == 2
        assert secrets[0] == secrets[1] == secrets[2]
        results = (await apis[0].get(f"/v1/jobs/{jobs[0]}/results")).raise_for_status().json()
        url = results["results"][0]["result_url"]
        pages = [(await api.get(url)).raise_for_status().content for api in apis]
        assert pages[0] == pages[1] == pages[2]
    assert not [*tmp_path.iterdir()], "no service needs a data folder"  # noqa: ASYNC240


async def _job(shared: SharedEngines, job_id: str) -> Job:
    job = await shared.metadata.get(Job, job_id)
    assert job
    return job


async def test_a_service_that_is_killed_during_a_rotation_does_not_hold_it_up(
    shared: SharedEngines, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(MockGateway("127.0.0.1"))
        one = await stack.enter_async_context(running(shared, gateway.url, tmp_path))
        async with running(shared, gateway.url, tmp_path) as other, client(other) as api:
            job_id = (await api.post("/v1/jobs", json=TASKS)).raise_for_status().json()["job_id"]
            async for _ in one.rotate_encryption.rotate():
                break
        await rotate(one)
        record = await shared.metadata.get(EncryptionKeys, RECORD)
        assert record
        assert record.current.fingerprint == one.rotate_encryption.encryption.fingerprints()[0]
        async with client(one) as api:
            await ended(api, job_id)
