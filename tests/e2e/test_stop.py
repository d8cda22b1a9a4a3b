"""Ctrl-C of a server: the first says what it waits for, the second ends it, and nothing is lost."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import SHORT_GRACE, client_of
from tests.e2e.polling import ended, until
from tests.harness.programs import Program, mock_gateway, service

PAGES = 3
PATIENT = {"CONVEYOR_GRACE": "60s"}
FOREVER = "https://hang.example/{}"


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_says_what_it_waits_for_and_ctrl_c_ends_it(
    tmp_path: Path, log: Path, first: signal.Signals
) -> None:
    data = tmp_path / "data"
    with mock_gateway() as gateway:
        with (
            service(data=data, gateway=gateway.url, environ=PATIENT, log=log) as program,
            client_of(program) as api,
        ):
            tasks = [{"url": FOREVER.format(number)} for number in range(PAGES)]
            job_id = api.post("/jobs", json={"tasks": tasks}).raise_for_status().json()["job_id"]
            until(lambda: _in_flight(api.get("../metrics").text) == PAGES)

            program.process.send_signal(first)
            [told] = until(lambda: _logged(log, "service.stopping"))
            assert (told["pages_in_flight"], told["seconds"]) == (PAGES, 60)
            assert "Ctrl-C again" in told["hint"]
            assert program.process.poll() is None

            program.process.send_signal(signal.SIGINT)
            assert program.process.wait(timeout=200) == 130
            assert len(_logged(log, "service.ended")) == 1

        _finishes_exactly(data, gateway, job_id)


def _finishes_exactly(data: Path, gateway: Program, job_id: str) -> None:
    """At the next start the tasks are pending, uncharged, and can be stopped."""
    with (
        service(data=data, gateway=gateway.url, environ=SHORT_GRACE) as program,
        client_of(program) as api,
    ):
        rows = api.get(f"/jobs/{job_id}/results").raise_for_status().json()["results"]
        assert len(rows) == PAGES
        assert {row["status"] for row in rows} <= {"pending", "processing"}
        api.post(f"/jobs/{job_id}/stop").raise_for_status()
        run = ended(api, job_id)
        assert (run["status"], run["stats"]["failed"]) == ("stopped", 0)


def _in_flight(metrics: str) -> int:
    [line] = [one for one in metrics.splitlines() if one.startswith("conveyor_inflight ")]
    return int(float(line.split()[1]))


def _logged(log: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]
