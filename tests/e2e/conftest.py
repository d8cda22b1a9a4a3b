"""Real processes, shared by the tests of a module where they can be."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.harness.dashboard import Visitor, visiting
from tests.harness.programs import Program, mock_gateway, service

FAST_RETRIES = {"CONVEYOR_RETRY_FIRST_DELAY": "100ms", "CONVEYOR_RETRY_LONGEST_DELAY": "200ms"}
SHORT_GRACE = {"CONVEYOR_GRACE": "200ms"}
CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Program]:
    with mock_gateway() as program:
        yield program


@pytest.fixture(scope="module")
def running(gateway: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    data = tmp_path_factory.mktemp("data")
    with service(data=data, gateway=gateway.url, environ=FAST_RETRIES | SHORT_GRACE) as program:
        yield program


@pytest.fixture
def api(running: Program) -> Iterator[httpx.Client]:
    with client_of(running) as client:
        yield client


@pytest.fixture
def stranger(running: Program) -> Iterator[httpx.Client]:
    with client_of(running, key="another-key") as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        missing = "no Chromium on this machine: apt-get install chromium"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visitor(browser: Browser, running: Program, api: httpx.Client) -> Iterator[Visitor]:
    """A tab of the dashboard, signed in with the key of `api`."""
    key = api.headers["X-API-Key"]
    with visiting(browser, running.url.removesuffix("/v1"), key) as visitor:
        yield visitor


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "service.log"


def client_of(program: Program, *, key: str = "an-api-key") -> httpx.Client:
    return httpx.Client(base_url=program.url, headers={"X-API-Key": key}, timeout=200)


def problem_of(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document of a refusal, checked to be a whole one of that kind."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"]
    problem: dict[str, Any] = answer.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["title"]
    assert problem["type"] == "about:blank" or "://" in problem["type"]
    return problem
