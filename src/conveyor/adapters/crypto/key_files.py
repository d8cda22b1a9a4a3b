"""Encryption keys in files of the data folder: in plain text, or wrapped by a key provider.

A file is written whole or not at all, and survives a power cut, because without its key every
credential that was encrypted with it is lost.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from conveyor.adapters.shared.disk import replace_file, sync_folder
from conveyor.errors import RefusedToStart, Unavailable
from conveyor.ports.encryption import KeyProvider

KEY_BYTES = 32
PLAIN = "file:"
CURRENT, OLD = "encryption.key", "encryption.old.key"
# What version 0.1.0 called these files; the first start after it renames them.
FORMER_NAMES = {"sealing.key": CURRENT, "sealing.old.key": OLD}
ROTATE = "`conveyor keys rotate-encryption`"


class WrappedKey(msgspec.Struct, frozen=True):
    """A key in wrapped form, and the setting that names its provider."""

    encryption: str
    wrapped: bytes


class FormerWrappedKey(msgspec.Struct, frozen=True):
    """A wrapped key as version 0.1.0 stored it."""

    sealing: str
    wrapped: bytes


class PlainKeyProvider:
    """Keys are stored as they are, in files that only their owner can read."""

    async def new_key(self) -> tuple[bytes, bytes]:
        key = os.urandom(KEY_BYTES)
        return key, key

    async def unwrap(self, stored: bytes) -> bytes:
        return stored


class KeyFiles:
    """The current key and, during a rotation, the old one beside it.

    A rotation first writes the old key under its second name, then the new key in its place. So at
    every moment each key that encrypted anything is in one of the files.
    """

    def __init__(
        self, folder: Path, encryption: str, providers: Callable[[str], KeyProvider]
    ) -> None:
        self._folder, self._encryption, self._providers = folder, encryption, providers

    async def load(self, *, any_provider: bool = False) -> list[bytes]:
        """Return the keys, the current one last; create it at first use.

        `RefusedToStart` when another provider wrapped the key than the settings name, unless
        `any_provider`: a rotation replaces it by one of theirs.
        """
        await asyncio.to_thread(_adopt, self._folder)
        content = await asyncio.to_thread(_read, self._folder / CURRENT)
        if content is None:
            return [await self._create()]
        if not any_provider:
            self._check_provider(content)
        old = await asyncio.to_thread(_read, self._folder / OLD)
        # Equal files: a rotation died between its two writes, so there is only one key.
        stored = [content] if old in {None, content} else [old or b"", content]
        return [await self._unwrap(one) for one in stored]

    @property
    def is_rotating(self) -> bool:
        """Whether a rotation was begun and has not ended."""
        return (self._folder / OLD).exists()

    # As the store of a key ring: the folder belongs to one process, which holds its lock.

    roots: Sequence[str] = ()

    def is_fresh(self) -> bool:
        return True

    async def reload(self) -> Sequence[bytes]:
        return ()

    async def publish(self) -> tuple[Sequence[str], Sequence[bytes]]:
        return (), ()

    async def promote(self, _fingerprint: str = "") -> Sequence[bytes]:
        """Begin a rotation, or continue one that was begun, and return the keys."""
        current = await asyncio.to_thread(_read, self._folder / CURRENT)
        old = await asyncio.to_thread(_read, self._folder / OLD)
        if current is None or old in {None, current}:
            created = await self._new_key()  # before any write, because the provider may fail
            if current is not None:
                await self._change(_write, OLD, current)
            await self._change(_write, CURRENT, created[1])
        return await self.load(any_provider=True)

    async def retire(self, _fingerprint: str = "") -> Sequence[bytes]:
        await self._change(_remove, OLD)
        return ()

    async def has_expired_keys(self) -> bool:
        return False

    async def drop_expired_keys(self) -> None:
        """Do nothing: `retire` has deleted the old key."""

    async def _change(self, change: Callable[..., None], name: str, *content: bytes) -> None:
        try:
            await asyncio.to_thread(change, self._folder / name, *content)
        except OSError as error:
            raise Unavailable(f"{name} cannot be changed: {error.strerror}") from None

    async def _create(self) -> bytes:
        key, content = await self._new_key()
        await asyncio.to_thread(_write, self._folder / CURRENT, content)
        return key

    async def _new_key(self) -> tuple[bytes, bytes]:
        """Return a key of the provider that the settings name, and the content of its file."""
        key, stored = await self._providers(self._encryption).new_key()
        if self._encryption == PLAIN:
            return key, stored
        return key, msgspec.json.encode(WrappedKey(self._encryption, stored))

    async def _unwrap(self, content: bytes) -> bytes:
        encryption, stored = _parsed(content)
        key = await self._providers(encryption).unwrap(stored)
        if len(key) != KEY_BYTES:
            raise Unavailable(f"a key of {encryption} must have {KEY_BYTES} bytes, got {len(key)}")
        return key

    def _check_provider(self, content: bytes) -> None:
        found, _ = _parsed(content)
        if found != self._encryption:
            raise RefusedToStart(
                f"settings: encryption must be {found!r}, which stored {self._folder / CURRENT}, "
                f"got {self._encryption!r}: set it to {found!r}, or run {ROTATE} with these "
                "settings, which replaces the key"
            )


def load_or_create_key(path: Path) -> bytes:
    """Return the plain key in a file; create it at first use, readable by its owner only."""
    content = _read(path)
    if content is None:
        content = os.urandom(KEY_BYTES)
        _write(path, content)
    if len(content) != KEY_BYTES:
        raise _broken(path)
    return content


def _parsed(content: bytes) -> tuple[str, bytes]:
    """Return the provider that stored the key of a file, and the form it stored."""
    if len(content) == KEY_BYTES:
        return PLAIN, content
    try:
        found = msgspec.json.decode(content, type=WrappedKey)
    except msgspec.MsgspecError:
        raise _broken(Path(CURRENT)) from None
    return found.encryption, found.wrapped


def _adopt(folder: Path) -> None:
    """Rename the key files of version 0.1.0. A crash leaves a file under both names, or one."""
    for former, name in FORMER_NAMES.items():
        content = _read(folder / former)
        if content is None:
            continue
        content = _converted(content)
        # Written before the former file is removed, so that a crash loses no key. A different file
        # under the new name is another key, and the former file is then left alone.
        if _read(folder / name) is None:
            _write(folder / name, content)
        if _read(folder / name) == content:
            _remove(folder / former)


def _converted(content: bytes) -> bytes:
    try:
        found = msgspec.json.decode(content, type=FormerWrappedKey)
    except msgspec.MsgspecError:
        return content  # a plain key, or one that loading refuses
    return msgspec.json.encode(WrappedKey(found.sealing, found.wrapped))


def _broken(path: Path) -> RefusedToStart:
    return RefusedToStart(
        f"{path} must hold a key of {KEY_BYTES} bytes or a wrapped key: restore it from a backup"
    )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RefusedToStart(f"{path} cannot be read: {error.strerror}") from None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content, sync=True)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_folder(path.parent)
