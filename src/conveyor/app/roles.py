"""Roles: which parts of the service a process runs, how it starts, and how it stops.

The role `api` answers requests and feeds event streams. The role `worker` runs the loops of all
other steps, or those that the setting `loops` chooses. `serve` does both in one process, and so does
`dev`, where every caller may be an operator too. Every role listens: a worker only for health,
readiness and metrics.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from enum import StrEnum
from urllib.parse import urlsplit

import structlog
import uvicorn
from msgspec.structs import replace

from conveyor.adapters.files.service_info import ServiceInfo, published
from conveyor.adapters.system.systemd import notify, take_socket
from conveyor.api.protocol import bounded
from conveyor.app.engines import check_engines, open_engines, uses_folder
from conveyor.app.services import Service, build_service
from conveyor.errors import RefusedToStart, Unavailable
from conveyor.loops import repeat
from conveyor.mock_gateway.server import MockGateway
from conveyor.settings import DIRECT, LOOPBACK, LOOPS, Auth, Settings
from conveyor.steps.dispatch.config import StopTimes
from conveyor.steps.dispatch.shared_limits import SharedLimits
from conveyor.steps.progress import ROUND
from conveyor.steps.shared.members import ANNOUNCE_EVERY
from conveyor.steps.sweep.backlog import MEASURE_EVERY
from conveyor.telemetry.logs import set_up_logs

INTERRUPTED = 130  # 128 + SIGINT, the exit status that shells use
AGAIN = "waits for pages in flight, at most so many seconds; Ctrl-C again ends it at once, safely"
NOTE_USES_EVERY = timedelta(seconds=5)
CONTROL_IDLE = timedelta(seconds=1)  # sent messages and received ones wake the loops earlier
FIRE_IDLE = timedelta(seconds=1)
FOREVER = timedelta(days=36_500)  # of a loop that is only woken
LISTEN_AGAIN = timedelta(seconds=1)  # after a bug
RELOAD_KEYS_EVERY = timedelta(seconds=10)  # if no notification comes
DROP_KEYS_EVERY = timedelta(hours=1)
MESSAGES = {"queues", "control_queue"}  # kinds of state that hold messages
UNFINISHED_EVERY = timedelta(hours=1)
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not to listen on

log = structlog.get_logger()


class Role(StrEnum):
    API = "api"
    WORKER = "worker"
    SERVE = "serve"  # both in one process
    DEV = "dev"  # the same, for development


IN_ONE_PROCESS = {Role.SERVE, Role.DEV}


def check_role(role: Role, settings: Settings) -> None:
    """Raise `RefusedToStart` for settings that the role cannot run with; opens nothing."""
    check_engines(settings, sharing="" if role in IN_ONE_PROCESS else role)
    if role in IN_ONE_PROCESS and not set(LOOPS) <= set(settings.loops):
        # An embedded engine belongs to this process, so no other one could run the rest.
        raise RefusedToStart(
            f"settings: loops must be left out for `conveyor {role}`, which runs all of them, got "
            f"{', '.join(settings.loops)}: use `conveyor api` and `conveyor worker`, which takes it"
        )
    if role is not Role.WORKER:
        check_callers(settings)


def check_callers(settings: Settings) -> None:
    """Raise `RefusedToStart` if anyone who reaches the address could use the service."""
    reached_at = _reached_at(settings)
    if settings.mode is Auth.DEV and reached_at:
        raise RefusedToStart(
            f"anyone could use this service on {reached_at}. Choose who may: CONVEYOR_AUTH=keys "
            "takes keys that you make with `conveyor keys create`; CONVEYOR_AUTH=forward takes "
            "callers' own gateway keys, of which CONVEYOR_API_KEYS lists the only ones; or bind "
            "to 127.0.0.1 and leave public_url out"
        )
    if settings.is_local:
        return
    if settings.mode is Auth.FORWARD and settings.gateway == DIRECT and not settings.api_keys:
        raise RefusedToStart(
            f"anyone could use this service on {settings.host}: {DIRECT} has no gateway that would "
            "refuse a key. Set CONVEYOR_AUTH=keys, list the keys you accept in CONVEYOR_API_KEYS, "
            "or bind to 127.0.0.1"
        )


def _reached_at(settings: Settings) -> str:
    """Return where other machines reach the API, by its socket or a proxy; empty if they do not."""
    if not settings.is_local:
        return settings.host
    name = urlsplit(settings.public_url or "").hostname
    return "" if name is None or name in LOOPBACK else name


@asynccontextmanager
async def open_service(settings: Settings, role: Role = Role.SERVE) -> AsyncIterator[Service]:
    """Open the engines, build the service, and repair what dead processes left."""
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        service = build_service(
            settings,
            engines,
            role=role,
            serves_api=role is not Role.WORKER,
            runs_workers=role is not Role.API,
        )
        # Other processes may hold claims unless the engine has proved them dead. The rounds of the
        # worker then repair what is left behind, after their usual waits.
        if engines.dead_claims is not None or engines.in_memory & MESSAGES:
            # A process with queues in memory is the only one, and they are empty now.
            await service.steps.sweep.at_start(engines.dead_claims or ())
        yield service


def run(coroutine: Coroutine[object, object, None]) -> None:
    """Run the program, on uvloop where it is installed."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        asyncio.run(coroutine)
    else:
        uvloop.run(coroutine)


async def serve_role(name: str, settings: Settings, *, mock_gateway: bool = False) -> None:
    """Serve until SIGINT or SIGTERM."""
    role = Role(name)
    inherited = take_socket()
    if inherited:  # what it listens on decides whether strangers can reach it
        settings = _listening_on(role, settings, inherited)
    check_role(role, settings)
    async with AsyncExitStack() as stack:
        if mock_gateway:
            mock = await stack.enter_async_context(MockGateway("127.0.0.1"))
            settings = replace(settings, gateway=mock.url)
        await _serve(role, settings, inherited)


def _listening_on(role: Role, settings: Settings, inherited: socket.socket) -> Settings:
    host, port = inherited.getsockname()[:2]
    if role is Role.WORKER:
        return replace(settings, host=host, metrics_port=port)
    return replace(settings, host=host, port=port)


async def _serve(role: Role, settings: Settings, inherited: socket.socket | None) -> None:
    as_json = settings.log_format == "json" or (
        settings.log_format == "auto" and not sys.stderr.isatty()
    )
    set_up_logs(settings.log_level, json=as_json)
    stopping = asyncio.Event()
    signals = _Signals(stopping, settings)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signals.received, number)
    async with AsyncExitStack() as stack:
        # Listen first: a port that is in use must be reported before the engines open.
        listening = stack.enter_context(inherited or _listen(role, settings))
        service = await stack.enter_async_context(open_service(settings, role))
        signals.service = service
        if role is not Role.WORKER and uses_folder(settings):
            host, port = listening.getsockname()[:2]
            stack.enter_context(_published(settings, service.token, host, port))
        _calm_collector()
        await serve_until(stopping, role, service, listening, settings)


@contextmanager
def _published(settings: Settings, token: str, host: str, port: int) -> Iterator[None]:
    """Publish address and token in the data folder, where operators' commands find them."""
    near = EVERYWHERE.get(host, host)
    address = f"[{near}]" if ":" in near else near
    with published(settings.folder, ServiceInfo(f"http://{address}:{port}", token)):
        yield


class _Signals:
    """Handles SIGINT and SIGTERM.

    The first signal stops the service gracefully. A second Ctrl-C ends the process at once. That is
    safe, since the service survives a crash at any point, but pages in flight are paid for again.
    """

    def __init__(self, stopping: asyncio.Event, settings: Settings) -> None:
        self._stopping = stopping
        self._grace = StopTimes(settings.grace).end
        self.service: Service | None = None  # None while it starts

    def received(self, number: signal.Signals) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            notify("STOPPING=1")
            log.info("service.stopping", **self._under_way, seconds=self._grace, hint=AGAIN)
        elif number is signal.SIGINT:
            log.warning("service.ended", **self._under_way)
            os._exit(INTERRUPTED)

    @property
    def _under_way(self) -> dict[str, int]:
        """Return how many pages are being fetched, as a field of the log line."""
        return {
            "pages_in_flight": len(self.service.steps.dispatcher.inflight) if self.service else 0
        }


def _listen(role: Role, settings: Settings) -> socket.socket:
    name = "metrics_port" if role is Role.WORKER else "port"
    host, port = settings.host, getattr(settings, name)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise RefusedToStart(
            f"cannot listen on {host}:{port}: {error.strerror}; "
            f"choose another with --host and --{name.replace('_', '-')}"
        ) from None


def _calm_collector() -> None:
    """Exclude long-lived objects from garbage collection, and collect less often.

    The hot path creates hardly any reference cycles. With the default thresholds, looking for them
    took a fifth of the event loop's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def serve_until(
    stopping: asyncio.Event,
    role: Role,
    service: Service,
    listening: socket.socket,
    settings: Settings,
) -> None:
    """Run the parts of a role side by side until `stopping`."""
    of_api = {"url": "/v1", "dashboard": "/", "docs": "/docs"}
    paths = {"url": "/metrics"} if role is Role.WORKER else of_api
    times = StopTimes(settings.grace)
    async with _ended_by(stopping, times.end), coordinated(service), asyncio.TaskGroup() as group:
        serving = _serve_http(stopping, service, listening, settings, paths)
        group.create_task(serving, name="http")
        if role is not Role.WORKER:
            group.create_task(follow_runs(service, stopping), name="progress")
            group.create_task(note_uses(service, stopping), name="uses")
        group.create_task(service.process_metrics.watch(stopping), name="process_metrics")
        if service.timekeeper:
            group.create_task(service.timekeeper.run(stopping), name="time")
        dispatches = role is not Role.API and "dispatch" in settings.loops
        if not dispatches and (limits := service.steps.dispatcher.shared_limits):
            group.create_task(share_limits(limits, stopping), name="limits")
        if role is not Role.API:
            group.create_task(work(service, stopping, settings.loops), name="work")


@asynccontextmanager
async def _ended_by(stopping: asyncio.Event, seconds: float) -> AsyncIterator[None]:
    """Cancel what still runs so many seconds after `stopping`, which is safe at any point."""

    async def limit() -> None:
        await stopping.wait()
        deadline.reschedule(asyncio.get_running_loop().time() + seconds)

    try:
        async with asyncio.timeout(None) as deadline:
            limiting = asyncio.create_task(limit())
            try:
                yield
            finally:
                limiting.cancel()
    except TimeoutError:
        if not deadline.expired():
            raise
        log.warning("service.stop.cut_short")


@asynccontextmanager
async def coordinated(service: Service) -> AsyncIterator[None]:
    """List this process among the live ones, exchange notifications and follow the shared keys."""
    members, notifier = service.members, service.steps.notifier
    never = asyncio.Event()

    async def reload_keys() -> None:
        await service.rotate_encryption.encryption.reload()
        if tuple(service.rotate_encryption.encryption.fingerprints()) != members.me.keys:
            await members.step()  # a rotation waits for the announcement

    wakeup = service.steps.wakeups.encryption
    loops = [
        repeat(members.step, never, idle=ANNOUNCE_EVERY, name="members"),
        repeat(reload_keys, never, idle=RELOAD_KEYS_EVERY, name="encryption", wakeup=wakeup),
    ]
    if notifier.coordination:
        loops += [
            repeat(notifier.publish, never, idle=LISTEN_AGAIN, name="publish"),
            repeat(notifier.listen, never, idle=LISTEN_AGAIN, name="listen"),
        ]
    running = [asyncio.create_task(loop) for loop in loops]
    try:
        yield
    finally:
        for loop in running:
            loop.cancel()
        await asyncio.wait(running)
        await members.leave()


async def work(service: Service, stopping: asyncio.Event, loops: Collection[str] = LOOPS) -> None:
    """Run the loops of a worker until `stopping`."""
    async with asyncio.TaskGroup() as group:
        if "dispatch" in loops:  # which keeps to its grace by itself
            group.create_task(service.steps.dispatcher.run(stopping), name="dispatcher")
        others = [group.create_task(loop) for loop in _other_loops(service, stopping, loops)]
        await stopping.wait()
        service.steps.wakeups.control.wake_all()
        if others:
            # Cancelling is safe at any point: the sweeper finishes interrupted work after a restart.
            await asyncio.wait(others, timeout=service.steps.dispatcher.config.stop_times.work)
        for other in others:
            other.cancel()


def _other_loops(
    service: Service, stopping: asyncio.Event, loops: Collection[str]
) -> Iterator[Coroutine[object, object, None]]:
    steps = service.steps
    if "control" in loops:
        for _ in range(steps.control_worker.slots.count):
            yield repeat(
                steps.control_worker.step,
                stopping,
                idle=CONTROL_IDLE,
                name="control",
                wakeup=steps.wakeups.control,
            )
    if "sender" in loops:
        yield steps.deliver.run(stopping)
    if "scheduler" in loops:
        yield repeat(steps.fire.step, stopping, idle=FIRE_IDLE, name="fire")
    if "sweeper" in loops:
        yield _sweep(service, stopping)
        if service.backlog:
            yield repeat(service.backlog.step, stopping, idle=MEASURE_EVERY, name="backlog")
        drop_keys = service.rotate_encryption.step
        yield repeat(drop_keys, stopping, idle=DROP_KEYS_EVERY, name="drop_keys")
        files = service.unfinished_files
        if files.removers:
            yield repeat(files.step, stopping, idle=UNFINISHED_EVERY, name="unfinished_files")


async def _sweep(service: Service, stopping: asyncio.Event) -> None:
    """Make the rounds of the sweeper, and keep its permit between them."""
    sweep, permit = service.steps.sweep, service.steps.sweep.permit
    if permit is None:
        await repeat(sweep.step, stopping, idle=service.sweep_every, name="sweep")
        return
    keeping = asyncio.create_task(
        repeat(permit.renew, stopping, idle=permit.lease / 3, name="sweep")
    )
    try:
        await repeat(sweep.step, stopping, idle=service.sweep_every, name="sweep")
    finally:
        keeping.cancel()
        await permit.release()


async def share_limits(limits: SharedLimits, stopping: asyncio.Event) -> None:
    """Learn in a process without a dispatcher whether the gateway is unavailable."""
    async with asyncio.TaskGroup() as group:
        sharing = group.create_task(limits.run())
        await stopping.wait()
        sharing.cancel()


async def follow_runs(service: Service, stopping: asyncio.Event) -> None:
    """Feed event streams. End them at the stop: uvicorn would wait for them."""
    progress, wakeup = service.steps.progress, service.steps.wakeups.progress
    try:
        async with asyncio.TaskGroup() as group:
            changes = group.create_task(
                repeat(
                    progress.read_changed, stopping, idle=FOREVER, name="progress", wakeup=wakeup
                )
            )
            await repeat(progress.step, stopping, idle=ROUND, name="progress")
            changes.cancel()
    finally:
        progress.close()


async def note_uses(service: Service, stopping: asyncio.Event) -> None:
    """Record when API keys were last used: every few seconds, and when the service stops."""
    authenticate = service.steps.authenticate
    await repeat(authenticate.step, stopping, idle=NOTE_USES_EVERY, name="uses")
    with suppress(Unavailable):
        await authenticate.step()


async def _serve_http(
    stopping: asyncio.Event,
    service: Service,
    listening: socket.socket,
    settings: Settings,
    paths: Mapping[str, str],
) -> None:
    server = _Server(
        paths,
        uvicorn.Config(
            service.app,
            http=bounded(service.app, connections=settings.connections),
            ws="none",
            access_log=False,
            proxy_headers=False,
            log_config=None,  # its lines go through structlog like ours
            log_level="error",  # its warnings are about single requests, which we log at debug
            lifespan="off",
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=StopTimes(settings.grace).work,  # type: ignore[arg-type]
        ),
    )
    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(_stop_server(stopping, server))
        try:
            await server.serve([listening])
        finally:
            stopping.set()
            watcher.cancel()


async def _stop_server(stopping: asyncio.Event, server: uvicorn.Server) -> None:
    await stopping.wait()
    server.should_exit = True


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to `_Signals` and logs where it listens."""

    def __init__(self, paths: Mapping[str, str], config: uvicorn.Config) -> None:
        super().__init__(config)
        self._paths = paths  # to log: what is at which path

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                base = f"http://{host}:{port}"
                urls = {name: base + path for name, path in self._paths.items()}
                log.info("http.listening", **urls)
        notify("READY=1")
