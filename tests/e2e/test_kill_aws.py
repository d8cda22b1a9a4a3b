"""kill -9 of `conveyor serve` on DynamoDB, S3 and Valkey, whose queues are in its memory.

Each death loses every message. The next process sends them again: the counts are exact in the end.
"""

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.polling import ended, every_row, until
from tests.e2e.test_kill import check_outcome, urls_of, wait_for_progress
from tests.harness.programs import Program, mock_gateway, service
from tests.harness.stacks import stack_environ

ENVIRON = {
    "CONVEYOR_RETRY_FIRST_DELAY": "50ms",
    "CONVEYOR_LOG_LEVEL": "warning",
    # Longer lists are ingested by a message of the control queue, which each death loses.
    "CONVEYOR_SYNC_TASKS": "100",
    # A dead process's claims lapse within seconds.
    "CONVEYOR_LEASE": "2s",
    "CONVEYOR_RENEWAL": "500ms",
    "CONVEYOR_SWEEP_EVERY": "1s",
}


@pytest.mark.parametrize(
    ("count", "kills"),
    [(200, 1), pytest.param(4_000, 20, marks=pytest.mark.long)],
)
def test_kills_change_nothing_in_the_outcome(
    request: pytest.FixtureRequest, tmp_path: Path, count: int, kills: int
) -> None:
    environ, dice = {**stack_environ("aws", request), **ENVIRON}, random.Random(7)
    with mock_gateway() as gateway:
        with _service(tmp_path, gateway, environ) as program, _client(program) as api:
            answer = api.post("/jobs", json={"tasks": [{"url": url} for url in urls_of(count)]})
            assert answer.status_code == 202
            program.kill()
        job_id = str(answer.json()["job_id"])
        for _ in range(kills):
            with _service(tmp_path, gateway, environ) as program:
                wait_for_progress(program, job_id, count)
                time.sleep(dice.uniform(0.0, 0.3))  # the moment of death must be any moment
                program.kill()
        with _service(tmp_path, gateway, environ) as program, _client(program) as api:
            run = ended(api, job_id)
            rows = every_row(api, job_id, limit="1000")
            check_outcome(run, rows, count)
            _check_pages(api, rows)
    assert not list(tmp_path.iterdir())


def test_an_export_and_a_delete_survive_the_loss_of_their_messages(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    environ = {**stack_environ("aws", request), **ENVIRON}
    with mock_gateway() as gateway:
        with _service(tmp_path, gateway, environ) as program, _client(program) as api:
            kept, deleted = (_scraped(api) for _ in range(2))
            path = f"/jobs/{kept['job_id']}/runs/{kept['run_id']}/exports"
            export = api.post(path, json={}).raise_for_status().json()
            api.delete(f"/jobs/{deleted['job_id']}").raise_for_status()
            program.kill()
        with _service(tmp_path, gateway, environ) as program, _client(program) as api:
            until(lambda: api.get(f"{path}/{export['export_id']}").json()["status"] == "completed")
            assert api.get(f"/jobs/{deleted['job_id']}").status_code == 404


def _scraped(api: httpx.Client) -> dict[str, str]:
    tasks = [{"url": f"https://ok.example/{number}"} for number in range(3)]
    job_id = api.post("/jobs", json={"tasks": tasks}).raise_for_status().json()["job_id"]
    return {"job_id": job_id, "run_id": ended(api, job_id)["run_id"]}


def _check_pages(api: httpx.Client, rows: list[dict[str, Any]]) -> None:
    good = [row for row in rows if row["status"] == "successful"]
    for row in good[:: max(len(good) // 50, 1)]:
        page = api.get(str(row["result_url"])).raise_for_status()
        assert str(row["url"]).split("?")[0].encode() in page.content


@contextmanager
def _service(data: Path, gateway: Program, environ: Mapping[str, str]) -> Iterator[Program]:
    with service(data=data, gateway=gateway.url, environ=environ) as program:
        yield program


def _client(program: Program) -> httpx.Client:
    return httpx.Client(base_url=program.url, headers={"X-API-Key": "an-api-key"}, timeout=200)
