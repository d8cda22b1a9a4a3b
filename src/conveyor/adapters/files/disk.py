"""Files and folders: whole writes, folders that appear and go, modes, free space."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from conveyor.adapters.shared.disk import PRIVATE, make_folder, own_errors, write_all
from conveyor.errors import NotFound

ENGINE = "files"  # the name in errors
CHUNK = 256 * 1024
MOST_TRIES = 10
OWNER_ONLY = 0o700
OTHERS = 0o077  # every permission of the group and of all other users

# Whether an unfinished file is, by the process that wrote it ("" if unknown) and its last write.
IsAbandoned = Callable[[str, datetime], bool]

T = TypeVar("T")


@contextmanager
def reading() -> Iterator[None]:
    """Translate errors of reading an object that may have been removed."""
    with own_errors(ENGINE):
        try:
            yield
        except FileNotFoundError as error:
            raise NotFound("The object is gone") from error


def write_new(path: str, content: bytes, *, sync: bool) -> None:
    """Write a file, and create its folder if needed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    # Not `Path.parent`, which costs more: this runs for every body.
    folder = os.path.dirname(path)  # noqa: PTH120
    descriptor = in_folder(folder, lambda: os.open(path, flags, PRIVATE), sync=sync)
    try:
        write_all(descriptor, content)
        if sync:
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def below(folder: Path, name: str) -> Path:
    """The path of a name in a folder. Names consist of ids; one that leads out of it is a bug."""
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"not a name below {folder}: {name!r}")
    return folder / name


def in_folder(folder: str | Path, create: Callable[[], T], *, sync: bool) -> T:
    """Create something in a folder, and the folder first if it is missing."""
    # In a loop, because another call that removes the last object of the folder removes the folder
    # too, maybe right after this call created it.
    for _ in range(MOST_TRIES):
        try:
            return create()
        except FileNotFoundError:
            make_folder(Path(folder), sync=sync)
    return create()


def remove_empty(folder: Path, *, up_to: Path) -> None:
    """Remove a folder and its parents, as far as they are empty, but not `up_to`."""
    while folder != up_to and up_to in folder.parents:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass  # go on: a process that was killed may have left the parent
        except OSError:
            return
        folder = folder.parent


def unfinished_prefix(owner: str) -> str:
    """Begin the name of a file that a process is writing. The rest of the name has no hyphen."""
    return f"{owner}-"


def remove_unfinished(file: Path, name: str, is_abandoned: IsAbandoned | None) -> None:
    """Remove a file that was not finished, if it is abandoned; in any case if that is None."""
    with own_errors(ENGINE), suppress(FileNotFoundError):  # its process has renamed or removed it
        if is_abandoned:
            written_at = datetime.fromtimestamp(file.stat().st_mtime, UTC)
            owner, hyphen, _ = name.rpartition("-")  # earlier releases wrote names without
            if not is_abandoned(owner if hyphen else "", written_at):
                return
        file.unlink()


def make_private(folder: Path) -> None:
    """Create a folder for its owner only, or take it from other users.

    They cannot reach what is in it then, whatever its mode.
    """
    folder.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
    with suppress(OSError):  # a folder of another user, or a file system without modes
        if is_open_to_others(folder):
            folder.chmod(OWNER_ONLY)


def is_open_to_others(folder: Path) -> bool:
    return bool(folder.stat().st_mode & OTHERS)


async def disk_usage(folder: Path) -> tuple[int, int]:
    """The free bytes and the size of the disk that a folder is on."""
    with own_errors(ENGINE):
        usage = await asyncio.to_thread(shutil.disk_usage, folder)  # may hang on a network disk
    return usage.free, usage.total


async def file_sizes(files: Mapping[str, Path]) -> dict[str, int]:
    """The length of each file; 0 for one that does not exist."""

    def lengths() -> dict[str, int]:
        return {name: path.stat().st_size if path.exists() else 0 for name, path in files.items()}

    with own_errors(ENGINE):
        return await asyncio.to_thread(lengths)
