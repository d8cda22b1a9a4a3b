"""`conveyor api` and `conveyor worker` as real processes: what they listen on, and how they stop."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import client_of
from tests.e2e.polling import until
from tests.harness.programs import Program, free_port, program

TASKS = {"tasks": [{"url": "https://hang.example/"}]}


def test_a_worker_drains_within_its_grace(gateway: Program, tmp_path: Path, log: Path) -> None:
    data = tmp_path / "data"
    with role("api", data=data, gateway=gateway, port="--port") as one, client_of(one) as api:
        api.post("/v1/jobs", json=TASKS).raise_for_status()

    grace = {"CONVEYOR_GRACE": "300ms"}
    loops = ("--loops", "dispatch,sweeper")
    with role("worker", *loops, data=data, gateway=gateway, environ=grace, log=log) as worker:
        until(lambda: "conveyor_inflight 1.0" in httpx.get(f"{worker.url}/metrics").text)
        assert httpx.get(f"{worker.url}/readyz").status_code == 200
        assert httpx.get(f"{worker.url}/v1/jobs").status_code == 404
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(timeout=60) == 0

    [listening], [stopping] = _logged(log, "http.listening"), _logged(log, "service.stopping")
    assert listening["url"] == f"{worker.url}/metrics"
    assert stopping["pages_in_flight"] == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["worker"], "metadata must be on an engine that several processes can share"),
        (["api"], "metadata must be on an engine that several processes can share"),
        (["worker", "--loops", "dispatch,sweep"], "loops must be one or more of dispatch, control"),
    ],
    ids=" ".join,
)
def test_a_refusal_ends_the_process_with_its_reason(
    arguments: list[str], told: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "conveyor", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert not list(tmp_path.iterdir())


@contextmanager
def role(
    name: str,
    *flags: str,
    data: Path,
    gateway: Program,
    port: str = "--metrics-port",
    environ: dict[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[Program]:
    """A role on its own port; it takes the embedded engines for shared ones."""
    listening = free_port()
    chosen = {"CONVEYOR_DATA": str(data), "CONVEYOR_GATEWAY": gateway.url, **(environ or {})}
    with program(
        [name, port, str(listening), *flags],
        f"http://127.0.0.1:{listening}",
        environ=chosen,
        log=log,
        module="tests.harness.shared_sqlite",
    ) as one:
        yield one


def _logged(log: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]
