"""Several services over one shared store: they take turns, die alone, sleep and come back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from conveyor.adapters.files.blobs import FileBlobs
from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.adapters.memory.queues import CALM, NASTY, Habits
from conveyor.app.engines import SCHEMES, open_engines
from conveyor.app.rows import TaskEngine
from conveyor.app.schemes import Opening, QueueEngine, Scheme
from conveyor.app.services import build_service
from conveyor.domain.task import Task
from conveyor.errors import Unavailable
from conveyor.settings import Settings
from conveyor.testing.shared.faults import NONE, ROUGH, FaultInjector, StoreFaults
from conveyor.testing.shared.store import SharedPorts, SharedStore, SkewedClock
from tests.harness.cluster import ROOT_KEY
from tests.simulation.book import KnownJob
from tests.simulation.callers import UNAVAILABLE
from tests.simulation.dynamodb import DynamoStore
from tests.simulation.machine import Doing, Fault, Machine
from tests.simulation.postgres import PostgresStore
from tests.simulation.world import (
    LEASE,
    SIZES,
    SYNC_TASKS,
    Answer,
    ClaimedTask,
    Died,
    Fate,
    Request,
    World,
    claim_name,
    watched_ports,
)

T = TypeVar("T")
AHEAD = (timedelta(), timedelta(seconds=2), timedelta(seconds=-1))  # of the services' clocks
LOSSY = msgspec.structs.replace(NASTY, lost=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Which kinds of fault a history meets."""

    faults: StoreFaults = NONE
    habits: Habits = CALM
    ahead: Sequence[timedelta] = (timedelta(),) * len(AHEAD)
    deaths: bool = False
    races: bool = False  # steps in the middle of others
    store: Callable[..., SharedStore] = SharedStore
    queued: bool | None = None  # None: each history by its seed
    is_alone: bool = False  # the queues are in the memory of the only process, and end with it

    @property
    def interleaved(self) -> StoreFaults:
        """Faults of a step in whose middle another is made, or its process dies.

        A call that was not answered would be in doubt for ever.
        """
        return msgspec.structs.replace(self.faults, throttled=0.0, lost=0.0)


ALL_FAULTS = Conditions(faults=ROUGH, habits=LOSSY, ahead=AHEAD, deaths=True, races=True)
ON_DYNAMODB = replace(ALL_FAULTS, store=DynamoStore, queued=True)


class SharedFate(Fate):
    """Counts the calls of all services; only the one whose call it is dies."""

    def __init__(self, injector: FaultInjector) -> None:
        super().__init__()
        self.injector = injector
        self.life = Life(self)

    async def die(self) -> None:
        self.life.dead = True
        raise Died

    @contextmanager
    def held_off(self) -> Iterator[None]:
        faults, self.injector.faults = self.injector.faults, NONE
        try:
            with super().held_off():
                yield
        finally:
            self.injector.faults = faults


class Life(Fate):
    """The calls of one service."""

    def __init__(self, fate: SharedFate) -> None:
        super().__init__()
        self.fate = fate

    async def around(self, effect: Callable[[], Awaitable[T]]) -> T:
        if self.dead:
            raise Died
        return await self.fate.around(effect)


@dataclass(slots=True, eq=False)
class Alive:
    """One service: what `World` calls its own while it is the one in use."""

    stack: AsyncExitStack
    life: Life
    ports: Any
    watched: Any
    service: Any
    claimed: list[ClaimedTask] = field(default_factory=list)


@dataclass(slots=True, repr=False, eq=False)
class SharedWorld(World):
    """A store and the services that live. One of them is in use: each step is made by it."""

    count: int = 2
    seed: int = 0
    queued: bool = False
    conditions: Conditions = ALL_FAULTS
    injector: FaultInjector = field(init=False)
    store: SharedStore = field(init=False)
    services: dict[int, Alive] = field(default_factory=dict)
    in_use: int = 0
    coordination: MemoryCoordination = field(init=False)

    def __post_init__(self) -> None:
        World.__post_init__(self)
        self.lags = True
        self.skew = max(self.conditions.ahead) - min(self.conditions.ahead)
        self.injector = FaultInjector(Random(self.seed))
        habits = self.conditions.habits
        self.store = self.conditions.store(
            self.clock, lease=LEASE, injector=self.injector, habits=habits
        )
        if self.conditions.queued is not None:
            self.queued = self.conditions.queued
        self.coordination = MemoryCoordination(self.clock, lease=LEASE)
        self.fate = SharedFate(self.injector)

    @property
    def unanswered(self) -> bool:
        return bool(self.injector.counted["throttled"] + self.injector.counted["lost"])

    async def start(self) -> None:
        """Start every service that does not live."""
        self.folder.mkdir(exist_ok=True)
        if isinstance(self.store, PostgresStore):
            await self.store.connect()
        for number in range(self.count):
            if number not in self.services:
                await self._start(number)
        self.use(self.in_use)

    async def _start(self, number: int) -> None:
        settings = Settings(
            data=str(self.folder),
            gateway="http://gateway.example",  # not https: each start would load certificates
            metadata="simulated:",
            tasks="simulated:",
            control_queue="memory:" if self.conditions.is_alone else "simulated:",
            queues="memory:" if self.conditions.is_alone else "simulated:" if self.queued else "",
            bodies=f"files:{self.folder}",
            blobs=f"files:{self.folder}",
            encryption_key=(ROOT_KEY,),
            durability="process",
            lease=LEASE,
            sync_tasks=SYNC_TASKS,
        )
        clock = SkewedClock(self.clock, self.conditions.ahead[number])
        stack = AsyncExitStack()
        life = Life(cast("SharedFate", self.fate))
        with _simulated(lambda holder: self.store.open(clock=clock, holder=holder)):
            engines = await open_engines(settings, stack, clock=clock, ids=self.ids)
            ports = replace(
                engines,
                gateway=self.gateway,
                coordination=self.coordination,
                # Swept, as the settings above would not have it: to find what nothing refers to.
                bodies=FileBodies(self.folder / "bodies", self.ids, sync=False),
                blobs=FileBlobs(self.folder / "blobs", sync=False),
            )
            assert ports.dead_claims is None
            watched = watched_ports(ports, life)
            plain = self.store.open(clock=clock, faulty=False)
            ports = replace(
                ports,
                metadata=plain.metadata,
                tasks=plain.tasks,
                control_queue=ports.control_queue
                if self.conditions.is_alone
                else plain.control_queue,
            )
            service = build_service(settings, watched, SIZES)
        object.__setattr__(service.steps.settle, "outage", timedelta())
        if self.conditions.is_alone:
            await service.steps.sweep.at_start(())
        self.services[number] = Alive(stack, life, ports, watched, service)

    def use(self, number: int) -> None:
        """Let this service make the next steps."""
        self.in_use = number % self.count
        one = self.services[self.in_use]
        self.ports, self.watched, self.service = one.ports, one.watched, one.service
        self.claimed, self.stack = one.claimed, one.stack
        cast("SharedFate", self.fate).life = one.life

    @contextmanager
    def another(self) -> Iterator[None]:
        """Let another service make a step in the middle of one."""
        self._keep()
        before = self.in_use
        self.use(before + 1)
        try:
            yield
        finally:
            self._keep()
            self.use(before)

    def switch(self, number: int) -> None:
        self._keep()
        self.use(number)

    def _keep(self) -> None:
        """`finish` makes a new list of the claimed tasks."""
        self.services[self.in_use].claimed = self.claimed

    def forget_claims(self) -> None:
        World.forget_claims(self)
        for one in self.services.values():
            one.claimed.clear()

    def heal(self) -> None:
        """Lose no more messages. Each repair doubles the wait for the next, up to an hour."""
        queues = self.store.queues
        queues.habits = msgspec.structs.replace(queues.habits, lost=0.0)

    async def kill(self) -> None:
        """End the service in use; the others know nothing of it."""
        self.deaths += 1
        one = self.services.pop(self.in_use)
        one.life.dead = True
        await one.stack.aclose()

    async def restart(self) -> None:
        self.fate.forget()
        await self.kill()
        await self.start()

    async def end(self) -> None:
        for one in self.services.values():
            await one.stack.aclose()
        self.services.clear()
        if isinstance(self.store, PostgresStore):
            await self.store.close()
        self.stack = AsyncExitStack()
        await World.end(self)

    async def call(self, request: Request) -> Answer:
        answer = await World.call(self, request)
        if answer.status == UNAVAILABLE and request.method == "GET":
            with self.fate.held_off():
                return await World.call(self, request)
        return answer

    async def claim(self, each: int) -> list[Task]:
        try:
            return await World.claim(self, each)
        except Unavailable:
            return []

    async def finish(self, claimed: Sequence[ClaimedTask], outcomes: Sequence[str]) -> None:
        is_sure = False
        try:
            await World.finish(self, claimed, outcomes)
            # A settle that is repeated does not know which claims the first try settled.
            is_sure = not self.unanswered
        finally:
            # A claim that takes a task over leaves the body of the dead worker to the end of its run.
            if not is_sure:
                self.garbage |= {claim_name(one.task) for one in claimed}

    async def renew(self) -> None:
        """Every service renews what it holds."""
        before = self.in_use
        for number in self.services:
            self.switch(number)
            with suppress(Unavailable):
                await World.renew(self)
        self.switch(before)


@contextmanager
def _simulated(open_store: Callable[[str], SharedPorts]) -> Iterator[None]:
    """The scheme by which a service finds the store of its world."""

    @asynccontextmanager
    async def store(opening: Opening, _address: str) -> AsyncIterator[SharedPorts]:
        yield open_store(opening.incarnation)

    def opens(name: str) -> Scheme[Any]:
        async def open_it(opening: Opening, address: str) -> object:
            ports = await opening.once(store, address)
            if name == "queues":
                return QueueEngine(ports.queues, opening.settings.lease)
            if name != "tasks":
                return getattr(ports, name)
            return TaskEngine(ports.tasks, ports.work, None, None, claims=ports.claims)

        return Scheme(open=open_it, is_shared=True, takes_queues=True)

    kinds = ("metadata", "tasks", "queues", "control_queue")
    for kind in kinds:
        _schemes(kind)["simulated"] = opens(kind)
    try:
        yield
    finally:
        for kind in kinds:
            del _schemes(kind)["simulated"]


def _schemes(kind: str) -> dict[str, Scheme[Any]]:
    return cast("dict[str, Scheme[Any]]", SCHEMES[kind])


class SharedMachine(Machine):
    """The same histories, with steps of several services and faults of their store."""

    world: SharedWorld

    def __init__(
        self,
        runner: asyncio.Runner,
        folder: Path,
        *,
        count: int,
        seed: int,
        conditions: Conditions = ALL_FAULTS,
    ) -> None:
        self.count, self.seed, self.conditions = count, seed, conditions
        super().__init__(runner, folder)

    def new_world(self, folder: Path) -> World:
        return SharedWorld(
            folder,
            count=self.count,
            seed=self.seed,
            queued=bool(self.seed % 2),
            conditions=self.conditions,
        )

    @rule(number=st.integers(0, 2))
    def switch(self, number: int) -> None:
        """Another service makes the next steps, with what it claimed before."""
        self.world.switch(number)

    @precondition(lambda self: len(self.callers.jobs) > 0)
    @rule(number=st.integers(0, 2))
    def die(self, number: int) -> None:
        """A service dies between two steps, and another is started in its place."""
        self.world.switch(number)
        self.runner.run(self._restart())

    async def _go(self, step: Doing, fault: Fault | None) -> None:
        if fault and not (self.conditions.races if fault.meanwhile else self.conditions.deaths):
            fault = None
        conditions = self.conditions
        self.world.injector.faults = conditions.interleaved if fault else conditions.faults
        self.world.injector.counted.clear()
        try:
            await super()._go(step, fault)
        finally:
            self.world.injector.faults = NONE

    def _blow(self, fault: Fault, touched: list[KnownJob]) -> Callable[[], Awaitable[None]]:
        blow = super()._blow(fault, touched)

        async def meanwhile() -> None:
            with self.world.another():
                await blow()

        return meanwhile if fault.meanwhile else blow

    async def _restart(self, nth: int = -1) -> None:
        if self.conditions.deaths:
            await super()._restart(nth)

    async def _control(self, times: int) -> Sequence[KnownJob]:
        try:
            while times and await self.world.service.steps.control_worker.step():
                times -= 1
        except Unavailable:
            pass
        return self.callers.jobs[-1:]

    async def _sweep(self, times: int) -> Sequence[KnownJob]:
        try:
            return await super()._sweep(times)
        except Unavailable:
            return self.callers.jobs[-1:]
