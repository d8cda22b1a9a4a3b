"""AWS on this machine: emulators as real processes on loopback, one of each for all tests.

They live in an environment of their own, `.venv-emulators`, that `make setup` brings. Without it
tests that need one are skipped at home, and fail where `CI` is set: nobody's run is green for
having skipped.
"""

import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import botocore.session
import msgspec
import pytest
from botocore.config import Config

from conveyor.testing.local.ports import free_port

CLOCK = Path(__file__).parent / "harness" / "emulator_clock.py"
FAUXQS = Path(__file__).parent / "harness" / "fauxqs"
PROGRAMS = Path(__file__).parent.parent / ".venv-emulators" / "bin"
STARTS_WITHIN = 180.0  # seconds, on a machine that is busy with other tests
REGION = "eu-west-1"
QUICK = Config(
    connect_timeout=60, read_timeout=120, retries={"mode": "standard", "total_max_attempts": 1}
)


@dataclass(frozen=True, slots=True)
class Emulator:
    """A process that answers as AWS does, for all services at one address."""

    name: str
    url: str
    ahead: Path = Path()  # holds by how much its SQS is ahead of the clock

    def pass_time(self, by: timedelta) -> None:
        """Set the clock of SQS ahead. The other services keep to that of the machine."""
        [ahead] = struct.unpack("d", self.ahead.read_bytes())
        # In place: the emulator has mapped the file.
        with self.ahead.open("r+b") as file:
            file.write(struct.pack("d", ahead + by.total_seconds()))

    @property
    def environ(self) -> Mapping[str, str]:
        """What leads any program that speaks to AWS here instead."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str) -> Any:
        """A client of one service, for what a test does beside the program."""
        return botocore.session.Session().create_client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=QUICK,
        )


@pytest.fixture(scope="session")
def ministack() -> Iterator[Emulator]:
    with a_ministack() as emulator:
        yield emulator


@contextmanager
def a_ministack() -> Iterator[Emulator]:
    port = free_port()
    environ = {"BIND_HOST": "127.0.0.1", "MINISTACK_HOST": "127.0.0.1", "GATEWAY_PORT": str(port)}
    with _running("ministack", [], port, environ) as emulator:
        yield emulator


@pytest.fixture(scope="session")
def moto() -> Iterator[Emulator]:
    port = free_port()
    with _running("moto_server", ["-H", "127.0.0.1", "-p", str(port)], port, {}) as emulator:
        # Else its state machines are told to have succeeded, and nothing is ever run.
        _post(emulator.url, "/moto-api/config", {"stepfunctions": {"execute_state_machine": True}})
        yield emulator


@pytest.fixture(scope="session")
def fauxqs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """SQS alone, from npm: a second opinion where there is Node."""
    if not (node := shutil.which("node")) or not (npm := shutil.which("npm")):
        pytest.skip("there is no Node for fauxqs")
    folder, port = tmp_path_factory.mktemp("fauxqs"), free_port()
    shutil.copytree(FAUXQS, folder, dirs_exist_ok=True)
    quiet = ["--no-audit", "--no-fund", "--silent"]
    if subprocess.run([npm, "install", *quiet], cwd=folder, check=False).returncode:
        missing("fauxqs cannot be installed with npm")
    (folder / "ahead").write_bytes(struct.pack("d", 0.0))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [node, "server.mjs", str(port), "ahead"], cwd=folder, stdout=log, stderr=log
        )
    try:
        wait_for(port, process, folder / "log")
        yield Emulator("fauxqs", f"http://127.0.0.1:{port}", folder / "ahead")
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(params=["ministack", "moto"])
def aws(request: pytest.FixtureRequest) -> Emulator:
    """Each emulator in turn."""
    emulator: Emulator = request.getfixturevalue(request.param)
    return emulator


@contextmanager
def _running(
    name: str, arguments: list[str], port: int, environ: Mapping[str, str]
) -> Iterator[Emulator]:
    """A process that is up, and that is ended by its id."""
    if not (PROGRAMS / name).exists():
        missing(f"there is no {name}: `make setup` brings the emulators of AWS")
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        ahead = Path(folder) / "ahead"
        ahead.write_bytes(struct.pack("d", 0.0))
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                [PROGRAMS / "python", CLOCK, name, *arguments],
                cwd=folder,
                env=_plain_environ() | {"TMPDIR": folder, "SQS_AHEAD": str(ahead)} | dict(environ),
                stdout=log,
                stderr=log,
            )
        try:
            wait_for(port, process, Path(folder) / "log")
            yield Emulator(name, f"http://127.0.0.1:{port}", ahead)
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def missing(why: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def _plain_environ() -> dict[str, str]:
    """Without what leads to a real account, or to another emulator's sources."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("AWS_") and name != "PYTHONPATH"
    }


def wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if _answers(port):
            return
        time.sleep(0.05)  # there is nothing to wait on: the port is not open yet
    raise RuntimeError(f"the emulator does not answer:\n{log.read_text()[-2000:]}")


def _answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()
    return True


def _post(url: str, path: str, body: object) -> None:
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=10)
    try:
        connection.request("POST", path, msgspec.json.encode(body))
        assert connection.getresponse().status < 300
    finally:
        connection.close()
