"""Keys in files of the data folder: in the clear, or wrapped by a vault elsewhere.

A file is there whole or not at all, and outlasts a power cut: whoever loses a key loses all that
was sealed with it.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from conveyor.errors import RefusedToStart, Unavailable
from conveyor.ports.sealing import Vault

KEY_BYTES = 32
IN_THE_CLEAR = "file:"
CURRENT, OLD = "sealing.key", "sealing.old.key"
ROTATE = "`conveyor keys rotate-sealing`"


class Kept(msgspec.Struct, frozen=True):
    """A key that does not stand in the clear: who wrapped it, and what it looks like then."""

    sealing: str
    wrapped: bytes


class PlainVault:
    """Keys are kept as they are, in files that only their owner can read."""

    async def new(self) -> tuple[bytes, bytes]:
        key = os.urandom(KEY_BYTES)
        return key, key

    async def open(self, kept: bytes) -> bytes:
        return kept


class KeyFiles:
    """The key that seals, and beside it the one before while rows are being sealed anew.

    The order of writes: the old key under its second name, then the new one in its place. So
    there is no moment at which a key that sealed anything is in neither file.
    """

    def __init__(self, folder: Path, sealing: str, vaults: Callable[[str], Vault]) -> None:
        self._folder, self._sealing, self._vaults = folder, sealing, vaults

    async def load(self, *, anyhow: bool = False) -> list[bytes]:
        """The keys that open, the one that seals last; made at first use.

        `RefusedToStart` when the key is not kept as the settings say, unless it is to be opened
        anyhow: to be replaced by one that is.
        """
        content = await asyncio.to_thread(_read, self._folder / CURRENT)
        if content is None:
            return [await self._make()]
        if not anyhow:
            self._check_form(content)
        old = await asyncio.to_thread(_read, self._folder / OLD)
        kept = [content] if old in {None, content} else [old or b"", content]
        return [await self._open(one) for one in kept]

    @property
    def is_turning(self) -> bool:
        """Whether a change of keys was begun and has not ended."""
        return (self._folder / OLD).exists()

    async def turn(self) -> list[bytes]:
        """The keys after a change was begun, or found begun."""
        current = await asyncio.to_thread(_read, self._folder / CURRENT)
        old = await asyncio.to_thread(_read, self._folder / OLD)
        if current is None or old in {None, current}:
            made = await self._new()  # first, for it may fail
            if current is not None:
                await self._change(_write, OLD, current)
            await self._change(_write, CURRENT, made[1])
        return await self.load(anyhow=True)

    async def forget(self) -> None:
        await self._change(_remove, OLD)

    async def _change(self, change: Callable[..., None], name: str, *content: bytes) -> None:
        try:
            await asyncio.to_thread(change, self._folder / name, *content)
        except OSError as error:
            raise Unavailable(f"{name} cannot be changed: {error.strerror}") from None

    async def _make(self) -> bytes:
        key, content = await self._new()
        await asyncio.to_thread(_write, self._folder / CURRENT, content)
        return key

    async def _new(self) -> tuple[bytes, bytes]:
        """A key as the settings want it, and what its file holds."""
        key, kept = await self._vaults(self._sealing).new()
        if self._sealing == IN_THE_CLEAR:
            return key, kept
        return key, msgspec.json.encode(Kept(self._sealing, kept))

    async def _open(self, content: bytes) -> bytes:
        sealing, kept = _parsed(content)
        key = await self._vaults(sealing).open(kept)
        if len(key) != KEY_BYTES:
            raise Unavailable(f"{sealing} gave a key of {len(key)} bytes, not {KEY_BYTES}")
        return key

    def _check_form(self, content: bytes) -> None:
        found, _ = _parsed(content)
        if found != self._sealing:
            raise RefusedToStart(
                f"settings: 'sealing' is {self._sealing!r}, and {self._folder / CURRENT} is kept by "
                f"{found!r}: run {ROTATE} with these settings, which replaces it by a new one, or "
                f"set 'sealing' to {found!r}"
            )


def load_or_make_key(path: Path) -> bytes:
    """The key in a file, in the clear; made at first use, readable by its owner only."""
    content = _read(path)
    if content is None:
        content = os.urandom(KEY_BYTES)
        _write(path, content)
    if len(content) != KEY_BYTES:
        raise _broken(path)
    return content


def _parsed(content: bytes) -> tuple[str, bytes]:
    """What keeps the key of a file, and in which form."""
    if len(content) == KEY_BYTES:
        return IN_THE_CLEAR, content
    try:
        kept = msgspec.json.decode(content, type=Kept)
    except msgspec.MsgspecError:
        raise _broken(Path(CURRENT)) from None
    return kept.sealing, kept.wrapped


def _broken(path: Path) -> RefusedToStart:
    return RefusedToStart(f"{path} is not a key of {KEY_BYTES} bytes: restore it from a backup")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RefusedToStart(f"{path} cannot be read: {error.strerror}") from None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(path)
    _sync_folder(path.parent)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
