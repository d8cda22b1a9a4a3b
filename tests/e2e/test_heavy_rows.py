"""Runs whose rows are as large as they may be, and larger: every read of many rows is bounded in
bytes, so nobody's rows cost the service its memory or hold its event loop.
"""

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import httpx
import pytest

from tests.e2e.conftest import SHORT_GRACE, client_of
from tests.e2e.polling import ended, until, waits
from tests.harness.programs import Program, service
from tests.seed import sampled

ROWS = 2_000
ADDED = 500  # rows of one call
PARAM = "x" * 40_000
METADATA = {f"key{n}": "ü" * 500 for n in range(20)}  # 20 KB in UTF-8
MOST_MEMORY = 400  # MB
LONGEST_STALL = 0.5  # seconds, in which the service was given the processor
SLOW = "https://slow.example/?ms=500"
LARGER = 520_000  # bytes of a row from before rows had a limit: 2,000 are more than SQLite's 1e9


class Heavy(NamedTuple):
    """A stopped run of heavy rows, in a data folder at rest."""

    data: Path
    job: str
    run: str


@pytest.fixture(scope="module")
def made(gateway: Program, tmp_path_factory: pytest.TempPathFactory) -> Heavy:
    data = tmp_path_factory.mktemp("heavy") / "data"
    with (
        service(data=data, gateway=gateway.url, environ=SHORT_GRACE) as program,
        client_of(program) as api,
    ):
        opened = {"status": "open", "max_inflight": 1_000, "tasks": []}
        job = api.post("/jobs", json=opened).raise_for_status().json()["job_id"]
        api.post(f"/jobs/{job}/pause").raise_for_status()
        for first in range(0, ROWS, ADDED):
            tasks = [_task(n) for n in range(first, first + ADDED)]
            api.post(f"/jobs/{job}/tasks", json={"tasks": tasks}).raise_for_status()
        until(lambda: _rows_written(api, job) == ROWS)
        run = api.post(f"/jobs/{job}/stop").raise_for_status().json()
        api.post(f"/jobs/{job}/close").raise_for_status()
    return Heavy(data, job, run["run_id"])


@pytest.fixture
def heavy(made: Heavy, tmp_path: Path) -> Iterator[Heavy]:
    data = tmp_path / "data"
    shutil.copytree(made.data, data)
    yield made._replace(data=data)
    shutil.rmtree(data)


def test_every_read_of_heavy_rows_is_bounded(heavy: Heavy, gateway: Program) -> None:
    """Pages of results, an export and the doctor, of one service: the rows are 120 MB to copy."""
    with _service(heavy, gateway) as (_, api):
        _check_pages(api, heavy)
        _check_export(api, heavy)
        told = _doctor(heavy.data)
    assert told["rows"] == ROWS
    assert told["wrong"] == 0


def _check_pages(api: httpx.Client, heavy: Heavy) -> None:
    first = api.get(f"/jobs/{heavy.job}/results", params={"limit": 1_000}).json()
    asked = {"limit": 1_000, "cursor": first["next_cursor"]}
    second = api.get(f"/jobs/{heavy.job}/results", params=asked).json()
    few = api.get(f"/jobs/{heavy.job}/results", params={"limit": 300}).json()

    rows = first["results"] + second["results"]
    assert (len(first["results"]), len(second["results"])) == (1_000, 1_000)
    assert second["next_cursor"] is None
    assert [row["external_id"] for row in rows] == [str(n) for n in range(ROWS)]
    assert all(row["metadata"] == METADATA for row in rows)
    assert few["results"] == rows[:300]
    assert few["next_cursor"] == rows[299]["task_id"]


def _check_export(api: httpx.Client, heavy: Heavy) -> None:
    exports = f"/jobs/{heavy.job}/runs/{heavy.run}/exports"
    started = api.post(exports).raise_for_status().json()["export_id"]

    def made() -> str | None:
        shown = api.get(f"{exports}/{started}").raise_for_status().json()
        url: str | None = shown.get("download_url")
        return url

    content = httpx.get(until(made)).raise_for_status().content
    with zipfile.ZipFile(BytesIO(content)) as archive:
        assert len(archive.read("manifest.ndjson").splitlines()) == ROWS


# 2,000 rows are copied at once up to this limit, and by the ingest beyond it.
@pytest.mark.parametrize("sync_tasks", sampled(["10000", "1000"], 1, of="heavy reruns"))
def test_a_rerun_copies_heavy_rows_and_scrapes_them(
    heavy: Heavy, gateway: Program, sync_tasks: str
) -> None:
    environ = {"CONVEYOR_SYNC_TASKS": sync_tasks, "CONVEYOR_CONCURRENCY": "1000"}
    with _service(heavy, gateway, environ) as (_, api):
        again = api.post(f"/jobs/{heavy.job}/rerun").raise_for_status()
        assert again.status_code == (201 if sync_tasks == "10000" else 202)
        run = ended(api, heavy.job)
    assert (run["status"], run["stats"]["successful"]) == ("completed", ROWS)
    assert _specs(heavy, again.json()["latest_run"]["run_id"]) == _specs(heavy, heavy.run)


@pytest.mark.long
def test_rows_stored_before_there_was_a_limit_are_read_too(heavy: Heavy, gateway: Program) -> None:
    """2,000 rows of over 500 KB: more than SQLite gives as one value."""
    _enlarge(heavy)
    environ = {"CONVEYOR_SYNC_TASKS": "1000", "CONVEYOR_CONCURRENCY": "1000"}
    with _service(heavy, gateway, environ, most_memory=1_500) as (program, api):
        page = api.get(f"/jobs/{heavy.job}/results", params={"limit": 1_000}).raise_for_status()
        assert len(page.json()["results"]) == 1_000
        again = api.post(f"/jobs/{heavy.job}/rerun").raise_for_status()
        until(lambda: _rows_written(api, heavy.job) == ROWS, within=600)
        until(lambda: _in_flight(api) > 0)
        assert _doctor(heavy.data)["wrong"] == 0
        stopped = api.post(f"/jobs/{heavy.job}/stop")
        assert stopped.status_code in (200, 409)  # 409: it completed while the doctor was reading
        api.delete(f"/jobs/{heavy.job}").raise_for_status()
        until(lambda: _stored_rows(heavy.data) == 0, within=600)
        assert program.process.poll() is None
    assert again.status_code == 202


@contextmanager
def _service(
    heavy: Heavy,
    gateway: Program,
    environ: dict[str, str] | None = None,
    *,
    most_memory: float = MOST_MEMORY,
) -> Iterator[tuple[Program, httpx.Client]]:
    """A service that has done nothing else, and that is judged by what it took at the end."""
    environ = SHORT_GRACE | (environ or {})
    with service(data=heavy.data, gateway=gateway.url, environ=environ) as program:
        with client_of(program) as api, waits(program, pause=0.05) as slowest:
            yield program, api
        stall = max(slowest)
        assert program.peak_memory < most_memory, f"and the longest stall was {stall} s"
        assert stall < LONGEST_STALL, f"and the peak was {program.peak_memory} MB"


def _task(n: int) -> dict[str, Any]:
    return {
        "url": f"{SLOW}&n={n}",
        "external_id": str(n),
        "metadata": METADATA,
        "zenrows_params": {"css_extractor": PARAM},
    }


def _rows_written(api: httpx.Client, job: str) -> int | None:
    run = api.get(f"/jobs/{job}").raise_for_status().json()["latest_run"]
    total: int = run["stats"]["total"]
    return None if run.get("ingest_status") == "pending" else total


def _in_flight(api: httpx.Client) -> float:
    metrics = api.get(str(api.base_url).removesuffix("/v1/") + "/metrics").text
    [value] = [
        line.split()[1] for line in metrics.splitlines() if line.startswith("conveyor_inflight ")
    ]
    return float(value)


def _doctor(data: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "conveyor", "doctor", "--data", str(data), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _specs(heavy: Heavy, run: str) -> list[Any]:
    statement = """
    SELECT idx, url, method, external_id, metadata, params, body FROM task
     WHERE run_no = (SELECT no FROM run_no WHERE run_id = ?) ORDER BY idx
    """
    return _execute(heavy.data, statement, run)


def _stored_rows(data: Path) -> int | None:
    [(count,)] = _execute(data, "SELECT count(*) FROM task INDEXED BY task_by_phase")
    return int(count)


def _enlarge(heavy: Heavy) -> None:
    larger = json.dumps({"css_extractor": "x" * LARGER})
    for first in range(0, ROWS, ADDED):
        statement = "UPDATE task SET params = ? WHERE idx >= ? AND idx < ?"
        _execute(heavy.data, statement, larger, first, first + ADDED)


def _execute(data: Path, statement: str, *values: object) -> list[Any]:
    connection = apsw.Connection(str(data / "conveyor.db"))
    connection.set_busy_timeout(10_000)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()
