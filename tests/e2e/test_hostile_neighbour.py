"""One caller attacks for three minutes; another's work goes on as if nothing happened.

`make test-long`. The neighbour's pages take half a second each, as scraped pages do: its
throughput then depends on how fast the service dispatches and settles, not on spare CPU time.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import client_of
from tests.e2e.hostile import ATTACKS
from tests.e2e.polling import every_row, until
from tests.e2e.test_lists import TXT, sent
from tests.harness.programs import Program, mock_gateway, service

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
ATTACK_SECONDS = 180
TASKS = 500
LISTED = 300
SLOWEST_POLL = 0.25  # seconds, p99
LEAST_SHARE = 0.5  # of the throughput without an attack
MOST_MEMORY = 1_000  # MB, over all attacks at once
ENVIRON = {"CONVEYOR_BODIES_IN_FLIGHT": str(64 * 1024 * 1024), "CONVEYOR_LOG_LEVEL": "warning"}


class Neighbour:
    """A caller with ordinary work, who notes how it went."""

    def __init__(self, api: httpx.Client) -> None:
        self.api = api
        self.rates: list[float] = []  # tasks a second
        self.polls: list[float] = []  # seconds
        self.deleted: list[str] = []

    def work(self) -> None:
        """Scrape 500 pages; then a list, its rerun, and a delete. All figures are exact."""
        began = time.monotonic()
        job_id = self._submitted({"tasks": [{"url": url} for url in _urls("job", TASKS)]})
        self._check(job_id, _urls("job", TASKS))
        self.rates.append(TASKS / (time.monotonic() - began))
        file_input = sent(self.api, TXT, "\n".join(_urls("list", LISTED)).encode())
        listed = self._submitted({"file_input_id": file_input, "async": True})
        self._check(listed, _urls("list", LISTED))
        self.api.post(f"/jobs/{listed}/rerun", timeout=60).raise_for_status()
        self._check(listed, _urls("list", LISTED))
        for done in (job_id, listed):
            self.api.delete(f"/jobs/{done}").raise_for_status()
            assert self.api.get(f"/jobs/{done}").status_code == 404
            self.deleted.append(done)

    def _submitted(self, job: dict[str, Any]) -> str:
        answer = self.api.post("/jobs", json=job, timeout=60)
        assert answer.status_code in {201, 202}, answer.text
        return str(answer.json()["job_id"])

    def _check(self, job_id: str, urls: list[str]) -> None:
        run = until(lambda: self._polled(job_id), within=120)
        stats = run["stats"]
        assert (run["status"], stats["total"], stats["successful"]) == (
            "completed",
            len(urls),
            len(urls),
        )
        assert [row["url"] for row in every_row(self.api, job_id)] == urls

    def _polled(self, job_id: str) -> dict[str, Any] | None:
        began = time.monotonic()
        run: dict[str, Any] = (
            self.api.get(f"/jobs/{job_id}").raise_for_status().json()["latest_run"]
        )
        self.polls.append(time.monotonic() - began)
        return None if run["status"] in {"running", "pending"} else run


def test_a_hostile_caller_hurts_nobody_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (
        mock_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=ENVIRON) as program,
        client_of(program, key="a-neighbour") as api,
    ):
        alone = Neighbour(api)
        for _ in range(3):
            alone.work()
        beside = Neighbour(api)
        with _attacks(program):
            deadline = time.monotonic() + ATTACK_SECONDS
            while time.monotonic() < deadline:
                beside.work()
        slowest = quantiles(beside.polls, n=100)[98]
        share = median(beside.rates) / median(alone.rates)
        figures = (
            f"{len(beside.rates)} rounds, {len(beside.polls)} polls, p99 {slowest * 1000:.0f} ms, "
            f"max {max(beside.polls) * 1000:.0f} ms, throughput {share:.2f} of alone "
            f"({median(alone.rates):.0f}/s), peak memory {program.peak_memory:.0f} MB\n"
        )
        sys.stdout.write(figures)
        assert program.process.poll() is None
        assert slowest < SLOWEST_POLL, figures
        assert share >= LEAST_SHARE, figures
        assert program.peak_memory < MOST_MEMORY, figures
        _check_whole(data)


@contextmanager
def _attacks(program: Program) -> Iterator[None]:
    """Every attack in a process of its own, until the block ends."""
    command = [sys.executable, "-m", "tests.e2e.hostile"]
    ours = [program.url, "a-hostile-caller", str(ATTACK_SECONDS + 60)]
    attackers = [subprocess.Popen([*command, name, *ours]) for name in ATTACKS]
    try:
        yield
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.wait()


def _check_whole(data: Path) -> None:
    """The doctor finds every run's figures in order, the attacker's too."""
    doctor = [sys.executable, "-m", "conveyor", "doctor", "--data", str(data), "--no-bodies"]
    found = subprocess.run(doctor, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-4000:]


def _urls(kind: str, count: int) -> list[str]:
    return [f"https://slow.example/{kind}/{number}?ms=500" for number in range(count)]
