"""`conveyor export`: one file, whole or not at all, and never begun anew without need."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import client_of
from tests.e2e.polling import ended
from tests.harness.programs import Program, service

SECRET = "an-api-key"
Told = subprocess.CompletedProcess[str]
Export = Callable[..., Told]


@pytest.fixture
def job(api: httpx.Client) -> str:
    return _scraped(api)


@pytest.fixture
def export(running: Program, tmp_path: Path) -> Export:
    def export(*arguments: str, code: int = 0, url: str = running.url) -> Told:
        told = subprocess.run(
            [sys.executable, "-m", "conveyor", "export", *arguments],
            capture_output=True,
            check=False,
            text=True,
            timeout=200,
            cwd=tmp_path,
            env={**os.environ, "CONVEYOR_URL": url, "CONVEYOR_KEY": SECRET},
        )
        assert told.returncode == code, told.stderr
        for secret in (SECRET, "Traceback", "\x1b"):
            assert secret not in told.stdout + told.stderr
        return told

    return export


def test_a_run_is_saved_as_one_file(export: Export, job: str, tmp_path: Path) -> None:
    told = export(job, "--out", "deep/down/all.zip")

    facts = dict(line.split("\t") for line in told.stdout.splitlines())
    assert facts["file"] == "deep/down/all.zip"
    assert int(facts["bytes"]) == (tmp_path / "deep/down/all.zip").stat().st_size
    assert told.stderr == ""
    assert len(_names(tmp_path / "deep/down/all.zip")) == 3
    assert [one.name for one in (tmp_path / "deep/down").iterdir()] == ["all.zip"]


def test_a_file_that_is_there_is_not_written_over_unless_told_to(
    export: Export, job: str, tmp_path: Path
) -> None:
    (tmp_path / "all.zip").write_text("mine")
    told = export(job, "--out", "all.zip", code=2)
    assert "--force" in told.stderr
    assert (tmp_path / "all.zip").read_text() == "mine"

    export(job, "--out", "all.zip", "--force")
    assert len(_names(tmp_path / "all.zip")) == 3


def test_json_is_one_document(export: Export, api: httpx.Client, job: str, tmp_path: Path) -> None:
    run = api.get(f"/jobs/{job}").json()["latest_run"]["run_id"]
    saved = json.loads(export(job, "--run", run, "--out", "all.zip", "--json").stdout)
    assert saved.keys() == {"file", "bytes", "export_id", "run_id"}
    assert (saved["run_id"], saved["bytes"]) == (run, (tmp_path / "all.zip").stat().st_size)


@pytest.mark.parametrize("had", [0.0, 0.5, 1.0, 2.0])
def test_a_download_goes_on_where_it_was_cut(
    export: Export, job: str, tmp_path: Path, had: float
) -> None:
    export_id = json.loads(export(job, "--out", "all.zip", "--json").stdout)["export_id"]
    whole = (tmp_path / "all.zip").read_bytes()
    start = bytearray(whole * 2)[: int(len(whole) * had)]
    if had == 0.5:
        start[100] ^= 1  # to be seen again: what was there is not fetched once more
    (tmp_path / f"again.zip.{export_id}.part").write_bytes(start)

    export(job, "--resume", export_id, "--out", "again.zip")

    got = (tmp_path / "again.zip").read_bytes()
    assert got == (bytes(start) + whole[len(start) :] if had == 0.5 else whole)


def test_an_export_that_is_gone_says_what_to_do(export: Export, job: str, tmp_path: Path) -> None:
    told = export(job, "--resume", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--out", "all.zip", code=1)
    assert "leave --resume out" in told.stderr
    assert list(tmp_path.iterdir()) == []
    told = export(job, "--resume", "../../x", "--out", "all.zip", code=1)
    assert "cannot be used as a file name" in told.stderr


def test_an_export_over_the_bound_says_what_to_do(
    export: Export, gateway: Program, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data, cap = tmp_path_factory.mktemp("data"), {"CONVEYOR_EXPORT_BYTES": "1"}
    with service(data=data, gateway=gateway.url, environ=cap) as program:
        with client_of(program) as api:
            job = _scraped(api)
        told = export(job, "--out", "all.zip", code=1, url=program.url)
    assert "results are larger than" in told.stderr
    assert f"conveyor results {job} --out" in told.stderr


def _scraped(api: httpx.Client) -> str:
    tasks = [{"url": f"https://ok.example/{number}"} for number in range(2)]
    job_id: str = api.post("/jobs", json={"tasks": tasks}).raise_for_status().json()["job_id"]
    ended(api, job_id)
    return job_id


def _names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return archive.namelist()
