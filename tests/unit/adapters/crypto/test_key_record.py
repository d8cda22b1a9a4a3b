"""Encryption keys in a record that processes share, and the root keys that wrap them."""

import asyncio
import os
import stat
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from conveyor.adapters.crypto.key_record import FRESH, KeyRecord
from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.adapters.crypto.root_keys import Root, RootKeys, parse_key, read_root_file
from conveyor.domain.encryption_keys import RECORD, EncryptionKeys, KeyState
from conveyor.errors import Conflict, RefusedToStart, Unavailable
from conveyor.ports.encryption import KeyProvider
from conveyor.testing.clock import FakeClock
from conveyor.testing.memory.metadata import MemoryMetadata
from tests.harness.trace import Trace, watched

ROOT, OTHER = b"r" * 32, b"o" * 32
WHERE = "caller|job"
SECOND = timedelta(seconds=1)


class FakeKms:
    """Wraps by adding its name in front, and counts what it is asked."""

    asked = 0

    def __init__(self, name: str) -> None:
        self._name = name.encode()

    async def new_key(self) -> tuple[bytes, bytes]:
        key = os.urandom(32)
        return key, self._name + key

    async def unwrap(self, stored: bytes) -> bytes:
        FakeKms.asked += 1
        if not stored.startswith(self._name):
            raise Unavailable(f"{self._name.decode()} refuses")
        return stored.removeprefix(self._name)


def kms(name: str) -> KeyProvider:
    return FakeKms(name)


class Store:
    """What processes share."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.trace = Trace()
        self.metadata = watched(MemoryMetadata(self.clock), "metadata", self.trace)

    async def open(self, *roots: bytes, in_kms: str = "") -> AesKeyRing:
        """The ring of one more process."""
        keys = RootKeys(*(roots or (() if in_kms else (ROOT,))), kms=in_kms, provider=kms)
        store = KeyRecord(self.metadata, self.clock, keys)
        return AesKeyRing(*await store.open(), store=store)

    async def record(self) -> EncryptionKeys:
        record = await self.metadata.get(EncryptionKeys, RECORD)
        assert record
        return record

    async def states(self) -> list[KeyState]:
        return [key.state for key in (await self.record()).keys]


@pytest.fixture
def store() -> Store:
    return Store()


def encrypted(ring: AesKeyRing, secret: str = "secret") -> bytes:
    return ring.encrypt(secret, context=WHERE)


async def opens(ring: AesKeyRing, value: bytes) -> bool:
    return await ring.decrypt(value, context=WHERE) == "secret"


async def test_of_two_first_starts_one_creates_the_keys_and_both_use_them(store: Store) -> None:
    other: list[AesKeyRing] = []

    async def start_another() -> None:
        other.append(await store.open())

    store.trace.before("metadata.commit", 1, start_another)
    first = await store.open()
    assert await opens(first, encrypted(other[0]))
    assert await opens(other[0], encrypted(first))
    assert (await store.record()).version == 1


async def test_the_record_holds_no_key_in_clear(store: Store) -> None:
    ring = await store.open()
    content = msgspec.json.encode(await store.record())
    for key in (ROOT, OTHER):
        assert key not in content
        assert b64encode(key) not in content
    record = await store.record()
    assert record.root == Root(ROOT).fingerprint
    assert record.keys[0].fingerprint == ring.fingerprints()[0]


async def test_a_process_with_another_root_key_is_refused_by_fingerprints(store: Store) -> None:
    await store.open()
    with pytest.raises(Unavailable) as refused:
        await store.open(OTHER)
    text = str(refused.value)
    assert Root(ROOT).fingerprint in text
    assert Root(OTHER).fingerprint in text
    assert "encryption_key" in text
    for key in (ROOT, OTHER):
        assert b64encode(key).decode() not in text
        assert key.hex() not in text


async def test_a_wrapped_key_that_was_changed_is_refused(store: Store) -> None:
    await store.open()
    record = await store.record()
    swapped = msgspec.structs.replace(record.keys[0], wrapped=record.wrapped_link_secret)
    await store.metadata.commit(msgspec.structs.replace(record, keys=(swapped,)))
    with pytest.raises(Unavailable, match="damaged"):
        await store.open()


async def test_links_of_every_process_are_signed_with_one_secret_through_rotations(
    store: Store,
) -> None:
    async def secret(*roots: bytes) -> bytes:
        record = KeyRecord(store.metadata, store.clock, RootKeys(*roots))
        await record.open()
        return record.link_secret

    ring = await store.open()
    first = await secret(ROOT)
    assert len(first) == 32
    await rotate(ring)
    assert await secret(ROOT) == first
    await rotate(await store.open(OTHER, ROOT))
    assert await secret(OTHER) == first


async def rotate(ring: AesKeyRing) -> str:
    """As the rotation does, without other processes."""
    new, *_ = await ring.publish()
    await ring.promote(new)
    await ring.retire(new)
    return new


async def test_a_published_key_decrypts_everywhere_before_it_encrypts_anywhere(
    store: Store,
) -> None:
    one, two = await store.open(), await store.open()
    before = encrypted(one)
    [new] = await one.publish()
    assert one.fingerprints()[0] != new
    assert new in one.fingerprints()
    assert new not in two.fingerprints()
    await two.reload()
    assert new in two.fingerprints()
    assert two.is_current(before)
    await one.promote(new)
    assert one.fingerprints()[0] == new
    after = encrypted(one)
    assert await opens(two, after)
    await two.reload()
    assert two.is_current(after)
    assert await opens(two, before)


async def test_an_unknown_key_is_loaded_at_once(store: Store) -> None:
    one, two = await store.open(), await store.open()
    await rotate(one)
    after = encrypted(one)
    store.trace.forget()
    assert await opens(two, after)
    assert await opens(two, after)
    assert store.trace.calls == ["metadata.get(EncryptionKeys)"]


async def test_a_value_under_no_stored_key_is_not_decrypted(store: Store) -> None:
    ring = await store.open()
    with pytest.raises(Unavailable):
        await ring.decrypt(AesKeyRing(OTHER).encrypt("secret", context=WHERE), context=WHERE)


async def test_a_process_that_was_stopped_loads_the_keys_before_it_writes(store: Store) -> None:
    one, two = await store.open(), await store.open()
    new = await rotate(one)
    async with two.writing():  # no longer than a moment behind
        assert two.fingerprints()[0] != new
    store.clock.advance(timedelta(seconds=FRESH))
    async with two.writing():
        assert two.fingerprints()[0] == new
    store.clock.advance(timedelta(seconds=FRESH))
    store.trace.broken["metadata.get(EncryptionKeys)"] = Unavailable("away")
    with pytest.raises(Unavailable):
        async with two.writing():
            pass


async def test_a_process_names_the_old_key_first_until_its_writers_have_ended(
    store: Store,
) -> None:
    one, two = await store.open(), await store.open()
    old = two.fingerprints()[0]
    async with two.writing():
        new = await rotate(one)
        await two.reload()
        assert two.is_current(encrypted(two))
        assert two.fingerprints()[0] == old
        async with two.writing():
            assert two.fingerprints()[0] == old
    assert two.fingerprints()[0] == new


async def test_an_old_answer_does_not_bring_an_old_key_back(store: Store) -> None:
    one, two = await store.open(), await store.open()
    names = await one.publish()

    async def promoted_meanwhile() -> None:
        await one.promote(names[0])
        await two.reload()

    store.trace.after("metadata.get(EncryptionKeys)", 1, promoted_meanwhile)
    await two.reload()
    assert two.fingerprints()[0] == names[0]


async def test_nor_does_one_that_waited_for_kms(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    two, one = await store.open(), await store.open(ROOT, in_kms="kms:a")
    await rotate(one)  # from here on KMS wraps the root key
    monkeypatch.setattr(FakeKms, "asked", 0)
    unwrap, later = FakeKms.unwrap, list[str]()

    async def slow_once(self: FakeKms, stored: bytes) -> bytes:
        key = await unwrap(self, stored)
        if not later:
            later.append(await rotate(one))
            await two.reload()
        return key

    monkeypatch.setattr(FakeKms, "unwrap", slow_once)
    await two.reload()
    assert two.fingerprints()[0] == later[0]


async def test_two_rotations_at_the_same_time_are_one(store: Store) -> None:
    one, two = await store.open(), await store.open()
    first, second = await asyncio.gather(one.publish(), two.publish())
    assert first == second
    await one.promote(first[0])
    await two.promote(first[0])
    assert await store.states() == [KeyState.OLD, KeyState.CURRENT]
    await one.retire(first[0])
    await two.retire(first[0])
    assert await store.states() == [KeyState.RETIRED, KeyState.CURRENT]


async def test_a_rotation_that_comes_late_retires_nothing_of_the_next_one(store: Store) -> None:
    one, two = await store.open(), await store.open()
    first = await rotate(one)
    [second] = await two.publish()
    await two.promote(second)
    await one.retire(first)
    assert KeyState.OLD in await store.states()
    with pytest.raises(Conflict):
        await one.promote(first)


async def test_a_retired_key_decrypts_for_a_day(store: Store) -> None:
    ring = await store.open()
    before = encrypted(ring)
    await rotate(ring)
    store.clock.advance(timedelta(days=1) - SECOND)
    assert not await ring.has_expired_keys()
    await ring.drop_expired_keys()
    assert await opens(await store.open(), before)
    store.clock.advance(SECOND)
    assert await ring.has_expired_keys()
    await ring.drop_expired_keys()
    assert await store.states() == [KeyState.CURRENT]
    with pytest.raises(Unavailable):
        await (await store.open()).decrypt(before, context=WHERE)
    assert await opens(ring, before), "it was read, and not opened yet"


async def test_the_root_key_is_replaced_and_the_earlier_one_is_of_no_use(store: Store) -> None:
    before = encrypted(await store.open())
    both = await store.open(OTHER, ROOT)
    assert await opens(both, before)
    names = await both.publish()
    assert names[1:] == [f"root:{Root(OTHER).fingerprint}"]
    assert {*names} <= {*both.fingerprints()}
    assert not {*names} <= {*(await store.open()).fingerprints()}, "which lacks the new root key"
    await both.promote(names[0])
    assert (await store.record()).root == Root(OTHER).fingerprint
    assert await opens(await store.open(OTHER), before)
    with pytest.raises(Unavailable):
        await store.open(ROOT)
    assert await both.publish() == [names[0]], "nothing is left to await but the key"


async def test_kms_wraps_the_root_key_and_is_asked_once(store: Store) -> None:
    one = await store.open(in_kms="kms:a")
    record = await store.record()
    assert record.provider == "kms:a"
    assert record.wrapped_root
    FakeKms.asked = 0
    two = await store.open(in_kms="kms:a")
    await rotate(one)
    assert await opens(two, encrypted(one))
    assert FakeKms.asked == 1


async def test_the_root_key_moves_to_kms_and_back(store: Store) -> None:
    before = encrypted(await store.open())
    moving = await store.open(ROOT, in_kms="kms:a")
    assert "root:kms:a" in await moving.publish()
    await rotate(moving)
    assert (await store.record()).provider == "kms:a"
    assert await opens(await store.open(in_kms="kms:a"), before)
    assert await opens(await store.open(in_kms="kms:alias"), before), "the record names its own"
    back = await store.open(ROOT)
    await rotate(back)
    assert (await store.record()).provider == ""
    assert (await store.record()).wrapped_root == b""
    assert await opens(await store.open(), before)


# The file that processes share.


def test_of_processes_that_create_the_file_one_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "new" / "root.key"
    with ThreadPoolExecutor(8) as pool:
        keys = [*pool.map(lambda _: tuple(read_root_file(path, create=True)), range(32))]
    assert len({*keys}) == 1
    assert [*path.parent.iterdir()] == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_may_hold_the_new_key_and_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    path.write_text(f"{b64encode(ROOT).decode()}\n{b64encode(OTHER).decode()}\n")
    assert read_root_file(path, create=True) == [ROOT, OTHER]


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff\xfe", b64encode(b"x" * 31)])
def test_a_malformed_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "root.key"
    path.write_bytes(content)
    with pytest.raises(RefusedToStart, match=r"root\.key"):
        read_root_file(path, create=True)
    assert path.read_bytes() == content


def test_a_missing_file_is_created_only_when_it_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(RefusedToStart, match="No such file"):
        read_root_file(tmp_path / "root.key", create=False)


def test_a_key_is_parsed_strictly() -> None:
    assert parse_key(b64encode(ROOT).decode()) == ROOT
    for bad in ("", "x", b64encode(b"x" * 33).decode(), "é" * 44, ROOT.hex()):
        assert parse_key(bad) is None
