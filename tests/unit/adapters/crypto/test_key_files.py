"""Encrypted credentials, and the files their key is in."""

import asyncio
import json
import os
import stat
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from conveyor.adapters.crypto.key_files import KeyFiles, PlainKeyProvider
from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.errors import RefusedToStart, Unavailable
from conveyor.ports.encryption import KeyProvider

OLD, NEW = b"o" * 32, b"n" * 32
WHERE = "caller|job"


class Died(BaseException):
    """The process ended here."""


class FakeKeyProvider:
    """Wraps by adding a word in front; what another key provider wrapped it does not know."""

    def __init__(self, name: str) -> None:
        self._word = name.encode()

    async def new_key(self) -> tuple[bytes, bytes]:
        key = os.urandom(32)
        return key, self._word + key

    async def unwrap(self, stored: bytes) -> bytes:
        if not stored.startswith(self._word):
            raise Unavailable("not mine")
        return stored.removeprefix(self._word)


def providers(name: str) -> KeyProvider:
    return PlainKeyProvider() if name == "file:" else FakeKeyProvider(name)


def files(folder: Path, encryption: str = "file:") -> KeyFiles:
    return KeyFiles(folder, encryption, providers)


async def ring_of(folder: Path) -> AesKeyRing:
    found = files(folder)
    return AesKeyRing(*await found.load(), store=found)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def encrypted_by_the_first_version(key: bytes, secret: str, context: str) -> bytes:
    nonce = bytes(12)
    return b"\x01" + nonce + AESGCM(key).encrypt(nonce, secret.encode(), context.encode())


async def test_what_is_encrypted_opens_in_its_own_place_only() -> None:
    encryption = AesKeyRing(NEW)
    encrypted = encryption.encrypt("secret", context=WHERE)
    assert await encryption.decrypt(encrypted, context=WHERE) == "secret"
    assert b"secret" not in encrypted
    for elsewhere in ("caller|other", "other|job", ""):
        with pytest.raises(Unavailable):
            await encryption.decrypt(encrypted, context=elsewhere)


async def test_no_bit_of_it_can_be_changed() -> None:
    encryption = AesKeyRing(NEW)
    encrypted = encryption.encrypt("secret", context=WHERE)
    for place in range(len(encrypted)):
        changed = bytearray(encrypted)
        changed[place] ^= 1
        with pytest.raises(Unavailable):
            await encryption.decrypt(bytes(changed), context=WHERE)
    for length in range(len(encrypted)):
        with pytest.raises(Unavailable):
            await encryption.decrypt(encrypted[:length], context=WHERE)


def test_the_same_secret_never_looks_the_same() -> None:
    encryption = AesKeyRing(NEW)
    assert len({encryption.encrypt("secret", context=WHERE) for _ in range(100)}) == 100


async def test_the_first_version_opens_with_whichever_key_made_it() -> None:
    for key in (OLD, NEW):
        encrypted = encrypted_by_the_first_version(key, "secret", WHERE)
        encryption = AesKeyRing(OLD, NEW)
        assert await encryption.decrypt(encrypted, context=WHERE) == "secret"
        assert not encryption.is_current(encrypted)
        with pytest.raises(Unavailable):
            await encryption.decrypt(encrypted, context="caller|other")


async def test_the_last_key_encrypts_and_all_decrypt() -> None:
    encrypted = AesKeyRing(OLD).encrypt("secret", context=WHERE)
    both = AesKeyRing(OLD, NEW)
    assert await both.decrypt(encrypted, context=WHERE) == "secret"
    assert not both.is_current(encrypted)
    encrypted_again = both.encrypt("secret", context=WHERE)
    assert both.is_current(encrypted_again)
    assert await AesKeyRing(NEW).decrypt(encrypted_again, context=WHERE) == "secret"
    with pytest.raises(Unavailable):
        await AesKeyRing(NEW).decrypt(encrypted, context=WHERE)


async def test_a_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    [key] = await files(folder).load()
    assert [key] == await files(folder).load()
    assert (folder / "encryption.key").read_bytes() == key
    assert modes(folder) == {"encryption.key": 0o600}


async def test_a_change_keeps_both_keys_until_the_old_one_is_forgotten(tmp_path: Path) -> None:
    encryption = await ring_of(tmp_path)
    before = encryption.encrypt("secret", context=WHERE)
    await encryption.promote("")
    after = encryption.encrypt("secret", context=WHERE)
    assert encryption.is_current(after)
    assert not encryption.is_current(before)
    again = await ring_of(tmp_path)
    assert (
        await again.decrypt(before, context=WHERE)
        == await again.decrypt(after, context=WHERE)
        == "secret"
    )
    await again.promote("")  # which goes on with the change that was begun
    assert again.is_current(after)
    await again.retire("")
    await again.retire("")
    assert await again.decrypt(before, context=WHERE) == "secret", "it was read, and not opened yet"
    at_last = await ring_of(tmp_path)
    assert await at_last.decrypt(after, context=WHERE) == "secret"
    with pytest.raises(Unavailable):
        await at_last.decrypt(before, context=WHERE)
    assert set(modes(tmp_path).values()) == {0o600}


# Every call to the system that a change makes.
CALLS: tuple[tuple[object, str], ...] = (
    (os, "open"),
    (os, "write"),
    (os, "fsync"),
    (os, "close"),
    (Path, "rename"),
    (Path, "unlink"),
)


@contextmanager
def dying_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Die just before the nth call to the system; tells how many there were."""
    made = 0

    def doomed(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal made
            made += 1
            if made == number:
                raise Died
            return original(*given, **named)

        return call

    with monkeypatch.context() as patch:
        for owner, name in CALLS:
            patch.setattr(owner, name, doomed(getattr(owner, name)))
        # In this thread, so that nothing but the change is counted.
        patch.setattr(asyncio, "to_thread", _here)
        yield lambda: made


async def _here(function: Callable[..., Any], *given: Any) -> Any:
    return function(*given)


async def test_a_death_at_any_point_of_a_change_loses_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, survived = 0, False
    while not survived:
        number += 1
        folder = tmp_path / str(number)
        encryption = await ring_of(folder)
        before = encryption.encrypt("secret", context=WHERE)
        with dying_at(number, monkeypatch) as calls:
            try:
                await encryption.promote("")
                after = encryption.encrypt("secret", context=WHERE)
                survived = calls() < number
            except Died:
                after = before
        next_life = await ring_of(folder)
        assert await next_life.decrypt(before, context=WHERE) == "secret", number
        assert await next_life.decrypt(after, context=WHERE) == "secret", number
        await next_life.promote("")
        assert await next_life.decrypt(before, context=WHERE) == "secret", number
        assert not next_life.is_current(before), number
        await next_life.retire("")
    assert number > 10


async def test_a_key_that_is_kept_otherwise_than_set_is_refused_and_can_be_replaced(
    tmp_path: Path,
) -> None:
    [plain] = await files(tmp_path).load()
    for now, then in (("kms:one", "file:"), ("kms:two", "kms:one"), ("file:", "kms:two")):
        with pytest.raises(RefusedToStart, match="rotate-encryption") as refused:
            await files(tmp_path, now).load()
        assert then in str(refused.value)
        moving = files(tmp_path, now)
        encryption = AesKeyRing(*await moving.load(any_provider=True), store=moving)
        encrypted = encryption.encrypt("secret", context=WHERE)
        await encryption.promote("")
        assert await encryption.decrypt(encrypted, context=WHERE) == "secret"
        assert len(await files(tmp_path, now).load()) == 2, "the old one opens while it is there"
        await encryption.retire("")
        assert len(await files(tmp_path, now).load()) == 1
    assert await files(tmp_path).load() != [plain]


async def test_a_wrapped_key_stands_nowhere_in_the_clear(tmp_path: Path) -> None:
    class Elsewhere(FakeKeyProvider):
        async def new_key(self) -> tuple[bytes, bytes]:
            return NEW, b"wrapped"

        async def unwrap(self, stored: bytes) -> bytes:
            assert stored == b"wrapped"
            return NEW

    kept = KeyFiles(tmp_path, "kms:x", Elsewhere)
    assert await kept.load() == [NEW] == await kept.load()
    assert NEW not in (tmp_path / "encryption.key").read_bytes()


async def test_the_key_files_of_version_0_1_0_are_renamed(tmp_path: Path) -> None:
    (tmp_path / "sealing.key").write_bytes(NEW)
    (tmp_path / "sealing.old.key").write_bytes(OLD)
    assert await files(tmp_path).load() == [OLD, NEW] == await files(tmp_path).load()
    assert {*modes(tmp_path)} == {"encryption.key", "encryption.old.key"}


async def test_a_wrapped_key_file_of_version_0_1_0_is_converted(tmp_path: Path) -> None:
    wrapped = b64encode(b"kms:x" + NEW).decode()
    (tmp_path / "sealing.key").write_text(json.dumps({"sealing": "kms:x", "wrapped": wrapped}))
    assert await files(tmp_path, "kms:x").load() == [NEW] == await files(tmp_path, "kms:x").load()
    assert {*modes(tmp_path)} == {"encryption.key"}


async def test_a_death_while_key_files_are_renamed_leaves_no_second_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, survived = 0, False
    while not survived:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "sealing.key").write_bytes(NEW)
        with dying_at(number, monkeypatch) as calls:
            try:
                await files(folder).load()
                survived = calls() < number
            except Died:
                pass
        assert await files(folder).load() == [NEW], number
        assert {*modes(folder)} == {"encryption.key"}, number
    assert number > 5


async def test_a_key_under_its_former_name_beside_another_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "sealing.key").write_bytes(OLD)
    (tmp_path / "encryption.key").write_bytes(NEW)
    assert await files(tmp_path).load() == [NEW]
    assert (tmp_path / "sealing.key").read_bytes() == OLD


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33, b'{"encryption":"kms:x"}', b"{}"])
async def test_a_file_that_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "encryption.key").write_bytes(content)
    with pytest.raises(RefusedToStart, match="backup"):
        await files(tmp_path).load()
    assert (tmp_path / "encryption.key").read_bytes() == content


async def test_a_provider_that_cannot_be_asked_leaves_all_as_it_was(tmp_path: Path) -> None:
    class Away(FakeKeyProvider):
        async def new_key(self) -> tuple[bytes, bytes]:
            raise Unavailable("away")

    await files(tmp_path, "kms:x").load()
    content = (tmp_path / "encryption.key").read_bytes()
    with pytest.raises(Unavailable):
        await KeyFiles(tmp_path, "kms:x", Away).promote()
    assert [*modes(tmp_path)] == ["encryption.key"]
    assert (tmp_path / "encryption.key").read_bytes() == content
