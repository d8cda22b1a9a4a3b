"""The encryption key rotated by three processes that read, write, stop, die and return.

They share rows in memory and run in time that passes as fast as it can. Listings lag by up to 20 s,
notifications and announcements are lost, and calls take from 1 ms to several minutes. Whatever
happens, every process can decrypt every row at any moment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from conveyor.adapters.crypto.key_record import KeyRecord
from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.adapters.crypto.root_keys import RootKeys
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.domain.credentials import RotationResult, RotationWait, context
from conveyor.domain.encryption_keys import RECORD, EncryptionKeys, KeyState
from conveyor.domain.ids import JobId
from conveyor.domain.job import Job
from conveyor.errors import Conflict, Stale
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Member
from conveyor.ports.metadata import Metadata
from conveyor.steps.rotate_encryption import LISTING_LAG, RotateEncryption
from conveyor.steps.shared.notifier import Topic
from conveyor.testing.clock import NOON
from conveyor.testing.factories import CALLER, a_job
from conveyor.testing.memory.metadata import MemoryMetadata
from tests.harness import time_lapse
from tests.harness.time_lapse import LapseClock

ROOT, NEXT_ROOT = b"r" * 32, b"n" * 32
MOST_LAG = 20.0
PROCESSES = 3
CHAOS = 900.0  # seconds of it
LISTINGS = {"page", "live_runs"}


class LaggingMetadata(MemoryMetadata):
    """Keeps every state it had, so that listings can be answered from an earlier one."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._states: list[tuple[float, dict[type, dict[Any, Any]]]] = []

    async def commit(self, *changes: Any) -> None:
        await super().commit(*changes)
        now = self.clock.monotonic()
        state = {kind: dict(rows) for kind, rows in self._tables.items()}
        self._states = [one for one in self._states if one[0] > now - 2 * MOST_LAG] + [(now, state)]

    def before(self, lag: float) -> MemoryMetadata:
        """The rows as they were some seconds ago."""
        past = MemoryMetadata(self.clock)
        until = self.clock.monotonic() - lag
        for committed_at, state in self._states:
            if committed_at <= until or not past._tables:
                past._tables = state
        return past


@dataclass(slots=True, kw_only=True)
class World:
    dice: Random
    root: tuple[bytes, ...] = (ROOT,)
    clock: LapseClock = field(default_factory=LapseClock)
    rows: LaggingMetadata = field(init=False)
    coordination: MemoryCoordination = field(init=False)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    secrets: dict[JobId, str] = field(default_factory=dict)  # of committed jobs
    rotated: int = 0
    stopped: int = 0  # processes, so far
    waited: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rows = LaggingMetadata(self.clock)
        self.coordination = MemoryCoordination(self.clock)

    async def start(self) -> "Process":
        process = Process(world=self, id=f"process-{next(self.numbers)}")
        await process.start()
        return process

    async def check_retired(self) -> None:
        """While no process ever stopped, nothing is under a retired key."""
        record = await self.rows.get(EncryptionKeys, RECORD)
        assert record
        retired = {key.fingerprint for key in record.keys if key.state is KeyState.RETIRED}
        for job in await self.rows.page(Job, limit=10_000):
            assert job.encrypted_gateway_key[1:9].hex() not in retired


@dataclass(slots=True, kw_only=True)
class Process:
    """A process: its ring, and the loops of a service that use the keys."""

    world: World
    id: str
    running: asyncio.Event = field(default_factory=asyncio.Event)  # cleared while it is stopped
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    ring: AesKeyRing = field(init=False)
    rotation: RotateEncryption = field(init=False)
    metadata: Any = field(init=False)

    async def start(self) -> None:
        self.running.set()
        self.metadata = _Far(self, self.world.rows)
        store = KeyRecord(self.metadata, self.world.clock, RootKeys(*self.world.root))
        self.ring = AesKeyRing(*await store.open(), store=store)
        coordination: Any = _Far(self, self.world.coordination)
        self.rotation = RotateEncryption(
            metadata=self.metadata,
            encryption=self.ring,
            coordination=coordination,
            lag=LISTING_LAG,
        )
        loops = [
            self._reload,
            self._announce,
            self._submit,
            self._rename,
            self._read,
            self._listen,
            self._drop,
        ]
        self.tasks = [asyncio.create_task(loop()) for loop in loops]

    async def kill(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        for task in self.tasks:
            if not task.cancelled() and (error := task.exception()):
                raise error

    async def stop_for(self, seconds: float) -> None:
        self.world.stopped += 1
        self.running.clear()
        await asyncio.sleep(seconds)
        self.running.set()

    async def rotate(self) -> None:
        async for event in self.rotation.rotate():
            if isinstance(event, RotationWait):
                self.world.waited.add(event.until)
            elif isinstance(event, RotationResult):
                assert event.old_key_removed, event
                self.world.rotated += 1
        if not self.world.stopped:
            await self.world.check_retired()

    async def _reload(self) -> None:
        while True:
            await self.ring.reload()
            await asyncio.sleep(10)

    async def _listen(self) -> None:
        async for _ in self.world.coordination.notifications([Topic.ENCRYPTION_KEYS]):
            if self.world.dice.random() < 0.5:  # half of them are lost
                await self.ring.reload()

    async def _announce(self) -> None:
        me = Member(id=self.id, role="serve", host="h", version="1", started_at=NOON)
        while True:
            me = Member(
                id=me.id,
                role=me.role,
                host=me.host,
                version=me.version,
                started_at=NOON,
                keys=tuple(self.ring.fingerprints()),
            )
            await self.running.wait()
            await self.world.coordination.announce(me, life=timedelta(seconds=15))
            await asyncio.sleep(5)

    async def _submit(self) -> None:
        dice = self.world.dice
        while True:
            await asyncio.sleep(dice.uniform(1, 20))
            job_id = JobId(f"job-{next(self.world.numbers):06}")
            secret = f"secret of {job_id}"
            async with self.ring.writing():
                encrypted = self.ring.encrypt(secret, context=context(CALLER, job_id))
                await asyncio.sleep(dice.choice([0.01, 0.1, 5]))  # the rows of a list
                await self.metadata.commit(
                    a_job(id=job_id, caller=CALLER, encrypted_gateway_key=encrypted)
                )
            self.world.secrets[job_id] = secret

    async def _rename(self) -> None:
        dice = self.world.dice
        while True:
            await asyncio.sleep(dice.uniform(0.1, 3))
            if self.world.secrets:
                job = await self.metadata.get(Job, dice.choice([*self.world.secrets]))
                with suppress(Stale):
                    await self.metadata.commit(replace(job, name=f"{dice.random()}"))

    async def _drop(self) -> None:
        while True:
            await asyncio.sleep(60)
            await self.rotation.step()

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(self.world.dice.uniform(0.1, 2))
            await self.running.wait()
            if self.world.secrets:
                await check(self.ring, self.metadata, self.world.dice.choice([*self.world.secrets]))


async def check(ring: AesKeyRing, metadata: Metadata, job_id: JobId) -> None:
    job = await metadata.get(Job, job_id)
    assert job
    found = await ring.decrypt(job.encrypted_gateway_key, context=context(CALLER, job_id))
    assert found == f"secret of {job_id}"


class _Far:
    """An engine behind a network: calls take a while, and wait while their process is stopped."""

    def __init__(self, process: Process, engine: Any) -> None:
        self._process, self._engine = process, engine

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        dice = self._process.world.dice

        async def call(*given: Any, **named: Any) -> Any:
            await asyncio.sleep(dice.choice([0.001, 0.01, 0.5]))
            await self._process.running.wait()
            engine = self._engine
            if name in LISTINGS:
                engine = engine.before(dice.uniform(0, MOST_LAG))
            answer = await getattr(engine, name)(*given, **named)
            await asyncio.sleep(dice.choice([0.001, 0.01, 0.5]))
            await self._process.running.wait()
            return answer

        return call


async def history(seed: int) -> World:
    """Rotations, stops and deaths in random order; then rest, and what must hold for ever."""
    dice = Random(seed)
    world = World(dice=dice)
    processes = [await world.start() for _ in range(PROCESSES)]
    stops: list[asyncio.Task[None]] = []
    rotations: list[asyncio.Task[None]] = []
    while world.clock.monotonic() < CHAOS:
        await asyncio.sleep(dice.uniform(0.2, 40))
        number = dice.randrange(PROCESSES)
        match dice.choice(["rotate", "rotate", "kill", "stop", "new root"]):
            case "stop" if seed % 2:
                continue  # every second history is without stops
            case "rotate" if not processes[number].rotation.is_running:
                rotations.append(asyncio.create_task(processes[number].rotate()))
            case "kill":
                if dice.random() < 0.5:
                    await _ended(rotations)
                await processes[number].kill()
                processes[number] = await world.start()
            case "stop":
                stop = processes[number].stop_for(dice.choice([3, 40, 200]))
                stops.append(asyncio.create_task(stop))
            case "new root" if world.root == (ROOT,) and dice.random() < 0.3:
                await _ended(rotations)
                world.root = (NEXT_ROOT, ROOT)
                for one in processes:
                    await one.kill()
                processes = [await world.start() for _ in range(PROCESSES)]
    await asyncio.gather(*stops)
    await _ended(rotations)
    # One process stops, perhaps between encrypting and committing, and returns after the rotation.
    absent = asyncio.create_task(processes[1].stop_for(400))
    await processes[0].rotate()
    await absent
    await asyncio.sleep(30)
    for one in processes:
        await one.kill()
    await _check_rest(world)
    return world


async def _ended(rotations: list[asyncio.Task[None]]) -> None:
    """Let rotations die where they are."""
    for rotating in rotations:
        rotating.cancel()
        # `Conflict`: another process was faster, and has begun the next rotation.
        with suppress(asyncio.CancelledError, Conflict):
            await rotating
    rotations.clear()


async def _check_rest(world: World) -> None:
    """A day later the keys before the current one are gone, and every row is readable."""
    await asyncio.sleep(timedelta(days=1, minutes=1).total_seconds())
    world.root = world.root[:1]
    last = await world.start()
    await last.rotation.step()
    await last.kill()
    record = await world.rows.get(EncryptionKeys, RECORD)
    assert record
    if [key.state for key in record.keys] != [KeyState.CURRENT]:
        # A process wrote under an old key after all passes: that key stays for another day.
        await asyncio.sleep(timedelta(days=1, minutes=1).total_seconds())
        again = await world.start()
        await again.rotation.step()
        await again.kill()
        record = await world.rows.get(EncryptionKeys, RECORD)
        assert record
    assert [key.state for key in record.keys] == [KeyState.CURRENT]
    reader = await world.start()
    await reader.kill()
    assert len(world.secrets) > 50
    for job in await world.rows.page(Job, limit=10_000):
        await check(reader.ring, world.rows, job.id)
        assert reader.ring.is_current(job.encrypted_gateway_key), job.id


def run(seed: int) -> World:
    return time_lapse.run(history(seed))


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_unreadable_at_any_moment_in_any_process(seed: int) -> None:
    assert run(seed).rotated


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_300))
def test_nothing_is_unreadable_in_many_histories(seed: int) -> None:
    assert run(seed).rotated
