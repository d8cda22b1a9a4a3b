"""How fast are bodies kept and read, in segments, as files, as a file for each group, and in memory?

20 KB bodies in groups of 1, 16, 64 and 256, two groups on their way at a time, as settling does it.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.segments.bodies import SegmentBodies
from conveyor.adapters.segments.store import open_segment_store
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.domain.ids import JobId, RunId, task_ids
from conveyor.ports.bodies import Bodies, Body, BodyName
from conveyor.testing.memory.bodies import MemoryBodies

SIZE = 20_480
COUNT = {1: 300, 16: 1_600, 64: 1_920, 256: 2_048}
ROUNDS = 3
AT_ONCE = 2
ENGINES = ("segments", "files", "grouped", "memory")
JOB = JobId("01J0000000000000000000000A")


class Rates(msgspec.Struct):
    put: float
    cpu: float  # microseconds a body
    read: float
    removed: float


def main() -> None:
    asyncio.run(_all())


async def _all() -> None:
    for durability in ("power", "process"):
        for group in COUNT:
            seen: dict[str, list[Rates]] = {engine: [] for engine in ENGINES}
            for _ in range(ROUNDS):
                for engine in ENGINES:
                    seen[engine].append(await _measure(engine, durability, group))
            _show(durability, group, seen)


def _show(durability: str, group: int, seen: dict[str, list[Rates]]) -> None:
    print(f"{durability}, groups of {group}:")
    for engine, rounds in seen.items():
        put, cpu, read, removed = (
            statistics.median(getattr(one, name) for one in rounds)
            for name in Rates.__struct_fields__
        )
        print(
            f"  {engine:8} {put:7.0f} kept a second, {cpu:5.0f} us CPU a body; "
            f"{read:7.0f} read a second; {removed:8.0f} removed a second"
        )
    for engine in ("segments", "grouped"):
        pairs = zip(seen[engine], seen["files"], strict=True)
        ratio = statistics.median(one.put / files.put for one, files in pairs)
        print(f"  median ratio of {engine} to files: {ratio:.1f}")


async def _measure(engine: str, durability: str, group: int) -> Rates:
    count = COUNT[group]
    os.sync()
    async with _opened(engine, sync=durability == "power") as bodies:
        puts = _groups(count, group)
        run = _names(count)[0].run_id
        cpu, started = time.process_time(), time.perf_counter()
        kept: list[str] = []
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(_put(bodies, puts, kept))
        put = count / (time.perf_counter() - started)
        cost = (time.process_time() - cpu) / count * 1e6
        started = time.perf_counter()
        for locator in kept:
            assert sum([len(chunk) async for chunk in bodies.read(locator)]) == SIZE
        read = count / (time.perf_counter() - started)
        started = time.perf_counter()
        while await bodies.delete_run(JOB, run, limit=1_000):
            pass
        return Rates(put, cost, read, count / (time.perf_counter() - started))


async def _put(bodies: Bodies, groups: Iterator[Sequence[Body]], kept: list[str]) -> None:
    for group in groups:
        kept += [one.locator for one in await bodies.put_many(group)]


def _names(count: int) -> list[BodyName]:
    run = RunId("01J0000000000000000000000B")
    task_id = task_ids(run)
    return [BodyName(JOB, run, task_id(index), 1) for index in range(count)]


def _groups(count: int, size: int) -> Iterator[list[Body]]:
    page = os.urandom(SIZE)
    bodies = [Body(name, page) for name in _names(count)]
    return iter([bodies[start : start + size] for start in range(0, count, size)])


@asynccontextmanager
async def _opened(engine: str, *, sync: bool) -> AsyncIterator[Bodies]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        if engine == "memory":
            yield MemoryBodies()
        elif engine == "files":
            yield FileBodies(path, SystemIds(SystemClock()), sync=sync)
        elif engine == "grouped":
            yield FileBodies(path, SystemIds(SystemClock()), sync=sync, packs=True)
        else:
            with open_segment_store(path / "segments", clock=SystemClock(), sync=sync) as store:
                yield SegmentBodies(store, FileBodies(path, SystemIds(SystemClock()), sync=sync))


if __name__ == "__main__":
    main()
