"""Soaks: the kill test for longer, and a large job in bounded memory. `make test-long`."""

import random
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.polling import ended, every_row
from tests.e2e.test_kill import (
    ENVIRON,
    check_bodies,
    check_database,
    check_outcome,
    submit_and_kill,
    wait_for_progress,
)
from tests.harness.programs import mock_gateway, service

pytestmark = pytest.mark.long
KILLS = 150
COUNT = 40_000
LARGE = 300_000


def test_a_hundred_and_fifty_kills_change_nothing_in_the_outcome(tmp_path: Path) -> None:
    data, dice = tmp_path / "data", random.Random(23)
    with mock_gateway() as gateway:
        job_id = submit_and_kill(data, gateway, COUNT)
        for _ in range(KILLS):
            with service(data=data, gateway=gateway.url, environ=ENVIRON) as program:
                wait_for_progress(program, job_id, COUNT)
                time.sleep(dice.uniform(0.0, 0.3))  # the moment of death must be any moment
                program.kill()
            check_database(data)
        with (
            service(data=data, gateway=gateway.url, environ=ENVIRON) as program,
            httpx.Client(base_url=program.url, headers={"X-API-Key": "an-api-key"}) as api,
        ):
            run = ended(api, job_id, within=300)
            rows = every_row(api, job_id, limit="1000")
            check_outcome(run, rows, COUNT)
            check_bodies(api, rows, data)


def test_memory_stays_flat_however_large_the_job(tmp_path: Path) -> None:
    with (
        mock_gateway() as gateway,
        service(
            data=tmp_path, gateway=gateway.url, environ=ENVIRON, flags=("--durability", "process")
        ) as program,
        httpx.Client(base_url=program.url, headers={"X-API-Key": "an-api-key"}) as api,
    ):
        jobs = []
        for start in range(0, LARGE, 100_000):
            tasks = [
                {"url": f"https://ok.example/{number}?size=512"}
                for number in range(start, start + 100_000)
            ]
            jobs.append(api.post("/jobs", json={"tasks": tasks}, timeout=60).json()["job_id"])
        memory = []
        for job_id in jobs:
            run = ended(api, job_id, within=600)
            assert run["stats"]["successful"] == 100_000
            memory.append(program.memory)
        assert memory[-1] < memory[0] * 1.25
        assert program.peak_memory < 400
