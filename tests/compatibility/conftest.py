from collections.abc import Iterator

import pytest
from zenrows.batch import ZenRowsBatchClient

from conveyor.testing.programs import Program, mock_gateway, service

FAST_RETRIES = {"CONVEYOR_RETRY_FIRST_DELAY": "50ms"}


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    data = tmp_path_factory.mktemp("data")
    with (
        mock_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=FAST_RETRIES) as program,
    ):
        yield program


@pytest.fixture
def client(running: Program) -> Iterator[ZenRowsBatchClient]:
    with ZenRowsBatchClient("an-api-key", base_url=running.url) as client:
        yield client


@pytest.fixture
def stranger(running: Program) -> Iterator[ZenRowsBatchClient]:
    with ZenRowsBatchClient("another-key", base_url=running.url, retries=0) as client:
        yield client
