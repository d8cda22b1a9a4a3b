"""`conveyor operator` against a real service: as an operator, and as anybody else."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of
from tests.e2e.test_keys import create
from tests.harness.programs import Program, service

SLOW = "https://slow.example/?ms=60000"
Told = subprocess.CompletedProcess[str]
Run = Callable[..., Told]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def program(gateway: Program, data: Path) -> Iterator[Program]:
    keys = {"CONVEYOR_AUTH": "keys", "CONVEYOR_GATEWAY_KEY": "the-gateways"}
    environ = FAST_RETRIES | SHORT_GRACE | keys
    with service(data=data, gateway=gateway.url, environ=environ) as running:
        yield running


@pytest.fixture
def ann(program: Program, data: Path) -> Iterator[httpx.Client]:
    with client_of(program, key=create(data, "--caller", "ann")["key"]) as client:
        yield client


@pytest.fixture
def run(program: Program, data: Path, tmp_path: Path) -> Run:
    created = create(data, "--caller", "ops", "--scope", "operator")
    assert created["about"]["scopes"] == ["read", "write", "operator"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("CONVEYOR_")}
    environ = {**own, "HOME": str(tmp_path), "CONVEYOR_URL": program.url}

    def run(*arguments: str, code: int = 0, key: str = created["key"]) -> Told:
        told = subprocess.run(
            [sys.executable, "-m", "conveyor", "operator", *arguments],
            capture_output=True,
            check=False,
            text=True,
            timeout=200,
            env={**environ, "CONVEYOR_KEY": key},
        )
        assert told.returncode == code, told.stderr
        assert key not in told.stdout + told.stderr
        return told

    return run


def cells(told: Told) -> list[list[str]]:
    return [line.split("\t") for line in told.stdout.splitlines()]


def test_an_operator_finds_a_run_pauses_resumes_and_stops_it(run: Run, ann: httpx.Client) -> None:
    job = ann.post("/jobs", json={"tasks": [{"url": SLOW}], "name": "prices"}).json()["job_id"]
    [row] = [row for row in cells(run("runs", "--caller", "ann")) if row[0] == job]
    assert row[1:7] == ["ann", "prices", "running", "0", "1", "0"]
    assert job in {row[0] for row in cells(run("runs", "--limit", "100"))}
    assert job in {row[0] for row in cells(run("jobs", "ann"))}
    [caller] = [row for row in cells(run("callers")) if row[0] == "ann"]
    assert int(caller[3]) >= 1

    assert "running (paused)" in run("pause", job[:-1].lower()).stdout
    assert ann.get(f"/jobs/{job}").json()["latest_run"]["pause_state"] == "paused"
    run("resume", "@last")
    assert ann.get(f"/jobs/{job}").json()["latest_run"].get("pause_state") != "paused"
    assert json.loads(run("stop", job, "--json").stdout)["status"] == "stopped"
    assert "there is no live job yet" in run("stop", "@last", code=2).stderr
    assert "conveyor" in run("stop", "01ARZ3NDEKTSV4RRFFQ69G5FAV", code=1).stderr


def test_processes_engines_and_dead_letters_are_listed(run: Run) -> None:
    [process] = cells(run("processes"))
    assert process[1] == "serve"
    engines = {row[0]: row[1::2] for row in cells(run("engines"))}
    assert engines["metadata"] == ["sqlite", "answers"]
    assert json.loads(run("engines", "--json").stdout)["disk_free"] > 0
    assert run("dead-letters").stdout == ""
    assert (
        "no such dead letter" in run("redrive", "01ARZ3NDEKTSV4RRFFQ69G5FAV", code=1).stderr.lower()
    )


def test_a_base_url_without_v1_is_said_to_be_wrong(run: Run, program: Program) -> None:
    wrong = program.url.removesuffix("/v1")
    assert "must end in /v1" in run("runs", "--url", wrong, code=1).stderr
    missing = run("stop", "01ARZ3NDEKTSV4RRFFQ69G5FAV", code=1).stderr
    assert "`conveyor operator runs`" in missing


@pytest.mark.parametrize("command", ["runs", "callers", "processes", "engines", "dead-letters"])
def test_another_key_is_told_how_to_become_an_operator(
    run: Run, data: Path, ann: httpx.Client, command: str
) -> None:
    ann.post("/jobs", json={"tasks": [{"url": SLOW}], "name": "of-ann"})
    plain = create(data, "--caller", "bob")["key"]
    told = run(command, code=1, key=plain)
    assert told.stdout == ""
    assert "keys create --scope operator" in told.stderr
    assert "ann" not in told.stderr
