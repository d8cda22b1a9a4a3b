"""What files and folders need to be trusted."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from conveyor.errors import NotFound, StorageFull, Unavailable

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
CHUNK = 256 * 1024
MOST_TRIES = 10

T = TypeVar("T")


@contextmanager
def reading() -> Iterator[None]:
    """As `own_errors`, of something that may be gone."""
    with own_errors():
        try:
            yield
        except FileNotFoundError as error:
            raise NotFound("The object is gone") from error


@contextmanager
def own_errors() -> Iterator[None]:
    """Let no operating system error out of this package."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise StorageFull(f"files: {error.strerror}") from error
        raise Unavailable(f"files: {error.strerror or error}") from error


def write_new(path: str, content: bytes, *, sync: bool) -> None:
    """Write a file, and its folder if need be."""
    descriptor = _open_new(path, sync=sync)
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


async def to_the_end(call: Callable[..., T], *given: object) -> T:
    """Run a call in a thread. A caller that is cancelled meanwhile waits for its end: a file must not be
    closed, nor its number given to another, while a thread is still about to write to it.
    """
    running = asyncio.ensure_future(asyncio.to_thread(call, *given))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def read_whole(path: Path) -> bytes | None:
    """All of a file; None when there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def sync_folder(path: Path) -> None:
    """Make the names in a folder last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def below(folder: Path, name: str) -> Path:
    """Where a name of ours stands. Names hold ids only; one that leads out of the folder is a bug."""
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"not a name below {folder}: {name!r}")
    return folder / name


def in_folder(folder: str | Path, create: Callable[[], T], *, sync: bool) -> T:
    """Create something in a folder, making it first if need be.

    More than once if need be: the call that removes a folder's last object removes the folder.
    """
    for _ in range(MOST_TRIES):
        try:
            return create()
        except FileNotFoundError:
            make_folder(Path(folder), sync=sync)
    return create()


def make_folder(folder: Path, *, sync: bool) -> None:
    """Make a folder and those above it, each to last through a power cut when `sync`."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    if sync:
        for one in missing:
            sync_folder(one.parent)


def remove_empty(folder: Path, *, up_to: Path) -> None:
    """Remove folders that have become empty, up to and without `up_to`.

    Those that are gone already too: a process that was killed may have left the one above.
    """
    while folder != up_to and up_to in folder.parents:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return
        folder = folder.parent


def _open_new(path: str, *, sync: bool) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    folder = os.path.dirname(path)  # noqa: PTH120
    return in_folder(folder, lambda: os.open(path, flags, 0o600), sync=sync)
