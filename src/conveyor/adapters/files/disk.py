"""What files and folders need to be trusted."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conveyor.errors import NotFound, StorageFull, Unavailable

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
CHUNK = 256 * 1024


@contextmanager
def own_errors() -> Iterator[None]:
    """Let no operating system error out of this package."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound("The object is gone") from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise StorageFull(f"files: {error.strerror}") from error
        raise Unavailable(f"files: {error.strerror or error}") from error


def write_new(path: str, content: bytes, *, sync: bool) -> None:
    """Write a file, and its folder if need be."""
    descriptor = _open_new(path)
    try:
        write_all(descriptor, content)
        if sync:
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it: a single write may stop short when the disk runs full."""
    written = os.write(descriptor, content)
    while written < len(content):
        written += os.write(descriptor, content[written:])


def sync_folder(path: Path) -> None:
    """Make the names in a folder last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_new(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        return os.open(path, flags, 0o644)
