"""Do rate and memory hold as jobs grow, and as they become many?

One list of 10,000, 100,000 and 1,000,000 pages, from submit to completed; then 20,000 pages in 1,
10, 100 and 1,000 jobs at once. Bodies of 2 KB, so that a million fit on any disk.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from tests.harness.programs import Program, service

from benchmarks.fast_gateway import fast_gateway

LARGEST = int(os.environ.get("BENCH_ROWS", "1000000"))
LENGTHS = [count for count in (10_000, 100_000, 1_000_000) if count <= LARGEST]
RUNS = (1, 10, 100, 1_000)
PAGES = 20_000  # over all runs
SIZE = 2_048


def main() -> None:
    for count in LENGTHS:
        with _fresh() as (program, api):
            job_id = _listed(api, count)
            _tell(f"a list of {count:,}", program, count, _until_done(api, [job_id]))
    for runs in RUNS:
        with _fresh() as (program, api):
            jobs = [_submitted(api, PAGES // runs) for _ in range(runs)]
            _tell(f"{runs:,} runs at once", program, PAGES, _until_done(api, jobs))


@contextmanager
def _fresh() -> Iterator[tuple[Program, httpx.Client]]:
    """A service over a folder of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        fast_gateway(SIZE) as gateway,
        service(gateway=gateway, data=Path(folder), flags=("--log-level", "warning")) as program,
        httpx.Client(base_url=program.url, headers={"X-API-Key": "benchmark"}, timeout=600) as api,
    ):
        yield program, api


def _listed(api: httpx.Client, count: int) -> str:
    file_input = api.post("/job_inputs", json={"type": "txt"}).raise_for_status().json()
    upload = file_input["upload"]
    lines = (b"https://ok.example/%d\n" % number for number in range(count))
    httpx.put(
        upload["url"], content=b"".join(lines), headers=upload["headers"], timeout=600
    ).raise_for_status()
    answer = api.post("/jobs", json={"file_input_id": file_input["file_input_id"]})
    return str(answer.raise_for_status().json()["job_id"])


def _submitted(api: httpx.Client, count: int) -> str:
    body = {"tasks": [{"url": f"https://ok.example/{number}"} for number in range(count)]}
    return str(api.post("/jobs", json=body).raise_for_status().json()["job_id"])


def _until_done(api: httpx.Client, jobs: Sequence[str]) -> float:
    """Seconds from the first run's start to the last one's end, by the service's own word."""
    runs = [_completed(api, job_id) for job_id in jobs]
    began = min(datetime.fromisoformat(run["created_at"]) for run in runs)
    return (max(datetime.fromisoformat(run["updated_at"]) for run in runs) - began).total_seconds()


def _completed(api: httpx.Client, job_id: str) -> dict[str, Any]:
    while True:
        run = api.get(f"/jobs/{job_id}").raise_for_status().json()["latest_run"]
        if run["status"] == "completed":
            return dict(run)
        time.sleep(0.2)


def _tell(what: str, program: Program, count: int, seconds: float) -> None:
    rate, cpu = count / seconds, program.cpu / count * 1000
    print(f"{what:>22}: {rate:6.0f} pages a second, {cpu:.3f} ms CPU a page, ", end="")
    print(f"{program.peak_memory:.0f} MB at most", flush=True)


if __name__ == "__main__":
    main()
