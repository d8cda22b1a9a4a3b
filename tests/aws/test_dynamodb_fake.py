"""The strict fake over HTTP, and compared with ministack where that is known to be right."""

import asyncio
import json
from collections import Counter
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from conveyor.adapters.aws.client import AwsClient
from conveyor.adapters.aws.faults import ServiceRefusal
from conveyor.adapters.system.clock import SystemClock
from conveyor.testing.clock import FakeClock
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.refusals import Refusal
from conveyor.testing.dynamodb.server import dynamodb_server
from tests.emulators import Emulator
from tests.harness.aws_server import client_of
from tests.harness.dynamodb_tables import TABLE, key, table_request
from tests.harness.random_calls import RandomCalls
from tests.seed import run_seed

Outcome = tuple[str, Any]


async def test_the_fake_serves_any_client() -> None:
    async with dynamodb_server(SystemClock()) as server:
        botocore = Emulator("fake", server.url).client("dynamodb")
        await asyncio.to_thread(lambda: botocore.create_table(**table_request()))
        item = key("p", "s") | {"a": {"B": b"\x00"}}
        await asyncio.to_thread(lambda: botocore.put_item(TableName=TABLE, Item=item))
        async with client_of(server.url) as client:
            found = await client.call("GetItem", {"TableName": TABLE, "Key": key("p", "s")})
            with pytest.raises(ServiceRefusal) as refused:
                await client.call("GetItem", {"TableName": TABLE, "Key": {}})
            with pytest.raises(ServiceRefusal, match="UnknownOperation"):
                await client.call("Scan", {})
        assert found["Item"] == key("p", "s") | {"a": {"B": "AA=="}}
        assert refused.value.error == "ValidationException"
        assert server.engine.meter.requests == {"CreateTable": 1, "PutItem": 1, "GetItem": 2}


CALLS = 400


async def test_the_fake_agrees_with_ministack(ministack: Emulator) -> None:
    await agree(ministack, f"{run_seed()} ministack", CALLS)


@pytest.mark.long
@pytest.mark.parametrize("number", range(20))
async def test_the_fake_agrees_with_ministack_on_many_calls(
    number: int, ministack: Emulator
) -> None:
    await agree(ministack, f"{run_seed()} ministack {number}", 2_000)


async def agree(ministack: Emulator, seed: str, count: int) -> None:
    table = f"table-{uuid4()}"
    calls, done = RandomCalls(table, seed), Counter[str]()
    knobs = Knobs(writes_per_second=None, reads_per_second=None)
    engine = DynamoDbEngine(FakeClock(), knobs)
    engine.execute("CreateTable", table_request(table))
    async with client_of(ministack.url) as client:
        await client.call("CreateTable", table_request(table))
        for number in range(count):
            operation, request = calls.next()
            theirs = await outcome_of(client, operation, request)
            ours = outcome_here(engine, operation, request)
            done[f"{operation} {ours[0]}"] += 1
            assert ours == theirs, (
                f"call {number} of seed {seed!r}: {operation} {json.dumps(request)}"
            )
        await client.call("DeleteTable", {"TableName": table})
    assert sum(n for name, n in done.items() if name.endswith(" ok")) > count / 3


async def outcome_of(client: AwsClient, operation: str, request: dict[str, Any]) -> Outcome:
    try:
        return "ok", normal(await client.call(operation, request))
    except ServiceRefusal as refusal:
        return refused(refusal.error, refusal.fields)


def outcome_here(engine: DynamoDbEngine, operation: str, request: dict[str, Any]) -> Outcome:
    try:
        return "ok", normal(engine.execute(operation, json.loads(json.dumps(request))))
    except Refusal as refusal:
        return refused(refusal.code, refusal.body)


def refused(code: str, fields: Any) -> Outcome:
    reasons = [
        (one.get("Code"), normal(one.get("Item"))) for one in fields.get("CancellationReasons", ())
    ]
    return code, (normal(fields.get("Item")), reasons)


def normal(value: Any) -> Any:
    """What must be equal: sets and the items of batches have no order, and messages may differ."""
    match value:
        case {"N": str() as number}:
            return ("N", Decimal(number).normalize())  # compared as text, too
        case {"SS": elements} | {"NS": elements} | {"BS": elements}:
            return ("set", sorted(elements))
        case {"Error": error}:
            return error["Code"], normal(error.get("Item"))
        case {"Responses": dict() as tables}:
            return {name: sorted(map(repr, map(normal, items))) for name, items in tables.items()}
        case {"Items": items, "Count": count, **more} if "LastEvaluatedKey" not in more:
            return sorted(map(repr, map(normal, items))), count
        case dict():
            dropped = {"ConsumedCapacity", "UnprocessedKeys"}
            return {name: normal(one) for name, one in value.items() if name not in dropped}
        case list():
            return [normal(one) for one in value]
        case _:
            return value
