"""Schedules on the embedded engines, in days that pass at once: a real service whose clock jumps."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from conveyor.app.engines import open_engines
from conveyor.app.roles import work
from conveyor.app.services import Service, build_service
from conveyor.settings import Settings
from tests.e2e.conftest import client_of
from tests.e2e.polling import ended, until
from tests.harness.programs import Program, service

DAY = timedelta(days=1)
DAILY = {"rate": {"every": 1, "unit": "day"}}
ROWS = 2_000  # twice as many as the service writes before it answers
T = TypeVar("T")
PATIENCE = 200.0


class JumpingClock:
    """The machine's clock, set forward when a test says so."""

    def __init__(self) -> None:
        self._ahead = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def monotonic(self) -> float:
        return time.monotonic()

    def jump(self, by: timedelta) -> None:
        self._ahead += by


@dataclass(frozen=True, slots=True)
class House:
    clock: JumpingClock
    api: httpx.AsyncClient
    service: Service

    async def job(self, job_id: str) -> dict[str, Any]:
        answer = await self.api.get(f"/v1/jobs/{job_id}")
        job: dict[str, Any] = answer.raise_for_status().json()
        return job

    async def run_done(self, job_id: str, sequence: int) -> dict[str, Any]:
        """The job once the run of that number is complete."""

        async def ask() -> dict[str, Any] | None:
            job = await self.job(job_id)
            run = job.get("latest_run", {})
            done = (run.get("run_sequence"), run.get("status")) == (sequence, "completed")
            return job if done else None

        return await _until(ask)


async def _until(ask: Callable[[], Awaitable[T | None]]) -> T:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if answer := await ask():
            return answer
        await asyncio.sleep(0.02)
    raise AssertionError(f"did not happen within {PATIENCE:.0f} s")


@asynccontextmanager
async def a_house(data: Path, gateway: Program, clock: JumpingClock) -> AsyncIterator[House]:
    """A service in this process, with all its loops at work."""
    settings = Settings(
        data=str(data),
        gateway=gateway.url,
        durability="process",
        grace=timedelta(seconds=1),
        sync_tasks=ROWS // 2,
    )
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack, clock=clock)
        wired = build_service(settings, engines)
        await wired.steps.sweep.at_start(engines.dead_claims or ())
        stopping = asyncio.Event()
        transport = httpx.ASGITransport(wired.app)
        headers = {"X-API-Key": "an-api-key"}
        async with (
            httpx.AsyncClient(
                transport=transport, base_url="http://localhost", headers=headers
            ) as api,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(work(wired, stopping))
            try:
                yield House(clock, api, wired)
            finally:
                stopping.set()


async def submit(house: House, count: int, schedule: object = DAILY) -> str:
    tasks = [{"url": f"https://ok.example/{number}?size=1"} for number in range(count)]
    body = {"type": "scheduled", "schedule": schedule, "tasks": tasks, "max_inflight": 500}
    answer = await house.api.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["accepted_tasks"] == count
    assert "latest_run" not in answer.json()
    return str(answer.json()["job_id"])


async def test_a_long_list_is_fired_twice(tmp_path: Path, gateway: Program) -> None:
    async with a_house(tmp_path, gateway, JumpingClock()) as house:
        job_id = await submit(house, ROWS)
        for sequence in (1, 2):
            house.clock.jump(DAY)
            job = await house.run_done(job_id, sequence)
            run = job["latest_run"]
            assert (run["trigger"], run["stats"]["total"], run["stats"]["successful"]) == (
                "scheduled", ROWS, ROWS,
            )  # fmt: skip
            assert "skipped_fires" not in job
        runs = (await house.api.get(f"/v1/jobs/{job_id}/runs")).json()["runs"]
        assert [run["run_sequence"] for run in runs] == [2, 1]
        assert house.service.metrics.registry.get_sample_value(
            "conveyor_schedule_fires_total", {"fired": "run"}
        ) == len(runs)


@pytest.mark.long
async def test_a_year_of_nights_keeps_its_hour(tmp_path: Path, gateway: Program) -> None:
    """Fires a month apart, through both changes of the clock."""
    nightly = {
        "calendar": {"times_of_day": ["03:00"], "cadence": {"daily": {}}},
        "timezone": "Europe/Berlin",
    }
    async with a_house(tmp_path, gateway, JumpingClock()) as house:
        job_id = await submit(house, 1, nightly)
        hours = set()
        for sequence in range(1, 13):
            house.clock.jump(30 * DAY)
            job = await house.run_done(job_id, sequence)
            hours.add(datetime.fromisoformat(job["next_scheduled_run"]).hour)
        assert hours == {1, 2}  # of UTC, in summer and in winter


async def test_what_was_missed_while_nobody_worked_is_one_run(
    tmp_path: Path, gateway: Program
) -> None:
    clock = JumpingClock()
    async with a_house(tmp_path, gateway, clock) as house:
        job_id = await submit(house, 2)
        due = datetime.fromisoformat((await house.job(job_id))["next_scheduled_run"])
    clock.jump(10.5 * DAY)
    async with a_house(tmp_path, gateway, clock) as house:
        job = await house.run_done(job_id, 1)
        assert datetime.fromisoformat(job["next_scheduled_run"]) == due + 10 * DAY


async def test_a_run_that_takes_longer_than_a_day_costs_a_fire(
    tmp_path: Path, gateway: Program
) -> None:
    async with a_house(tmp_path, gateway, JumpingClock()) as house:
        slow = [{"url": f"https://slow.example/{number}?ms=500"} for number in range(2)]
        body = {"type": "scheduled", "schedule": DAILY, "tasks": slow, "max_inflight": 1}
        job_id = (await house.api.post("/v1/jobs", json=body)).json()["job_id"]
        fired = await house.api.post(f"/v1/jobs/{job_id}/rerun")
        assert (fired.status_code, "rerun_of" in fired.json()) == (201, False)
        assert (await house.api.post(f"/v1/jobs/{job_id}/pause")).status_code == 200
        house.clock.jump(DAY)

        async def skipped() -> dict[str, Any] | None:
            job = await house.job(job_id)
            return job if "skipped_fires" in job else None

        job = await _until(skipped)
        assert (job["skipped_fires"], job["latest_run"]["run_sequence"]) == (1, 1)
        assert job["last_skipped_at"]
        await house.api.post(f"/v1/jobs/{job_id}/resume")
        await house.run_done(job_id, 1)


def test_a_killed_service_fires_when_it_is_back_and_once(tmp_path: Path, gateway: Program) -> None:
    tasks = [{"url": f"https://ok.example/{number}"} for number in range(5)]
    with service(data=tmp_path, gateway=gateway.url) as program, client_of(program) as api:
        moment = datetime.now(UTC) + timedelta(seconds=4)
        local = moment.replace(tzinfo=None).isoformat(timespec="seconds")
        schedule = {"at": local, "timezone": "UTC"}
        body = {"type": "scheduled", "schedule": schedule, "tasks": tasks}
        job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
        program.kill()
    until(lambda: datetime.now(UTC) > moment)
    for _ in range(2):
        with service(data=tmp_path, gateway=gateway.url) as program, client_of(program) as api:
            until(lambda: "latest_run" in api.get(f"/jobs/{job_id}").json())
            run = ended(api, job_id)
            assert (run["status"], run["stats"]["successful"], run["trigger"]) == (
                "completed", 5, "scheduled",
            )  # fmt: skip
            assert api.get(f"/jobs/{job_id}").json()["next_scheduled_run"] is None
            assert len(api.get(f"/jobs/{job_id}/runs").json()["runs"]) == 1
