"""One moment of a SQLite file, read while another process writes to it."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from conveyor.adapters.shared.disk import PRIVATE

PAGES = 2_000  # copied between two reports
PATIENCE = 60_000  # milliseconds for a lock
FILES = "SELECT locator FROM task WHERE locator >= 'file:' AND locator < 'file;'"
SEGMENTS = "SELECT no, covered FROM segment ORDER BY no"


class Snapshot:
    """A read transaction, which sees the file as it was when it began."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        page, pages = connection.pragma("page_size"), connection.pragma("page_count")
        self.size = int(page) * int(pages)

    def copy_to(self, path: Path, on_bytes: Callable[[int], None]) -> None:
        """Copy the file, and end; `on_bytes` gets the bytes that are copied so far."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
        with (
            closing(apsw.Connection(str(path))) as copy,
            copy.backup("main", self._connection, "main") as backup,
        ):
            while not backup.done:
                backup.step(PAGES)
                on_bytes(self.size * (backup.page_count - backup.remaining) // backup.page_count)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        self._connection.execute("ROLLBACK")

    def file_bodies(self) -> Iterator[str]:
        """The paths, below `bodies`, of the results that are files or in one, once for each row."""
        for (locator,) in self._connection.execute(FILES):
            yield str(locator).removeprefix("file:").partition("#")[0]

    def segments(self) -> dict[int, int]:
        """How far each segment is covered, of an index of segments."""
        return {int(no or 0): int(end or 0) for no, end in self._connection.execute(SEGMENTS)}


@contextmanager
def snapshot(path: Path) -> Iterator[Snapshot]:
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        connection.set_busy_timeout(PATIENCE)
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM sqlite_master").fetchall()  # which begins it indeed
        yield Snapshot(connection)


@contextmanager
def without_commits(path: Path) -> Iterator[None]:
    """Keep every process from committing to a file; writers wait meanwhile, for up to 5 seconds."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        connection.set_busy_timeout(PATIENCE)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")
