"""A gateway that misbehaves in every way it can: each URL ends as it should, and nothing else does."""

import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from conveyor.testing.local.ports import free_port
from tests.e2e.conftest import client_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, mock_gateway, program, service
from tests.kept import every_body

EACH = 4
DEADLINE = 10.0  # seconds a page may take: enough for a good one on a busy machine
SHORT_DEADLINE = {"CONVEYOR_GATEWAY_DEADLINE": "4s"}  # where pages that take too long are retried
LARGEST_BODY = 1024 * 1024
MOST_MEMORY = 300.0  # MB, with bombs of 100 MiB each going off at once
ANSWERS_WITHIN = 20.0  # seconds, on a machine that is busy with other tests as well
ENVIRON = {
    "CONVEYOR_GATEWAY_DEADLINE": f"{DEADLINE}s",
    "CONVEYOR_LARGEST_BODY": str(LARGEST_BODY),
    "CONVEYOR_RETRY_FIRST_DELAY": "50ms",
    "CONVEYOR_RETRY_LONGEST_DELAY": "200ms",
    "CONVEYOR_GRACE": "1s",
    "CONVEYOR_LOG_LEVEL": "warning",
}

# What the gateway does -> how the task ends, with which reason, after how many attempts.
Faults = dict[str, tuple[str, str | None, int]]
FAULTS: Faults = {
    "https://ok.example/{}": ("successful", None, 1),
    "https://gzip.example/{}": ("successful", None, 1),
    "https://big.example/{}?size=900000": ("successful", None, 1),
    "https://flaky.example/{}": ("successful", None, 2),
    "https://busy.example/{}?fails=1&after=1": ("successful", None, 1),
    "https://dropped.example/{}": ("failed", "gateway_error", 2),
    "https://cut.example/{}": ("failed", "gateway_error", 2),
    "https://cut.example/{}?chunked=1": ("failed", "gateway_error", 2),
    "https://cut.example/{}?size=900000": ("failed", "gateway_error", 2),
    "https://rubbish.example/{}": ("failed", "gateway_error", 2),
    "https://bomb.example/{}": ("failed", "bad_target", 1),
    "https://big.example/{}?size=3000000": ("failed", "bad_target", 1),
}
# These last until the deadline, so they are not retried.
ENDLESS: Faults = {
    "https://hang.example/{}": ("failed", "timeout", 1),
    "https://drip.example/{}?ms=100": ("failed", "timeout", 1),
}


def test_every_fault_ends_its_own_task_and_no_other(tmp_path: Path) -> None:
    with (
        mock_gateway() as gateway,
        service(data=tmp_path / "data", gateway=gateway.url, environ=ENVIRON) as running,
        client_of(running) as api,
    ):
        jobs = [
            (faults, _submit(api, _urls(faults), retries=retries))
            for faults, retries in ((FAULTS, 1), (ENDLESS, 0))
        ]
        every = list[dict[str, Any]]()
        for faults, job_id in jobs:
            run = _ended_while_answering(api, job_id)
            rows = every_row(api, job_id, limit="1000")
            assert run["status"] == "completed"
            assert [row["url"] for row in rows] == _urls(faults)
            _check_rows(api, job_id, rows, faults)
            _check_stats(run["stats"], faults)
            every += rows
        _check_bodies(api, every, tmp_path / "data")
        assert running.peak_memory < MOST_MEMORY
        assert _repairs(api) == {}


def test_a_gateway_that_is_down_at_first_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    with (
        service(data=tmp_path, gateway=url, environ=ENVIRON) as running,
        client_of(running) as api,
    ):
        job_id = _submit(api, _good_urls(50))
        until(lambda: _run(api, job_id).get("waiting"))
        assert _run(api, job_id)["stats"]["completed"] == 0

        with program(["mock-gateway", "--port", str(port)], url):
            run = ended(api, job_id)

    assert run["stats"]["successful"] == run["stats"]["total"] == 50


@pytest.mark.long
def test_a_gateway_that_stands_still_for_a_while_is_waited_for(tmp_path: Path) -> None:
    with (
        mock_gateway() as gateway,
        service(data=tmp_path, gateway=gateway.url, environ=ENVIRON | SHORT_DEADLINE) as running,
        client_of(running) as api,
    ):
        job_id = _submit(api, _good_urls(600), max_inflight=20)
        until(lambda: _run(api, job_id)["stats"]["completed"] > 20)
        with _standing_still(gateway):
            until(lambda: _run(api, job_id).get("waiting"))
            assert _run(api, job_id)["status"] == "running"
        run = ended(api, job_id)
        rows = every_row(api, job_id, limit="1000")

    assert run["stats"]["successful"] == run["stats"]["total"] == 600
    assert Counter(row["status"] for row in rows) == {"successful": 600}


def _submit(api: httpx.Client, urls: list[str], **given: int) -> str:
    answer = api.post("/jobs", json={"tasks": [{"url": url} for url in urls], **given})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job_id"])


def _urls(faults: Faults) -> list[str]:
    return [kind.format(number) for number in range(EACH) for kind in faults]


def _good_urls(count: int) -> list[str]:
    return [f"https://slow.example/{number}?ms=10" for number in range(count)]


def _ended_while_answering(api: httpx.Client, job_id: str) -> dict[str, Any]:
    """The run once it is over; until then the service answers others all the while."""
    slowest = 0.0

    def ask() -> bool:
        nonlocal slowest
        begun = time.monotonic()
        api.get("/jobs", params={"limit": "1"}).raise_for_status()
        slowest = max(slowest, time.monotonic() - begun)
        return _run(api, job_id)["status"] not in {"running", "pending"}

    until(ask)
    assert slowest < ANSWERS_WITHIN
    return ended(api, job_id)


def _check_rows(api: httpx.Client, job_id: str, rows: list[dict[str, Any]], faults: Faults) -> None:
    told = defaultdict(set)
    for row in rows:
        lines = api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/history").json()["events"]
        told[_kind(row["url"])].add((row["status"], len(lines)))
    assert told == {kind: {(status, attempts)} for kind, (status, _, attempts) in faults.items()}


def _check_stats(stats: dict[str, Any], faults: Faults) -> None:
    statuses = Counter({"successful": 0, "failed": 0})
    reasons: Counter[str] = Counter()
    for status, reason, _ in faults.values():
        statuses[status] += EACH
        reasons.update({reason: EACH} if reason else {})
    assert stats["total"] == stats["completed"] == EACH * len(faults)
    assert stats["successful"] == statuses["successful"]
    assert stats["failed"] == statuses["failed"]
    assert stats["failure_reasons"] == dict(reasons)


def _check_bodies(api: httpx.Client, rows: list[dict[str, Any]], data: Path) -> None:
    """Every good page is whole, and nothing is kept of the others."""
    good = [row for row in rows if row["status"] == "successful"]
    for row in good:
        page = api.get(str(row["result_url"])).raise_for_status()
        assert "900000" not in row["url"] or len(page.content) == 900_000
        assert page.content
    assert len(every_body(data)) == len(good)
    assert not list((data / "bodies" / "spool").glob("*"))


def _kind(url: str) -> str:
    return re.sub(r"/\d+", "/{}", url, count=1)


def _run(api: httpx.Client, job_id: str) -> dict[str, Any]:
    run: dict[str, Any] = api.get(f"/jobs/{job_id}").raise_for_status().json()["latest_run"]
    return run


def _metrics(api: httpx.Client, name: str) -> dict[str, float]:
    """The figures of a metric by the value of its label, those above nothing."""
    text = api.get(str(api.base_url.join("/metrics"))).raise_for_status().text
    found = re.findall(rf'^{name}_total{{\w+="([^"]*)"}} (\S+)$', text, re.MULTILINE)
    return {label: float(value) for label, value in found if float(value)}


def _repairs(api: httpx.Client) -> dict[str, float]:
    return _metrics(api, "conveyor_sweeper_actions")


@contextmanager
def _standing_still(gateway: Program) -> Iterator[None]:
    gateway.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        gateway.process.send_signal(signal.SIGCONT)
