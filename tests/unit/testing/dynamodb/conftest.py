from collections.abc import Callable
from typing import Any

import pytest

from conveyor.testing.clock import FakeClock
from conveyor.testing.dynamodb.engine import DynamoDbEngine
from conveyor.testing.dynamodb.refusals import Refusal
from tests.harness.dynamodb_tables import TABLE, table_request

Refused = Callable[..., Refusal]

WITHOUT_TABLE = {
    "BatchExecuteStatement",
    "BatchGetItem",
    "BatchWriteItem",
    "ExecuteStatement",
    "TransactGetItems",
    "TransactWriteItems",
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def engine(clock: FakeClock) -> DynamoDbEngine:
    engine = DynamoDbEngine(clock)
    engine.execute("CreateTable", table_request())
    return engine


@pytest.fixture
def refused(engine: DynamoDbEngine) -> Refused:
    """The refusal of a request."""

    def refusal(operation: str, **request: Any) -> Refusal:
        named = {} if operation in WITHOUT_TABLE else {"TableName": TABLE}
        with pytest.raises(Refusal) as caught:
            engine.execute(operation, {**named, **request})
        return caught.value

    return refusal
