"""One SQLite file: a lock, one writer thread that commits in groups, readers beside it.

All writes go through one thread on one connection, which is the only one to checkpoint. It commits
everything that is waiting in one transaction, so one sync serves hundreds of callers.

| Invariant | Why |
|---|---|
| Each operation of a group has a savepoint | one that fails is rolled back alone |
| A group that fails as a whole is run again, one operation at a time | a caller sees only errors of its own operation |
| Futures are resolved after the commit | an answered write is durable |
| A group is synced unless all its operations are lazy | a sync also covers every lazy commit before it |
| A write with `then` is the last of its group | no operation runs between its commit and `then` |
"""

import asyncio
import fcntl
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from enum import StrEnum
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import apsw

from conveyor.adapters.shared.disk import PRIVATE, own_errors
from conveyor.adapters.shared.writer_thread import WriterCall, WriterThread
from conveyor.errors import ConveyorError, RefusedToStart, Unavailable

T = TypeVar("T")
Operation = Callable[[apsw.Connection], T]

ENGINE = "sqlite"  # the name in errors and of the thread
MOST_GROUPED = 512  # operations: bounds how long the first of a group waits for the last
READERS = 2
OLDEST_SAFE = 3_051_003  # SQLite before 3.51.3 can corrupt a WAL


class Durability(StrEnum):
    """What an acknowledged write survives: a power cut, or only the end of the process."""

    POWER = "power"
    PROCESS = "process"


class Database:
    """Reads and writes of one open file. `open_database` and `visit_database` make it."""

    def __init__(self, path: Path, durability: Durability | None) -> None:
        """Open the file; without a durability, for reading only."""
        self._path = path
        self._writer = _Writer(_connect(path), durability) if durability else None
        self._near = _connect(path, read_only=True)
        self._local = threading.local()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="sqlite-read")
        self._reading: list[apsw.Connection] = []

    async def write(
        self,
        operation: Operation[T],
        *,
        lazy: bool = False,
        then: Callable[[], None] | None = None,
    ) -> T:
        """Run an operation in a transaction that it may share with others.

        The operation may run twice, of which at most one run takes effect, so it must have no
        effect besides its statements. A lazy write survives the end of the process at once, and a
        power cut from the next write on that is not lazy: use it for rows that mean nothing without
        that later write. `then` is called in the writer thread, once, after the commit succeeded and
        before any later operation runs.
        """
        if self._writer is None:
            raise Unavailable("sqlite: the data folder is open for reading only")
        call = partial(operation, self._writer.connection)
        return await self._writer.do(_Write(call, lazy=lazy, then=then))

    def peek(self, operation: Operation[T]) -> T:
        """Run a point read in this thread: it takes less time than a switch to another thread."""
        with own_errors(ENGINE):
            return operation(self._near)

    async def read(self, operation: Operation[T]) -> T:
        """Run a read of many rows in a reader thread."""
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, self._read_here, operation
        )

    def close(self) -> None:
        if self._writer:
            self._writer.close()
        self._readers.shutdown()
        for connection in (*self._reading, self._near):
            connection.close()
        # Last, because the last connection to close checkpoints, and readers cannot.
        if self._writer:
            self._writer.connection.close()

    def _read_here(self, operation: Operation[T]) -> T:
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = _connect(self._path, read_only=True)
            self._local.connection = connection
            self._reading.append(connection)
        with own_errors(ENGINE):
            return operation(connection)


@asynccontextmanager
async def open_database(
    folder: Path, *, durability: Durability = Durability.POWER
) -> AsyncIterator[Database]:
    """Own a data folder: lock it, migrate its schema, open it."""
    if apsw.SQLITE_VERSION_NUMBER < OLDEST_SAFE:
        raise RefusedToStart(f"SQLite {apsw.sqlite_lib_version()} is too old; upgrade apsw")
    with _locked(folder):
        path = folder / "conveyor.db"
        with own_errors(ENGINE):
            _make_private(path)
            _migrate(path)
            database = Database(path, durability)
        with closing(database):
            yield database


@asynccontextmanager
async def visit_database(folder: Path, *, writable: bool) -> AsyncIterator[Database]:
    """Open a data folder that no process owns, and neither create nor migrate anything.

    The lock is held meanwhile, so that no service starts on it.
    """
    path = folder / "conveyor.db"
    if not path.exists():
        raise RefusedToStart(
            f"there is no data of Conveyor in {folder}: name its folder with --data, or start the "
            "service once, which creates it"
        )
    with _locked(folder):
        with own_errors(ENGINE):
            check_schema(path)
            database = Database(path, Durability.POWER if writable else None)
        with closing(database):
            yield database


def owner_of(folder: Path) -> str | None:
    """The id of the process that owns a data folder; None when no process does."""
    try:
        descriptor = os.open(folder / "conveyor.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _written_owner(descriptor)
    finally:
        os.close(descriptor)
    return None


class _Write(WriterCall[T]):
    __slots__ = ("lazy", "then")

    def __init__(
        self, call: Callable[[], T], *, lazy: bool, then: Callable[[], None] | None
    ) -> None:
        super().__init__(call)
        self.lazy = lazy
        self.then = then


class _Writer(WriterThread):
    """The thread that writes. Operations that wait together are committed together."""

    def __init__(self, connection: apsw.Connection, durability: Durability) -> None:
        self.connection = connection
        self._may_sync = durability is Durability.POWER
        self._syncs = False
        super().__init__(ENGINE)

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            group, last = self._gather(first)
            self._finish(group, self._write_all)
            if last:
                return

    def _gather(self, first: _Write[Any]) -> tuple[list[_Write[Any]], bool]:
        """The operations that wait by now, and whether the writer must stop after them.

        It never waits for more: while one group is committed, the next gathers by itself.
        """
        group = [first]
        while len(group) < MOST_GROUPED and group[-1].then is None:
            try:
                job = self._waiting.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return group, True
            group.append(job)
        return group, False

    def _write_all(self, group: list[_Write[Any]]) -> None:
        try:
            self._prepare(sync=self._may_sync and not all(job.lazy for job in group))
        except Unavailable as error:
            for job in group:
                job.error = error
            return
        self._commit(group)
        last = group[-1]
        if last.then is not None and last.error is None:
            last.then()

    def _prepare(self, *, sync: bool) -> None:
        """Set whether the next commit waits for the disk. A sync covers all earlier commits too."""
        _undo(self.connection)  # SQLite refuses the pragma inside a transaction
        if sync is not self._syncs:
            try:
                self.connection.pragma("synchronous", "FULL" if sync else "NORMAL")
            except apsw.Error as error:
                raise Unavailable(f"sqlite: {error}") from error
            self._syncs = sync

    def _commit(self, group: list[_Write[Any]]) -> None:
        if len(group) > 1 and self._commit_together(group):
            return
        for job in group:
            self._commit_alone(job)

    def _commit_together(self, group: list[_Write[Any]]) -> bool:
        """Commit all in one transaction; False when nothing was committed. Then the transaction may
        still be open: `_commit_alone` rolls it back.
        """
        connection = self.connection
        try:
            with own_errors(ENGINE):
                connection.execute("BEGIN IMMEDIATE")
                for job in group:
                    connection.execute("SAVEPOINT one")
                    self._make(job)
                    # On some errors, such as a full disk, SQLite rolls the whole transaction back,
                    # and with it the operations before this one.
                    if not connection.in_transaction:
                        return False
                    connection.execute(
                        "ROLLBACK TO one; RELEASE one" if job.error else "RELEASE one"
                    )
                connection.execute("COMMIT")
        except (ConveyorError, apsw.Error):
            return False
        return True

    def _commit_alone(self, job: _Write[Any]) -> None:
        connection = self.connection
        try:
            with own_errors(ENGINE):
                _undo(connection)
                connection.execute("BEGIN IMMEDIATE")
                self._make(job)
                if job.error is None:
                    connection.execute("COMMIT")
        except (ConveyorError, apsw.Error) as error:
            job.error = error
        with suppress(Unavailable):  # the next write tries it again before it begins
            _undo(connection)


def _undo(connection: apsw.Connection) -> None:
    """Roll back what a failed commit left open; `Unavailable` if SQLite cannot."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except apsw.Error as error:
        raise Unavailable(f"sqlite: {error}") from error


def _connect(path: Path, *, read_only: bool = False) -> apsw.Connection:
    flags = (
        apsw.SQLITE_OPEN_READONLY
        if read_only
        else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    )
    connection = apsw.Connection(str(path), flags=flags, statementcachesize=200)
    connection.set_busy_timeout(5000)
    if not read_only:
        connection.pragma("journal_mode", "WAL")
        connection.pragma("synchronous", "NORMAL")
        connection.pragma("wal_autocheckpoint", 4000)
    connection.pragma("cache_size", -32_000)
    connection.pragma("temp_store", "MEMORY")
    return connection


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. The kernel frees it when its holder dies, however it dies, so the
    next holder knows that every earlier owner is dead.
    """
    descriptor = _open_lock(folder)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedToStart(
                f"the data folder {folder} is in use by process {_written_owner(descriptor)}: stop it first, "
                "or choose another folder with --data"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _make_private(path: Path) -> None:
    """Create the file, readable by its owner only. SQLite gives its `-wal` and `-shm` the same mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    except OSError as error:
        raise Unavailable(f"sqlite: {error}") from error  # with the path, for the operator
    for part in ("", "-wal", "-shm"):  # an earlier release left them readable by others
        with suppress(OSError):
            Path(f"{path}{part}").chmod(PRIVATE)


def _written_owner(descriptor: int) -> str:
    return os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"


def _open_lock(folder: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(folder / "conveyor.lock", flags, PRIVATE)
    except OSError as error:
        raise RefusedToStart(
            f"the data folder {folder} cannot be used: {error.strerror}; choose another with --data"
        ) from None


def migrations() -> list[tuple[int, str]]:
    """(version, script) of each schema change, in order."""
    folder = files("conveyor.adapters.sqlite") / "migrations"
    scripts = sorted(
        (item for item in folder.iterdir() if item.name.endswith(".sql")),
        key=lambda item: item.name,
    )
    return [(int(item.name[:4]), item.read_text()) for item in scripts]


def missing_schema(folder: Path) -> list[int]:
    """The schema changes that a start would make to the database of a folder."""
    path = folder / "conveyor.db"
    have = _schema_version(path) if path.exists() else 0
    return [version for version, _ in migrations() if version > have]


def _schema_version(path: Path) -> int:
    with own_errors(ENGINE), closing(_connect(path, read_only=True)) as connection:
        return int(connection.pragma("user_version"))


def check_schema(path: Path) -> None:
    have = _schema_version(path)
    known = migrations()
    _refuse_newer(path, have, known[-1][0])
    if have < known[-1][0]:
        raise RefusedToStart(
            f"{path} was written by an older Conveyor (schema {have} of {known[-1][0]}): start the "
            "service once, which migrates it"
        )


def _refuse_newer(path: Path, have: int, newest: int) -> None:
    if have > newest:
        raise RefusedToStart(
            f"{path} was written by a newer Conveyor (schema {have}, known to {newest}): "
            "upgrade, or choose another folder with --data"
        )


def _migrate(path: Path) -> None:
    with closing(_connect(path)) as connection:
        have = connection.pragma("user_version")
        known = migrations()
        _refuse_newer(path, have, known[-1][0])
        for version, script in known:
            if version > have:
                # The version is part of the transaction: a crash leaves the old schema or the new.
                connection.execute(
                    f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {version}; COMMIT"
                )
