"""Power cuts: what is on disk at any moment, less what was not synced, holds all that was promised.

The whole service runs over a disk that remembers every write and every sync, the database's and the
segments' alike. Then the power is cut at random moments of that: writes since the last sync are there
in part or not at all, sector by sector. Keys and lock are files of the start, and taken as they are.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from conveyor.app.engines import Engines, open_engines
from conveyor.app.roles import work
from conveyor.app.services import build_service
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.problem import encoded, problem
from conveyor.domain.run import Run
from conveyor.domain.task import Settlement, TaskStatus
from conveyor.ports.bodies import Spool
from conveyor.ports.gateway import GatewayRefusal, Page, PageRequest
from conveyor.ports.work import Work
from conveyor.settings import Settings
from conveyor.testing.factories import gateway_refusal
from tests.harness.segments import Disk, watched

CUTS = 25  # of each history: with those of `make test-long` 200 in all
JOBS = 4
TASKS = 60
SOON = 200.0  # seconds
KEYS = ("encryption.key", "links.key")
MISSING = "https://missing.example/"

Job = tuple[str, RunId, list[str]]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))]
)
async def test_a_power_cut_loses_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = Random(seed)
    data = tmp_path / "data"
    with watched(data, monkeypatch) as disk:
        await _history(data, disk, dice)
    moments = sorted(dice.sample(range(len(disk.events)), CUTS))
    assert any(_promised(disk, moment)[1] for moment in moments)
    for number, moment in enumerate(moments):
        image = tmp_path / f"cut-{number}"
        disk.image(moment, dice, image)
        for key in KEYS:
            shutil.copy(data / key, image / key)
        jobs, settled = _promised(disk, moment)
        await _check_acknowledged(image, jobs, settled)
        await _check_goes_on(image, jobs)
        shutil.rmtree(image)


async def _history(data: Path, disk: Disk, dice: Random) -> None:
    """Jobs handed in one after another, while those before them are worked on."""
    async with living(data, disk) as (api, _):
        for _ in range(JOBS):
            urls = [_url(dice, number) for number in range(dice.randrange(1, TASKS))]
            job = await _submit(api, urls)
            disk.promise("submitted", job)
            await asyncio.sleep(dice.random() * 0.05)
        for event in [event for event in disk.events if event.kind == "submitted"]:
            await _completed(api, event.promise[0])


def _promised(disk: Disk, moment: int) -> tuple[list[Job], dict[tuple[RunId, TaskId], TaskStatus]]:
    """The jobs whose callers were answered, and the tasks whose ends were acknowledged."""
    jobs: list[Job] = []
    settled: dict[tuple[RunId, TaskId], TaskStatus] = {}
    for event in disk.events[:moment]:
        if event.kind == "submitted":
            jobs.append(event.promise)
        elif event.kind == "settled":
            settled |= event.promise
    return jobs, settled


async def _check_acknowledged(
    image: Path, jobs: Sequence[Job], settled: Mapping[tuple[RunId, TaskId], TaskStatus]
) -> None:
    async with AsyncExitStack() as stack:
        engines = await open_engines(_settings(image), stack)
        for job_id, run_id, urls in jobs:
            run = await engines.metadata.get(Run, run_id)
            assert run
            assert run.job_id == job_id
            rows = (await engines.tasks.page(run_id, limit=TASKS)).tasks
            assert [row.spec.url for row in rows] == urls
        for (run_id, task_id), status in settled.items():
            row = await engines.tasks.get(run_id, task_id)
            assert row
            assert row.status is status
            if status is TaskStatus.SUCCESSFUL:
                assert row.result
                [body] = await engines.bodies.load_many([row.result.locator])
                assert body == _content(row.spec.url)


async def _check_goes_on(image: Path, jobs: Sequence[Job]) -> None:
    """Started again, every job ends, with each task once and all counts right."""
    async with living(image, None) as (api, _):
        for job_id, _, urls in jobs:
            stats = await _completed(api, job_id)
            failed = sum(url.startswith(MISSING) for url in urls)
            told = (stats["total"], stats["successful"], stats["failed"])
            assert told == (len(urls), len(urls) - failed, failed)


@asynccontextmanager
async def living(data: Path, disk: Disk | None) -> AsyncIterator[tuple[httpx.AsyncClient, Engines]]:
    """The wired service at work over a folder."""
    stopping = asyncio.Event()
    async with AsyncExitStack() as stack:
        engines = await open_engines(_settings(data), stack)
        promised = Promising(engines.work, disk) if disk else engines.work
        service = build_service(_settings(data), replace(engines, gateway=Prompt(), work=promised))
        await service.steps.sweep.at_start(engines.dead_claims or ())
        transport = httpx.ASGITransport(app=service.app)
        headers = {"X-API-Key": "a-key"}
        async with (
            asyncio.TaskGroup() as group,
            httpx.AsyncClient(
                transport=transport, base_url="http://localhost/v1", headers=headers
            ) as api,
        ):
            group.create_task(work(service, stopping))
            try:
                yield api, engines
            finally:
                stopping.set()


class Promising:
    """Notes which ends of tasks were acknowledged, as they are."""

    def __init__(self, work: Work, disk: Disk) -> None:
        self._work, self._disk = work, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        took = await self._work.settle(settlements)
        ends = {
            (one.run_id, one.task_id): one.decision.status
            for one, held in zip(settlements, took, strict=True)
            if held and one.decision.status is not TaskStatus.PENDING
        }
        self._disk.promise("settled", ends)
        return took


class Prompt:
    """A gateway that answers at once."""

    async def check_health(self) -> bool:
        return True

    async def fetch(
        self, request: PageRequest, spool: Callable[[], Spool]
    ) -> Page | GatewayRefusal:
        await asyncio.sleep(0)
        if request.url.startswith(MISSING):
            gone = encoded(problem(status=404, code="RESP002"))
            return gateway_refusal(404, "RESP002", problem=gone)
        return Page(content=_content(request.url))


def _url(dice: Random, number: int) -> str:
    host = MISSING if dice.random() < 0.1 else "https://ok.example/"
    return f"{host}{number}-{dice.randrange(10**9)}"


def _content(url: str) -> bytes:
    return Random(url).randbytes(len(url) * 37)


def _settings(data: Path) -> Settings:
    return Settings(data=str(data))


async def _submit(api: httpx.AsyncClient, urls: list[str]) -> Job:
    answer = await api.post("/jobs", json={"tasks": [{"url": url} for url in urls]})
    told = answer.raise_for_status().json()
    run = (await api.get(f"/jobs/{told['job_id']}")).raise_for_status().json()["latest_run"]
    return told["job_id"], RunId(run["run_id"]), urls


async def _completed(api: httpx.AsyncClient, job_id: str) -> dict[str, int]:
    async with asyncio.timeout(SOON):
        while True:
            run = (await api.get(f"/jobs/{job_id}")).raise_for_status().json()["latest_run"]
            if run["status"] == "completed":
                return dict(run["stats"])
            await asyncio.sleep(0.01)
