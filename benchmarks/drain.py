"""How fast is a job drained, against the script people would write instead?

From submit to completed, bodies of 20 KB, everything durable and whole: with a gateway that answers
at once and 100 pages in flight, and with one that takes 200 ms and 1,000 in flight.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path

import httpx
import msgspec
from tests.harness.programs import Program, service

from benchmarks.fast_gateway import fast_gateway

SIZE = 20_480
ROUNDS = 5


class Shape(msgspec.Struct):
    name: str
    count: int
    in_flight: int
    latency: float
    goal: float  # of the script's rate


class Round(msgspec.Struct):
    rate: float
    cpu: float  # milliseconds a task


SHAPES = (
    Shape("at once, 100 in flight", 30_000, 100, 0.0, 1.3),
    Shape("after 200 ms, 1,000 in flight", 25_000, 1_000, 0.2, 0.95),
)
DURABILITIES = ("power", "process")


def main() -> None:
    for shape in SHAPES:
        print(f"\na gateway that answers {shape.name}:")
        with (
            tempfile.TemporaryDirectory() as folder,
            fast_gateway(SIZE, latency=shape.latency) as gateway,
        ):
            _compare(shape, gateway, Path(folder))


def _compare(shape: Shape, gateway: str, folder: Path) -> None:
    rounds: dict[str, list[Round]] = {name: [] for name in ("script", *DURABILITIES)}
    with (
        _serving(gateway, folder, "power", shape) as power,
        _serving(gateway, folder, "process", shape) as process,
    ):
        programs = {"power": power, "process": process}
        for program in programs.values():
            drain(program, shape.count // 2, shape.in_flight)  # finds the key's limit as well
        for number in range(ROUNDS):
            rounds["script"].append(script(shape, gateway, folder))
            for name, program in programs.items():
                rounds[name].append(drain(program, shape.count, shape.in_flight))
            print(
                f"  round {number + 1}: {_told({name: some[-1:] for name, some in rounds.items()})}"
            )
        print(f"  memory at most {power.peak_memory:.0f} MB")
    print(f"  median:  {_told(rounds)}")
    for name in DURABILITIES:
        low, middle, high = _ratios(rounds[name], rounds["script"])
        print(f"  {name}: {middle:.2f} of the bare script's rate ({low:.2f} to {high:.2f})", end="")
        print(f", goal {shape.goal}" if name == "power" else "")


def _serving(
    gateway: str, folder: Path, durability: str, shape: Shape
) -> AbstractContextManager[Program]:
    flags = ("--durability", durability, "--log-level", "warning")
    places = {"CONVEYOR_CONCURRENCY": str(max(shape.in_flight * 2, 500))}
    return service(gateway=gateway, data=folder / durability, flags=flags, environ=places)


def _told(rounds: dict[str, list[Round]]) -> str:
    return " | ".join(
        f"{name} {statistics.median(one.rate for one in some):6.0f}/s "
        f"{statistics.median(one.cpu for one in some):.3f} ms CPU a task"
        for name, some in rounds.items()
    )


def _ratios(ours: Sequence[Round], theirs: Sequence[Round]) -> tuple[float, float, float]:
    ratios = sorted(one.rate / other.rate for one, other in zip(ours, theirs, strict=True))
    return ratios[0], statistics.median(ratios), ratios[-1]


def script(shape: Shape, gateway: str, folder: Path) -> Round:
    pages = Path(tempfile.mkdtemp(dir=folder))  # removed at the end: deleting is work for the disk
    os.sync()
    given = [gateway, str(shape.count), str(shape.in_flight), str(pages)]
    command = [sys.executable, "-m", "benchmarks.bare_script", *given]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, cpu = map(float, told.split())
    return Round(shape.count / seconds, cpu / shape.count * 1000)


def drain(program: Program, count: int, in_flight: int) -> Round:
    tasks = [{"url": f"https://ok.example/{number}"} for number in range(count)]
    body = msgspec.json.encode({"tasks": tasks, "max_inflight": in_flight})
    with httpx.Client(headers={"X-API-Key": "benchmark"}, timeout=60) as client:
        os.sync()  # neither side pays for what the other left to be written
        cpu, started = program.cpu, time.time()
        job = client.post(f"{program.url}/jobs", content=body).raise_for_status().json()
        ended = _completed(client, f"{program.url}/jobs/{job['job_id']}")
        return Round(count / (ended - started), (program.cpu - cpu) / count * 1000)


def _completed(client: httpx.Client, url: str) -> float:
    """When a job's run was completed, by the service's own word: asking more often would cost it."""
    while True:
        run = client.get(url).raise_for_status().json()["latest_run"]
        if run["status"] == "completed":
            return datetime.fromisoformat(run["updated_at"]).timestamp()
        time.sleep(0.1)


if __name__ == "__main__":
    main()
