"""Start `python -m conveyor` warm: as a fork of a process that has already imported Conveyor.

Importing Conveyor takes 0.7 s of CPU, and `make test` starts it hundreds of times. Each process
that runs tests keeps one launcher, a process without threads that has everything imported. It
receives arguments, environment, working directory and the three standard streams over a socket
and forks twice. The process in the middle exits, so the kernel makes the program a child of the
process that runs the tests (a "subreaper"): signals, `wait` and exit codes work as usual.

A cold start is used where the environment could change what Python or an import does, and
everywhere when COLD_STARTS is set, as `make test-long` does.
"""

import ctypes
import gc
import importlib
import inspect
import io
import os
import pkgutil
import random
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

COLD = "COLD_STARTS"
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
PROGRAM = [sys.executable, "-m"]
# With the engines for tests, and their server.
MODULES = ("conveyor", "conveyor.testing", "conveyor.testing.shared")
SIGNATURE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
UNUSUAL = ("executable", "preexec_fn", "pass_fds", "shell", "gid", "gids", "uid")
LENGTH = struct.Struct("!I")
MOST_FILES = 1_024
# What the interpreter, the C library and the imports read before the program runs.
READ_AT_START = ("PYTHON", "LC_", "LD_", "LANG", "MALLOC_", "FORCE_COLOR", "TERMINAL_WIDTH")
NOT_PRELOADED = (
    *(f"{module}.__main__" for module in MODULES),
    "conveyor.testing.contracts",
    "conveyor.adapters.aws",
)
ALSO_PRELOADED = ("uvicorn", "uvicorn.lifespan.on", "uvloop", "zoneinfo", "multiprocessing.util")


class Order(msgspec.Struct, frozen=True):
    module: str
    arguments: list[str]
    folder: str
    environ: dict[str, str]
    new_session: bool


class WarmPopen(subprocess.Popen[Any]):
    """`subprocess.Popen` that forks Conveyor from the launcher, and starts the rest as ever."""

    def _execute_child(self, *given: Any) -> None:
        wanted = SIGNATURE.bind(self, *given).arguments
        if not _can_be_warm(wanted):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        module, *arguments = map(os.fspath, wanted["args"][len(PROGRAM) :])
        order = Order(
            module=module,
            arguments=arguments,
            folder=str(Path(wanted["cwd"] or ".").resolve()),
            environ=dict(wanted["env"] or os.environ),
            new_session=bool(wanted["start_new_session"]),
        )
        ends = [wanted[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        streams = [own if end < 0 else end for own, end in enumerate(ends)]
        self.pid = _launcher().start(order, streams)
        self._child_created = True
        self._close_pipe_fds(*(wanted[name] for name in PIPES))  # type: ignore[attr-defined]


def start_warm() -> None:
    """Let this process start Conveyor warm from now on, where the system can."""
    if sys.platform != "linux" or os.environ.get(COLD):
        return
    ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)
    subprocess.Popen = WarmPopen  # type: ignore[misc]


def _can_be_warm(wanted: Mapping[str, Any]) -> bool:
    args, environ = wanted["args"], wanted["env"]
    return (
        isinstance(args, list)
        and [str(one) for one in args[: len(PROGRAM)]] == PROGRAM
        and args[len(PROGRAM)] in MODULES
        and not any(wanted[name] for name in UNUSUAL)
        and (environ is None or _early(environ) == _early(os.environ))
    )


def _early(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(READ_AT_START)}


class _Launcher:
    """The other end of the socket, one at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            # Never waited for: it ends when this process does and the socket closes.
            self._process = _cold_popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.DEVNULL,
            )
        self._turn = threading.Lock()

    def start(self, order: Order, streams: Sequence[int]) -> int:
        message = msgspec.json.encode(order)
        with self._turn:
            socket.send_fds(self._socket, [LENGTH.pack(len(message))], list(streams))
            self._socket.sendall(message)
            [pid] = LENGTH.unpack(_received(self._socket, LENGTH.size))
        return int(pid)


_cold_popen = subprocess.Popen
_launchers: dict[int, _Launcher] = {}


def _launcher() -> _Launcher:
    """The launcher of this process: a fork of it must not use its parent's."""
    if os.getpid() not in _launchers:
        _launchers[os.getpid()] = _Launcher()
    return _launchers[os.getpid()]


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the launcher of warm programs has ended")
        data += more
    return data


# The launcher itself.


def launch(connection: socket.socket) -> str:
    """Fork a program for each order; returns the module to run in the program, ready to run."""
    _preload()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the programs and the tests
    while True:
        header, streams, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
        if not header:
            sys.exit()
        order = msgspec.json.decode(_received(connection, LENGTH.unpack(header)[0]), type=Order)
        pid = _fork_twice()
        if not pid:
            connection.close()
            _become(order, streams)
            return order.module
        for stream in streams:
            os.close(stream)
        connection.sendall(LENGTH.pack(pid))


def _fork_twice() -> int:
    """The id of the grandchild; 0 in it."""
    out, into = os.pipe()
    if middle := os.fork():
        os.waitpid(middle, 0)  # by now the grandchild has its new parent
        pid = int.from_bytes(os.read(out, 8))
        os.close(out)
        os.close(into)
        return pid
    if pid := os.fork():
        os.write(into, pid.to_bytes(8))
        os._exit(0)
    return 0


def _become(order: Order, streams: Sequence[int]) -> None:
    """Make this process what an interpreter would be that was started for the order."""
    if order.new_session:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, MOST_FILES)
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environ)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    sys.path[0] = order.folder
    sys.argv = ["conveyor", *order.arguments]
    sys.stdin = sys.__stdin__ = _stream(0, sys.stdin)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, sys.stderr)  # type: ignore[misc]


def _stream(number: int, like: Any) -> io.TextIOWrapper:
    raw = open(number, "wb" if number else "rb", closefd=False)  # noqa: SIM115
    by_line = number == 2 or os.isatty(number)
    return io.TextIOWrapper(raw, encoding=like.encoding, errors=like.errors, line_buffering=by_line)


def _preload() -> None:
    for name in (*_modules(), *ALSO_PRELOADED):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it shares


def _modules() -> Iterator[str]:
    package = importlib.import_module("conveyor")
    for module in pkgutil.walk_packages(package.__path__, "conveyor."):
        if not module.name.startswith(NOT_PRELOADED):
            yield module.name


if __name__ == "__main__":
    started = launch(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(started, run_name="__main__", alter_sys=True)
