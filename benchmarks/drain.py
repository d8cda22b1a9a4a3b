"""How fast is a job drained, against the script people would write instead?

From submit to completed, 20 KB bodies, 100 in flight, durability `process`.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import msgspec

from benchmarks.fast_gateway import fast_gateway
from conveyor.testing.programs import Program, service

COUNT = 6_000
SIZE = 20_480
ROUNDS = 5


class Round(msgspec.Struct):
    rate: float
    cpu: float  # milliseconds a task


def main() -> None:
    scripts: list[Round] = []
    conveyors: list[Round] = []
    with tempfile.TemporaryDirectory() as folder, fast_gateway(Path(folder), SIZE) as gateway:
        data = Path(folder) / "data"
        flags = ("--durability", "process", "--log-level", "warning")
        with service(gateway=gateway, data=data, flags=flags) as program:
            _drain(program, 1_000)
            for number in range(ROUNDS):
                scripts.append(_script(gateway, Path(folder)))
                conveyors.append(_drain(program, COUNT))
                _show(number + 1, scripts[-1], conveyors[-1])
            print(f"memory at most {program.peak_memory:.0f} MB")
    ratio = statistics.median(
        ours.rate / theirs.rate for ours, theirs in zip(conveyors, scripts, strict=True)
    )
    print(f"median ratio to the bare script: {ratio:.2f} (goal: at least 0.8)")


def _show(number: int, script: Round, conveyor: Round) -> None:
    print(
        f"round {number}: script {script.rate:6.0f}/s {script.cpu:.3f} ms CPU a task | "
        f"conveyor {conveyor.rate:6.0f}/s {conveyor.cpu:.3f} ms | "
        f"ratio {conveyor.rate / script.rate:.2f}"
    )


def _script(gateway: str, folder: Path) -> Round:
    pages = Path(tempfile.mkdtemp(dir=folder))  # removed at the end: deleting is work for the disk
    os.sync()
    command = [sys.executable, "-m", "benchmarks.bare_script", gateway, str(COUNT), str(SIZE)]
    cpu, started = _children_cpu(), time.perf_counter()
    subprocess.run([*command, str(pages)], check=True)
    taken = time.perf_counter() - started
    return Round(COUNT / taken, (_children_cpu() - cpu) / COUNT * 1000)


def _drain(program: Program, count: int) -> Round:
    tasks = [{"url": f"https://ok.example/{number}?size={SIZE}"} for number in range(count)]
    body = msgspec.json.encode({"tasks": tasks})
    with httpx.Client(headers={"X-API-Key": "benchmark"}, timeout=60) as client:
        os.sync()  # neither side pays for what the other left to be written
        cpu, started = program.cpu, time.perf_counter()
        job = client.post(f"{program.url}/jobs", content=body).raise_for_status().json()
        _wait(client, f"{program.url}/jobs/{job['job_id']}")
        taken = time.perf_counter() - started
        return Round(count / taken, (program.cpu - cpu) / count * 1000)


def _wait(client: httpx.Client, url: str) -> None:
    while client.get(url).raise_for_status().json()["latest_run"]["status"] != "completed":
        time.sleep(0.02)


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
