"""Secrets that are handed in, and the places they must not turn up in."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import FAST_RETRIES, client_of
from tests.e2e.polling import ended, every_row
from tests.harness.programs import Program, service

KEY = "canary-key-7d1f0c"
HEADER = "canary-header-8e2a1d"
TOKEN = "canary-token-9f3b2e"
FRAGMENT = "canary-fragment-0a4c3f"
BODY = "canary-body-1b5d4a"
REMARK = "canary-remark-2c6e5b"
# The parameters, URLs and bodies of tasks are rows, for that is what is to be scraped.
MAY_BE_STORED = {HEADER, TOKEN, FRAGMENT, BODY, REMARK}
CANARIES = MAY_BE_STORED | {KEY}

HOSTS = (
    "ok", "big", "gzip", "flaky", "permanent", "leaky", "dropped", "cut", "rubbish", "status",
    "busy", "captcha", "truncated",
)  # fmt: skip
UNSENDABLE = f"https://ok.example:99999999/?token={TOKEN}"


@pytest.fixture(params=["json", "console"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def left(gateway: Program, tmp_path: Path, log: Path, form: str) -> Iterator["Left"]:
    """What a service leaves behind that was handed every canary, and had all kinds of trouble."""
    environ = FAST_RETRIES | {"CONVEYOR_LOG_FORMAT": form, "CONVEYOR_SLOW_CALL": "0.001ms"}
    data = tmp_path / "data"
    debug = ("--log-level", "debug")
    with (
        service(data=data, gateway=gateway.url, environ=environ, flags=debug, log=log) as program,
        client_of(program, key=KEY) as api,
    ):
        _make_trouble(api)
        metrics = httpx.get(program.url.removesuffix("/v1") + "/metrics").text
        yield Left(log, data, metrics)


class Left:
    def __init__(self, log: Path, data: Path, metrics: str) -> None:
        self.log, self.data, self.metrics = log, data, metrics


def _make_trouble(api: httpx.Client) -> None:
    urls = [f"https://{host}.example/p?token={TOKEN}&size=900000#{FRAGMENT}" for host in HOSTS]
    body = {
        "tasks": [
            *({"url": url, "metadata": {"remark": REMARK}} for url in urls),
            {"url": urls[0], "method": "POST", "body": {"secret": BODY}},
        ],
        "zenrows_params": {"custom_headers": {"Authorization": f"Bearer {HEADER}"}},
    }
    job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
    ended(api, job_id)
    for row in every_row(api, job_id):
        api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/content")
        api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/history").raise_for_status()
    address = api.base_url
    with socket.create_connection((address.host, address.port or 0), timeout=60) as connection:
        connection.sendall(f"nonsense ?token={TOKEN}\r\n\r\n".encode())
        assert connection.recv(64).startswith(b"HTTP/1.1 400")
    api.get("/jobs", params={"apikey": KEY})
    api.get("/jobs", params={"cursor": TOKEN})
    api.post("/jobs", content=f'{{"tasks": [{{"url": "{TOKEN}"}}]}}')
    api.post("/jobs", content=f'{{"tasks": [{{"url": "{UNSENDABLE}"}}]}}')


def test_no_secret_turns_up_in_logs_metrics_or_files(left: Left, form: str) -> None:
    text = left.log.read_text()
    assert "gateway.refused" in text
    assert "port.slow" in text
    assert "http.request" in text
    assert not _found(CANARIES, text.encode())
    assert not re.search(r"[a-z]+://[^\s\"']*\?(?!\*)", text), "a query of an address"
    assert not _found(CANARIES, left.metrics.encode())
    files = [path for path in left.data.rglob("*") if path.is_file()]
    assert any(path.name == "conveyor.db" for path in files)
    told = {path.name: _found({KEY}, path.read_bytes()) for path in files}
    assert not any(told.values()), told
    if form == "json":
        lines = [json.loads(line) for line in text.splitlines()]
        assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)


def _found(canaries: set[str], content: bytes) -> set[str]:
    return {canary for canary in canaries if canary.encode() in content}
