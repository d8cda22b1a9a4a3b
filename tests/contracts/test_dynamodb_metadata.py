"""Contracts of metadata over DynamoDB: with prompt indexes and with late ones, and with faults."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from conveyor.adapters.aws import client as client_module
from conveyor.adapters.aws.dynamodb.metadata import DynamoMetadata
from conveyor.testing.clock import FakeClock
from conveyor.testing.contracts.engine import SECOND, CaughtUp, Engine
from conveyor.testing.contracts.metadata import MetadataContract
from tests.harness.dynamodb import PLACES, a_table

LAG = 0.05 * SECOND  # of indexes behind the proxy


@pytest.fixture(params=PLACES)
async def engine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Engine]:
    monkeypatch.setattr(client_module, "FIRST_PAUSE", 0.002)
    clock = FakeClock()
    async with a_table(request.param, request, clock, index_lag=LAG) as table:
        metadata = cast("Any", DynamoMetadata(table, clock))
        if request.param.endswith("-faults"):
            metadata = CaughtUp(metadata, lambda: asyncio.sleep(LAG.total_seconds()))
        yield an_engine(metadata, clock)


def an_engine(metadata: Any, clock: FakeClock) -> Engine:
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


class TestDynamoMetadata(MetadataContract):
    pass
