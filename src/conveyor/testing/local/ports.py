"""Loopback ports for programs that are started at the same time."""

import fcntl
import os
import socket
import tempfile
from pathlib import Path

PORTS = range(18_000, 32_000)  # below those that the system gives to outgoing connections
LAST_PORT = Path(tempfile.gettempdir()) / f"conveyor-last-port-{os.getuid()}"


def free_port() -> int:
    """A port that nobody listens on, and that no other process here was given a while ago.

    The system would hand a port out twice until somebody listens on it, which takes a program
    a second: two tests at a time would then talk to each other's programs.
    """
    with LAST_PORT.open("a+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        last.seek(0)
        port = int(last.read() or PORTS.start)
        while not _is_free(port := port + 1 if port + 1 in PORTS else PORTS.start):
            pass
        last.truncate(0)
        last.write(str(port))
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
