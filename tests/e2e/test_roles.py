"""`conveyor api` and `conveyor worker` as real processes: what they listen on, and how they stop."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from conveyor.testing.local.ports import free_port
from tests.e2e.conftest import client_of
from tests.e2e.polling import until
from tests.harness.cluster import ROOT_KEY, served_store
from tests.harness.programs import Program, program
from tests.harness.valkey import Valkey, a_prefix

HANGING = {"tasks": [{"url": "https://hang.example/"}]}


@pytest.fixture
def environ(own_valkey: Valkey, gateway: Program, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Settings of processes that share every engine."""
    with served_store() as served:
        store = served.url
        yield {
            "CONVEYOR_GATEWAY": gateway.url,
            "CONVEYOR_DATA": str(tmp_path / "data"),
            "CONVEYOR_ENCRYPTION_KEY": ROOT_KEY,
            "CONVEYOR_METADATA": store,
            "CONVEYOR_TASKS": store,
            "CONVEYOR_CONTROL_QUEUE": store,
            "CONVEYOR_BODIES": f"files:{tmp_path}/shared",
            "CONVEYOR_BLOBS": f"files:{tmp_path}/shared",
            "CONVEYOR_COORDINATION": f"{own_valkey.url}?prefix={a_prefix()}",
            "CONVEYOR_GRACE": "300ms",
        }


def test_operators_look_at_the_engines_while_a_worker_works_and_drains(
    environ: dict[str, str], tmp_path: Path, log: Path
) -> None:
    loops = ("--loops", "dispatch,sweeper")
    with (
        _role("api", "--port", environ) as one,
        client_of(one) as api,
        _role("worker", "--metrics-port", environ, *loops, log=log) as worker,
    ):
        api.post("/v1/jobs", json=HANGING).raise_for_status()
        until(lambda: "conveyor_inflight 1.0" in httpx.get(f"{worker.url}/metrics").text)
        assert httpx.get(f"{worker.url}/readyz").status_code == 200
        assert httpx.get(f"{worker.url}/v1/jobs").status_code == 404

        elsewhere = {**environ, "CONVEYOR_DATA": str(tmp_path / "elsewhere")}
        *events, summary = _told(_command(elsewhere, "doctor", "--json"))
        assert (summary["jobs"], summary["wrong"]) == (1, 0)
        assert not [event for event in events if event["event"] == "finding"]  # a live claim
        assert _told(_command(elsewhere, "dlq", "list", "--json")) == []
        _command(elsewhere, "keys", "create", "--caller", "ann")
        [key] = _told(_command(elsewhere, "keys", "list", "--json"))
        assert key["caller"] == "ann"
        assert not (tmp_path / "elsewhere").exists()

        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(timeout=60) == 0
        [listening], [stopping] = _logged(log, "http.listening"), _logged(log, "service.stopping")
        assert listening["url"] == f"{worker.url}/metrics"
        assert stopping["pages_in_flight"] == 1
    assert not (tmp_path / "data").exists()


def test_without_coordination_the_worker_is_not_ready_and_the_api_is(
    environ: dict[str, str], own_valkey: Valkey
) -> None:
    with (
        _role("api", "--port", environ) as one,
        client_of(one) as api,
        _role("worker", "--metrics-port", environ) as worker,
    ):
        until(lambda: httpx.get(f"{worker.url}/readyz").status_code == 200)
        own_valkey.kill()
        refused = httpx.get(f"{worker.url}/readyz", timeout=60)
        assert refused.status_code == 503
        assert "engine of coordination does not answer" in refused.json()["detail"]
        assert api.get("/readyz").status_code == 200
        assert api.post("/v1/jobs", json=HANGING).status_code == 201
        own_valkey.start()
        until(lambda: httpx.get(f"{worker.url}/readyz", timeout=60).status_code == 200)


@pytest.mark.long  # a rotation waits for a minute, because listings may lag
def test_the_encryption_key_is_rotated_while_processes_die(environ: dict[str, str]) -> None:
    """From another machine, whose command is killed once; an api process is killed meanwhile."""
    rotate = [sys.executable, "-m", "conveyor.testing", "keys", "rotate-encryption", "--json"]
    pages = {"tasks": [{"url": f"https://ok.example/{number}"} for number in range(3)]}
    with (
        _role("api", "--port", environ) as one,
        _role("api", "--port", environ) as other,
        _role("worker", "--metrics-port", environ),
        client_of(one) as api,
        client_of(other) as second,
    ):
        jobs = [api.post("/v1/jobs", json=pages).raise_for_status().json()["job_id"]]
        with subprocess.Popen(
            rotate, env={**os.environ, **environ}, stdout=subprocess.PIPE
        ) as command:
            assert command.stdout
            assert json.loads(command.stdout.readline())["event"] == "waiting"
            command.kill()
        jobs.append(second.post("/v1/jobs", json=pages).raise_for_status().json()["job_id"])
        with subprocess.Popen(
            rotate, env={**os.environ, **environ}, stdout=subprocess.PIPE
        ) as command:
            other.kill()
            assert command.stdout
            lines = list[dict[str, Any]]()
            for line in command.stdout:
                lines.append(json.loads(line))
                jobs.append(api.post("/v1/jobs", json=pages).raise_for_status().json()["job_id"])
        assert lines[-1]["event"] == "rotated"
        assert lines[-1]["old_key_removed"]
        for job_id in jobs:
            until(partial(_is_completed, api, job_id))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["worker"], "metadata must be on an engine that several processes can share"),
        (["api"], "metadata must be on an engine that several processes can share"),
        (["worker", "--loops", "dispatch,sweep"], "loops must be one or more of dispatch, control"),
    ],
    ids=["worker", "api", "loops"],
)
def test_a_refusal_ends_the_process_with_its_reason(
    arguments: list[str], told: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "conveyor", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert not list(tmp_path.iterdir())


def _is_completed(api: httpx.Client, job_id: str) -> bool:
    run = api.get(f"/v1/jobs/{job_id}").raise_for_status().json()["latest_run"]
    return bool(run["status"] == "completed" and run["stats"]["successful"] == 3)


@contextmanager
def _role(
    name: str, flag: str, environ: Mapping[str, str], *flags: str, log: Path | None = None
) -> Iterator[Program]:
    """A role on a port of its own, with the engines that are for tests."""
    port = free_port()
    url, command = f"http://127.0.0.1:{port}", [name, flag, str(port), *flags]
    with program(command, url, environ=environ, log=log, module="conveyor.testing") as one:
        yield one


def _command(environ: Mapping[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "conveyor.testing", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, check=True
    ).stdout


def _told(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines() if line.startswith("{")]


def _logged(log: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in _told(log.read_text()) if line["event"] == event]
