"""The machine's clock is set by an hour under a running service, by libfaketime."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import client_of
from tests.e2e.polling import ended, until
from tests.harness.programs import Program, mock_gateway, service
from tests.seed import sampled

LIBRARIES = [*Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")]
COUNT = 100
HOUR = 3600

pytestmark = pytest.mark.skipif(not LIBRARIES, reason="libfaketime is not installed")


@pytest.mark.parametrize("seconds", sampled([-HOUR, HOUR], 1, of="clock"))
def test_a_live_run_goes_on_when_the_clock_is_set(tmp_path: Path, seconds: int) -> None:
    offset, log = tmp_path / "offset", tmp_path / "log"
    offset.write_text("+0")
    with (
        mock_gateway() as gateway,
        _service_with_its_own_time(tmp_path / "data", gateway, offset, log) as program,
        client_of(program) as api,
    ):
        tasks = [{"url": f"https://slow.example/{number}?ms=100"} for number in range(COUNT)]
        body = {"tasks": tasks, "max_inflight": 2}
        job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
        until(lambda: api.get(f"/jobs/{job_id}").json()["latest_run"]["stats"]["completed"] > 0)

        offset.write_text(f"{seconds:+d}")

        run = ended(api, job_id)
        assert (run["status"], run["stats"]["successful"]) == ("completed", COUNT)
        assert ("clock.set_back" if seconds < 0 else "clock.set_ahead") in log.read_text()
        stats = httpx.get(f"{gateway.url}_mock/stats").raise_for_status().json()
        assert stats["repeated_urls"] == 0  # no worker was taken for dead


@contextmanager
def _service_with_its_own_time(
    data: Path, gateway: Program, offset: Path, log: Path
) -> Iterator[Program]:
    """A service whose wall clock differs from the machine's by what a file says."""
    environ = {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_CACHE_DURATION": "1",  # seconds between two looks at the file
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    with service(data=data, gateway=gateway.url, environ=environ, log=log) as program:
        yield program
