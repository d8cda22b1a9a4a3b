"""The sealing key is changed: everything opens, at any moment of it and after any death."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from conveyor.adapters.crypto.key_files import KeyFiles, PlainVault
from conveyor.adapters.crypto.sealing import AesSealing
from conveyor.adapters.memory.answers import MemoryAnswers
from conveyor.adapters.memory.api_keys import MemoryApiKeys
from conveyor.adapters.memory.metadata import MemoryMetadata
from conveyor.adapters.memory.outbox import MemoryOutbox
from conveyor.adapters.memory.rows import Rows
from conveyor.adapters.memory.signing_keys import MemorySigningKeys
from conveyor.adapters.memory.survey import MemorySurvey
from conveyor.domain import signing
from conveyor.domain.ids import EventId, JobId, KeyId, RunId
from conveyor.domain.sealed import Holder, Progress, Rotated, context, resealed
from conveyor.domain.signing import SigningKey, SigningKeys
from conveyor.domain.step_functions import seal_context
from conveyor.errors import Conflict, Unavailable
from conveyor.fresh_seals import FreshSeals
from conveyor.ports.metadata import Removed
from conveyor.ports.sealing import Vault
from conveyor.steps import reseal as module
from conveyor.steps.reseal import Reseal
from conveyor.testing.clock import NOON, FakeClock
from conveyor.testing.factories import CALLER, a_job, a_run, an_api_key, an_event
from conveyor.testing.trace import Crash, Moment, Trace, watched
from tests.unit.kit import LEASE

JOBS = 5


def plain(_name: str) -> Vault:
    return PlainVault()


@dataclass(slots=True, kw_only=True)
class Sealed:
    """Rows in memory that outlive the process, and a folder with its keys."""

    folder: Path
    clock: FakeClock
    stored: MemoryMetadata
    trace: Trace
    sealing: AesSealing = field(init=False)
    seals: FreshSeals = field(init=False)
    reseal: Reseal = field(init=False)

    async def begin_again(self) -> None:
        """The next process, after a death."""
        files = KeyFiles(self.folder, "file:", plain)
        self.sealing = AesSealing(*await files.load(), files=files)
        sealing = watched(self.sealing, "sealing", self.trace)
        metadata = watched(self.stored, "metadata", self.trace)
        self.seals = FreshSeals(metadata, sealing)
        self.reseal = Reseal(
            metadata=self.seals.metadata,
            survey=MemorySurvey(self.stored, Rows(self.clock, LEASE)),
            signing_keys=MemorySigningKeys(self.stored),
            api_keys=MemoryApiKeys(self.stored),
            outbox=MemoryOutbox(self.stored, self.clock),
            sealing=sealing,
            settled=self.seals.settled,
        )

    def seal(self, secret: str, name: str) -> bytes:
        return self.sealing.seal(secret, context=context(CALLER, name))

    async def fill(self) -> None:
        """A row of each kind that holds a credential, and some that hold none."""
        for number in range(JOBS):
            job_id = JobId(f"job-{number}")
            key = self.seal(f"key of {number}", job_id)
            await self.stored.commit(a_job(id=job_id, caller=CALLER, sealed_key=key))
        await self.stored.commit(a_job(id=JobId("tombstone"), sealed_key=b""))
        await self.stored.commit(a_slots(self, "active", "candidate"))
        key_id = KeyId("key-1")
        sealed = self.seal("gateway key", key_id)
        await self.stored.commit(
            an_api_key(id=key_id, sealed_gateway_key=sealed), an_api_key(id=KeyId("key-2"))
        )
        run_id = RunId("run-1")
        token = self.sealing.seal("token", context=seal_context(CALLER, run_id))
        await self.stored.commit(a_run(id=run_id, job_id=JobId("job-0"), sealed_token=token))
        await self.stored.commit(
            an_event(id=EventId("event-1"), run_id=run_id, sealed_token=token),
            an_event(id=EventId("event-2")),
        )

    async def rotate(self, *, force: bool = False) -> Rotated:
        events = [event async for event in self.reseal.rotate(force=force)]
        assert all(isinstance(event, Progress) for event in events[:-1])
        last = events[-1]
        assert isinstance(last, Rotated)
        return last

    async def secrets(self) -> dict[str, str]:
        """Everything that is sealed, opened by a process that has only what is in the folder."""
        files = KeyFiles(self.folder, "file:", plain)
        sealing = AesSealing(*await files.load(), files=files)
        found: dict[str, str] = {}

        def look(sealed: bytes, where: str) -> bytes:
            found[where] = sealing.open(sealed, context=where)
            return sealed

        for row in await self.rows():
            resealed(row, look)
        return found

    async def rows(self) -> list[Holder]:
        return [
            *await self.reseal.survey.jobs(limit=99),
            *(run for run, _ in await self.stored.live(limit=99)),
            *await self.reseal.signing_keys.page(limit=99),
            *await self.reseal.api_keys.page(limit=99),
            *await self.reseal.outbox.page(limit=99),
        ]

    def has_old_key(self) -> bool:
        return (self.folder / "sealing.old.key").exists()


def a_slots(house: Sealed, *names: str) -> SigningKeys:
    active, candidate = (
        SigningKey(
            kid=name,
            sealed_secret=house.sealing.seal(
                f"secret {name}", context=signing.context(CALLER, name)
            ),
            created_at=NOON,
        )
        for name in names
    )
    return SigningKeys(id=CALLER, active=active, candidate=candidate)


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sealed:
    monkeypatch.setattr(module, "PAGE", 2)
    return await a_house(tmp_path)


async def a_house(folder: Path) -> Sealed:
    clock = FakeClock()
    stored = MemoryMetadata(MemoryAnswers(clock))
    house = Sealed(folder=folder, clock=clock, stored=stored, trace=Trace())
    await house.begin_again()
    await house.fill()
    return house


ALL = {
    **{f"{CALLER}|job-{number}": f"key of {number}" for number in range(JOBS)},
    f"{CALLER}|signing|active": "secret active",
    f"{CALLER}|signing|candidate": "secret candidate",
    f"{CALLER}|key-1": "gateway key",
    f"{CALLER}|run-1|task_token": "token",
}


async def test_all_that_is_sealed_is_sealed_anew(house: Sealed) -> None:
    before = await house.rows()
    assert await house.secrets() == ALL
    rotated = await house.rotate()
    assert rotated == Rotated(JOBS + 4, (), old_key_removed=True)
    assert not house.has_old_key()
    assert await house.secrets() == ALL
    after = await house.rows()
    # Nothing else of any row is touched, and rows without a credential not at all.
    for old, new in zip(before, after, strict=True):
        same = msgspec.structs.replace(new, version=old.version)
        blank = resealed(same, lambda *_: b"x")
        assert blank == resealed(old, lambda *_: b"x")
        assert new.version - old.version == (resealed(old, lambda *_: b"x") is not old)


async def test_a_key_that_was_changed_can_be_changed_again(house: Sealed) -> None:
    keys = set()
    for _ in range(3):
        keys.add((house.folder / "sealing.key").read_bytes())
        assert (await house.rotate()).resealed == JOBS + 4
        assert await house.secrets() == ALL
    assert len(keys) == 3


async def test_a_death_at_any_call_loses_nothing_and_running_it_again_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    moments: tuple[Moment, ...] = ("before", "after")
    for moment in moments:
        number, survived = 0, False
        while not survived:
            house = await a_house(tmp_path / f"{moment}-{number}")
            house.trace.forget()
            house.trace.break_at(number, moment, Crash())
            try:
                await house.rotate()
                survived = True
            except Crash:
                pass
            house.trace.forget()
            assert await house.secrets() == ALL, (moment, number)
            await house.begin_again()
            assert await house.secrets() == ALL, (moment, number)
            assert (await house.rotate()).old_key_removed
            assert not house.has_old_key()
            assert await house.secrets() == ALL, (moment, number)
            number += 1
        assert number > 20


async def test_a_row_that_moves_meanwhile_is_read_again(house: Sealed) -> None:
    async def move() -> None:
        job = await house.stored.job(JobId("job-1"))
        assert job
        await house.stored.commit(msgspec.structs.replace(job, name="moved"))

    house.trace.before("metadata.commit", 2, move)
    house.trace.before("metadata.commit", 3, move)
    house.trace.before("metadata.commit", 4, move)
    assert (await house.rotate()).old_key_removed
    job = await house.stored.job(JobId("job-1"))
    assert job
    assert job.name == "moved"
    assert await house.secrets() == ALL


async def test_a_row_that_goes_meanwhile_is_passed_by(house: Sealed) -> None:
    async def go() -> None:
        job = await house.stored.job(JobId("job-1"))
        assert job
        await house.stored.commit(Removed(job))

    house.trace.before("metadata.commit", 2, go)
    assert (await house.rotate()).old_key_removed
    assert await house.secrets() == {
        where: secret for where, secret in ALL.items() if where != f"{CALLER}|job-1"
    }


async def test_what_was_sealed_before_and_is_written_after_is_sealed_anew(house: Sealed) -> None:
    sealed = house.seal("late", "late-job")
    late = a_job(id=JobId("late-job"), caller=CALLER, sealed_key=sealed)
    await house.rotate()
    await house.seals.metadata.commit(late)
    assert (await house.secrets())[f"{CALLER}|late-job"] == "late"


async def test_a_write_on_its_way_is_waited_for(house: Sealed) -> None:
    """It was begun under the old key, and comes to its row when most rows have been looked at."""
    sealed = house.seal("slow", "slow-job")
    slow = a_job(id=JobId("slow-job"), caller=CALLER, sealed_key=sealed)
    begun, turned, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        begun.set()
        await goes_on.wait()

    async def turn() -> None:
        turned.set()

    house.trace.before("metadata.commit", 1, hold)
    house.trace.after("sealing.turn", 1, turn)
    async with asyncio.TaskGroup() as group:
        group.create_task(house.seals.metadata.commit(slow))
        await begun.wait()
        rotating = group.create_task(house.rotate())
        await turned.wait()
        for _ in range(200):  # turns of the loop in which it could go on
            await asyncio.sleep(0)
        assert not rotating.done()
        goes_on.set()
    assert rotating.result().old_key_removed
    assert await house.secrets() == ALL | {f"{CALLER}|slow-job": "slow"}


async def test_while_something_does_not_open_the_old_key_stays(house: Sealed) -> None:
    foreign = AesSealing(b"another key of thirty-two bytes!").seal(
        "lost", context=context(CALLER, "lost-job")
    )
    await house.stored.commit(a_job(id=JobId("lost-job"), caller=CALLER, sealed_key=foreign))
    rotated = await house.rotate()
    assert rotated == Rotated(JOBS + 4, ("lost-job",), old_key_removed=False)
    assert house.has_old_key()
    key = (house.folder / "sealing.key").read_bytes()
    assert not (await house.rotate()).old_key_removed
    assert (house.folder / "sealing.key").read_bytes() == key, "it goes on with the same key"
    assert (await house.rotate(force=True)).old_key_removed
    assert not house.has_old_key()


async def test_an_engine_that_is_away_leaves_both_keys(house: Sealed) -> None:
    house.trace.broken["metadata.commit"] = Unavailable("away")
    with pytest.raises(Unavailable):
        await house.rotate()
    assert house.has_old_key()
    assert await house.secrets() == ALL
    house.trace.broken.clear()
    assert (await house.rotate()).old_key_removed


async def test_one_change_at_a_time(house: Sealed) -> None:
    first = house.reseal.rotate()
    await anext(first)
    with pytest.raises(Conflict):
        await house.rotate()
    async for _ in first:
        pass
    await house.rotate()
