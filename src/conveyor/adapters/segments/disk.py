"""Errors, whole writes and synced folders for segments and their index."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from conveyor.errors import StorageFull, Unavailable

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# Errors that the disk or another program causes. Any other error of the driver is a bug here.
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
def own_errors() -> Iterator[None]:
    """Translate errors of the system and the driver into those of Conveyor."""
    try:
        yield
    except apsw.FullError as error:
        raise StorageFull(f"segments: {error}") from error
    except AWAY as error:
        raise Unavailable(f"segments: {error}") from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise StorageFull(f"segments: {error.strerror}") from error
        raise Unavailable(f"segments: {error.strerror or error}") from error


def write_all(descriptor: int, content: bytes, at: int) -> None:
    """Write all of it: a single write may be short when the disk fills up."""
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written


def sync_folder(path: Path) -> None:
    """Sync a folder, so that the names in it survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, sync: bool) -> None:
    """Create a folder and its parents; with `sync`, each survives a power cut."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    if sync:
        for one in missing:
            sync_folder(one.parent)
