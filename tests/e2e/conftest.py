"""Real processes, shared by the tests of a module where they can be."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from conveyor.testing.programs import Program, mock_gateway, service

FAST_RETRIES = {"CONVEYOR_RETRY_FIRST_DELAY": "100ms"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Program]:
    with mock_gateway() as program:
        yield program


@pytest.fixture(scope="module")
def running(gateway: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    data = tmp_path_factory.mktemp("data")
    with service(data=data, gateway=gateway.url, environ=FAST_RETRIES) as program:
        yield program


@pytest.fixture
def api(running: Program) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url, headers={"X-API-Key": "an-api-key"}) as client:
        yield client


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "service.log"
