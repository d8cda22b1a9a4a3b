"""The composition of a service: metrics around the ports, steps over them, the HTTP API in front.

Also the steps of operators' commands, which run in the service or over stores opened offline.
"""

import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from urllib.parse import urlsplit

from conveyor import __version__
from conveyor.adapters.aws.embedded_metrics import CloudWatchMetrics
from conveyor.adapters.crypto.key_ring import new_secret, new_token
from conveyor.adapters.files.disk import disk_usage
from conveyor.adapters.system.clock import SteadyClock
from conveyor.api.app import (
    Admission,
    Application,
    Handlers,
    Ready,
    build_app,
    build_monitoring_app,
)
from conveyor.api.auth import Callers, ForwardedKeys, OwnKeys
from conveyor.api.dashboard import Dashboard
from conveyor.api.handlers.admin import AdminHandlers
from conveyor.api.handlers.files import FileHandlers
from conveyor.api.handlers.jobs import JobHandlers
from conveyor.api.handlers.operators import OperatorHandlers
from conveyor.api.handlers.webhooks import WebhookHandlers
from conveyor.api.limits import BodyMemory, Connections, Rates
from conveyor.api.links import Links
from conveyor.app.engines import CODES, Engines, Stores, ports, shares_metadata, uses_folder
from conveyor.app.health import measure_health, readiness
from conveyor.app.steps import Steps, build_complete, build_steps, build_sweep
from conveyor.domain.api_key import EVERYTHING, OWN_JOBS
from conveyor.domain.audit import Environment, MissedStep
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.ports.coordination import Coordination, Member
from conveyor.ports.encryption import KeyRing
from conveyor.settings import DIRECT, LOOPBACK, Auth, Settings, shown
from conveyor.steps.api_keys import ApiKeyAdmin
from conveyor.steps.auth import Authenticate
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.doctor.audit import Audit
from conveyor.steps.doctor.doctor import Doctor
from conveyor.steps.operators import Operators
from conveyor.steps.rotate_encryption import LISTING_LAG, RotateEncryption
from conveyor.steps.shared.members import Members
from conveyor.steps.shared.notifier import Notifier
from conveyor.steps.shared.work_limits import DEFAULT_SIZES, Sizes
from conveyor.steps.sweep.backlog import Backlog, MeasureBacklog
from conveyor.steps.sweep.sweeper import Sweeper
from conveyor.steps.sweep.unfinished_files import UnfinishedFiles
from conveyor.telemetry.metrics import Metrics
from conveyor.telemetry.ports import (
    MeteredGateway,
    MeteredTasks,
    MeteredWebhooks,
    MeteredWork,
    timed,
)
from conveyor.telemetry.process import ProcessMetrics
from conveyor.timekeeping import Timekeeper

DEV = "dev"
WORKING = {"worker", "serve", DEV}  # roles that run loops
# Ports that `timed` does not wrap: the first two never wait, the others have their own metrics.
NOT_TIMED = {"clock", "ids", "encryption", "gateway", "webhooks"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A composed service: the application to serve, and the steps whose loops a role runs."""

    app: Application
    steps: Steps
    members: Members
    metrics: Metrics
    process_metrics: ProcessMetrics
    timekeeper: Timekeeper | None  # None with a test's clock, which never jumps
    sweep_every: timedelta
    rotate_encryption: RotateEncryption
    unfinished_files: UnfinishedFiles
    backlog: MeasureBacklog | None  # None unless it is to be published
    token: str  # authenticates operators


def build_service(
    settings: Settings,
    engines: Engines,
    sizes: Sizes = DEFAULT_SIZES,
    *,
    role: str = "serve",
    serves_api: bool = True,
    runs_workers: bool = True,
) -> Service:
    """Compose a service over opened engines. Its application has all routes if it `serves_api`."""
    metrics = Metrics()
    # The doctor reads the engines without metrics: an examination must not count as traffic.
    stores, engines = engines, measured(engines, metrics, settings.slow_call)
    steps = build_steps(settings, engines, metrics, sizes)
    _show_dispatcher(settings, metrics, steps.dispatcher)
    if engines.large_rows:
        metrics.large_rows.set_function(engines.large_rows)
    rotate_encryption = build_rotate_encryption(
        settings, engines, engines.encryption, engines.coordination
    )
    admin = AdminHandlers(
        doctor=build_doctor(settings, stores, steps.sweep, running=True),
        control_queue=engines.control_queue,
        api_keys=build_api_key_admin(settings, engines, engines.encryption),
        rotate_encryption=rotate_encryption,
        token=new_token(),
    )
    ready = readiness(engines, steps.dispatcher, runs_workers=runs_workers)
    members = _members(engines, role)
    if serves_api:
        app = _application(settings, engines, metrics, steps, admin, me=members.me, ready=ready)
    else:
        memory = BodyMemory(settings.bodies_in_flight)
        app = build_monitoring_app(metrics, engines.ids, ready, body_memory=memory)
    return Service(
        app=app,
        steps=steps,
        members=members,
        metrics=metrics,
        process_metrics=_process_metrics(settings, engines, metrics),
        timekeeper=_timekeeper(engines),
        sweep_every=settings.sweep_every,
        rotate_encryption=rotate_encryption,
        unfinished_files=UnfinishedFiles(
            clock=engines.clock, is_alive=members.is_alive, removers=engines.sweep_unfinished
        ),
        backlog=_backlog(settings, engines, steps.sweep, members),
        token=admin.token,
    )


def _process_metrics(settings: Settings, engines: Engines, metrics: Metrics) -> ProcessMetrics:
    return ProcessMetrics(
        metrics=metrics,
        metadata=engines.metadata,
        control_queue=engines.control_queue,
        clock=engines.clock,
        disk_space=engines.disk_space,
        table_health=engines.table_health,
        slow_loop=settings.slow_loop,
    )


def _members(engines: Engines, role: str) -> Members:
    me = Member(
        id=engines.incarnation,
        role=role,
        host=socket.gethostname(),
        version=__version__,
        started_at=engines.clock.now(),
    )
    return Members(
        coordination=engines.coordination,
        clock=engines.clock,
        me=me,
        is_shared=engines.shares_coordination,
        keys=engines.encryption.fingerprints,
    )


def _backlog(
    settings: Settings, engines: Engines, sweep: Sweeper, members: Members
) -> MeasureBacklog | None:
    if not settings.cloudwatch:
        return None
    cloudwatch = CloudWatchMetrics(settings.cloudwatch, engines.clock.now)

    def publish(backlog: Backlog) -> None:
        cloudwatch.publish(
            {
                "OpenTasks": (backlog.open_tasks, "Count"),
                "RunnableTasks": (backlog.runnable_tasks, "Count"),
                "Workers": (backlog.workers, "Count"),
                "BacklogPerWorker": (backlog.per_worker, "Count"),
            }
        )

    return MeasureBacklog(
        metadata=engines.metadata,
        tasks=engines.tasks,
        permit=sweep.permit,
        workers=lambda: members.count_with(WORKING),
        publish=publish,
    )


def measured(engines: Engines, metrics: Metrics, slow: timedelta) -> Engines:
    """Return the engines with a wrapper around each port that times and counts its calls."""
    timed_ports = {
        name: timed(getattr(engines, name), name, metrics, slow=slow, protocol=protocol)
        for name, protocol in ports(type(engines)).items()
        if name not in NOT_TIMED
    }
    engines = replace(engines, **timed_ports)
    return replace(
        engines,
        tasks=MeteredTasks(engines.tasks, metrics),
        work=MeteredWork(engines.work, metrics),
        gateway=MeteredGateway(engines.gateway, metrics, CODES),
        webhooks=MeteredWebhooks(engines.webhooks, metrics),
    )


def _show_dispatcher(settings: Settings, metrics: Metrics, dispatcher: Dispatcher) -> None:
    metrics.build.labels(__version__, urlsplit(settings.tasks).scheme, settings.durability).set(1)
    metrics.watch_gateway(dispatcher.health.waiting)
    metrics.refused_keys.set_function(lambda: len(dispatcher.refused_keys.known))
    metrics.inflight.set_function(lambda: len(dispatcher.inflight))
    metrics.live_runs.set_function(lambda: sum(not one.is_gone for one in dispatcher.runs.values()))


def _application(
    settings: Settings,
    engines: Engines,
    metrics: Metrics,
    steps: Steps,
    admin: AdminHandlers,
    *,
    me: Member,
    ready: Ready,
) -> Application:
    rates = Rates(
        coordination=engines.coordination,
        rate=settings.requests_per_second,
        burst=settings.requests_burst,
        count_skipped=metrics.rate_limits_skipped.inc,
    )
    callers = _callers(settings, steps.authenticate, me.role)
    return build_app(
        _handlers(settings, engines, metrics, steps, admin, me=me),
        Admission(callers, rates, Connections(settings.caller_connections)),
        metrics,
        engines.ids,
        ready,
        dashboard=Dashboard(engines.blobs, has_default_key=_has_default_key(settings, me.role)),
        body_memory=BodyMemory(settings.bodies_in_flight),
    )


def _handlers(
    settings: Settings,
    engines: Engines,
    metrics: Metrics,
    steps: Steps,
    admin: AdminHandlers,
    *,
    me: Member,
) -> Handlers:
    jobs = JobHandlers(
        limits=settings.limits,
        submit=steps.submit,
        additions=steps.add_tasks,
        lifecycle=steps.lifecycle,
        reruns=steps.rerun,
        deleting=steps.delete,
        schedules=steps.manage_schedules,
        read=steps.read,
        progress=steps.progress,
        has_default_key=_has_default_key(settings, me.role),
    )
    files = FileHandlers(
        links=Links(engines.link_secret, engines.clock, life=settings.result_url_life),
        metrics=metrics,
        file_inputs=steps.file_inputs,
        exporting=steps.export,
        read=steps.read,
        public_url=settings.public_url,
    )
    webhooks = WebhookHandlers(
        webhooks=steps.manage_webhooks, signing_keys=steps.rotate_signing_keys
    )
    operators = _operators(settings, engines, steps, me)
    return Handlers(jobs, files, webhooks, operators, admin)


def _operators(settings: Settings, engines: Engines, steps: Steps, me: Member) -> OperatorHandlers:
    operators = Operators(
        metadata=engines.metadata,
        tasks=engines.tasks,
        control_queue=engines.control_queue,
        coordination=engines.coordination,
        clock=engines.clock,
        me=me,
        check_health=lambda: measure_health(settings, engines),
        waits=steps.read.waits,
    )
    return OperatorHandlers(operators=operators, lifecycle=steps.lifecycle, read=steps.read)


def _has_default_key(settings: Settings, role: str) -> bool:
    """Whether a key only tells callers apart: no account of a gateway is behind it."""
    is_direct = settings.gateway == DIRECT
    is_mock = urlsplit(settings.gateway).hostname in LOOPBACK
    return settings.mode is Auth.DEV and role == DEV and (is_direct or is_mock)


def _callers(settings: Settings, authenticate: Authenticate, role: str) -> Callers:
    if settings.mode is Auth.DEV:
        scopes = EVERYTHING if role == DEV else OWN_JOBS
        return ForwardedKeys(authenticate, scopes=scopes, only_loopback=True)
    if settings.mode is Auth.FORWARD:
        return ForwardedKeys(authenticate, settings.api_keys)
    return OwnKeys(
        authenticate,
        gateway_key=settings.gateway_key or None,
        takes_key=settings.gateway != DIRECT,
    )


def _timekeeper(engines: Engines) -> Timekeeper | None:
    if not isinstance(engines.clock, SteadyClock):
        return None
    # Also without due times to repair: the clock follows small corrections only in `step`.
    return Timekeeper(clock=engines.clock, due_times=engines.due_times)


# Operators: through the running service, or offline.


def build_api_key_admin(
    settings: Settings, stores: Stores, encryption: KeyRing | None
) -> ApiKeyAdmin:
    """Build the admin of API keys. Without `encryption` it cannot store a gateway key with a key."""
    return ApiKeyAdmin(
        metadata=stores.metadata,
        encryption=encryption,
        clock=stores.clock,
        ids=stores.ids,
        new_secret=new_secret,
        auth=settings.mode,
    )


def build_rotate_encryption(
    settings: Settings, stores: Stores, encryption: KeyRing, coordination: Coordination | None
) -> RotateEncryption:
    return RotateEncryption(
        metadata=stores.metadata,
        encryption=encryption,
        coordination=coordination,
        lag=LISTING_LAG if shares_metadata(settings) else timedelta(),
    )


def build_offline_doctor(settings: Settings, stores: Stores, *, in_use: bool) -> Doctor:
    """Build a doctor for stores that were opened for an operator; it only reads.

    It is patient with stores that are `in_use`: a live process may hold what looks abandoned.
    """

    def count_nothing(_what: str, _times: int) -> None:
        """Do nothing: the doctor repairs and removes nothing."""

    async def delete_nothing(_caller: CallerId, _job_id: JobId, _run_id: RunId) -> None:
        """Do nothing: the doctor removes nothing."""

    complete = build_complete(stores, Notifier())
    sweep = build_sweep(
        settings, stores, complete, count_nothing, count_nothing, delete_run=delete_nothing
    )

    return build_doctor(settings, stores, sweep, running=in_use)


def build_doctor(settings: Settings, stores: Stores, sweep: Sweeper, *, running: bool) -> Doctor:
    """Build a doctor. Unless the service is `running`, every claim counts as that of a dead process."""
    audit = Audit(
        metadata=stores.metadata, tasks=stores.tasks, bodies=stores.bodies, clock=stores.clock
    )

    at_rest = "at the next start of the service"
    if not uses_folder(settings):
        at_rest = "after a worker has started"  # which waits as usual, for others may be alive

    async def missed_steps() -> AsyncIterator[tuple[MissedStep, str]]:
        async for missed, when in sweep.findings(patient=running):
            yield missed, when if running else at_rest

    async def environment() -> Environment:
        in_folder = uses_folder(settings)
        free, size = await disk_usage(settings.folder) if in_folder else (None, None)
        return Environment(
            version=__version__,
            running=running,
            folder=str(settings.folder.absolute()) if in_folder else None,
            free=free,
            size=size,
            settings=shown(settings),
        )

    gateway_responds = None
    if isinstance(stores, Engines) and settings.gateway != DIRECT:  # which only knows single sites
        gateway_responds = stores.gateway.check_health

    return Doctor(
        metadata=stores.metadata,
        tasks=stores.tasks,
        control_queue=stores.control_queue,
        blobs=stores.blobs,
        clock=stores.clock,
        audit=audit,
        missed_steps=missed_steps,
        environment=environment,
        gateway_responds=gateway_responds,
        encryption=stores.encryption if isinstance(stores, Engines) else None,
    )
