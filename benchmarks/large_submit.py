"""How long does a submit of 100,000 inline tasks take, and does memory stay flat while it drains?"""

import statistics
import tempfile
import time
from pathlib import Path

import httpx
import msgspec
from tests.harness.programs import Program, mock_gateway, service

COUNT = 100_000
ROUNDS = 5


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, mock_gateway() as gateway:
        flags = ("--log-level", "warning", "--durability", "process")
        with service(gateway=gateway.url, data=Path(folder) / "data", flags=flags) as program:
            answers = [_submit(program, stop=number < ROUNDS - 1) for number in range(ROUNDS)]
            after_submit = program.memory
            _watch(program, answers[-1][1])
            print(
                f"{COUNT} inline tasks: answered in {statistics.median(t for t, _ in answers):.2f} s "
                f"(median of {ROUNDS}); goal: under 1.5 s"
            )
            print(
                f"memory: {after_submit:.0f} MB after the submits, "
                f"{program.memory:.0f} MB after draining, {program.peak_memory:.0f} MB at most"
            )


def _submit(program: Program, *, stop: bool) -> tuple[float, str]:
    tasks = [{"url": f"https://ok.example/{number}?size=2048"} for number in range(COUNT)]
    body = msgspec.json.encode({"tasks": tasks})
    with httpx.Client(headers={"X-API-Key": "benchmark"}, timeout=60) as client:
        started = time.perf_counter()
        job = client.post(f"{program.url}/jobs", content=body).raise_for_status().json()
        taken = time.perf_counter() - started
        if stop:
            client.post(f"{program.url}/jobs/{job['job_id']}/stop").raise_for_status()
        return taken, str(job["job_id"])


def _watch(program: Program, job_id: str) -> None:
    with httpx.Client(headers={"X-API-Key": "benchmark"}, timeout=60) as client:
        while True:
            run = client.get(f"{program.url}/jobs/{job_id}").raise_for_status().json()["latest_run"]
            print(f"  {run['stats']['completed']:6d} done, {program.memory:.0f} MB")
            if run["status"] == "completed":
                return
            time.sleep(5)


if __name__ == "__main__":
    main()
