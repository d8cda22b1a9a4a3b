"""What segments and their index need of the disk."""

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from conveyor.errors import StorageFull, Unavailable

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
PAGE = 4096
PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE

# What the disk or another program does to us, as against what we do wrong.
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
    """Let no error of the system or the driver out of this package."""
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
    """Write all of it: a single write may stop short when the disk runs full."""
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written


def sync_folder(path: Path) -> None:
    """Make the names in a folder last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, sync: bool) -> None:
    """Make a folder and those above it, each to last through a power cut when `sync`."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    if sync:
        for one in missing:
            sync_folder(one.parent)


def punch(descriptor: int, start: int, end: int) -> None:
    """Give whole pages between two places back to the file system, if it can take them: they
    read as zeros from then on, and the file keeps its length.
    """
    first, last = -(-start // PAGE) * PAGE, end // PAGE * PAGE
    if _fallocate and first < last:
        _fallocate(descriptor, PUNCH_HOLE, first, last - first)


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """The call of Linux, which Python does not offer. Where it fails, room is freed later."""
    if sys.platform != "linux":
        return None
    call = getattr(ctypes.CDLL(None), "fallocate64", None)
    if call:
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return call


_fallocate = _find_fallocate()
