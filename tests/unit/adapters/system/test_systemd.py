"""What a socket unit may pass, and which addresses a supervisor may listen on.

`tests/e2e/test_systemd.py` starts the service as systemd does.
"""

import os
import socket
from pathlib import Path

import pytest

from conveyor.adapters.system import systemd
from conveyor.errors import RefusedToStart

WITHIN = 200.0  # seconds


def _pass(patch: pytest.MonkeyPatch, descriptor: int, count: str = "1") -> None:
    patch.setattr(systemd, "FIRST_INHERITED", descriptor)
    patch.setenv("LISTEN_PID", str(os.getpid()))
    patch.setenv("LISTEN_FDS", count)
    patch.setenv("LISTEN_FDNAMES", "conveyor.socket")


def test_the_socket_is_taken_once_and_no_child_is_told_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        _pass(monkeypatch, os.dup(listening.fileno()))
        taken = systemd.take_socket()
        assert taken is not None
        with taken:
            assert taken.getsockname() == listening.getsockname()
            assert not taken.get_inheritable()
    assert not {name for name in os.environ if name.startswith("LISTEN_")}
    assert systemd.take_socket() is None


@pytest.mark.parametrize("count", ["0", "2", ""])
def test_another_number_of_sockets_is_refused(count: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _pass(monkeypatch, -1, count)
    with pytest.raises(RefusedToStart, match="one ListenStream="):
        systemd.take_socket()


# The process ends with the refusal, and the socket with the process.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_socket_in_the_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        _pass(monkeypatch, os.dup(listening.fileno()))
        with pytest.raises(RefusedToStart, match="an address and a TCP port"):
            systemd.take_socket()


@pytest.mark.parametrize("kind", ["file", "abstract"])
def test_a_supervisor_is_told_at_its_address(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "notify") if kind == "file" else f"@conveyor-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.settimeout(WITHIN)
        supervisor.bind(address if kind == "file" else f"\0{address[1:]}")
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        systemd.notify("READY=1")
        assert supervisor.recv(100) == b"READY=1"
    systemd.notify("STOPPING=1")  # nothing listens any more
