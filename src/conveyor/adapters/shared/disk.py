"""Errors of disks and SQLite files, and writes that survive a power cut."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import apsw

from conveyor.errors import StorageFull, Unavailable

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
PRIVATE = 0o600

T = TypeVar("T")

# Errors that the disk or another program causes. Any other error of SQLite is a bug in Conveyor.
AWAY = (
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.CorruptError,
    apsw.IOError,
    apsw.LockedError,
    apsw.NotADBError,
    apsw.ReadOnlyError,
)


@contextmanager
def own_errors(engine: str) -> Iterator[None]:
    """Translate errors of the system and of SQLite into those of Conveyor."""
    try:
        yield
    except apsw.FullError as error:
        raise StorageFull(f"{engine}: {error}") from error
    except AWAY as error:
        raise Unavailable(f"{engine}: {error}") from error
    except OSError as error:
        kind = StorageFull if error.errno in NO_ROOM else Unavailable
        raise kind(f"{engine}: {error.strerror or error}") from error


def replace_file(path: Path, content: bytes, *, sync: bool) -> None:
    """Write a private file whole or not at all; with `sync`, it survives a power cut."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    try:
        os.write(descriptor, content)
        # Before the rename: otherwise a power cut may leave the name with no content behind it.
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(path)
    if sync:
        sync_folder(path.parent)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it: a single write may be short when the disk fills up."""
    written = os.write(descriptor, content)
    while written < len(content):
        written += os.write(descriptor, content[written:])


async def to_the_end(call: Callable[..., T], *given: object) -> T:
    """Run a call in a thread, and wait for its end even if the caller is cancelled.

    Otherwise the caller would close the file while the thread still writes to it, and the kernel may
    give the number of the descriptor to another file.
    """
    running = asyncio.ensure_future(asyncio.to_thread(call, *given))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def sync_folder(path: Path) -> None:
    """Sync a folder, so that the names in it survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, sync: bool) -> None:
    """Create a folder and its parents; with `sync`, they survive a power cut."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    if sync:
        for one in missing:
            sync_folder(one.parent)
