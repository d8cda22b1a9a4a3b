"""Settings become engines, engines become steps. The only module that names adapters."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from conveyor import __version__
from conveyor.adapters.crypto.key_files import load_or_create_key
from conveyor.adapters.crypto.key_ring import new_token
from conveyor.adapters.files import disk_space
from conveyor.adapters.files.blobs import FileBlobs
from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.files.private import is_open_to_others, make_private
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.adapters.segments.bodies import SegmentBodies
from conveyor.adapters.segments.store import open_segment_store
from conveyor.adapters.sqlite.database import Durability
from conveyor.adapters.sqlite.engine import open_engine
from conveyor.adapters.system.clock import SteadyClock, SystemIds
from conveyor.admitting import (
    check_callers,
    open_key_ring,
    wire_api_key_routes,
    wire_authenticate,
    wire_callers,
)
from conveyor.answering import wire_handlers
from conveyor.api import render as shapes
from conveyor.api.app import Application, Ready, build_app
from conveyor.api.auth import Callers
from conveyor.api.bounds import BodyMemory
from conveyor.api.connections import Connections
from conveyor.api.handlers import Handlers
from conveyor.api.operators import Operators
from conveyor.api.rates import Rates
from conveyor.attending import wire_batch_writer, wire_control_worker, wire_export
from conveyor.domain.ids import JobId
from conveyor.domain.retry import RetryPolicy
from conveyor.errors import RefusedToStart, StorageFull, Unavailable
from conveyor.gateways import CODES, open_gateway
from conveyor.notifying import open_webhooks, wire_notifying
from conveyor.operating import SEGMENTS, Engines, ports, wire_complete, wire_doctor, wire_sweep
from conveyor.port_metrics import timed
from conveyor.ports.bodies import Bodies
from conveyor.ports.clock import Clock, Ids
from conveyor.process_metrics import DiskSpace, ProcessMetrics
from conveyor.reporting import open_step_functions
from conveyor.scheduling import FIRE_IDLE, wire_fire, wire_schedules
from conveyor.settings import Settings
from conveyor.steps.auth import Authenticate
from conveyor.steps.complete import Complete
from conveyor.steps.control import ControlWorker
from conveyor.steps.delete import Delete
from conveyor.steps.deliver.sender import OutboxSender
from conveyor.steps.dispatch.config import DispatchConfig
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.doctor.doctor import LEAST_ROOM
from conveyor.steps.progress import ROUND, ProgressFeed
from conveyor.steps.schedules import FireSchedules
from conveyor.steps.scrape import Scrape
from conveyor.steps.settle import Settle
from conveyor.steps.shared.sizes import DEFAULT_SIZES, Sizes
from conveyor.steps.sweep.sweeper import Sweeper
from conveyor.telemetry import MeteredGateway, MeteredTasks, MeteredWebhooks, MeteredWork, Metrics
from conveyor.timekeeping import Timekeeper
from conveyor.worker import serve

# Kind of state -> URL schemes that can hold it.
ENGINES: Mapping[str, tuple[str, ...]] = {
    "metadata": ("sqlite",),
    "tasks": ("sqlite",),
    "control_queue": ("sqlite",),
    "bodies": ("segments", "files"),
    "blobs": ("files",),
    "coordination": ("memory",),
}
OF_ONE_PROCESS = {"sqlite", "segments", "memory"}
# Ports that no wrapper times: the first two answer at once, the others have metrics of their own.
NOT_TIMED = {"clock", "ids", "encryption", "gateway", "webhooks"}
NOTE_USES_EVERY = timedelta(seconds=5)
CONTROL_IDLE = timedelta(milliseconds=250)


log = structlog.get_logger()


class Role(StrEnum):
    API = "api"
    WORKER = "worker"
    SERVE = "serve"  # both in one process


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A wired program: the application to serve and the loops to keep running."""

    app: Application
    metrics: Metrics
    dispatcher: Dispatcher
    deliver: OutboxSender
    control_worker: ControlWorker
    fire: FireSchedules
    sweep: Sweeper
    sweep_every: timedelta
    progress: ProgressFeed
    process_metrics: ProcessMetrics
    timekeeper: Timekeeper | None  # None where the clock is a test's, and is never set
    token: str  # opens the door for operators
    authenticate: Authenticate

    async def work(self, stopping: asyncio.Event) -> None:
        """Run every loop of a worker until told to stop."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.dispatcher.run(stopping), name="dispatcher")
            loops = [
                self.deliver.run(stopping),
                serve(self.sweep.step, stopping, idle=self.sweep_every, name="sweep"),
                serve(self.fire.step, stopping, idle=FIRE_IDLE, name="fire"),
                *(
                    serve(self.control_worker.step, stopping, idle=CONTROL_IDLE, name="control")
                    for _ in range(self.control_worker.slots.count)
                ),
            ]
            others = [group.create_task(loop) for loop in loops]
            await stopping.wait()
            # Whatever they are at can be cut off anywhere, and is done again at the next start.
            await asyncio.wait(others, timeout=self.dispatcher.config.grace.total_seconds())
            for other in others:
                other.cancel()

    async def keep_time(self, stopping: asyncio.Event) -> None:
        """Repair due times whenever the wall clock is set."""
        if self.timekeeper:
            await self.timekeeper.run(stopping)

    async def follow_runs(self, stopping: asyncio.Event) -> None:
        """Keep listeners up to date; when told to stop, let them go, so that no stream holds it."""
        try:
            await serve(self.progress.step, stopping, idle=ROUND, name="progress")
        finally:
            self.progress.close()

    async def note_uses(self, stopping: asyncio.Event) -> None:
        """Write down now and then when keys were last used, and once more at the end."""
        await serve(self.authenticate.step, stopping, idle=NOTE_USES_EVERY, name="uses")
        with suppress(Unavailable):
            await self.authenticate.step()


def check_role(role: Role, settings: Settings) -> None:
    """Refuse engines that do not exist, and those that the role cannot share."""
    for kind, known in ENGINES.items():
        scheme = urlsplit(getattr(settings, kind)).scheme
        if scheme not in known:
            raise RefusedToStart(
                f"{kind}: there is no engine {scheme!r}; choose from {', '.join(known)}"
            )
        if getattr(settings, kind) != f"{scheme}:":
            raise RefusedToStart(f"{kind}: {scheme!r} takes no address; its place is in --data")
        if role is not Role.SERVE and scheme in OF_ONE_PROCESS:
            raise RefusedToStart(
                f"`conveyor {role}` shares its state with other processes, and {kind} is on "
                f"{scheme!r}, which belongs to one process: use `conveyor serve`, which runs "
                "every role in one process on the embedded engines"
            )
    check_callers(settings)


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Service]:
    """Open the engines, repair what dead processes left, and wire the steps."""
    async with AsyncExitStack() as stack:
        engines = await open_embedded(settings, stack)
        service = wire(settings, engines)
        await service.sweep.at_start(engines.dead)
        yield service


async def open_embedded(
    settings: Settings,
    stack: AsyncExitStack,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Engines:
    """The engines of one process: SQLite, segments, files and memory; `stack` closes them.

    Time and chance are the machine's, unless they are given.
    """
    clock = clock or SteadyClock()
    ids = ids or SystemIds(clock)
    durability = Durability(settings.durability)
    sync = durability is Durability.POWER
    folder = settings.folder
    rows = await stack.enter_async_context(
        open_engine(folder, clock=clock, ids=ids, lease=settings.lease, durability=durability)
    )
    _keep_private(folder)
    blobs = FileBlobs(folder / "blobs", sync=sync)
    blobs.sweep_drafts()
    return Engines(
        clock=clock,
        ids=ids,
        metadata=rows.metadata,
        tasks=rows.tasks,
        work=rows.work,
        control_queue=rows.control_queue,
        bodies=_open_bodies(settings, stack, clock, sync=sync),
        blobs=blobs,
        coordination=MemoryCoordination(clock, lease=settings.lease),
        gateway=await stack.enter_async_context(open_gateway(settings)),
        step_functions=await stack.enter_async_context(open_step_functions(settings)),
        webhooks=await stack.enter_async_context(open_webhooks(settings)),
        encryption=await open_key_ring(settings),
        link_secret=load_or_create_key(folder / "links.key"),
        disk_space=lambda: _disk_space(folder),
        due_times=rows.due_times,
        dead=rows.dead,
    )


def _keep_private(folder: Path) -> None:
    """Close what is ours to others. The folder itself may be somebody's on purpose: it is named."""
    for part in ("bodies", "blobs"):
        make_private(folder / part)
    if is_open_to_others(folder):
        log.warning(
            "data.open_to_others",
            folder=str(folder),
            hint=f"other users can list the data folder: run `chmod 700 {folder}`",
        )


def _open_bodies(settings: Settings, stack: AsyncExitStack, clock: Clock, *, sync: bool) -> Bodies:
    """Where bodies are put from now on, and all that were put before, whichever way."""
    folder = settings.folder / "bodies"
    files = FileBodies(folder, sync=sync)
    files.sweep_spool()
    packing = urlsplit(settings.bodies).scheme == "segments"
    if not packing and not (folder / SEGMENTS).exists():
        return files
    store = stack.enter_context(open_segment_store(folder / SEGMENTS, clock=clock, sync=sync))
    return SegmentBodies(store, files, packing=packing)


def wire(settings: Settings, engines: Engines, sizes: Sizes = DEFAULT_SIZES) -> Service:
    """Steps over engines, and the doors over steps."""
    metrics = Metrics()
    stores, engines = engines, _measured(engines, metrics, settings.slow_call)
    notifying = wire_notifying(settings, engines, metrics)
    complete = wire_complete(engines, notifying.deliver.wake)
    dispatcher = _wire_dispatcher(settings, engines, complete, metrics)
    writer = wire_batch_writer(settings, engines, complete, dispatcher, sizes)
    authenticate = wire_authenticate(engines)
    progress = _wire_progress(settings, engines, metrics, dispatcher, authenticate)
    exporting = wire_export(settings, engines)
    handlers = wire_handlers(
        settings,
        engines,
        metrics,
        writer,
        progress,
        exporting=exporting,
        complete=complete,
        vet=notifying.vet,
        sizes=sizes,
        dispatcher=dispatcher,
    )
    sweep = _wire_sweep(settings, engines, complete, metrics, handlers.deleting)
    api_keys = wire_api_key_routes(settings, engines).routes()
    doctor = wire_doctor(settings, stores, sweep, running=True)
    operators = Operators(
        doctor=doctor, control_queue=engines.control_queue, token=new_token(), others=api_keys
    )
    others = [notifying.handlers, wire_schedules(engines, handlers.read)]
    build = _wire_app(settings, engines, metrics, dispatcher, wire_callers(settings, authenticate))
    return Service(
        app=build(handlers, others, operators),
        metrics=metrics,
        dispatcher=dispatcher,
        deliver=notifying.deliver,
        control_worker=wire_control_worker(engines, writer, exporting),
        fire=wire_fire(engines, metrics),
        sweep=sweep,
        sweep_every=settings.sweep_every,
        progress=progress,
        process_metrics=_wire_process_metrics(settings, engines, metrics),
        timekeeper=_wire_timekeeper(engines),
        token=operators.token,
        authenticate=authenticate,
    )


def _wire_app(
    settings: Settings, engines: Engines, metrics: Metrics, dispatcher: Dispatcher, callers: Callers
) -> Callable[[Handlers, Sequence[object], Operators], Application]:
    """The application, but for those who serve its calls."""

    def build(handlers: Handlers, others: Sequence[object], operators: Operators) -> Application:
        return build_app(
            handlers,
            metrics,
            engines.ids,
            _readiness(engines, dispatcher),
            operators,
            callers=callers,
            body_memory=BodyMemory(settings.bodies_in_flight),
            rates=_wire_rates(settings, engines),
            connections=Connections(settings.caller_connections),
            others=others,
        )

    return build


def _wire_sweep(
    settings: Settings, engines: Engines, complete: Complete, metrics: Metrics, delete: Delete
) -> Sweeper:
    counts = (metrics.swept, metrics.cleared)
    return wire_sweep(settings, engines, complete, *counts, delete_run=delete.run)


def _wire_rates(settings: Settings, engines: Engines) -> Rates:
    return Rates(
        coordination=engines.coordination,
        rate=settings.requests_per_second,
        burst=settings.requests_burst,
    )


def _wire_progress(
    settings: Settings,
    engines: Engines,
    metrics: Metrics,
    dispatcher: Dispatcher,
    authenticate: Authenticate,
) -> ProgressFeed:
    progress = ProgressFeed(
        metadata=engines.metadata,
        tasks=engines.tasks,
        clock=engines.clock,
        render=shapes.event_shown,
        count=metrics.watch_reads.inc,
        is_good=authenticate.is_good,
        most=settings.event_listeners,
        waiting=dispatcher.waiting,
    )
    metrics.listeners.set_function(lambda: progress.listeners)
    return progress


def _measured(engines: Engines, metrics: Metrics, slow: timedelta) -> Engines:
    timed_ports = {
        name: timed(getattr(engines, name), name, metrics, slow=slow)
        for name in ports(type(engines)).keys() - NOT_TIMED
    }
    engines = replace(engines, **timed_ports)
    return replace(
        engines,
        tasks=MeteredTasks(engines.tasks, metrics),
        work=MeteredWork(engines.work, metrics),
        gateway=MeteredGateway(engines.gateway, metrics, CODES),
        webhooks=MeteredWebhooks(engines.webhooks, metrics),
    )


def _wire_dispatcher(
    settings: Settings, engines: Engines, complete: Complete, metrics: Metrics
) -> Dispatcher:
    scrape = Scrape(gateway=engines.gateway, bodies=engines.bodies)
    settle = Settle(
        metadata=engines.metadata,
        tasks=engines.tasks,
        work=engines.work,
        bodies=engines.bodies,
        clock=engines.clock,
        ids=engines.ids,
        check=complete.check,
        wake_sender=complete.wake_sender,
        # The dispatcher settles, and settling wakes the dispatcher.
        wake=lambda run_id: dispatcher.wake(run_id),  # noqa: PLW0108 - it is made below
        same_key=lambda run_id: dispatcher.discovery.sharing_key(run_id),  # noqa: PLW0108 - the same
    )
    dispatcher = Dispatcher(
        metadata=engines.metadata,
        work=engines.work,
        coordination=engines.coordination,
        encryption=engines.encryption,
        clock=engines.clock,
        attempt=scrape.attempt,
        settle=settle.settle,
        settle_final=settle.settle_final,
        check=engines.gateway.check,
        policy=RetryPolicy(
            first_delay=settings.retry_first_delay, longest_delay=settings.retry_longest_delay
        ),
        config=DispatchConfig(
            concurrency=settings.concurrency, renewal=settings.renewal, grace=settings.grace
        ),
    )
    metrics.build.labels(__version__, urlsplit(settings.tasks).scheme, settings.durability).set(1)
    metrics.watch_gateway(dispatcher.health.waiting)
    metrics.refused_keys.set_function(lambda: len(dispatcher.refused_keys.known))
    metrics.inflight.set_function(lambda: len(dispatcher.inflight))
    metrics.live_runs.set_function(lambda: sum(not one.is_gone for one in dispatcher.runs.values()))
    return dispatcher


def _wire_process_metrics(settings: Settings, engines: Engines, metrics: Metrics) -> ProcessMetrics:
    return ProcessMetrics(
        metrics=metrics,
        metadata=engines.metadata,
        control_queue=engines.control_queue,
        clock=engines.clock,
        disk_space=engines.disk_space,
        slow_loop=settings.slow_loop,
    )


def _wire_timekeeper(engines: Engines) -> Timekeeper | None:
    clock = engines.clock
    if not isinstance(clock, SteadyClock):
        return None
    return Timekeeper(clock=clock, due_times=engines.due_times)


async def _disk_space(folder: Path) -> DiskSpace:
    database = folder / "conveyor.db"
    parts = {"rows": database, "log": database.with_name("conveyor.db-wal")}
    return DiskSpace(*await disk_space.disk_usage(folder), await disk_space.file_sizes(parts))


def _readiness(engines: Engines, dispatcher: Dispatcher) -> Ready:
    """Ask each engine something small; one that cannot answer, or has no disk space, raises `Unavailable`."""

    async def ready() -> None:
        free = (await engines.disk_space()).free
        if free < LEAST_ROOM or dispatcher.storage.is_closed:
            raise StorageFull(
                f"The disk of the data folder must have {LEAST_ROOM >> 20} MiB free and take every "
                f"page, has {free >> 20} MiB: free some disk space"
            )
        await engines.metadata.live_runs(limit=1)
        await engines.tasks.runs_held(limit=1)
        await engines.blobs.length("ready")
        await engines.coordination.held(JobId("ready"))

    return ready
