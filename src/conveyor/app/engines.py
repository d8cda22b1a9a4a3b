"""Engines: which implementations the service can open behind its ports.

`SCHEMES` maps each kind of state to the URL schemes that its setting accepts, and each scheme to
the function that opens it. A new engine is a row of that table.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import structlog

from conveyor import __version__
from conveyor.adapters.aws.step_functions import AwsStepFunctions
from conveyor.adapters.files.disk import (
    IsAbandoned,
    disk_usage,
    file_sizes,
    is_open_to_others,
    make_private,
)
from conveyor.adapters.files.service_info import ServiceInfo, read_service_info
from conveyor.adapters.http import direct_wire, zenrows_errors
from conveyor.adapters.http.client.pool import ConnectionPool
from conveyor.adapters.http.client.transport import TransportFactory
from conveyor.adapters.http.direct import DirectGateway
from conveyor.adapters.http.page_wire import CONVEYOR_CODES
from conveyor.adapters.http.webhooks import HttpWebhooks
from conveyor.adapters.http.zenrows import ZenrowsGateway
from conveyor.adapters.sqlite.database import owner_of
from conveyor.adapters.system.clock import SteadyClock, SystemClock, SystemIds
from conveyor.app.backup import remove_links
from conveyor.app.coordination import COORDINATION
from conveyor.app.encryption import OpenedKeys, open_keys
from conveyor.app.engine_rules import Choice, find_breach
from conveyor.app.rows import CONTROL_QUEUE, METADATA, QUEUES, TASKS, open_work
from conveyor.app.schemes import Location, Opening, Scheme
from conveyor.app.storage import BLOBS, BODIES
from conveyor.domain.json_bodies import brief
from conveyor.domain.public_address import Reach, networks
from conveyor.domain.webhook import WebhookRules
from conveyor.errors import RefusedToStart, Unavailable
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.coordination import Coordination
from conveyor.ports.encryption import KeyRing
from conveyor.ports.gateway import Gateway
from conveyor.ports.metadata import Metadata
from conveyor.ports.queues import Queues
from conveyor.ports.step_functions import CallbackResult, RetryLater, StepFunctions
from conveyor.ports.tasks import Tasks
from conveyor.ports.webhooks import Webhooks
from conveyor.ports.work import Held, Work
from conveyor.settings import Settings, without_secrets
from conveyor.steps.deliver.channels import CALLBACKS, HEARTBEATS
from conveyor.telemetry.process import DiskSpace, TableHealth
from conveyor.timekeeping import DueTimes

# Every error code that a gateway adapter has a rule for. Metrics count all others together.
CODES = CONVEYOR_CODES | zenrows_errors.BY_CODE | direct_wire.BY_CODE

P = TypeVar("P")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The ports that hold state. Offline commands open these alone."""

    clock: Clock
    ids: Ids
    metadata: Metadata
    tasks: Tasks
    work: Work
    control_queue: ControlQueue
    bodies: Bodies
    blobs: Blobs
    queues: Queues | None = None  # under `work`; None if the rows of tasks are their queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines(Stores):
    """Every port, opened."""

    coordination: Coordination
    gateway: Gateway
    step_functions: StepFunctions
    webhooks: Webhooks
    encryption: KeyRing
    link_secret: bytes
    disk_space: Callable[[], Awaitable[DiskSpace]] | None  # None if no engine uses the data folder
    incarnation: str  # of this process: unique over all processes, new at each start, in time order
    due_times: DueTimes | None = None  # None if no engine compares due times with our wall clock
    # Claims of processes known to be dead; None if other processes may be alive.
    dead_claims: Sequence[Held] | None = None
    task_shard_count: int = 1  # of new jobs
    settle_wait: timedelta = timedelta()  # for which finished tasks wait to share a settle
    large_rows: Callable[[], int] | None = None  # that the engine of tasks wrote; None: no limit
    table_health: Callable[[], Awaitable[TableHealth]] | None = None  # None: no such tables
    shares_coordination: bool = False  # whether other processes have the same
    in_memory: frozenset[str] = frozenset()  # kinds of state that end with this process
    # Remove unfinished files from folders that other processes may use too.
    sweep_unfinished: Sequence[Callable[[IsAbandoned], None]] = ()

    @property
    def is_alone(self) -> bool:
        """Whether the engines prove that no other process uses them."""
        return self.dead_claims is not None


def ports(of: type[Engines] = Engines) -> Mapping[str, type]:
    """Return the ports of `Engines` by name. Metrics, crash tests and docs are derived from it."""
    hints = get_type_hints(of)
    return {
        field.name: hints[field.name]
        for field in fields(of)
        if getattr(hints[field.name], "_is_protocol", False)
        and hints[field.name].__module__.startswith("conveyor.ports.")
    }


# Kind of state (the name of its setting) -> URL scheme -> engine. `RULES` of app/engine_rules.py
# says which of them fit together.
SCHEMES: Mapping[str, Mapping[str, Scheme[Any]]] = {
    "metadata": METADATA,
    "tasks": TASKS,
    "control_queue": CONTROL_QUEUE,
    "queues": QUEUES,
    "bodies": BODIES,
    "blobs": BLOBS,
    "coordination": COORDINATION,
}


OPTIONAL = {"queues"}  # kinds whose setting may be empty


def check_engines(settings: Settings, *, sharing: str = "") -> None:
    """Raise `RefusedToStart` for an engine that does not exist, or engines that do not fit together.

    `sharing` is the command of a role whose processes share every engine.
    """
    breach = find_breach(_chosen(settings), sharing)
    if breach is not None:
        given = without_secrets(getattr(settings, breach.kind))
        raise RefusedToStart(
            f"settings: {breach.kind} must {breach.must}, got {given!r}, {breach.why}: "
            f"{breach.remedy}"
        )


def uses_folder(settings: Settings) -> bool:
    """Return whether an engine keeps its state in the data folder."""
    return any(choice.location is Location.FOLDER for choice in _chosen(settings).values())


def _chosen(settings: Settings) -> dict[str, Choice]:
    """Return the engine of each kind; raise `RefusedToStart` for one that does not exist."""
    chosen: dict[str, Choice] = {}
    for kind, schemes in SCHEMES.items():
        given: str = getattr(settings, kind)
        if not given and kind in OPTIONAL:
            continue
        scheme, colon, address = given.partition(":")
        row = schemes.get(scheme)
        if row is None or not colon or not row.address(address):
            raise _no_such_engine(kind, given)
        chosen[kind] = Choice(scheme, row, address)
    return chosen


def _no_such_engine(kind: str, given: str) -> RefusedToStart:
    forms = [f"{name}:{one.form}" for name, one in SCHEMES[kind].items()]
    forms += ["empty"] if kind in OPTIONAL else []
    scheme, colon, _ = given.partition(":")
    if colon and scheme not in SCHEMES[kind]:
        remedy = f"this version has no engine {brief(scheme)}: for it; choose one that it has"
    else:
        remedy = (
            "correct it; engines without an address keep their data in the folder that `data` names"
        )
    return RefusedToStart(
        f"settings: {kind} must be {' or '.join(forms)}, got {without_secrets(given)!r}: {remedy}"
    )


async def _open(schemes: Mapping[str, Scheme[P]], opening: Opening, url: str) -> P:
    scheme, _, address = url.partition(":")
    return await schemes[scheme].open(opening, address)


async def open_engines(
    settings: Settings,
    stack: AsyncExitStack,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Engines:
    """Open the engines that the settings choose; `stack` closes them. Tests pass `clock` and `ids`."""
    clock = clock or SteadyClock()
    ids = ids or SystemIds(clock)
    opening = Opening(settings=settings, stack=stack, clock=clock, ids=ids, incarnation=ids.new())
    metadata = await _open(METADATA, opening, settings.metadata)
    tasks = await _open(TASKS, opening, settings.tasks)
    work, queues = await open_work(opening, tasks)
    control_queue = await _open(CONTROL_QUEUE, opening, settings.control_queue)
    if in_folder := uses_folder(settings):
        _keep_private(settings.folder)  # which opening the database has locked
        remove_links(settings.folder)
    keys = await open_keys(settings, metadata, clock, is_shared=shares_metadata(settings))
    coordination = await _open(COORDINATION, opening, settings.coordination)
    in_memory = _in_memory(settings)
    shared = None if "coordination" in in_memory else coordination
    return Engines(
        clock=clock,
        ids=ids,
        metadata=metadata,
        tasks=tasks.tasks,
        work=work,
        queues=queues,
        control_queue=control_queue,
        blobs=await _open(BLOBS, opening, settings.blobs),
        bodies=await _open(BODIES, opening, settings.bodies),
        coordination=coordination,
        gateway=await stack.enter_async_context(open_gateway(settings, clock, shared)),
        step_functions=await stack.enter_async_context(open_step_functions(settings)),
        webhooks=await stack.enter_async_context(open_webhooks(settings)),
        encryption=keys.ring,
        link_secret=keys.link_secret,
        disk_space=(lambda: _disk_space(settings.folder)) if in_folder else None,
        incarnation=opening.incarnation,
        due_times=tasks.due_times,
        dead_claims=tasks.dead_claims,
        task_shard_count=tasks.shards,
        settle_wait=tasks.settle_wait,
        large_rows=tasks.large_rows,
        table_health=tasks.table_health,
        shares_coordination=shared is not None,
        in_memory=in_memory,
        sweep_unfinished=opening.sweep_unfinished,
    )


def _in_memory(settings: Settings) -> frozenset[str]:
    chosen = _chosen(settings).items()
    return frozenset(kind for kind, choice in chosen if choice.location is Location.MEMORY)


def keeps_dead_letters(settings: Settings) -> bool:
    """Return whether dead letters outlive the process, so that operators can open them."""
    return "control_queue" not in _in_memory(settings)


def shares_metadata(settings: Settings) -> bool:
    """Return whether several processes may use the engine of metadata."""
    return _chosen(settings)["metadata"].location is Location.SHARED


async def open_offline_coordination(
    settings: Settings, stores: Stores, stack: AsyncExitStack
) -> Coordination | None:
    """Open coordination for an operator; None if it is in the memory of another process."""
    if _chosen(settings)["coordination"].location is not Location.SHARED:
        return None
    opening = Opening(
        settings=settings,
        stack=stack,
        clock=stores.clock,
        ids=stores.ids,
        incarnation=stores.ids.new(),
        is_offline=True,
    )
    return await _open(COORDINATION, opening, settings.coordination)


async def open_offline_keys(
    settings: Settings, stores: Stores, *, any_provider: bool = False
) -> OpenedKeys:
    """Open the encryption keys for an operator."""
    return await open_keys(
        settings,
        stores.metadata,
        stores.clock,
        is_shared=shares_metadata(settings),
        any_provider=any_provider,
    )


@asynccontextmanager
async def open_offline(settings: Settings, *, writable: bool = False) -> AsyncIterator[Stores]:
    """Open the stores for an operator while no service runs; without `writable`, read-only."""
    check_engines(settings)
    clock = SystemClock()
    ids = SystemIds(clock)
    async with AsyncExitStack() as stack:
        opening = Opening(
            settings=settings,
            stack=stack,
            clock=clock,
            ids=ids,
            incarnation=ids.new(),
            is_offline=True,
            writable=writable,
        )
        metadata = await _open(METADATA, opening, settings.metadata)
        tasks = await _open(TASKS, opening, settings.tasks)
        work, queues = await open_work(opening, tasks)
        yield Stores(
            clock=clock,
            ids=ids,
            metadata=metadata,
            tasks=tasks.tasks,
            work=work,
            # Those in the memory of another process cannot be seen: they are not missing.
            queues=None if "queues" in _in_memory(settings) else queues,
            control_queue=await _open(CONTROL_QUEUE, opening, settings.control_queue),
            bodies=await _open(BODIES, opening, settings.bodies),
            blobs=await _open(BLOBS, opening, settings.blobs),
        )


async def may_be_in_use(settings: Settings, stores: Stores) -> bool:
    """Return whether a live process may use stores that were opened for an operator.

    The lock of the data folder proves that none does. Where processes share all engines, the
    members that they list in coordination tell; if it does not answer, or is in the memory of
    another process, one may be alive.
    """
    if uses_folder(settings):
        return False
    async with AsyncExitStack() as stack:
        coordination = await open_offline_coordination(settings, stores, stack)
        try:
            return coordination is None or bool(await coordination.members())
        except Unavailable:
            return True


def owner(settings: Settings) -> str | None:
    """Return a description of the process that has locked the data folder, or None.

    Nothing locks engines that processes share.
    """
    return owner_of(settings.folder) if uses_folder(settings) else None


def running_service(settings: Settings) -> ServiceInfo | None:
    """Return address and token of the running service, which it writes to a file in its folder."""
    return read_service_info(settings.folder)


def _keep_private(folder: Path) -> None:
    """Close bodies and blobs to other users. Only warn about the folder: it may be open on purpose."""
    for part in ("bodies", "blobs"):
        make_private(folder / part)
    if is_open_to_others(folder):
        log.warning(
            "data.open_to_others",
            folder=str(folder),
            hint=f"other users can list the data folder: run `chmod 700 {folder}`",
        )


async def _disk_space(folder: Path) -> DiskSpace:
    database = folder / "conveyor.db"
    parts = {"rows": database, "log": database.with_name("conveyor.db-wal")}
    return DiskSpace(*await disk_usage(folder), await file_sizes(parts))


def open_gateway(
    settings: Settings, clock: Clock, shared: Coordination | None = None
) -> AbstractAsyncContextManager[Gateway]:
    """Return the gateway that the settings choose, not entered yet.

    `shared` is the coordination of processes that share its limits.
    """
    return GATEWAYS[settings.gateway_scheme](settings, clock, shared)


def _zenrows_gateway(
    settings: Settings, _clock: Clock, _shared: Coordination | None
) -> ZenrowsGateway:
    return ZenrowsGateway(
        settings.gateway,
        deadline=settings.gateway_deadline,
        largest_body=settings.largest_body,
        connections=settings.concurrency,
        transport=_transport(settings),
    )


def _transport(settings: Settings) -> TransportFactory:
    if settings.http_client == "conveyor":
        return ConnectionPool
    from conveyor.adapters.http.client.aiohttp_transport import (  # noqa: PLC0415 - a slow import
        AiohttpTransport,
    )

    return AiohttpTransport


def _direct_gateway(settings: Settings, clock: Clock, shared: Coordination | None) -> DirectGateway:
    opened = settings.direct_allow_private
    if opened:
        log.warning(
            "gateway.private.allowed",
            networks=", ".join(opened),
            why="every caller who may submit tasks can read what is served there",
        )
    return DirectGateway(
        deadline=settings.gateway_deadline,
        largest_body=settings.largest_body,
        connections=settings.concurrency,
        reach=Reach(networks(opened)),
        ports=settings.direct_ports,
        agent=settings.direct_user_agent,
        heeds_robots=settings.direct_robots,
        delay=settings.direct_delay,
        coordination=shared,
        clock=clock,
        transport=_transport(settings),
    )


# URL scheme of the setting `gateway` -> adapter.
GATEWAYS: Mapping[
    str, Callable[[Settings, Clock, Coordination | None], AbstractAsyncContextManager[Gateway]]
] = {
    "http": _zenrows_gateway,
    "https": _zenrows_gateway,
    "direct": _direct_gateway,
}


def open_webhooks(settings: Settings) -> HttpWebhooks:
    """Return the HTTP client of webhooks, not entered yet."""
    opened = settings.webhook_allow_private
    if opened:
        log.warning(
            "webhook.private.allowed",
            networks=", ".join(opened),
            why="every caller who may submit jobs can send requests to servers there",
        )
    return HttpWebhooks(
        WebhookRules(settings.webhook_ports, settings.webhook_allow_http),
        timeout=settings.webhook_timeout,
        reach=Reach(networks(opened)),
        agent=f"Conveyor/{__version__}",
    )


UNCONNECTED = RetryLater("the setting `step_functions` is empty")


class Unconnected:
    """Step Functions while the setting is empty: callbacks that are still queued wait."""

    async def succeed(self, _token: str, _output: str) -> CallbackResult:
        return UNCONNECTED

    async def fail(self, _token: str, *, error: str, cause: str) -> CallbackResult:
        del error, cause
        return UNCONNECTED

    async def heartbeat(self, _token: str) -> CallbackResult:
        return UNCONNECTED


def open_step_functions(settings: Settings) -> AbstractAsyncContextManager[StepFunctions]:
    """Return the connection to Step Functions, not entered yet."""
    if not settings.step_functions:
        return nullcontext(Unconnected())
    return AwsStepFunctions(threads=CALLBACKS + HEARTBEATS)
