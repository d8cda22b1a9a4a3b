"""What operators need: a doctor over the stores, and a way to them. A folder at rest is opened; a
running service is found by the notice it left in its folder.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, fields
from typing import get_type_hints

from conveyor import __version__
from conveyor.adapters.files import disk_space
from conveyor.adapters.files.blobs import FileBlobs
from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.files.service_info import ServiceInfo, published, read_service_info
from conveyor.adapters.segments.bodies import SegmentBodies
from conveyor.adapters.segments.store import visit_segment_store
from conveyor.adapters.sqlite.database import owner_of
from conveyor.adapters.sqlite.engine import visit_engine
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.domain.audit import Environment, MissedStep
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.control_queue import ControlQueue, DeadLetters
from conveyor.ports.coordination import Coordination
from conveyor.ports.encryption import KeyRing
from conveyor.ports.gateway import Gateway
from conveyor.ports.metadata import Metadata
from conveyor.ports.step_functions import StepFunctions
from conveyor.ports.tasks import Tasks
from conveyor.ports.webhooks import Webhooks
from conveyor.ports.work import Held, Work
from conveyor.process_metrics import DiskSpace
from conveyor.settings import Settings, shown
from conveyor.steps.complete import Complete
from conveyor.steps.doctor.audit import Audit
from conveyor.steps.doctor.doctor import Doctor
from conveyor.steps.sweep.orphans import Orphans
from conveyor.steps.sweep.retire import DeleteRun, RetireRuns
from conveyor.steps.sweep.stalled import StalledWork
from conveyor.steps.sweep.sweeper import Count, Sweeper
from conveyor.timekeeping import DueTimes

Address = ServiceInfo
SEGMENTS = "packs"  # the folder of segments, as version 0.1.0 named it
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - to reach, not to listen


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The ports behind which state is kept."""

    clock: Clock
    ids: Ids
    metadata: Metadata
    tasks: Tasks
    work: Work
    control_queue: ControlQueue
    bodies: Bodies
    blobs: Blobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines(Stores):
    """Every port with an engine behind it."""

    coordination: Coordination
    gateway: Gateway
    step_functions: StepFunctions
    webhooks: Webhooks
    encryption: KeyRing
    link_secret: bytes
    disk_space: Callable[[], Awaitable[DiskSpace]]
    due_times: DueTimes
    dead: Sequence[Held]  # claims of processes known to be dead


def ports(of: type[Engines] = Engines) -> Mapping[str, type]:
    """Every port of `Engines` by its name: the one list that metrics, crash points and docs use."""
    hints = get_type_hints(of)
    return {
        field.name: hints[field.name]
        for field in fields(of)
        if getattr(hints[field.name], "_is_protocol", False)
        and hints[field.name].__module__.startswith("conveyor.ports.")
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRest:
    """What operators see of a folder that no service has."""

    doctor: Doctor
    control_queue: DeadLetters


def owner(settings: Settings) -> str | None:
    """The process that has the data folder; None when it is at rest."""
    return owner_of(settings.folder)


def notice(settings: Settings) -> Address | None:
    """Where the running service can be asked, as it says itself."""
    return read_service_info(settings.folder)


@contextmanager
def announced(settings: Settings, token: str, host: str, port: int) -> Iterator[None]:
    """Let operators find a running service."""
    near = EVERYWHERE.get(host, host)
    address = f"[{near}]" if ":" in near else near
    with published(settings.folder, ServiceInfo(f"http://{address}:{port}", token)):
        yield


@asynccontextmanager
async def open_at_rest(settings: Settings, *, writable: bool = False) -> AsyncIterator[AtRest]:
    """Open a data folder as it stands. Unless `writable`, nothing in it can be changed."""
    clock = SystemClock()
    ids = SystemIds(clock)
    folder = settings.folder
    async with AsyncExitStack() as stack:
        visit = visit_engine(folder, clock=clock, ids=ids, writable=writable)
        rows = await stack.enter_async_context(visit)
        store = stack.enter_context(visit_segment_store(folder / "bodies" / SEGMENTS))
        stores = Stores(
            clock=clock,
            ids=ids,
            metadata=rows.metadata,
            tasks=rows.tasks,
            work=rows.work,
            control_queue=rows.control_queue,
            bodies=SegmentBodies(store, FileBodies(folder / "bodies")),
            blobs=FileBlobs(folder / "blobs"),
        )
        complete = wire_complete(stores, _wake_nothing)
        sweep = wire_sweep(
            settings,
            stores,
            complete,
            _count_nothing,
            _count_nothing,
            delete_run=_delete_nothing,
        )
        doctor = wire_doctor(settings, stores, sweep, running=False)
        yield AtRest(doctor=doctor, control_queue=rows.control_queue)


def wire_complete(stores: Stores, wake_sender: Callable[[], None]) -> Complete:
    return Complete(
        metadata=stores.metadata,
        tasks=stores.tasks,
        work=stores.work,
        clock=stores.clock,
        ids=stores.ids,
        wake_sender=wake_sender,
    )


def wire_sweep(
    settings: Settings,
    stores: Stores,
    complete: Complete,
    count: Count,
    cleared: Count,
    *,
    delete_run: DeleteRun,
) -> Sweeper:
    stalled = StalledWork(
        metadata=stores.metadata,
        control_queue=stores.control_queue,
        blobs=stores.blobs,
        clock=stores.clock,
        is_due=complete.is_due,
        check=complete.check,
    )
    orphans = Orphans(
        metadata=stores.metadata,
        tasks=stores.tasks,
        bodies=stores.bodies,
        blobs=stores.blobs,
        clock=stores.clock,
        body_life=settings.body_life,
    )
    retire = RetireRuns(
        metadata=stores.metadata,
        clock=stores.clock,
        run_life=settings.scheduled_run_life,
        delete_run=delete_run,
    )
    return Sweeper(
        metadata=stores.metadata,
        tasks=stores.tasks,
        work=stores.work,
        bodies=stores.bodies,
        clock=stores.clock,
        checks=(*stalled.checks(), *orphans.checks(), *retire.checks()),
        count=count,
        cleared=cleared,
    )


def wire_doctor(settings: Settings, stores: Stores, sweep: Sweeper, *, running: bool) -> Doctor:
    """A doctor for a running service, or for a folder at rest, in which every claim is dead."""
    audit = Audit(
        metadata=stores.metadata,
        tasks=stores.tasks,
        bodies=stores.bodies,
        clock=stores.clock,
    )

    async def missed_steps() -> AsyncIterator[tuple[MissedStep, str]]:
        async for one in sweep.findings(patient=running):
            yield one, sweep.when(one) if running else "at the next start of the service"

    async def environment() -> Environment:
        free, size = await disk_space.disk_usage(settings.folder)
        return Environment(
            version=__version__,
            running=running,
            folder=str(settings.folder.absolute()),
            free=free,
            size=size,
            settings=shown(settings),
        )

    return Doctor(
        metadata=stores.metadata,
        tasks=stores.tasks,
        control_queue=stores.control_queue,
        blobs=stores.blobs,
        clock=stores.clock,
        audit=audit,
        missed_steps=missed_steps,
        environment=environment,
    )


def _wake_nothing() -> None:
    """No sender runs beside a folder at rest."""


def _count_nothing(_what: str, _times: int) -> None:
    """Nothing is repaired or removed, so there is nothing to count."""


async def _delete_nothing(_caller: CallerId, _job_id: JobId, _run_id: RunId) -> None:
    """Nothing is removed from a folder at rest: it is only looked at."""
