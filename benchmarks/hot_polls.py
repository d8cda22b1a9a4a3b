"""What do a thousand pollers of one run cost, with counts that they share and without?

Both jobs are live and do not move: their only place hangs. The counts of the closed job are
shared for a moment; those of the open one are read for every poll, because its status follows
from them.
"""

import statistics
import tempfile
from pathlib import Path

import httpx
from tests.harness.programs import Program, mock_gateway, service

from benchmarks.load import Load, measure, request

ROUNDS = 5
POLLS = 15_000
POLLERS = 1_000
READS = 'conveyor_port_seconds_count{method="counts",port="tasks"}'


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        mock_gateway() as gateway,
        service(
            gateway=gateway.url,
            data=Path(folder) / "data",
            flags=("--log-level", "warning"),
            environ={"CONVEYOR_CONCURRENCY": "1", "CONVEYOR_GRACE": "100ms"},
        ) as program,
    ):
        jobs = {kind: _live_job(program.url, kind) for kind in ("closed", "open")}
        polled: dict[str, list[tuple[Load, float]]] = {kind: [] for kind in jobs}
        for _ in range(ROUNDS):
            for kind, job in jobs.items():
                polled[kind].append(_poll(program, job))
    shared, read = _show("shared", polled["closed"]), _show("read each time", polled["open"])
    print(f"shared / read: {shared / read:.2f} of the polls a second")


def _poll(program: Program, job: str) -> tuple[Load, float]:
    before = _reads(program)
    load = measure(
        program.url, lambda _: request("GET", f"/v1/jobs/{job}"), count=POLLS, connections=POLLERS
    )
    return load, _reads(program) - before


def _reads(program: Program) -> float:
    text = httpx.get(program.url.removesuffix("/v1") + "/metrics").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(READS))


def _live_job(url: str, kind: str) -> str:
    body = {"status": kind, "tasks": [{"url": "https://hang.example/"}]}
    answer = httpx.post(f"{url}/jobs", headers={"X-API-Key": "benchmark"}, json=body)
    return str(answer.raise_for_status().json()["job_id"])


def _show(what: str, polled: list[tuple[Load, float]]) -> float:
    rates = [load.rate for load, _ in polled]
    rate, reads = statistics.median(rates), statistics.median(reads for _, reads in polled)
    spread = f"{min(rates):.0f} to {max(rates):.0f}"
    p99 = statistics.median(load.p99 for load, _ in polled)
    print(
        f"{what}: {rate:.0f} polls/s (rounds: {spread}), p99 {p99:.0f} ms, "
        f"{reads:.0f} reads of counts for {POLLS} polls"
    )
    return rate


if __name__ == "__main__":
    main()
