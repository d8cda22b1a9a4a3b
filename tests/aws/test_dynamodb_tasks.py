"""Contracts of tasks, claims and work on DynamoDB, also where answers are lost.

`make test` runs a sample that the seed chooses, `make test-long` all of them.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import NamedTuple

import pytest

from conveyor.adapters.aws import client as client_module
from conveyor.testing.contracts.claims import ClaimsContract
from conveyor.testing.contracts.engine import Engine
from conveyor.testing.contracts.histories import HistoriesContract
from conveyor.testing.contracts.tasks import TasksContract
from conveyor.testing.contracts.work import WorkContract
from tests.emulators import Emulator
from tests.harness.dynamodb import Capability, skip_without
from tests.harness.dynamodb_engines import behind_faults, in_process, losing, over_http
from tests.seed import run_seed


class Variant(NamedTuple):
    open: Callable[[str, int], AbstractAsyncContextManager[Engine]]
    shards: int
    share: float  # of the tests in `make test`
    emulator: str = ""  # the fake, if empty


VARIANTS = {
    "one-partition": Variant(in_process, 1, 0.15),
    "sharded": Variant(in_process, 8, 0.15),
    "losing": Variant(losing, 1, 0.1),
    "losing-sharded": Variant(losing, 8, 0.1),
    "http": Variant(over_http, 8, 0.05),
    "faulty": Variant(behind_faults, 4, 0.05),
    "ministack": Variant(over_http, 1, 0.03, "ministack"),
    "ministack-sharded": Variant(over_http, 4, 0.02, "ministack"),
    "ministack-faulty": Variant(behind_faults, 4, 0.02, "ministack"),
    "moto": Variant(over_http, 1, 0.0, "moto"),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" not in metafunc.fixturenames:
        return
    cases = []
    for name, variant in VARIANTS.items():
        dice = Random(f"{run_seed()} {metafunc.function.__qualname__} {name}").random()
        is_long = dice >= variant.share
        cases.append(pytest.param(name, marks=pytest.mark.long if is_long else ()))
    metafunc.parametrize("variant", cases, indirect=True)


OpenEngine = Callable[[], AbstractAsyncContextManager[Engine]]


@pytest.fixture
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OpenEngine:
    return opened(request, monkeypatch)


def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OpenEngine:
    monkeypatch.setattr(client_module, "FIRST_PAUSE", 0.002)
    chosen = VARIANTS[request.param]
    url = ""
    if chosen.emulator:
        skip_without(chosen.emulator, Capability.STATEMENTS, Capability.REASONS)
        emulator: Emulator = request.getfixturevalue(chosen.emulator)
        url = emulator.url
    return lambda: chosen.open(url, chosen.shards)


@pytest.fixture
async def engine(variant: OpenEngine) -> AsyncIterator[Engine]:
    async with variant() as engine:
        yield engine


class TestTasks(TasksContract):
    pass


class TestClaims(ClaimsContract):
    pass


class TestWork(WorkContract):
    pass


@pytest.mark.long
class TestHistories(HistoriesContract):
    @pytest.fixture(params=VARIANTS)
    def open_engine(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> OpenEngine:
        return opened(request, monkeypatch)
