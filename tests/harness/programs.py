"""Real processes of Conveyor, for the tests and the benchmarks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from conveyor.testing.local.ports import free_port

STARTS_WITHIN = 180.0  # seconds, on a machine that is busy with other tests
TICKS = os.sysconf("SC_CLK_TCK")


class Program:
    """A running `conveyor` process."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        self.process = process
        self.url = url

    @property
    def cpu(self) -> float:
        """CPU seconds used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def memory(self) -> float:
        """What it holds in memory, in MB."""
        return self._status("VmRSS")

    @property
    def peak_memory(self) -> float:
        """The most it ever held, in MB."""
        return self._status("VmHWM")

    def kill(self) -> None:
        """End it as a power cut of the process would: no warning, no clean-up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def _status(self, name: str) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith(name)]
        return int(line.split()[1]) / 1024


@contextmanager
def mock_gateway(*, port: int | None = None, log: Path | None = None) -> Iterator[Program]:
    port = port or free_port()
    with program(
        ["mock-gateway", "--port", str(port)], f"http://127.0.0.1:{port}/", log=log
    ) as one:
        yield one


@contextmanager
def service(
    *,
    data: Path,
    gateway: str,
    port: int | None = None,
    flags: tuple[str, ...] = (),
    environ: Mapping[str, str] | None = None,
    log: Path | None = None,
    role: str = "serve",
) -> Iterator[Program]:
    """`conveyor serve` on a free port; `url` is the base URL clients take."""
    port = port or free_port()
    command = [role, "--port", str(port), "--data", str(data), "--gateway", gateway, *flags]
    base = f"http://127.0.0.1:{port}/v1"
    with program(command, base, environ=environ, log=log) as one:
        yield one


@contextmanager
def program(
    arguments: list[str],
    url: str,
    *,
    environ: Mapping[str, str] | None = None,
    log: Path | None = None,
    module: str = "conveyor",
) -> Iterator[Program]:
    """Start a process, wait until it answers, and end it with SIGTERM."""
    with open(log or os.devnull, "ab") as sink:  # noqa: PTH123 - devnull is no Path
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stderr=sink,
            stdout=sink,
            env={**os.environ, **(environ or {})},
        )
        try:
            wait_for(url, process)
            yield Program(process, url)
        finally:
            process.terminate()
            process.wait()


def wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the program ended at once, with {process.returncode}")
        if _answers(url):
            return
        time.sleep(0.02)  # there is nothing to wait on: the port is not open yet
    raise RuntimeError(f"nothing answers at {url} after {STARTS_WITHIN:.0f} s")


def _answers(url: str) -> bool:
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=5)
    try:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()
    return True
