"""The table of engines: each row opens, runs through a contract, and is in the docs."""

import re
from base64 import b64encode
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from conveyor.adapters.aws.dynamodb.layout import table_definition
from conveyor.adapters.system.clock import SystemClock
from conveyor.app import rows as rows_module
from conveyor.app.engines import (
    OPTIONAL,
    SCHEMES,
    Engines,
    check_engines,
    open_engines,
    open_offline,
)
from conveyor.app.rows import TASKS, TaskEngine
from conveyor.app.schemes import Opening
from conveyor.errors import RefusedToStart
from conveyor.settings import Settings
from conveyor.testing.dynamodb.server import dynamodb_server
from tests.contracts.conftest import (
    BLOBS,
    BODIES,
    COORDINATION,
    ENGINES,
    QUEUES,
    S3_BLOBS,
    S3_BODIES,
)
from tests.harness.postgres import SERVERS, TestDatabases
from tests.harness.shared_engines import SharedEngines

ROOT = Path(__file__).parents[2]
# Kind of state -> the engines over which the contracts of its ports run.
CONTRACTS: Mapping[str, Mapping[str, object]] = {
    "metadata": {**ENGINES, **SERVERS, "dynamodb": "tests/contracts/test_dynamodb_metadata.py"},
    "tasks": {**ENGINES, **SERVERS, "dynamodb": "tests/aws/test_dynamodb_tasks.py"},
    "control_queue": {**ENGINES, **SERVERS, "sqs": "tests/aws/test_sqs_control_queue.py"},
    "queues": {"memory": QUEUES, "sqs": "tests/aws/test_sqs_queues.py"},
    "bodies": {**BODIES, **S3_BODIES},
    "blobs": {**BLOBS, **S3_BLOBS},
    "coordination": COORDINATION,
}
ROWS = [(kind, scheme) for kind, schemes in SCHEMES.items() for scheme in schemes]
# Addresses of engines that need one. Nothing listens there: an engine opens without its server.
ADDRESSES = {
    "redis": "//127.0.0.1:1",
    "rediss": "//127.0.0.1:1",
    "s3": "//bucket/prefix?region=eu-west-1",
    "sqs": "//prefix?region=eu-west-1",
}


async def _tasks_without_queue(opening: Opening, address: str) -> TaskEngine:
    rows = await opening.once(rows_module._sqlite, address)
    return TaskEngine(rows.tasks, None, rows.due_times, rows.dead_claims, rows.claims)


TASKS_WITHOUT_QUEUE = replace(
    TASKS["sqlite"], open=_tasks_without_queue, takes_queues=True, has_queue=False
)
KEY = b64encode(bytes(32)).decode()
every_row = pytest.mark.parametrize(("kind", "scheme"), ROWS)


def a_setting(kind: str, given: str, folder: Path | str = "data") -> Settings:
    return msgspec.structs.replace(Settings(data=str(folder)), **{kind: given})


def test_every_kind_is_a_port_and_a_setting_whose_default_is_in_the_table() -> None:
    assert SCHEMES.keys() <= {field.name for field in fields(Engines)}
    assert SCHEMES.keys() == CONTRACTS.keys()
    check_engines(Settings())


@every_row
async def test_every_scheme_opens(
    kind: str,
    scheme: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    if kind == "queues":
        monkeypatch.setitem(cast("Any", TASKS), "sqlite", TASKS_WITHOUT_QUEUE)
    async with AsyncExitStack() as server:
        address = ADDRESSES.get(scheme, "")
        if scheme == "dynamodb":
            # Its table is looked for at the start.
            served = await server.enter_async_context(dynamodb_server(SystemClock()))
            served.engine.execute("CreateTable", table_definition("conveyor"))
            address = f"//conveyor?endpoint={served.url}"
        settings = a_setting(kind, f"{scheme}:{address}", tmp_path)
        if scheme == "dynamodb" and kind != "coordination":
            settings = _on_dynamodb(f"dynamodb:{address}", tmp_path)
        if kind == "control_queue" and scheme in {"memory", "sqs"}:
            settings = SharedEngines(monkeypatch).settings(control_queue=f"{scheme}:{address}")
        if scheme == "postgresql":
            settings = await _on_postgres(request.getfixturevalue("postgres_18"), tmp_path)
        check_engines(settings)
        async with AsyncExitStack() as stack:
            engines = await open_engines(settings, stack)
            assert getattr(engines, kind) is not None
        if SCHEMES[kind][scheme].is_offline:
            async with open_offline(settings) as stores:
                assert getattr(stores, kind) is not None


async def _on_postgres(server: TestDatabases, folder: Path) -> Settings:
    """Settings with all rows on a server. They are read at the start, so it must be there."""
    url = await server.empty_url()
    return Settings(
        data=str(folder),
        encryption_key=(KEY,),
        metadata=url,
        tasks=url,
        control_queue=url,
        coordination=url,
        bodies=f"files:{folder}",
        blobs=f"files:{folder}",
    )


def _on_dynamodb(url: str, folder: Path) -> Settings:
    """Settings with metadata and tasks in a table, and messages in memory."""
    return Settings(
        encryption_key=(KEY,),
        metadata=url,
        tasks=url,
        control_queue="memory:",
        queues="memory:",
        bodies=f"files:{folder}",
        blobs=f"files:{folder}",
    )


@every_row
def test_every_scheme_runs_through_the_contracts_of_its_kind(kind: str, scheme: str) -> None:
    assert scheme in CONTRACTS[kind]


@every_row
def test_every_scheme_is_in_the_table_of_settings(kind: str, scheme: str) -> None:
    table = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert re.search(rf"^\| {kind} \|.*{scheme}:", table, re.MULTILINE)


@every_row
def test_every_scheme_has_its_storage_chapter(kind: str, scheme: str) -> None:
    del kind
    spec = (ROOT / "SPEC.md").read_text()
    assert scheme == "memory" or re.search(rf"^\| `{scheme}:`", spec, re.MULTILINE)


@pytest.mark.parametrize("kind", SCHEMES)
@pytest.mark.parametrize("given", ["", "nowhere:", "sqlite", "sqlite://here", "files:here", "s3:b"])
def test_a_refusal_says_what_must_hold_what_was_given_and_what_to_do(kind: str, given: str) -> None:
    if kind in OPTIONAL and not given:
        check_engines(a_setting(kind, given))
        return
    with pytest.raises(RefusedToStart) as refused:
        check_engines(a_setting(kind, given))
    told = str(refused.value)
    assert told.startswith(f"settings: {kind} must be ")
    assert f"got {given!r}: " in told
    assert all(f"{scheme}:" in told for scheme in SCHEMES[kind])


@pytest.mark.parametrize("role", ["api", "worker"])
def test_engines_of_one_process_are_refused_to_roles_that_share_them(role: str) -> None:
    with pytest.raises(RefusedToStart, match=rf"metadata must .*`conveyor {role}`, got 'sqlite:'"):
        check_engines(Settings(), sharing=role)


def test_a_password_in_an_address_is_not_shown() -> None:
    with pytest.raises(RefusedToStart) as refused:
        check_engines(a_setting("metadata", "redis://user:S3CRET@host/0"))
    assert "S3CRET" not in str(refused.value)
