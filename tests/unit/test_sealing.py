"""Credentials under seal, and the files their key is in."""

import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from conveyor.adapters.crypto.key_files import KeyFiles, PlainVault
from conveyor.adapters.crypto.sealing import AesSealing
from conveyor.errors import RefusedToStart, Unavailable
from conveyor.ports.sealing import Vault

OLD, NEW = b"o" * 32, b"n" * 32
WHERE = "caller|job"


class Died(BaseException):
    """The process ended here."""


class FakeVault:
    """Wraps by adding a word in front; what another vault wrapped it does not know."""

    def __init__(self, name: str) -> None:
        self._word = name.encode()

    async def new(self) -> tuple[bytes, bytes]:
        key = os.urandom(32)
        return key, self._word + key

    async def open(self, kept: bytes) -> bytes:
        if not kept.startswith(self._word):
            raise Unavailable("not mine")
        return kept.removeprefix(self._word)


def vaults(name: str) -> Vault:
    return PlainVault() if name == "file:" else FakeVault(name)


def files(folder: Path, sealing: str = "file:") -> KeyFiles:
    return KeyFiles(folder, sealing, vaults)


async def sealing_of(folder: Path) -> AesSealing:
    found = files(folder)
    return AesSealing(*await found.load(), files=found)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def sealed_by_the_first_version(key: bytes, secret: str, context: str) -> bytes:
    nonce = bytes(12)
    return b"\x01" + nonce + AESGCM(key).encrypt(nonce, secret.encode(), context.encode())


def test_what_is_sealed_opens_in_its_own_place_only() -> None:
    sealing = AesSealing(NEW)
    sealed = sealing.seal("secret", context=WHERE)
    assert sealing.open(sealed, context=WHERE) == "secret"
    assert b"secret" not in sealed
    for elsewhere in ("caller|other", "other|job", ""):
        with pytest.raises(Unavailable):
            sealing.open(sealed, context=elsewhere)


def test_no_bit_of_it_can_be_changed() -> None:
    sealing = AesSealing(NEW)
    sealed = sealing.seal("secret", context=WHERE)
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(Unavailable):
            sealing.open(bytes(changed), context=WHERE)
    for length in range(len(sealed)):
        with pytest.raises(Unavailable):
            sealing.open(sealed[:length], context=WHERE)


def test_the_same_secret_never_looks_the_same() -> None:
    sealing = AesSealing(NEW)
    assert len({sealing.seal("secret", context=WHERE) for _ in range(100)}) == 100


def test_the_first_version_opens_with_whichever_key_made_it() -> None:
    for key in (OLD, NEW):
        sealed = sealed_by_the_first_version(key, "secret", WHERE)
        sealing = AesSealing(OLD, NEW)
        assert sealing.open(sealed, context=WHERE) == "secret"
        assert not sealing.is_current(sealed)
        with pytest.raises(Unavailable):
            sealing.open(sealed, context="caller|other")


def test_the_last_key_seals_and_the_others_open() -> None:
    sealed = AesSealing(OLD).seal("secret", context=WHERE)
    both = AesSealing(OLD, NEW)
    assert both.open(sealed, context=WHERE) == "secret"
    assert not both.is_current(sealed)
    anew = both.seal("secret", context=WHERE)
    assert both.is_current(anew)
    assert AesSealing(NEW).open(anew, context=WHERE) == "secret"
    with pytest.raises(Unavailable):
        AesSealing(NEW).open(sealed, context=WHERE)


async def test_a_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    [key] = await files(folder).load()
    assert [key] == await files(folder).load()
    assert (folder / "sealing.key").read_bytes() == key
    assert modes(folder) == {"sealing.key": 0o600}


async def test_a_change_keeps_both_keys_until_the_old_one_is_forgotten(tmp_path: Path) -> None:
    sealing = await sealing_of(tmp_path)
    before = sealing.seal("secret", context=WHERE)
    await sealing.turn()
    after = sealing.seal("secret", context=WHERE)
    assert sealing.is_current(after)
    assert not sealing.is_current(before)
    again = await sealing_of(tmp_path)
    assert again.open(before, context=WHERE) == again.open(after, context=WHERE) == "secret"
    await again.turn()  # which goes on with the change that was begun
    assert again.is_current(after)
    await again.forget()
    await again.forget()
    assert again.open(before, context=WHERE) == "secret", "it was read, and not opened yet"
    at_last = await sealing_of(tmp_path)
    assert at_last.open(after, context=WHERE) == "secret"
    with pytest.raises(Unavailable):
        at_last.open(before, context=WHERE)
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
        sealing = await sealing_of(folder)
        before = sealing.seal("secret", context=WHERE)
        with dying_at(number, monkeypatch) as calls:
            try:
                await sealing.turn()
                after = sealing.seal("secret", context=WHERE)
                survived = calls() < number
            except Died:
                after = before
        next_life = await sealing_of(folder)
        assert next_life.open(before, context=WHERE) == "secret", number
        assert next_life.open(after, context=WHERE) == "secret", number
        await next_life.turn()
        assert next_life.open(before, context=WHERE) == "secret", number
        assert not next_life.is_current(before), number
        await next_life.forget()
    assert number > 10


async def test_a_key_that_is_kept_otherwise_than_set_is_refused_and_can_be_replaced(
    tmp_path: Path,
) -> None:
    [plain] = await files(tmp_path).load()
    for now, then in (("kms:one", "file:"), ("kms:two", "kms:one"), ("file:", "kms:two")):
        with pytest.raises(RefusedToStart, match="rotate-sealing") as refused:
            await files(tmp_path, now).load()
        assert then in str(refused.value)
        moving = files(tmp_path, now)
        sealing = AesSealing(*await moving.load(anyhow=True), files=moving)
        sealed = sealing.seal("secret", context=WHERE)
        await sealing.turn()
        assert sealing.open(sealed, context=WHERE) == "secret"
        assert len(await files(tmp_path, now).load()) == 2, "the old one opens while it is there"
        await sealing.forget()
        assert len(await files(tmp_path, now).load()) == 1
    assert await files(tmp_path).load() != [plain]


async def test_a_wrapped_key_stands_nowhere_in_the_clear(tmp_path: Path) -> None:
    class Elsewhere(FakeVault):
        async def new(self) -> tuple[bytes, bytes]:
            return NEW, b"wrapped"

        async def open(self, kept: bytes) -> bytes:
            assert kept == b"wrapped"
            return NEW

    kept = KeyFiles(tmp_path, "kms:x", Elsewhere)
    assert await kept.load() == [NEW] == await kept.load()
    assert NEW not in (tmp_path / "sealing.key").read_bytes()


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33, b'{"sealing":"kms:x"}', b"{}"])
async def test_a_file_that_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sealing.key").write_bytes(content)
    with pytest.raises(RefusedToStart, match="backup"):
        await files(tmp_path).load()
    assert (tmp_path / "sealing.key").read_bytes() == content


async def test_a_vault_that_cannot_be_asked_leaves_all_as_it_was(tmp_path: Path) -> None:
    class Away(FakeVault):
        async def new(self) -> tuple[bytes, bytes]:
            raise Unavailable("away")

    await files(tmp_path, "kms:x").load()
    content = (tmp_path / "sealing.key").read_bytes()
    with pytest.raises(Unavailable):
        await KeyFiles(tmp_path, "kms:x", Away).turn()
    assert [*modes(tmp_path)] == ["sealing.key"]
    assert (tmp_path / "sealing.key").read_bytes() == content
