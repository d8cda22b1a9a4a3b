"""Where the keys of a process come from: a data folder, the settings, a shared file."""

import asyncio
from base64 import b64encode
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.app.encryption import check_encryption, open_keys
from conveyor.app.engines import open_engines
from conveyor.domain.encryption_keys import RECORD, EncryptionKeys
from conveyor.errors import RefusedToStart
from conveyor.ports.encryption import KeyRing
from conveyor.settings import Settings
from conveyor.testing.clock import FakeClock
from conveyor.testing.memory.metadata import MemoryMetadata

KEY, OTHER = b64encode(b"k" * 32).decode(), b64encode(b"o" * 32).decode()
WHERE = "caller|job"


def settings(folder: Path, **given: object) -> Settings:
    return Settings(data=str(folder), durability="process", **given)  # type: ignore[arg-type]


async def embedded(chosen: Settings) -> tuple[KeyRing, bytes, EncryptionKeys | None]:
    """Start a service with these settings and stop it; its ring, link secret and record."""
    async with AsyncExitStack() as stack:
        engines = await open_engines(chosen, stack)
        record = await engines.metadata.get(EncryptionKeys, RECORD)
        return engines.encryption, engines.link_secret, record


def value(ring: KeyRing) -> bytes:
    return ring.encrypt("secret", context=WHERE)


async def opens(ring: KeyRing, encrypted: bytes) -> bool:
    return await ring.decrypt(encrypted, context=WHERE) == "secret"


async def test_the_keys_of_the_embedded_engines_stay_in_their_folder(tmp_path: Path) -> None:
    ring, links, record = await embedded(settings(tmp_path))
    assert record is None
    assert (tmp_path / "links.key").read_bytes() == links
    again, links_again, _ = await embedded(settings(tmp_path))
    assert await opens(again, value(ring))
    assert links_again == links


async def test_processes_without_a_folder_share_keys_and_links(tmp_path: Path) -> None:
    store, clock = MemoryMetadata(FakeClock()), FakeClock()
    nowhere = tmp_path / "missing"
    chosen = settings(nowhere, encryption_key=(KEY,))
    one, two = await asyncio.gather(
        *(open_keys(chosen, store, clock, is_shared=True) for _ in range(2))
    )
    assert await opens(two.ring, value(one.ring))
    assert two.link_secret == one.link_secret
    assert not nowhere.exists()


async def test_a_shared_file_is_created_once_and_then_required(tmp_path: Path) -> None:
    store, clock = MemoryMetadata(FakeClock()), FakeClock()
    path = tmp_path / "secrets" / "root.key"
    chosen = settings(tmp_path / "missing", encryption=f"file:{path}")
    one = await open_keys(chosen, store, clock, is_shared=True)
    two = await open_keys(chosen, store, clock, is_shared=True)
    assert await opens(two.ring, value(one.ring))
    path.unlink()
    with pytest.raises(RefusedToStart, match=r"root\.key"):
        await open_keys(chosen, store, clock, is_shared=True)
    assert not path.exists()


async def test_a_process_with_another_key_refuses_to_start(tmp_path: Path) -> None:
    store, clock = MemoryMetadata(FakeClock()), FakeClock()
    await open_keys(settings(tmp_path, encryption_key=(KEY,)), store, clock, is_shared=True)
    with pytest.raises(RefusedToStart, match="fingerprint") as refused:
        await open_keys(settings(tmp_path, encryption_key=(OTHER,)), store, clock, is_shared=True)
    assert KEY not in str(refused.value)
    assert OTHER not in str(refused.value)


def test_engines_that_processes_share_need_a_key_that_they_share(tmp_path: Path) -> None:
    with pytest.raises(RefusedToStart, match="encryption_key"):
        check_encryption(settings(tmp_path), is_shared=True)
    check_encryption(settings(tmp_path), is_shared=False)
    for given in ({"encryption_key": (KEY,)}, {"encryption": "file:/k"}, {"encryption": "kms:k"}):
        check_encryption(settings(tmp_path, **given), is_shared=True)


async def test_a_folder_that_is_given_a_root_key_keeps_its_credentials_and_links(
    tmp_path: Path,
) -> None:
    before, links, _ = await embedded(settings(tmp_path))
    encrypted = value(before)
    after, links_after, record = await embedded(settings(tmp_path, encryption_key=(KEY,)))
    assert record
    assert await opens(after, encrypted)
    assert isinstance(after, AesKeyRing)
    assert after.is_current(encrypted)
    assert links_after == links
    for name in ("encryption.key", "links.key"):
        (tmp_path / name).unlink()
    again, _, _ = await embedded(settings(tmp_path, encryption_key=(KEY,)))
    assert await opens(again, encrypted)


async def test_a_folder_with_a_record_does_not_open_without_its_root_key(tmp_path: Path) -> None:
    _, _, record = await embedded(settings(tmp_path, encryption_key=(KEY,)))
    assert record
    with pytest.raises(RefusedToStart, match=record.root):
        await embedded(settings(tmp_path))
    assert not (tmp_path / "encryption.key").exists()
