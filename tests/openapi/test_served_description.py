"""The description that the service serves, tried against the service itself, call by call."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conveyor.api.handlers.common import EVENT_STREAM
from conveyor.api.openapi import document
from conveyor.api.routes import ROUTES
from tests.e2e.test_keys import create
from tests.harness.programs import Program, mock_gateway, service

CONFIG = Path(__file__).with_name("schemathesis.toml")
SEED = 20260302
# A job outlives its runs: what reads its latest one is not found once that is deleted.
# And what a webhook was told stays below its path when it is cleared.
NOT_SO_HERE = "ensure_resource_availability,use_after_free"
# A stream of events has no end while its run goes on.
LEFT_OUT = {(route.method, route.path) for route in ROUTES if route.media_type == EVENT_STREAM}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def running(data: Path) -> Iterator[Program]:
    environ = {
        "CONVEYOR_AUTH": "keys",
        "CONVEYOR_GATEWAY_KEY": "the-gateways",
        "CONVEYOR_GRACE": "200ms",
    }
    with (
        mock_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=environ) as program,
    ):
        yield program


@pytest.fixture(scope="module")
def key(running: Program, data: Path) -> str:
    """A key that may call everything."""
    created: str = create(data, "--scope", "operator")["key"]
    return created


@pytest.mark.timeout(600)
def test_hundreds_of_calls_are_answered_as_described(
    running: Program, key: str, tmp_path: Path
) -> None:
    report = tried(running, key, tmp_path, examples=2)
    assert report["test_cases"]["generated"] >= 500


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_twenty_thousand_calls_are_answered_as_described(
    running: Program, key: str, tmp_path: Path
) -> None:
    rounds = [
        tried(running, key, tmp_path, examples=150, seed=SEED + number) for number in (1, 2, 3)
    ]
    assert sum(report["test_cases"]["generated"] for report in rounds) >= 20_000


def test_all_that_is_served_is_tried() -> None:
    served = {(route.method, route.path) for route in ROUTES} - LEFT_OUT
    assert ("POST", "/v1/jobs") in served
    assert not {path for _, path in LEFT_OUT if path.endswith("/events")} & {
        path for _, path in served
    }


def tried(
    program: Program, key: str, folder: Path, *, examples: int, seed: int = SEED
) -> dict[str, Any]:
    """What came of trying everything: a report without a failure."""
    told = folder / "report.json"
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "--no-color"),
        *("run", program.url.removesuffix("/v1") + "/openapi.json"),
        *("-H", f"X-API-Key: {key}", "--max-examples", str(examples)),
        *("--checks", "all", "--exclude-checks", NOT_SO_HERE),
        *("--seed", str(seed), "--report", "json", "--report-json-path", str(told)),
        *(part for name in _left_out() for part in ("--exclude-operation-id", name)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-20_000:]}{done.stderr[-5_000:]}"
    report: dict[str, Any] = json.loads(told.read_text())
    assert report["complete"]
    assert report["operations"]["tested"] == len(ROUTES) - len(LEFT_OUT)
    return report


def _left_out() -> list[str]:
    described = document()["paths"]
    return [described[path][method.lower()]["operationId"] for method, path in sorted(LEFT_OUT)]
