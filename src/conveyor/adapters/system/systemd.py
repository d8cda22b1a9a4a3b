"""systemd: the socket that it listens on for the service, and notifications of the service's state.

The protocols are those of sd_listen_fds(3) and sd_notify(3), which other supervisors speak too.
"""

import os
import socket
from contextlib import suppress

from conveyor.errors import RefusedToStart

FIRST_INHERITED = 3  # SD_LISTEN_FDS_START


def take_socket() -> socket.socket | None:
    """Return the socket that this process was started with; None if there is none.

    The variables are removed, so that no child takes them for its own.
    """
    process, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if process != str(os.getpid()):
        return None
    if count != "1":
        raise RefusedToStart(f"the socket unit must have one ListenStream=, got {count or 'none'}")
    inherited = socket.socket(fileno=FIRST_INHERITED)
    inherited.set_inheritable(False)
    if inherited.family not in {socket.AF_INET, socket.AF_INET6}:
        raise RefusedToStart("ListenStream= of the socket unit must be an address and a TCP port")
    return inherited


def notify(state: str) -> None:
    """Tell the supervisor about a state, such as READY=1, if it listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = f"\0{address[1:]}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor, suppress(OSError):
        supervisor.sendto(state.encode(), address)
