"""Debian's PgBouncer in transaction mode, as a process in front of a PostgreSQL server."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from conveyor.adapters.postgres.address import PostgresAddress
from conveyor.testing.local.ports import free_port
from conveyor.testing.local.servers import server_user
from tests.harness.programs import STARTS_WITHIN

CONFIG = """
[databases]
* = host={host} port={server} user=conveyor

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""


@contextmanager
def pgbouncer(address: PostgresAddress, *, size: int = 4) -> Iterator[PostgresAddress]:
    """The address of a database through a pooler with so many connections to the server."""
    binary = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if binary is None:
        pytest.skip("there is no pgbouncer of Debian")
    port = free_port()
    given = CONFIG.format(host=address.host, server=address.port, port=port, size=size)
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # it refuses to run as root, and another user must reach its file
        (folder / "ini").write_text(given)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [binary, str(folder / "ini")], user=server_user(), stdout=log, stderr=log
            )
        try:
            _wait(process, folder / "log")
            yield replace(address, port=port, pooled=True)
        finally:
            process.kill()
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN
    while b"process up" not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(log.read_text())
        time.sleep(0.02)  # there is nothing to wait on: it only writes to its log
