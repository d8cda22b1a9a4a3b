"""One api and two workers on PostgreSQL: migrations, and kills of processes and of the server."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from conveyor.adapters.postgres.address import PostgresAddress
from conveyor.adapters.postgres.schema import migrate_at
from tests.e2e.polling import until
from tests.e2e.test_processes import (
    KEY,
    check_outcome,
    repeating_client,
    submitted_under_kills,
    urls_of,
)
from tests.harness.cluster import ROOT_KEY, Cluster, cluster
from tests.harness.postgres import TestDatabases, a_postgres, url_of
from tests.harness.programs import Program
from tests.harness.valkey import Valkey
from tests.s3_server import S3Server

ROLES = ["api", "worker", "worker"]


def test_migrate_creates_the_schema_and_check_tells_whether_it_is_there(
    postgres_18: TestDatabases, tmp_path: Path
) -> None:
    address = replace(asyncio.run(postgres_18.create()), password="S3CRET")

    refused = _conveyor(tmp_path, address, "api", "--port", "0")
    lacking = _conveyor(tmp_path, address, "migrate", "--check")
    created = _conveyor(tmp_path, address, "migrate")
    again = _conveyor(tmp_path, address, "migrate")
    checked = _conveyor(tmp_path, address, "migrate", "--check")

    assert (refused.returncode, "run `conveyor migrate`" in refused.stderr) == (2, True)
    assert (lacking.returncode, "lacks schema 1" in lacking.stdout) == (1, True)
    assert (created.returncode, "upgraded to schema" in created.stdout) == (0, True)
    assert (again.returncode, "has the latest schema" in again.stdout) == (0, True)
    assert (checked.returncode, checked.stdout) == (0, "")
    for told in (refused, lacking, created, again, checked):
        assert "S3CRET" not in told.stdout + told.stderr


def test_a_kill_of_each_process_changes_nothing_in_the_outcome(
    postgres_18: TestDatabases,
    seaweedfs: S3Server,
    valkey: Valkey,
    gateway: Program,
    tmp_path: Path,
) -> None:
    url, count = asyncio.run(postgres_18.empty_url()), 400
    with (
        cluster(
            tmp_path,
            gateway=gateway,
            valkey=valkey,
            s3=seaweedfs,
            rows=url,
            environ=_alone(url, tmp_path),
        ) as group,
        _http(group) as api,
    ):
        options = ("--caller", "ops", "--scope", "operator", "--json")
        created = _run(_settings(tmp_path, url), "keys", "create", *options)
        _check_pages_for_operators(api, {"X-API-Key": json.loads(created.stdout)["key"]})
        job_id = _submitted(api, count)
        for process in group.processes:
            _wait_for_more(api, job_id, count)
            process.kill()
            group.start(process)
        check_outcome(api, job_id, count)


@pytest.mark.long
@pytest.mark.parametrize("version", [18, 16])
def test_crashes_of_the_server_change_nothing_in_the_outcome(
    seaweedfs: S3Server, valkey: Valkey, gateway: Program, tmp_path: Path, version: int
) -> None:
    with a_postgres(version) as server:
        address, count = server.address("postgres"), 2_000
        asyncio.run(migrate_at(address))
        with (
            cluster(
                tmp_path,
                gateway=gateway,
                valkey=valkey,
                s3=seaweedfs,
                rows=url_of(address),
                environ=_alone(url_of(address), tmp_path) if version == 18 else {},
            ) as group,
            _http(group) as api,
        ):
            job_id = _submitted(api, count)
            for process in (None, *group.workers, None):
                _wait_for_more(api, job_id, count)
                server.kill()
                if process:
                    process.kill()
                server.start()
                if process:
                    group.start(process)
            check_outcome(api, job_id, count)


@pytest.mark.long
def test_random_kills_of_processes_and_server_change_nothing_in_the_outcome(
    seaweedfs: S3Server, valkey: Valkey, gateway: Program, tmp_path: Path
) -> None:
    count = 2_000
    with a_postgres(18) as server:
        address = server.address("postgres")
        asyncio.run(migrate_at(address))

        def crash() -> None:
            server.kill()
            server.start()

        with (
            cluster(
                tmp_path,
                gateway=gateway,
                valkey=valkey,
                s3=seaweedfs,
                rows=url_of(address),
                environ=_alone(url_of(address), tmp_path),
            ) as group,
            repeating_client(group) as api,
        ):
            jobs = submitted_under_kills(group, api, count=count, jobs=6, crash=crash)
            for number, job_id in enumerate(jobs):
                check_outcome(api, job_id, count, f"{number}/")


def _check_pages_for_operators(api: httpx.Client, operator: Mapping[str, str]) -> None:
    endless = {"tasks": [{"url": "https://slow.example/?ms=60000"}]}
    job_id = api.post("/jobs", json=endless).raise_for_status().json()["job_id"]

    def seen(path: str, field: str) -> list[dict[str, Any]]:
        answer = api.get(f"/operator/{path}", headers=operator)
        found: list[dict[str, Any]] = answer.raise_for_status().json()[field]
        return found

    [live] = seen("runs", "runs")
    assert live["run"]["job_id"] == job_id
    listed = {one["caller"]: one["live_runs"] for one in seen("callers", "callers")}
    assert listed == {live["caller"]: 1, "ops": 0}
    engines = {one["holds"]: one["engine"] for one in seen("engines", "engines")}
    assert (engines["metadata"], engines["coordination"]) == ("postgresql", "postgresql")
    until(lambda: sorted(p["role"] for p in seen("processes", "processes")) == ROLES)
    for action, state in (("pause", "paused"), ("resume", None), ("stop", None)):
        answer = api.post(f"/operator/jobs/{job_id}/{action}", headers=operator)
        run = answer.raise_for_status().json()
        assert run.get("pause_state") == state


def _alone(url: str, folder: Path) -> Mapping[str, str]:
    """Coordination in the database that has the rows, and results in a folder."""
    bodies = f"files:{folder}/shared?layout=segments"
    return {"CONVEYOR_COORDINATION": url, "CONVEYOR_BODIES": bodies}


def _submitted(api: httpx.Client, count: int) -> str:
    answer = api.post("/jobs", json={"tasks": [{"url": url} for url in urls_of(count)]})
    return str(answer.raise_for_status().json()["job_id"])


def _wait_for_more(api: httpx.Client, job_id: str, count: int) -> None:
    """Wait until a further task is completed, or all of them."""
    before = _completed(api, job_id) or 0
    until(lambda: (_completed(api, job_id) or 0) in {count, *range(before + 1, count)})


def _completed(api: httpx.Client, job_id: str) -> int | None:
    """How many tasks are completed; None while the api or the server does not answer."""
    try:
        answer = api.get(f"/jobs/{job_id}")
    except httpx.TransportError:
        return None
    if answer.status_code >= 500:
        return None
    return int(answer.raise_for_status().json()["latest_run"]["stats"]["completed"])


def _http(group: Cluster) -> httpx.Client:
    return httpx.Client(base_url=group.url, headers={"X-API-Key": KEY}, timeout=200)


def _conveyor(
    folder: Path, address: PostgresAddress, *command: str
) -> "subprocess.CompletedProcess[str]":
    url = url_of(address).replace("@", f":{address.password}@", 1)
    return _run(_settings(folder, url), *command)


def _settings(folder: Path, url: str) -> Mapping[str, str]:
    return {
        "CONVEYOR_ENGINES": "postgres",
        "CONVEYOR_METADATA": url,
        "CONVEYOR_BODIES": f"files:{folder}",
        "CONVEYOR_BLOBS": f"files:{folder}",
        "CONVEYOR_ENCRYPTION_KEY": ROOT_KEY,
    }


def _run(settings: Mapping[str, str], *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "conveyor", *command],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
