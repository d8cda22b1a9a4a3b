"""Engines for processes of a service: embedded, those of AWS on this machine, or PostgreSQL.

Tests choose engines by fixtures alone.

| stack | processes | engines |
|---|---|---|
| `embedded` | one | SQLite and files |
| `aws`, `aws-ministack` | one | DynamoDB, the strict fake or ministack; S3, Valkey; queues in memory |
| `aws-cluster` | one api, two workers | DynamoDB and SQS of ministack, S3, Valkey |
| `postgres` | one api, two workers | PostgreSQL, S3 |
| `mixed` | one api, two workers | metadata on DynamoDB, tasks and the rest on PostgreSQL; S3 |
"""

import asyncio
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from uuid import uuid4

import pytest

from conveyor.testing.local.ports import free_port
from tests.emulators import REGION, Emulator
from tests.harness.postgres import TestDatabases, url_of
from tests.harness.programs import program
from tests.harness.valkey import Valkey, a_prefix
from tests.s3_server import S3Server

# Each with how many times as long a test may wait as on the embedded engines.
STACKS = {
    "embedded": 1.0,
    "aws": 3.0,
    "aws-ministack": 5.0,
    "aws-cluster": 8.0,
    "postgres": 3.0,
    "mixed": 3.0,
}
SHARED = {"aws-cluster", "postgres", "mixed"}  # by several processes
ROOT_KEY = b64encode(bytes(range(32))).decode()


@pytest.fixture(scope="session")
def dynamodb_url() -> Iterator[str]:
    """The strict fake of DynamoDB as a process."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    with program(["fake", "--port", str(port)], url, module="conveyor.testing.dynamodb"):
        yield url


def stack_environ(name: str, request: pytest.FixtureRequest) -> Mapping[str, str]:
    """The settings of a stack whose state is empty."""
    if name == "embedded":
        return {}
    storage: S3Server = request.getfixturevalue("seaweedfs")
    if name in {"postgres", "mixed"}:
        databases: TestDatabases = request.getfixturevalue("postgres_18")
        rows = url_of(asyncio.run(databases.create()))
        given = postgres_environ(storage, rows)
        if name == "mixed":
            table = _table_at(request.getfixturevalue("dynamodb_url"))
            given = {**given, "CONVEYOR_METADATA": table}
        migrate(given)
        return given
    valkey: Valkey = request.getfixturevalue("valkey")
    if name == "aws":
        url = request.getfixturevalue("dynamodb_url")
    else:
        emulator: Emulator = request.getfixturevalue("ministack")
        url = emulator.url
    environ = aws_environ(storage, valkey, url)
    if name == "aws-cluster":
        environ = {**environ, **engines_at(url, a_name())}
    migrate(environ)
    return environ


def aws_environ(storage: S3Server, valkey: Valkey, dynamodb_url: str) -> Mapping[str, str]:
    table = _table_at(dynamodb_url)
    address = storage.new_address()
    return {
        **storage.environ,
        "CONVEYOR_METADATA": table,
        "CONVEYOR_TASKS": table,
        "CONVEYOR_CONTROL_QUEUE": "memory:",
        "CONVEYOR_QUEUES": "memory:",
        "CONVEYOR_BODIES": f"s3:{address}",
        "CONVEYOR_BLOBS": f"s3:{address}",
        "CONVEYOR_COORDINATION": f"{valkey.url}?prefix={a_prefix()}",
        "CONVEYOR_ENCRYPTION_KEY": ROOT_KEY,
    }


def engines_at(url: str, name: str) -> dict[str, str]:
    """Settings of a table and of queues, at the URL of an emulator or of a proxy before it."""
    at = f"{name}?endpoint={url}&region={REGION}"
    return {
        "CONVEYOR_METADATA": f"dynamodb://{at}",
        "CONVEYOR_TASKS": f"dynamodb://{at}",
        "CONVEYOR_QUEUES": f"sqs://{at}",
        "CONVEYOR_CONTROL_QUEUE": f"sqs://{at}",
    }


def a_name() -> str:
    """Of a table, and before the names of queues."""
    return f"cluster-{uuid4().hex[:12]}"


def postgres_environ(storage: S3Server, rows: str) -> Mapping[str, str]:
    address = storage.new_address()
    return {
        **storage.environ,
        "CONVEYOR_METADATA": rows,
        "CONVEYOR_TASKS": rows,
        "CONVEYOR_CONTROL_QUEUE": rows,
        "CONVEYOR_COORDINATION": rows,
        "CONVEYOR_BODIES": f"s3:{address}",
        "CONVEYOR_BLOBS": f"s3:{address}",
        "CONVEYOR_ENCRYPTION_KEY": ROOT_KEY,
    }


def _table_at(dynamodb_url: str) -> str:
    return f"dynamodb://table-{uuid4()}?endpoint={dynamodb_url}&region=eu-west-1"


def migrate(environ: Mapping[str, str]) -> None:
    """Create what the engines need, as an operator does."""
    told = subprocess.run(
        [sys.executable, "-m", "conveyor", "migrate"],
        env={**os.environ, **environ},
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert b"debug" not in told.stdout + told.stderr
