"""The encryption key is rotated while several processes use it: what is awaited, and every death."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from conveyor.adapters.crypto.key_record import KeyRecord
from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.adapters.crypto.root_keys import Root, RootKeys
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.domain.credentials import RotationEvent, RotationResult, RotationWait, context
from conveyor.domain.encryption_keys import RECORD, EncryptionKeys, KeyState
from conveyor.domain.ids import JobId
from conveyor.domain.job import Job
from conveyor.steps.rotate_encryption import RotateEncryption
from conveyor.testing.factories import CALLER, a_job, a_member
from conveyor.testing.memory.metadata import MemoryMetadata
from tests.harness import time_lapse
from tests.harness.time_lapse import LapseClock
from tests.harness.trace import Crash, Moment, Trace, watched

ROOT, NEXT_ROOT = b"r" * 32, b"n" * 32
JOBS = 8
LAG = timedelta(seconds=60)


@dataclass(slots=True, kw_only=True)
class Store:
    """What processes share: rows, and the list of live processes."""

    clock: LapseClock = field(default_factory=LapseClock)
    trace: Trace = field(default_factory=Trace)
    rows: MemoryMetadata = field(init=False)
    coordination: MemoryCoordination = field(init=False)

    def __post_init__(self) -> None:
        self.rows = MemoryMetadata(self.clock)
        self.coordination = MemoryCoordination(self.clock)

    async def open(self, name: str, *roots: bytes) -> "Process":
        keys = KeyRecord(self.rows, self.clock, RootKeys(*(roots or (ROOT,))))
        ring = AesKeyRing(*await keys.open(), store=keys)
        process = Process(store=self, name=name, ring=ring)
        await process.announce()
        return process

    async def fill(self, ring: AesKeyRing) -> None:
        for number in range(JOBS):
            job_id = JobId(f"job-{number:02}")
            encrypted = ring.encrypt(f"key of {job_id}", context=context(CALLER, job_id))
            await self.rows.commit(a_job(id=job_id, caller=CALLER, encrypted_gateway_key=encrypted))

    async def keys(self) -> EncryptionKeys:
        record = await self.rows.get(EncryptionKeys, RECORD)
        assert record
        return record

    async def states(self) -> list[KeyState]:
        return [key.state for key in (await self.keys()).keys]


@dataclass(slots=True, kw_only=True)
class Process:
    store: Store
    name: str
    ring: AesKeyRing

    async def announce(self) -> None:
        keys = tuple(self.ring.fingerprints())
        member = a_member(id=self.name, host=f"host of {self.name}", keys=keys)
        await self.store.coordination.announce(member, life=timedelta(seconds=15))

    async def follow(self) -> None:
        """What its loops do: load the keys, and announce them."""
        await self.ring.reload()
        await self.announce()

    def rotation(self) -> RotateEncryption:
        trace = self.store.trace
        return RotateEncryption(
            metadata=watched(self.store.rows, "metadata", trace),
            encryption=watched(self.ring, "encryption", trace),
            coordination=watched(self.store.coordination, "coordination", trace),
            lag=LAG,
        )

    async def reads_all(self) -> bool:
        for job in await self.store.rows.page(Job, limit=99):
            found = await self.ring.decrypt(
                job.encrypted_gateway_key, context=context(CALLER, job.id)
            )
            assert found == f"key of {job.id}"
        return True


async def rotated(
    process: Process, during: Callable[[RotationEvent], Awaitable[None]]
) -> RotationResult:
    """Rotate; `during` is called for every event."""
    async for event in process.rotation().rotate():
        await during(event)
    assert isinstance(event, RotationResult)
    return event


def test_the_new_key_is_used_when_every_live_process_can_read_it() -> None:
    async def main() -> None:
        store = Store()
        one, two = await store.open("one"), await store.open("two")
        await store.fill(one.ring)
        old = one.ring.fingerprints()[0]
        waits: list[tuple[str, tuple[str, ...]]] = []

        async def during(event: RotationEvent) -> None:
            assert await one.reads_all()
            assert await two.reads_all()
            if not isinstance(event, RotationWait):
                return
            waits.append((event.until, event.processes))
            match len(waits):
                case 1:
                    assert await store.states() == [KeyState.CURRENT, KeyState.PUBLISHED]
                    await one.follow()
                case 2:
                    assert one.ring.fingerprints()[0] == old, "no process encrypts with it yet"
                    await two.follow()
                case 3:
                    assert await store.states() == [KeyState.OLD, KeyState.CURRENT]
                    await one.follow()
                case 4:
                    assert not any(await _rewritten(store, old))
                    await two.follow()

        result = await rotated(one, during)

        first, second = "worker one on host of one", "worker two on host of two"
        assert waits == [
            ("load", (first, second)),
            ("load", (second,)),
            ("use", (first, second)),
            ("use", (second,)),
            ("settle", ()),
        ]
        assert result == RotationResult(JOBS, (), True, timedelta(days=1))
        assert all(await _rewritten(store, old))
        assert await store.states() == [KeyState.RETIRED, KeyState.CURRENT]

    time_lapse.run(main())


async def _rewritten(store: Store, old: str) -> list[bool]:
    jobs = await store.rows.page(Job, limit=99)
    return [not job.encrypted_gateway_key[1:].startswith(bytes.fromhex(old)) for job in jobs]


def test_a_process_that_died_is_waited_for_until_its_announcement_ends() -> None:
    async def main() -> None:
        store = Store()
        one = await store.open("one")
        await store.open("dead")
        await store.fill(one.ring)

        async def during(_event: RotationEvent) -> None:
            await one.follow()

        began = store.clock.monotonic()
        assert (await rotated(one, during)).old_key_removed
        assert 15 <= store.clock.monotonic() - began <= 15 + LAG.total_seconds() + 5

    time_lapse.run(main())


def test_a_writer_of_another_process_is_waited_for() -> None:
    async def main() -> None:
        store = Store()
        one, two = await store.open("one"), await store.open("two")
        slow = JobId("slow")
        writing = two.ring.writing()
        await writing.__aenter__()
        encrypted = two.ring.encrypt(f"key of {slow}", context=context(CALLER, slow))
        waits: list[str] = []

        async def during(event: RotationEvent) -> None:
            await one.follow()
            await two.follow()
            if isinstance(event, RotationWait) and event.until == "use":
                waits.append(event.until)
                if len(waits) == 30:
                    job = a_job(id=slow, caller=CALLER, encrypted_gateway_key=encrypted)
                    await store.rows.commit(job)
                    await writing.__aexit__(None, None, None)

        assert (await rotated(one, during)).reencrypted == 1
        assert len(waits) in {30, 31}
        assert await two.reads_all()

    time_lapse.run(main())


def test_a_new_root_key_waits_until_every_process_was_given_it() -> None:
    async def main() -> None:
        store = Store()
        two, one = await store.open("two", ROOT), await store.open("one", NEXT_ROOT, ROOT)
        await store.fill(one.ring)
        processes = [one, two]
        waits = 0

        async def during(event: RotationEvent) -> None:
            nonlocal waits
            for process in processes:
                await process.follow()
            if isinstance(event, RotationWait) and event.until == "load":
                waits += 1
                assert (await store.keys()).root == Root(ROOT).fingerprint
                if waits == 20:  # the operator starts it again, with both keys
                    processes[1] = await store.open("two", NEXT_ROOT, ROOT)

        assert (await rotated(one, during)).old_key_removed
        assert waits >= 20
        assert (await store.keys()).root == Root(NEXT_ROOT).fingerprint
        assert await (await store.open("three", NEXT_ROOT)).reads_all()

    time_lapse.run(main())


def test_a_death_at_any_call_leaves_every_process_reading_and_another_one_continues() -> None:
    moments: tuple[Moment, ...] = ("before", "after")
    for moment in moments:
        number = 0
        while not time_lapse.run(_dies_at(number, moment)):
            number += 1
        assert number > 15


async def _dies_at(number: int, moment: Moment) -> bool:
    """Let the process that rotates die at a call; return whether it came to its end."""
    store = Store()
    one, two, three = [await store.open(name) for name in ("one", "two", "three")]
    await store.fill(one.ring)
    store.trace.forget()
    store.trace.break_at(number, moment, Crash())
    alive = [two, three]

    async def during(_event: RotationEvent) -> None:
        for process in alive:
            await process.follow()
            assert await process.reads_all()

    survived = True
    try:
        await rotated(one, during)
    except Crash:
        survived = False
    store.trace.forget()
    # The others know of it what they happened to load; `three` starts again.
    assert await two.reads_all()
    three = await store.open("three")
    assert await three.reads_all()
    alive = [two, three]
    assert (await rotated(two, during)).old_key_removed
    assert await three.reads_all()
    current = (await store.keys()).current.fingerprint
    assert all(
        job.encrypted_gateway_key[1:].startswith(bytes.fromhex(current))
        for job in await store.rows.page(Job, limit=99)
    )
    return survived


def test_a_retired_key_is_dropped_after_a_day_unless_something_is_under_it() -> None:
    async def main() -> None:
        store = Store()
        one = await store.open("one")
        await store.fill(one.ring)
        stopped = await store.open("stopped")
        late = JobId("late")
        encrypted = stopped.ring.encrypt(f"key of {late}", context=context(CALLER, late))
        fresh = await store.open("one")

        async def during(_event: RotationEvent) -> None:
            await fresh.follow()

        assert (await rotated(fresh, during)).old_key_removed
        await store.rows.commit(a_job(id=late, caller=CALLER, encrypted_gateway_key=encrypted))
        await fresh.rotation().step()
        assert await store.states() == [KeyState.RETIRED, KeyState.CURRENT]

        await _pass_a_day()
        await fresh.rotation().step()
        assert await store.states() == [KeyState.RETIRED, KeyState.CURRENT], "for another day"
        assert await fresh.reads_all()
        await fresh.rotation().step()
        assert await store.states() == [KeyState.RETIRED, KeyState.CURRENT]

        await _pass_a_day()
        await fresh.rotation().step()
        assert await store.states() == [KeyState.CURRENT]
        assert await (await store.open("new")).reads_all()

    time_lapse.run(main())


async def _pass_a_day() -> None:
    await asyncio.sleep(timedelta(days=1, seconds=1).total_seconds())


def test_a_row_that_a_listing_shows_late_is_found_by_the_last_pass() -> None:
    async def main() -> None:
        store = Store()
        one = await store.open("one")
        await store.fill(one.ring)
        hidden = await store.rows.get(Job, JobId("job-07"))
        assert hidden
        store.rows._tables[Job].pop(hidden.id)  # from listings, for less than the lag
        settling = 0

        async def during(event: RotationEvent) -> None:
            nonlocal settling
            await one.follow()
            if isinstance(event, RotationWait) and event.until == "settle":
                settling += 1
                store.rows._tables[Job].setdefault(hidden.id, hidden)

        result = await rotated(one, during)
        assert result.reencrypted == JOBS
        assert settling == 2, "the pass that found it must be followed by one that finds nothing"
        found = await store.rows.get(Job, hidden.id)
        assert found
        assert found == msgspec.structs.replace(
            hidden, version=2, encrypted_gateway_key=found.encrypted_gateway_key
        )
        assert one.ring.is_current(found.encrypted_gateway_key)

    time_lapse.run(main())
