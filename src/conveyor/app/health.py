"""Whether the engines answer: for supervisors at `/readyz`, and for operators one by one."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from urllib.parse import urlsplit

from conveyor.api.app import Ready
from conveyor.app.engines import Engines
from conveyor.domain.ids import JobId, RunId
from conveyor.errors import StorageFull, Unavailable
from conveyor.ports.clock import Clock
from conveyor.settings import Settings
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.doctor.doctor import LEAST_ROOM
from conveyor.steps.operators import EngineHealth, Health

READY_WITHIN = timedelta(seconds=3)  # probes of supervisors wait for seconds

EngineRead = Callable[[], Awaitable[object]]


def readiness(engines: Engines, dispatcher: Dispatcher, *, runs_workers: bool) -> Ready:
    """Return the check behind `/readyz`: one small read of each engine, and free disk space.

    It raises `Unavailable`, with the name of the engine, when one does not answer or the disk is
    full. A process without workers serves every request without coordination.
    """
    reads = _reads(engines)
    if not runs_workers:
        del reads["coordination"]

    async def ready() -> None:
        free = (await engines.disk_space()).free if engines.disk_space else LEAST_ROOM
        if free < LEAST_ROOM:
            raise StorageFull(
                f"The disk of the data folder must have {LEAST_ROOM >> 20} MiB free, has "
                f"{free >> 20} MiB: free some disk space"
            )
        checks = [_check_engine(name, read) for name, read in reads.items()]
        for failure in await asyncio.gather(*checks, return_exceptions=True):
            if failure is not None:
                raise failure
        # Last: if the storage of bodies does not answer, that is the cause.
        if dispatcher.storage.is_closed:
            raise StorageFull("The storage of bodies must take every page: free some disk space")

    return ready


async def measure_health(settings: Settings, engines: Engines) -> Health:
    """Try all engines at the same time, coordination included; none that fails hides another."""
    measuring = (
        _measure_engine(name, urlsplit(getattr(settings, name)).scheme, read, engines.clock)
        for name, read in _reads(engines).items()
    )
    measured = await asyncio.gather(*measuring)
    return Health(measured, (await engines.disk_space()).free if engines.disk_space else None)


def _reads(engines: Engines) -> dict[str, EngineRead]:
    """Return one small read of each engine, by the kind of state that it holds."""
    reads: dict[str, EngineRead] = {
        "metadata": lambda: engines.metadata.live_runs(limit=1),
        "tasks": lambda: engines.tasks.runs_held(limit=1),
        "control_queue": lambda: engines.control_queue.is_live("ready", "ready"),
        "bodies": lambda: engines.bodies.names(JobId("ready"), RunId("ready"), limit=1),
        "blobs": lambda: engines.blobs.length("ready"),
        "coordination": lambda: engines.coordination.held("ready"),
    }
    if queues := engines.queues:
        reads["queues"] = lambda: queues.receive(RunId("ready"), 1)
    return reads


async def _measure_engine(name: str, engine: str, read: EngineRead, clock: Clock) -> EngineHealth:
    started, error = clock.monotonic(), None
    try:
        await _check_engine(name, read)
    except Unavailable as failure:
        error = str(failure)
    elapsed_ms = round(1_000 * (clock.monotonic() - started))
    return EngineHealth(holds=name, engine=engine, elapsed_ms=elapsed_ms, error=error)


async def _check_engine(name: str, read: EngineRead) -> None:
    try:
        async with asyncio.timeout(READY_WITHIN.total_seconds()):
            await read()
    except TimeoutError:
        raise Unavailable(f"The engine of {name} does not answer in time") from None
    except Unavailable as error:
        raise Unavailable(f"The engine of {name} does not answer: {error}") from error
