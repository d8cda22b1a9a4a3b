"""The encryption key is changed: everything opens, at any moment of it and after any death."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from conveyor import steps
from conveyor.adapters.crypto.key_files import KeyFiles, PlainKeyProvider
from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.domain import signing
from conveyor.domain.api_key import ApiKey
from conveyor.domain.credentials import (
    CredentialRow,
    RotationProgress,
    RotationResult,
    context,
    reencrypted,
)
from conveyor.domain.ids import ApiKeyId, EventId, JobId, RunId
from conveyor.domain.job import Job
from conveyor.domain.outbox import OutboxEvent
from conveyor.domain.signing import SigningKey, SigningKeys
from conveyor.domain.step_functions import token_context
from conveyor.errors import Conflict, Unavailable
from conveyor.ports.encryption import KeyProvider
from conveyor.ports.metadata import Metadata, Removed
from conveyor.steps import rotate_encryption as module
from conveyor.steps.rotate_encryption import RotateEncryption
from conveyor.testing.clock import NOON, FakeClock
from conveyor.testing.factories import CALLER, a_job, a_run, an_api_key, an_event
from conveyor.testing.memory.metadata import MemoryMetadata
from tests.harness.trace import Crash, Moment, Trace, watched

JOBS = 5


def plain(_name: str) -> KeyProvider:
    return PlainKeyProvider()


@dataclass(slots=True, kw_only=True)
class Encrypted:
    """Rows in memory that outlive the process, and a folder with its keys."""

    folder: Path
    clock: FakeClock
    stored: MemoryMetadata
    trace: Trace
    encryption: AesKeyRing = field(init=False)
    metadata: Metadata = field(init=False)
    rotate_encryption: RotateEncryption = field(init=False)

    async def begin_again(self) -> None:
        """The next process, after a death."""
        files = KeyFiles(self.folder, "file:", plain)
        self.encryption = AesKeyRing(*await files.load(), store=files)
        encryption = watched(self.encryption, "encryption", self.trace)
        self.metadata = metadata = watched(self.stored, "metadata", self.trace)
        self.rotate_encryption = RotateEncryption(
            metadata=metadata,
            encryption=encryption,
        )

    def encrypt(self, secret: str, name: str) -> bytes:
        return self.encryption.encrypt(secret, context=context(CALLER, name))

    async def fill(self) -> None:
        """A row of each kind that holds a credential, and some that hold none."""
        for number in range(JOBS):
            job_id = JobId(f"job-{number}")
            key = self.encrypt(f"key of {number}", job_id)
            await self.stored.commit(a_job(id=job_id, caller=CALLER, encrypted_gateway_key=key))
        await self.stored.commit(a_job(id=JobId("tombstone"), encrypted_gateway_key=b""))
        await self.stored.commit(a_slots(self, "active", "candidate"))
        key_id = ApiKeyId("key-1")
        encrypted = self.encrypt("gateway key", key_id)
        await self.stored.commit(
            an_api_key(id=key_id, encrypted_gateway_key=encrypted), an_api_key(id=ApiKeyId("key-2"))
        )
        run_id = RunId("run-1")
        token = self.encryption.encrypt("token", context=token_context(CALLER, run_id))
        await self.stored.commit(a_run(id=run_id, job_id=JobId("job-0"), encrypted_token=token))
        await self.stored.commit(
            an_event(id=EventId("event-1"), run_id=run_id, encrypted_token=token),
            an_event(id=EventId("event-2")),
        )

    async def rotate(self, *, force: bool = False) -> RotationResult:
        events = [event async for event in self.rotate_encryption.rotate(force=force)]
        assert all(isinstance(event, RotationProgress) for event in events[:-1])
        last = events[-1]
        assert isinstance(last, RotationResult)
        return last

    async def secrets(self) -> dict[str, str]:
        """Everything that is encrypted, opened by a process that has only what is in the folder."""
        files = KeyFiles(self.folder, "file:", plain)
        encryption = AesKeyRing(*await files.load(), store=files)
        found: dict[str, bytes] = {}

        def look(encrypted: bytes, where: str) -> bytes:
            found[where] = encrypted
            return encrypted

        for row in await self.rows():
            reencrypted(row, look)
        return {
            where: await encryption.decrypt(encrypted, context=where)
            for where, encrypted in found.items()
        }

    async def rows(self) -> list[CredentialRow]:
        return [
            *await self.rotate_encryption.metadata.page(Job, limit=99),
            *await self.stored.live_runs(limit=99),
            *await self.rotate_encryption.metadata.page(SigningKeys, limit=99),
            *await self.rotate_encryption.metadata.page(ApiKey, limit=99),
            *await self.rotate_encryption.metadata.page(OutboxEvent, limit=99),
        ]

    def has_old_key(self) -> bool:
        return (self.folder / "encryption.old.key").exists()


def a_slots(house: Encrypted, *names: str) -> SigningKeys:
    active, candidate = (
        SigningKey(
            kid=name,
            encrypted_secret=house.encryption.encrypt(
                f"secret {name}", context=signing.context(CALLER, name)
            ),
            created_at=NOON,
        )
        for name in names
    )
    return SigningKeys(id=CALLER, active=active, candidate=candidate)


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Encrypted:
    monkeypatch.setattr(module, "PAGE", 2)
    return await a_house(tmp_path)


async def a_house(folder: Path) -> Encrypted:
    clock = FakeClock()
    stored = MemoryMetadata(clock)
    house = Encrypted(folder=folder, clock=clock, stored=stored, trace=Trace())
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


async def test_every_credential_is_reencrypted(house: Encrypted) -> None:
    before = await house.rows()
    assert await house.secrets() == ALL
    rotated = await house.rotate()
    assert rotated == RotationResult(JOBS + 4, (), old_key_removed=True)
    assert not house.has_old_key()
    assert await house.secrets() == ALL
    after = await house.rows()
    # Nothing else of any row is touched, and rows without a credential not at all.
    for old, new in zip(before, after, strict=True):
        same = msgspec.structs.replace(new, version=old.version)
        blank = reencrypted(same, lambda *_: b"x")
        assert blank == reencrypted(old, lambda *_: b"x")
        assert new.version - old.version == (reencrypted(old, lambda *_: b"x") is not old)


async def test_a_key_that_was_changed_can_be_changed_again(house: Encrypted) -> None:
    keys = set()
    for _ in range(3):
        keys.add((house.folder / "encryption.key").read_bytes())
        assert (await house.rotate()).reencrypted == JOBS + 4
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


async def test_a_row_that_moves_meanwhile_is_read_again(house: Encrypted) -> None:
    async def move() -> None:
        job = await house.stored.get(Job, JobId("job-1"))
        assert job
        await house.stored.commit(msgspec.structs.replace(job, name="moved"))

    house.trace.before("metadata.commit", 2, move)
    house.trace.before("metadata.commit", 3, move)
    house.trace.before("metadata.commit", 4, move)
    assert (await house.rotate()).old_key_removed
    job = await house.stored.get(Job, JobId("job-1"))
    assert job
    assert job.name == "moved"
    assert await house.secrets() == ALL


async def test_a_row_that_goes_meanwhile_is_passed_by(house: Encrypted) -> None:
    async def go() -> None:
        job = await house.stored.get(Job, JobId("job-1"))
        assert job
        await house.stored.commit(Removed(job))

    house.trace.before("metadata.commit", 2, go)
    assert (await house.rotate()).old_key_removed
    assert await house.secrets() == {
        where: secret for where, secret in ALL.items() if where != f"{CALLER}|job-1"
    }


async def test_a_write_that_began_under_the_old_key_is_waited_for(house: Encrypted) -> None:
    """It reaches its row long after the key was rotated, and is re-encrypted there."""
    encrypted, rotated, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def submit() -> None:
        async with house.encryption.writing():
            key = house.encrypt("slow", "slow-job")
            encrypted.set()
            await goes_on.wait()
            job = a_job(id=JobId("slow-job"), caller=CALLER, encrypted_gateway_key=key)
            await house.metadata.commit(job)

    async def take() -> None:
        rotated.set()

    files = house.encryption._store
    assert files
    house.encryption._store = watched(files, "files", house.trace)
    house.trace.after("files.promote", 1, take)
    async with asyncio.TaskGroup() as group:
        group.create_task(submit())
        await encrypted.wait()
        rotating = group.create_task(house.rotate())
        await rotated.wait()
        for _ in range(200):  # turns of the loop in which the rotation could go on
            await asyncio.sleep(0)
        assert not rotating.done()
        goes_on.set()
    assert rotating.result() == RotationResult(JOBS + 5, (), old_key_removed=True)
    assert await house.secrets() == ALL | {f"{CALLER}|slow-job": "slow"}


async def test_a_write_that_begins_after_the_rotation_uses_the_new_key(house: Encrypted) -> None:
    async with house.encryption.writing():  # a later block does not hold up an earlier rotation
        pass
    await house.rotate()
    key = house.encrypt("late", "late-job")
    await house.stored.commit(a_job(id=JobId("late-job"), caller=CALLER, encrypted_gateway_key=key))
    assert (await house.secrets())[f"{CALLER}|late-job"] == "late"


async def test_a_row_written_under_the_old_key_during_a_pass_is_found_by_the_next(
    house: Encrypted,
) -> None:
    """As a commit does that the engine finished only after its caller had gone away."""
    key = house.encrypt("late", "a-late-job")
    late = a_job(id=JobId("a-late-job"), caller=CALLER, encrypted_gateway_key=key)
    house.trace.before("metadata.commit", 4, lambda: house.stored.commit(late))
    assert (await house.rotate()).old_key_removed
    assert await house.secrets() == ALL | {f"{CALLER}|a-late-job": "late"}


def test_every_step_that_encrypts_does_so_inside_a_writing_block() -> None:
    """The rotation re-reads rows itself, and so needs none."""
    for path in Path(steps.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if "encryption.encrypt(" in text and path.name != "rotate_encryption.py":
            assert "encryption.writing()" in text, path.name


async def test_while_something_does_not_open_the_old_key_stays(house: Encrypted) -> None:
    foreign = AesKeyRing(b"another key of thirty-two bytes!").encrypt(
        "lost", context=context(CALLER, "lost-job")
    )
    await house.stored.commit(
        a_job(id=JobId("lost-job"), caller=CALLER, encrypted_gateway_key=foreign)
    )
    rotated = await house.rotate()
    assert rotated == RotationResult(JOBS + 4, ("lost-job",), old_key_removed=False)
    assert house.has_old_key()
    key = (house.folder / "encryption.key").read_bytes()
    assert not (await house.rotate()).old_key_removed
    assert (house.folder / "encryption.key").read_bytes() == key, "it goes on with the same key"
    assert (await house.rotate(force=True)).old_key_removed
    assert not house.has_old_key()


async def test_an_engine_that_is_away_leaves_both_keys(house: Encrypted) -> None:
    house.trace.broken["metadata.commit"] = Unavailable("away")
    with pytest.raises(Unavailable):
        await house.rotate()
    assert house.has_old_key()
    assert await house.secrets() == ALL
    house.trace.broken.clear()
    assert (await house.rotate()).old_key_removed


async def test_one_change_at_a_time(house: Encrypted) -> None:
    first = house.rotate_encryption.rotate()
    await anext(first)
    with pytest.raises(Conflict):
        await house.rotate()
    async for _ in first:
        pass
    await house.rotate()
