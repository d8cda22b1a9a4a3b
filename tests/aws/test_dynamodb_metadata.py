"""Metadata on DynamoDB."""

from typing import Any, cast

import pytest

from conveyor.adapters.aws.dynamodb.metadata import DynamoMetadata
from conveyor.adapters.aws.dynamodb.setup import set_up_table
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.testing.clock import FakeClock
from conveyor.testing.contracts.engine import SECOND, CaughtUp, Engine
from conveyor.testing.contracts.metadata import MetadataContract
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.in_process import client_in_process

LAG = 5 * SECOND


@pytest.fixture(params=[False, True], ids=["prompt", "lagging"])
async def engine(request: pytest.FixtureRequest) -> Engine:
    clock, clock_of_fake = FakeClock(), FakeClock()
    knobs = Knobs(writes_per_second=None, reads_per_second=None)
    fake = DynamoDbEngine(clock_of_fake, knobs)
    client = client_in_process(fake, latency=0 * SECOND)
    await set_up_table(client, "conveyor")
    metadata = DynamoMetadata(DynamoTable(client, "conveyor"), clock)

    async def catch_up() -> None:
        clock_of_fake.advance(LAG)

    if request.param:
        knobs.index_lag = LAG
        metadata = cast("Any", CaughtUp(metadata, catch_up))
    nothing = cast("Any", None)
    return Engine(
        metadata=metadata,
        tasks=nothing,
        work=nothing,
        control_queue=nothing,
        clock=clock,
        lease=60 * SECOND,
        ordered=False,
        expires_itself=True,
        largest_record=390_000,
    )


class TestMetadata(MetadataContract):
    pass
