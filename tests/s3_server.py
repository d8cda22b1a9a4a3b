"""S3 on this machine: SeaweedFS, a real server that checks signatures, one for all tests of a run.

It comes in a wheel. Without it tests that need it are skipped at home, and fail where `CI` is set.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import botocore.session
import msgspec
import pytest
from botocore.config import Config

from conveyor.adapters.s3.address import S3Address, parse_address
from conveyor.adapters.s3.bucket import S3Bucket
from conveyor.adapters.s3.credentials import Credentials
from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.adapters.system.clock import SystemClock
from conveyor.testing.local.ports import free_port
from tests.emulators import Emulator, missing, wait_for

WEED = Path(sys.executable).parent / "weed"
REGION = "us-east-1"
BUCKET = "conveyor-tests"
PARTS = ("master", "volume", "filer", "s3")
ONCE = Config(retries={"mode": "standard", "total_max_attempts": 2}, signature_version="s3v4")


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server that speaks S3, and the keys that it accepts."""

    url: str
    access_key: str = "test"
    secret_key: str = "test"

    @property
    def environ(self) -> Mapping[str, str]:
        """What leads any program that speaks to S3 here."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def address(self, *, bucket: str = BUCKET, **query: str) -> S3Address:
        """A place of its own in the bucket."""
        found = parse_address(self.new_address(bucket=bucket, **query), {})
        assert found
        return found

    def new_address(self, *, bucket: str = BUCKET, **query: str) -> str:
        """The address of a place of its own, as it follows `s3:`."""
        given = {"endpoint": self.url, "region": REGION} | query
        return f"//{bucket}/{uuid4().hex}?" + "&".join(f"{k}={v}" for k, v in given.items())

    def bucket(self, **query: str) -> S3Bucket:
        """A place of its own, opened."""
        keys = Keys(self.access_key, self.secret_key)
        clock = SystemClock()
        credentials = Credentials(lambda: keys, clock)
        credentials()
        return S3Bucket(self.address(**query), credentials, clock)

    def client(self) -> Any:
        """A client for what a test does beside the program."""
        return botocore.session.Session().create_client(
            "s3",
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=ONCE,
        )

    def keys(self, address: S3Address) -> list[str]:
        """Every key of a place, relative to it."""
        pages = self.client().get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=address.bucket, Prefix=address.prefix)
        return [
            one["Key"].removeprefix(address.prefix)
            for page in found
            for one in page.get("Contents", [])
        ]


class _Running(msgspec.Struct):
    """The server that the tests of a run share, as its file tells."""

    url: str
    process_id: int
    folder: str
    sockets: list[str]  # which it makes in /tmp, whatever it is told
    users: int = 0


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all workers of a run: the first that needs it starts it, the last ends it."""
    if not WEED.exists():
        missing("there is no weed: `make setup` brings SeaweedFS")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with _locked(shared / "seaweedfs") as state:
        running = _read(state) or _start()
        running.users += 1
        state.write_bytes(msgspec.json.encode(running))
    try:
        yield S3Server(running.url)
    finally:
        with _locked(shared / "seaweedfs") as state:
            now = _read(state)
            assert now
            now.users -= 1
            state.write_bytes(msgspec.json.encode(now))
            if not now.users:
                state.unlink()
                _end(now)
                shutil.rmtree(now.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def s3_of_ministack(ministack: Emulator) -> S3Server:
    return _with_bucket(S3Server(ministack.url))


@pytest.fixture(scope="session")
def s3_of_moto(moto: Emulator) -> S3Server:
    return _with_bucket(S3Server(moto.url))


def _with_bucket(server: S3Server) -> S3Server:
    server.client().create_bucket(Bucket=BUCKET)
    return server


@contextmanager
def seaweedfs_at(folder: Path) -> Iterator[S3Server]:
    """A server of one's own, for a benchmark."""
    process = _launch(folder)
    try:
        yield S3Server(process.url)
    finally:
        _end(process)


def _end(running: _Running) -> None:
    os.kill(running.process_id, signal.SIGKILL)
    for socket in running.sockets:
        Path(socket).unlink(missing_ok=True)


def _start() -> _Running:
    return _launch(Path(tempfile.mkdtemp(prefix="seaweedfs-")))


def _launch(folder: Path) -> _Running:
    """Start a server with a bucket, and wait until it answers."""
    keys = {"accessKey": "test", "secretKey": "test"}
    actions = ["Admin", "Read", "List", "Tagging", "Write"]
    config = {"identities": [{"name": "test", "credentials": [keys], "actions": actions}]}
    (folder / "s3.json").write_bytes(msgspec.json.encode(config))
    ports = {f"{part}.port{kind}": free_port() for part in PARTS for kind in ("", ".grpc")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                WEED,
                "server",
                f"-dir={folder}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                "-master.telemetry=false",
                "-master.volumeSizeLimitMB=256",
                "-volume.max=40",
                "-filer",
                f"-filer.localSocket={folder}/filer.sock",
                "-s3",
                f"-s3.config={folder}/s3.json",
                f"-s3.localSocket={folder}/s3.sock",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                *(f"-{name}={port}" for name, port in ports.items()),
            ],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,  # other workers use it when the one that started it has ended
        )
    wait_for(ports["s3.port"], process, folder / "log")
    process.returncode = 0  # else its end would be a warning: another worker may wait for it
    server = _with_bucket(S3Server(f"http://127.0.0.1:{ports['s3.port']}"))
    sockets = [f"/tmp/seaweedfs-{part}-grpc-{ports[f'{part}.port.grpc']}.sock" for part in PARTS]
    return _Running(server.url, process.pid, str(folder), sockets)


@contextmanager
def _locked(state: Path) -> Iterator[Path]:
    with state.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield state


def _read(state: Path) -> _Running | None:
    return msgspec.json.decode(state.read_bytes(), type=_Running) if state.exists() else None
