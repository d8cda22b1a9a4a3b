"""Sockets and notifications as systemd passes them: sd_listen_fds(3) and sd_notify(3)."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest

from tests.e2e.conftest import SHORT_GRACE

WITHIN = 200.0  # seconds
# The number of the process is known after the fork only, and the socket must be descriptor 3.
AS_SYSTEMD = 'export LISTEN_PID=$$; exec "${@:2}" 3<&"$1"'


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as one:
        yield one


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(tmp_path / "notify"))
        one.settimeout(WITHIN)
        yield one


def test_a_restart_refuses_no_connection(
    listening: socket.socket, supervisor: socket.socket, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/healthz"
    with _calling(url) as calls:
        for _ in range(3):
            with _started(listening, supervisor, tmp_path) as process:
                assert supervisor.recv(100) == b"READY=1"
                calls.wait_for_answers(5)
                process.send_signal(signal.SIGTERM)
                assert supervisor.recv(100) == b"STOPPING=1"
                assert process.wait(WITHIN) == 0
        with _started(listening, supervisor, tmp_path):
            assert supervisor.recv(100) == b"READY=1"
            calls.wait_for_answers(5)
            calls.stop()  # while its last one is answered
    assert calls.refused == []


def test_what_it_was_given_decides_who_may_use_the_service(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as reachable:
        command = _command(reachable, tmp_path)
        done = subprocess.run(
            command,
            pass_fds=(reachable.fileno(),),
            env=os.environ | {"LISTEN_FDS": "1"},
            capture_output=True,
            text=True,
            timeout=WITHIN,
            check=False,
        )
    assert done.returncode == 2
    assert "anyone could use this service on 0.0.0.0" in done.stderr


def test_a_socket_for_another_process_is_left_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = str(occupied.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "conveyor", "serve", "--port", port, "--data", str(tmp_path)],
            env=os.environ | {"LISTEN_FDS": "1", "LISTEN_PID": "1"},
            capture_output=True,
            text=True,
            timeout=WITHIN,
            check=False,
        )
    assert "cannot listen on" in done.stderr


class Calls:
    """New connections without a pause, each with one request."""

    def __init__(self, url: str) -> None:
        self.answered = 0
        self.refused: list[str] = []
        self._url = url
        self._stopping = Event()
        self._more = Event()
        self._thread = Thread(target=self._run)

    def wait_for_answers(self, count: int) -> None:
        enough = self.answered + count
        while self.answered < enough:
            assert self._more.wait(WITHIN)
            self._more.clear()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                httpx.get(self._url, timeout=WITHIN).raise_for_status()
            except httpx.ConnectError as error:
                self.refused.append(str(error))
            except httpx.TransportError:
                pass  # a connection that the process had accepted before it stopped
            else:
                self.answered += 1
                self._more.set()


@contextmanager
def _calling(url: str) -> Iterator[Calls]:
    calls = Calls(url)
    calls.start()
    try:
        yield calls
    finally:
        calls.stop()


@contextmanager
def _started(
    listening: socket.socket, supervisor: socket.socket, tmp_path: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    environ = {
        "LISTEN_FDS": "1",
        "LISTEN_FDNAMES": "conveyor.socket",
        "NOTIFY_SOCKET": supervisor.getsockname(),
    }
    process = subprocess.Popen(
        _command(listening, tmp_path / "data"),
        pass_fds=(listening.fileno(),),
        env=os.environ | SHORT_GRACE | environ,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _command(listening: socket.socket, data: Path) -> list[str]:
    program = [sys.executable, "-m", "conveyor", "serve", "--data", str(data)]
    return ["bash", "-c", AS_SYSTEMD, "bash", str(listening.fileno()), *program]
