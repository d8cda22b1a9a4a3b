"""How fast is a run exported, in how much memory, against a bare script over the same files?"""

import asyncio
import itertools
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from conveyor.app.engines import Engines, open_engines
from conveyor.app.services import build_service
from conveyor.domain.task import SettleDecision, Settlement, StoredBody, Task, TaskStatus
from conveyor.ports.bodies import Body, BodyName, Kept
from conveyor.settings import Settings
from conveyor.testing.factories import CALLER, JOB, RUN, a_job, a_run, add_rows, new_tasks

COUNT = 100_000
SIZE = 20_000
ROUNDS = 3
AT_ONCE = 1_000
WORDS = 4_000
KINDS = 500


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        data, bare = Path(folder) / "data", Path(folder) / "bare.zip"
        _child("fill", data)
        ratios, rounds = [], []
        for _ in range(ROUNDS):
            rounds.append(_child("export", data))
            script = _child("script", data, bare)
            bare.unlink()
            ratios.append(script["seconds"] / rounds[-1]["seconds"])
    seconds = statistics.median(one["seconds"] for one in rounds)
    megabytes = COUNT * SIZE / 1e6
    length = rounds[0]["length"] / 1e6
    print(
        f"{COUNT} bodies of {SIZE} bytes: {seconds:.1f} s, {COUNT / seconds:.0f} a second, "
        f"{megabytes / seconds:.0f} MB/s, a file of {length:.0f} MB"
    )
    print(f"  CPU {statistics.median(one['cpu'] for one in rounds):.1f} s")
    print(
        f"  {statistics.median(ratios):.2f} of the rate of a bare script "
        f"(rounds: {min(ratios):.2f} to {max(ratios):.2f})"
    )
    print(f"  {max(one['memory'] for one in rounds):.0f} MB of memory at most; goal: under 200 MB")


def _child(*words: object) -> dict[str, float]:
    """Each part in a process of its own, so that its memory is its own."""
    command = [sys.executable, "-m", "benchmarks.export", *map(str, words)]
    told = subprocess.run(command, check=True, capture_output=True).stdout
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


async def _fill(data: Path) -> None:
    async with AsyncExitStack() as stack:
        await fill(await open_engines(_settings(data), stack), COUNT, _pages())
    print(json.dumps({}))


async def fill(engines: Engines, count: int, pages: Iterator[bytes]) -> None:
    """A finished run, written straight into the engines."""
    await engines.metadata.commit(a_job(latest_run_id=RUN), a_run(total=count))
    for first in range(0, count, AT_ONCE):
        rows = new_tasks(RUN, min(AT_ONCE, count - first), first=first)
        await add_rows(engines.tasks, RUN, rows)
        await engines.work.enqueue(RUN, [row.id for row in rows])
        tasks = await engines.work.claim({RUN: AT_ONCE})
        names = [BodyName(JOB, RUN, task.id, task.claim_no) for task in tasks]
        kept = await engines.bodies.put_many([Body(name, next(pages)) for name in names])
        await engines.work.settle(
            [_settled(task, one) for task, one in zip(tasks, kept, strict=True)]
        )


def _settled(task: Task, kept: Kept) -> Settlement:
    result = StoredBody(
        locator=kept.locator, length=kept.length, checksum=kept.checksum, format="html"
    )
    return Settlement(
        run_id=task.run_id,
        task_id=task.id,
        claim_no=task.claim_no,
        decision=SettleDecision(status=TaskStatus.SUCCESSFUL, charged=True, result=result),
    )


def _pages() -> Iterator[bytes]:
    """Pages that shrink about as much as those of the web do, no two the same."""
    dice = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(dice.choices(letters, k=dice.randint(2, 10))) for _ in range(WORDS)]
    weights = [1 / (rank + 1) for rank in range(WORDS)]
    kinds = [_page(dice, dice.choices(words, weights, k=SIZE // 6)) for _ in range(KINDS)]
    for number in itertools.count():
        yield b"<!doctype html><title>%d</title>" % number + kinds[number % KINDS]


def _page(dice: random.Random, words: list[str]) -> bytes:
    lines = (
        f'<div class="{words[n]} item"><a href="/{words[n + 1]}/{dice.randrange(10**6)}">'
        f"{' '.join(words[n : n + 12])}</a></div>\n"
        for n in range(0, len(words) - 1, 12)
    )
    return "".join(lines).encode()[:SIZE]


async def export(settings: Settings) -> None:
    """Export the run; print how long it took and the most memory of this process."""
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        service = build_service(settings, engines)
        exporting = service.steps.export
        begun = await exporting.start(CALLER, JOB, RUN)
        started, cpu = time.perf_counter(), time.process_time()
        await service.steps.control_worker.step()
        taken, cpu = time.perf_counter() - started, time.process_time() - cpu
        made = await exporting.find(CALLER, JOB, RUN, begun.id)
        await _remove(engines)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": taken, "cpu": cpu, "length": made.length, "memory": memory}))


async def _remove(engines: Engines) -> None:
    keys = await engines.blobs.keys("exports/", limit=9)
    await engines.blobs.delete(keys)


def _script(data: Path, target: Path) -> None:
    """What people would write instead; the level is the same, for the ratio to be fair."""
    started = time.perf_counter()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted((data / "bodies" / "jobs").rglob("*.*")):
            archive.write(path, f"{path.stem}.html")
    print(json.dumps({"seconds": time.perf_counter() - started}))


def _settings(data: Path) -> Settings:
    # As files, for the bare script to read the same.
    return Settings(data=str(data), bodies="files:", durability="process", log_level="error")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["fill", data]:
            asyncio.run(_fill(Path(data)))
        case ["export", data]:
            asyncio.run(export(_settings(Path(data))))
        case ["script", data, target]:
            _script(Path(data), Path(target))
        case _:
            main()
