"""DynamoDB as the settings name it: `conveyor migrate`, opening, and refusals."""

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from conveyor.adapters.aws.dynamodb.address import TableAddress, parse_address
from conveyor.adapters.aws.dynamodb.coordination import DynamoDbCoordination
from conveyor.adapters.aws.dynamodb.task_engine import SETTLE_WAIT
from conveyor.adapters.system.clock import SystemClock
from conveyor.app import aws
from conveyor.app.engines import check_engines, open_engines
from conveyor.app.migrate import migrate, missing_migrations
from conveyor.app.steps import build_steps
from conveyor.errors import RefusedToStart, Unavailable
from conveyor.settings import Settings
from conveyor.telemetry.metrics import Metrics
from conveyor.testing.dynamodb.server import DynamoDbServer, dynamodb_server


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S3CRET")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def server() -> AsyncIterator[DynamoDbServer]:
    async with dynamodb_server(SystemClock()) as server:
        yield server


def settings_of(url: str, folder: Path, table: str = "conveyor") -> Settings:
    return Settings(data=str(folder), coordination=f"dynamodb://{table}?endpoint={url}")


async def test_a_table_is_created_once_and_then_opened(
    server: DynamoDbServer, tmp_path: Path
) -> None:
    settings = settings_of(server.url, tmp_path)
    lacking = [line async for line in missing_migrations(settings) if "dynamodb" in line[0]]
    first = [line async for line in migrate(settings) if "dynamodb" in line[0]]
    again = [line async for line in migrate(settings) if "dynamodb" in line[0]]

    assert lacking == [
        ("dynamodb://conveyor", "the table conveyor does not exist: run `conveyor migrate`")
    ]
    assert not [line async for line in missing_migrations(settings) if "dynamodb" in line[0]]
    assert [url for url, _ in first] == ["dynamodb://conveyor"] * 2
    assert first[0][1] == "created"
    assert again[0][1] == "exists"
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        assert isinstance(engines.coordination, DynamoDbCoordination)
        assert await engines.coordination.held("job:one") == 0


async def test_tasks_on_it_wait_to_share_a_settle(server: DynamoDbServer, tmp_path: Path) -> None:
    url = f"dynamodb://conveyor?endpoint={server.url}"
    settings = Settings(
        data=str(tmp_path),
        metadata=url,
        tasks=url,
        coordination=url,
        queues="memory:",
        control_queue="memory:",
        bodies=f"files:{tmp_path / 'shared'}",
        blobs=f"files:{tmp_path / 'shared'}",
        encryption=f"file:{tmp_path / 'shared.key'}",
    )
    assert [line async for line in migrate(settings)]
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        assert engines.settle_wait == SETTLE_WAIT
        dispatcher = build_steps(settings, engines, Metrics()).dispatcher
        assert dispatcher.config.settle_wait == SETTLE_WAIT


async def test_a_missing_table_is_refused_at_the_start(
    server: DynamoDbServer, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(
            RefusedToStart, match=r"table other does not exist: run `conveyor migrat"
        ):
            await open_engines(settings_of(server.url, tmp_path, "other"), stack)


async def test_a_service_opens_while_dynamodb_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws, "CHECKED_WITHIN", 0.1)
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings_of("http://127.0.0.1:1", tmp_path), stack)
        with pytest.raises(Unavailable, match="dynamodb PutItem") as told:
            await engines.coordination.notify("runs")
        assert "S3CRET" not in str(told.value)


async def test_without_botocore_the_refusal_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "conveyor.adapters.aws.credentials", None)
    async with AsyncExitStack() as stack:
        with pytest.raises(RefusedToStart, match=r"pip install 'conveyor-batch\[aws\]'"):
            await open_engines(settings_of("http://127.0.0.1:1", tmp_path), stack)


@pytest.mark.parametrize(
    ("text", "environ", "parsed"),
    [
        ("//conveyor", {}, TableAddress("conveyor")),
        ("//a.b_c-1", {"AWS_REGION": "eu-west-1"}, TableAddress("a.b_c-1", "", "eu-west-1")),
        (
            "//conveyor?endpoint=http://127.0.0.1:8000/",
            {},
            TableAddress("conveyor", "http://127.0.0.1:8000", "us-east-1"),
        ),
        (
            "//conveyor?region=eu-north-1",
            {"AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_DYNAMODB": "http://one"},
            TableAddress("conveyor", "http://one", "eu-north-1"),
        ),
    ],
)
def test_addresses_name_a_table_and_where_it_is(
    text: str, environ: dict[str, str], parsed: TableAddress
) -> None:
    assert parse_address(text, environ) == parsed


@pytest.mark.parametrize(
    "address",
    [
        "",
        "conveyor",
        "//",
        "//ab",
        "//a table",
        "//conveyor/x",
        "//conveyor#x",
        "//key:S3CRET@conveyor",
        "//conveyor?region=",
        "//conveyor?region=EU",
        "//conveyor?endpoint=ftp://x",
        "//conveyor?endpoint=http://id:S3CRET@host",
        "//conveyor?key=S3CRET",
    ],
)
def test_a_wrong_address_is_refused_without_its_secrets(address: str) -> None:
    with pytest.raises(RefusedToStart, match=r"dynamodb://table\[") as refused:
        check_engines(Settings(coordination=f"dynamodb:{address}"))
    assert "S3CRET" not in str(refused.value)
