"""How many submits and status polls does one process answer a second?

Small submits (3 tasks) while the one place for a scrape is taken, so that the API is measured and
not the scraping; polls of a job that has ended.
"""

import statistics
import tempfile
from pathlib import Path

import httpx
from tests.harness.programs import mock_gateway, service

from benchmarks.load import Load, measure, request

ROUNDS = 5
SUBMITS = 4_000
POLLS = 15_000
TASKS = b"""{"tasks": [{"url": "https://hang.example/1"}, {"url": "https://hang.example/2"},
{"url": "https://hang.example/3"}]}"""


def main() -> None:
    submits: list[Load] = []
    polls: list[Load] = []
    with tempfile.TemporaryDirectory() as folder, mock_gateway() as gateway:
        flags = ("--log-level", "warning")
        with service(
            gateway=gateway.url,
            data=Path(folder) / "data",
            flags=flags,
            environ={"CONVEYOR_CONCURRENCY": "1"},
        ) as program:
            job = _one_job(program.url)
            for _ in range(ROUNDS):
                polls.append(
                    measure(program.url, lambda _: request("GET", f"/v1/jobs/{job}"), count=POLLS)
                )
                submits.append(
                    measure(
                        program.url,
                        lambda _: request("POST", "/v1/jobs", TASKS),
                        count=SUBMITS,
                        connections=50,
                    )
                )
    _show("submits of 3 tasks", submits, goal=1_500)
    _show("status polls", polls, goal=4_000)


def _one_job(url: str) -> str:
    answer = httpx.post(
        f"{url}/jobs",
        headers={"X-API-Key": "benchmark"},
        json={"tasks": [{"url": "https://ok.example/"}]},
    )
    return str(answer.raise_for_status().json()["job_id"])


def _show(what: str, loads: list[Load], *, goal: int) -> None:
    rate = statistics.median(load.rate for load in loads)
    spread = f"{min(load.rate for load in loads):.0f} to {max(load.rate for load in loads):.0f}"
    p99 = statistics.median(load.p99 for load in loads)
    print(f"{what}: {rate:.0f}/s (rounds: {spread}), p99 {p99:.1f} ms; goal: at least {goal}/s")


if __name__ == "__main__":
    main()
