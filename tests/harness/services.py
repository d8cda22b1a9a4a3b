"""Several services over one store in memory, each as a process of its own would run it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any
from unittest.mock import AsyncMock

from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.app.engines import Engines
from conveyor.app.roles import Role, coordinated, work
from conveyor.app.services import Service, build_service
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.job import Job
from conveyor.domain.run import Run
from conveyor.ports.bodies import Spool
from conveyor.ports.coordination import Coordination
from conveyor.ports.gateway import Page, PageRequest
from conveyor.settings import Settings
from conveyor.telemetry.process import DiskSpace
from conveyor.testing.memory.blobs import MemoryBlobs
from conveyor.testing.memory.bodies import MemoryBodies
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.step_functions import MemoryStepFunctions
from conveyor.testing.memory.tasks import MemoryTasks
from conveyor.testing.memory.work import MemoryWork
from tests.harness.memory_service import SOON, a_call, ids_as_answer, ids_in
from tests.harness.webhooks import ScriptedWebhooks

LEASE = timedelta(seconds=30)
LONG_AFTER = timedelta(hours=1)  # the interval of polls in a test of notifications
NUMBERS = count(1)


class SlowSite:
    """A gateway whose pages take a moment; tests see which are under way."""

    def __init__(self, lasting: timedelta) -> None:
        self._lasting = lasting
        self.inflight = 0
        self.fetched = 0

    async def fetch(self, _request: PageRequest, _spool: Callable[[], Spool]) -> Page:
        self.inflight += 1
        try:
            await asyncio.sleep(self._lasting.total_seconds())
        finally:
            self.inflight -= 1
        self.fetched += 1
        return Page(content=b"page")

    async def check_health(self) -> bool:
        return True


@dataclass
class Store:
    """What all services share, in memory."""

    site: SlowSite = field(default_factory=lambda: SlowSite(timedelta(milliseconds=5)))
    clock: SystemClock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self.metadata = MemoryMetadata(self.clock)
        self.rows = Rows(self.clock, LEASE)
        self.control_queue = MemoryControlQueue(self.clock)
        self.bodies, self.blobs = MemoryBodies(), MemoryBlobs()
        self.coordination = MemoryCoordination(self.clock, lease=LEASE)
        self.webhooks = ScriptedWebhooks()

    def engines(self, coordination: Coordination | None = None) -> Engines:
        """The engines as one more process opens them."""
        return Engines(
            clock=self.clock,
            ids=SystemIds(self.clock),
            metadata=self.metadata,
            tasks=MemoryTasks(self.rows),
            work=MemoryWork(self.rows),
            control_queue=self.control_queue,
            bodies=self.bodies,
            blobs=self.blobs,
            coordination=coordination or self.coordination,
            gateway=self.site,
            step_functions=MemoryStepFunctions(),
            webhooks=self.webhooks,
            encryption=AesKeyRing(bytes(32)),
            link_secret=bytes(32),
            disk_space=AsyncMock(return_value=DiskSpace(1 << 40, 1 << 40, {})),
            incarnation=f"process-{next(NUMBERS)}",
        )

    async def run(self, run_id: RunId) -> Run:
        run = await self.metadata.get(Run, run_id)
        assert run
        return run

    async def job(self, job_id: JobId) -> Job:
        job = await self.metadata.get(Job, job_id)
        assert job
        return job


def a_service(engines: Engines, role: Role, **settings: Any) -> Service:
    given = Settings(unused_file_inputs=0, active_exports=0, **settings)
    return build_service(given, engines, role=role, runs_workers=role is not Role.API)


def without_polls(service: Service) -> Service:
    """Let a service find runs and messages by notifications alone."""
    service.steps.dispatcher.config.refresh = LONG_AFTER
    service.steps.dispatcher.config.resync = LONG_AFTER
    for channel in service.steps.deliver.channels:
        channel.idle = LONG_AFTER
    return service


def without_notifications(service: Service) -> Service:
    service.steps.notifier.coordination = None
    return service


@asynccontextmanager
async def running(services: Sequence[tuple[Service, Role]]) -> AsyncIterator[None]:
    """Services at work, without HTTP; stopped at the end."""
    stopping = asyncio.Event()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for service, role in services:
            await stack.enter_async_context(coordinated(service))
            if role is not Role.API:
                group.create_task(work(service, stopping))
        try:
            async with asyncio.timeout(SOON):
                while any(service.members.count < len(services) for service, _ in services):
                    await asyncio.sleep(0.01)
                    for service, _ in services:
                        await service.members.step()
            yield
        finally:
            stopping.set()


async def submit(service: Service, tasks: int, **given: Any) -> tuple[JobId, RunId]:
    answer = await service.steps.submit.submit(a_call(tasks, **given), ids_as_answer)
    return ids_in(answer)


async def until(condition: Callable[[], bool], within: float = SOON) -> None:
    """Wait until something that another coroutine does has happened."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - many things, without a signal of their own
            await asyncio.sleep(0.002)
