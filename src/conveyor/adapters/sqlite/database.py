"""One SQLite file: a lock, one writer thread that commits in groups, readers beside it.

All writes go through one thread on one connection, which alone checkpoints. Whatever is waiting
when it comes round is committed together, so one sync serves hundreds of callers.
"""

import asyncio
import fcntl
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Generic, TypeVar

import apsw

from conveyor.errors import ConveyorError, RefusedToStart, StorageFull, Unavailable

T = TypeVar("T")
Operation = Callable[[apsw.Connection], T]

MOST_GROUPED = 512
READERS = 2
PRIVATE = 0o600
OLDEST_SAFE = 3_051_003  # SQLite before 3.51.3 can corrupt a WAL


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


class Durability(StrEnum):
    """What an acknowledged write survives: a power cut, or the end of the process only."""

    POWER = "power"
    PROCESS = "process"


class Database:
    """Reads and writes of one open file. Make it with `open_database`."""

    def __init__(self, path: Path, durability: Durability | None) -> None:
        """Without a durability there is no writing."""
        self._path = path
        self._writer = _Writer(_connect(path), durability) if durability else None
        self._near = _connect(path, read_only=True)
        self._local = threading.local()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="sqlite-read")
        self._reading: list[apsw.Connection] = []

    async def write(self, operation: Operation[T], *, lazy: bool = False) -> T:
        """Run an operation in a transaction of its own, committed with its neighbours'.

        It may be run twice, of which one at most takes effect: it must do nothing but its
        statements. A lazy one lasts through the end of the process at once, through a power
        cut from the next write on that is not lazy: for what means nothing without that write.
        """
        if self._writer is None:
            raise Unavailable("sqlite: the data folder is open for reading only")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._writer.put(_Job(operation, future, lazy=lazy))
        return await future

    def peek(self, operation: Operation[T]) -> T:
        """A point read, here and now: it is shorter than the way to another thread."""
        with own_errors():
            return operation(self._near)

    async def read(self, operation: Operation[T]) -> T:
        """A read of many rows, on a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, self._read_here, operation
        )

    def close(self) -> None:
        if self._writer:
            self._writer.close()
        self._readers.shutdown()
        for connection in (*self._reading, self._near):
            connection.close()
        if self._writer:
            self._writer.connection.close()

    def _read_here(self, operation: Operation[T]) -> T:
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = _connect(self._path, read_only=True)
            self._local.connection = connection
            self._reading.append(connection)
        with own_errors():
            return operation(connection)


@asynccontextmanager
async def open_database(
    folder: Path, *, durability: Durability = Durability.POWER
) -> AsyncIterator[Database]:
    """Own a data folder: lock it, bring its schema up to date, open it."""
    if apsw.SQLITE_VERSION_NUMBER < OLDEST_SAFE:
        raise RefusedToStart(f"SQLite {apsw.sqlite_lib_version()} is too old; upgrade apsw")
    with _locked(folder):
        path = folder / "conveyor.db"
        with own_errors():
            _make_private(path)
            _migrate(path)
            database = Database(path, durability)
        try:
            yield database
        finally:
            database.close()


@asynccontextmanager
async def visit_database(folder: Path, *, writable: bool) -> AsyncIterator[Database]:
    """Open a data folder that has no owner, just as it stands: nothing is made or brought up to
    date. The lock is held meanwhile, so that no service begins to work on it.
    """
    path = folder / "conveyor.db"
    if not path.exists():
        raise RefusedToStart(
            f"there is no data of Conveyor in {folder}: name its folder by --data, or start the "
            "service once, which makes it"
        )
    with _locked(folder):
        with own_errors():
            _check_schema(path)
            database = Database(path, Durability.POWER if writable else None)
        try:
            yield database
        finally:
            database.close()


def owner_of(folder: Path) -> str | None:
    """The process that holds a data folder; None when nobody does."""
    try:
        descriptor = os.open(folder / "conveyor.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _told_owner(descriptor)
    finally:
        os.close(descriptor)
    return None


@contextmanager
def own_errors() -> Iterator[None]:
    """Let no driver error out of this package."""
    try:
        yield
    except apsw.FullError as error:
        raise StorageFull(f"sqlite: {error}") from error
    except AWAY as error:
        raise Unavailable(f"sqlite: {error}") from error


class _Job(Generic[T]):
    """An operation on its way to the writer, and who waits for it."""

    __slots__ = ("error", "future", "lazy", "operation", "result")

    def __init__(self, operation: Operation[T], future: "asyncio.Future[T]", *, lazy: bool) -> None:
        self.operation = operation
        self.future = future
        self.lazy = lazy
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self, connection: apsw.Connection) -> None:
        self.error = None
        try:
            with own_errors():
                self.result = self.operation(connection)
        except Exception as error:  # noqa: BLE001 - a bug is its caller's, not the thread's end
            self.error = error

    def resolve(self) -> None:
        if self.future.done():  # the caller was cancelled meanwhile
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]


class _Writer:
    """The thread that writes. Operations that wait together are committed together."""

    def __init__(self, connection: apsw.Connection, durability: Durability) -> None:
        self.connection = connection
        self._may_sync = durability is Durability.POWER
        self._syncs = False
        self._waiting: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sqlite-write", daemon=True)
        self._thread.start()

    def put(self, job: "_Job[T]") -> None:
        self._waiting.put(job)  # type: ignore[arg-type]

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            group, last = self._gather(first)
            self._commit(group)
            loop = group[0].future.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, group)
            if last:
                return

    def _gather(self, first: "_Job[object]") -> tuple[list["_Job[object]"], bool]:
        group = [first]
        while len(group) < MOST_GROUPED:
            try:
                job = self._waiting.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return group, True
            group.append(job)
        return group, False

    def _commit(self, group: list["_Job[object]"]) -> None:
        self._set_sync(wanted=self._may_sync and not all(job.lazy for job in group))
        if len(group) > 1 and self._commit_together(group):
            return
        for job in group:
            self._commit_alone(job)

    def _set_sync(self, *, wanted: bool) -> None:
        """Whether the next commit waits for the disk, which then has all earlier ones too."""
        if wanted is not self._syncs:
            self.connection.pragma("synchronous", "FULL" if wanted else "NORMAL")
            self._syncs = wanted

    def _commit_together(self, group: list["_Job[object]"]) -> bool:
        """One transaction for all, a savepoint for each. False when SQLite undid it all."""
        connection = self.connection
        try:
            with own_errors():
                connection.execute("BEGIN IMMEDIATE")
                for job in group:
                    connection.execute("SAVEPOINT one")
                    job.run(connection)
                    if not connection.in_transaction:
                        return False
                    connection.execute(
                        "ROLLBACK TO one; RELEASE one" if job.error else "RELEASE one"
                    )
                connection.execute("COMMIT")
        except (ConveyorError, apsw.Error):
            _undo(connection)
            return False
        return True

    def _commit_alone(self, job: "_Job[object]") -> None:
        connection = self.connection
        try:
            with own_errors():
                connection.execute("BEGIN IMMEDIATE")
                job.run(connection)
                if job.error is None:
                    connection.execute("COMMIT")
        except (ConveyorError, apsw.Error) as error:
            job.error = error
        _undo(connection)


def _resolve(group: "list[_Job[object]]") -> None:
    for job in group:
        job.resolve()


def _undo(connection: apsw.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


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
    """Hold the folder's lock: its holder knows that every earlier owner is dead."""
    descriptor = _open_lock(folder)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedToStart(
                f"the data folder {folder} is in use by process {_told_owner(descriptor)}: stop that one first, "
                "or choose another folder with --data"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _make_private(path: Path) -> None:
    """Make the file, for its owner alone. SQLite gives its log and its index the same mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    except OSError as error:
        raise Unavailable(f"sqlite: {error}") from error
    for part in ("", "-wal", "-shm"):  # an earlier release left them open to others
        with suppress(OSError):
            Path(f"{path}{part}").chmod(PRIVATE)


def _told_owner(descriptor: int) -> str:
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


def _check_schema(path: Path) -> None:
    connection = _connect(path, read_only=True)
    try:
        have = connection.pragma("user_version")
    finally:
        connection.close()
    known = migrations()
    _refuse_newer(path, have, known[-1][0])
    if have < known[-1][0]:
        raise RefusedToStart(
            f"{path} was written by an older Conveyor (schema {have} of {known[-1][0]}): start the "
            "service once, which brings it up to date"
        )


def _refuse_newer(path: Path, have: int, newest: int) -> None:
    if have > newest:
        raise RefusedToStart(
            f"{path} was written by a newer Conveyor (schema {have}, known to {newest}): "
            "upgrade, or choose another folder with --data"
        )


def _migrate(path: Path) -> None:
    connection = _connect(path)
    try:
        have = connection.pragma("user_version")
        known = migrations()
        _refuse_newer(path, have, known[-1][0])
        for version, script in known:
            if version > have:
                connection.execute(
                    f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {version}; COMMIT"
                )
    finally:
        connection.close()
