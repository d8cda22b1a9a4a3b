"""Advisory locks of folders, by which a backup in another process and the service keep out of each
other's way. The kernel frees the locks of a process that dies.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(folder: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Lock an existing folder, and yield whether that succeeded: without `wait` it may not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(descriptor, how if wait else how | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextmanager
def removing(folder: Path, *, locks: bool) -> Iterator[None]:
    """Remove files below a folder, but not while a backup links them, which takes seconds at most."""
    with ExitStack() as stack:
        if locks:
            with suppress(FileNotFoundError):  # then there is nothing to remove
                stack.enter_context(locked(folder, shared=True))
        yield
