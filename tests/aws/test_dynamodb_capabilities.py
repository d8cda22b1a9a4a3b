"""What the emulators can do of what the engines need of DynamoDB: suites are skipped by it."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from conveyor.adapters.aws.client import AwsClient
from conveyor.adapters.aws.faults import ServiceRefusal, TransactionCanceled
from conveyor.errors import Unavailable
from tests.emulators import Emulator
from tests.harness.aws_server import client_of
from tests.harness.dynamodb import CAPABILITIES, Capability
from tests.harness.dynamodb_tables import key, table_request

SOON = timedelta(seconds=2)  # for a request that a server may not know


async def executes_statements(client: AwsClient, table: str) -> bool:
    statement = f"INSERT INTO \"{table}\" VALUE {{'pk': ?, 'sk': ?}}"
    request = {"Statements": [{"Statement": statement, "Parameters": [{"S": "p"}, {"S": "s"}]}]}
    try:
        await client.call("BatchExecuteStatement", request, repeatable=False, deadline=SOON)
    except (ServiceRefusal, Unavailable):
        return False
    return await stored(client, table, "s") is not None


async def repeats_by_token(client: AwsClient, table: str) -> bool:
    update = {
        "TableName": table,
        "Key": key("p", "counter"),
        "UpdateExpression": "ADD n1 :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }
    request = {"TransactItems": [{"Update": update}], "ClientRequestToken": f"{uuid4()}"}
    for _ in range(2):
        await client.call("TransactWriteItems", request)
    item = await stored(client, table, "counter")
    return item is not None and item["n1"] == {"N": "1"}


async def takes_a_hundred(client: AwsClient, table: str) -> bool:
    puts = [{"Put": {"TableName": table, "Item": key("p", f"{n:03}")}} for n in range(100)]
    request = {"TransactItems": puts, "ClientRequestToken": f"{uuid4()}"}
    try:
        await client.call("TransactWriteItems", request, deadline=SOON)
    except (ServiceRefusal, Unavailable):
        return False
    return await stored(client, table, "099") is not None


async def shows_reasons(client: AwsClient, table: str) -> bool:
    item = {**key("p", "row"), "v": {"S": "1"}}
    await client.call("PutItem", {"TableName": table, "Item": item})
    put = {
        "TableName": table,
        "Item": key("p", "row"),
        "ConditionExpression": "attribute_not_exists(pk)",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    request = {"TransactItems": [{"Put": put}], "ClientRequestToken": f"{uuid4()}"}
    try:
        await client.call("TransactWriteItems", request)
    except TransactionCanceled as canceled:
        return [reason.item for reason in canceled.reasons] == [item]
    return False


async def stored(client: AwsClient, table: str, sk: str) -> Mapping[str, Any] | None:
    request = {"TableName": table, "Key": key("p", sk), "ConsistentRead": True}
    item: Mapping[str, Any] | None = (await client.call("GetItem", request)).get("Item")
    return item


# That transactions are isolated shows only by chance, when two of them meet.
CHECKS: Mapping[Capability, Callable[[AwsClient, str], Awaitable[bool]]] = {
    Capability.STATEMENTS: executes_statements,
    Capability.TOKENS: repeats_by_token,
    Capability.HUNDRED: takes_a_hundred,
    Capability.REASONS: shows_reasons,
}


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CAPABILITIES if name])
async def test_an_emulator_can_do_what_is_declared(
    request: pytest.FixtureRequest, name: str
) -> None:
    emulator: Emulator = request.getfixturevalue(name)
    table = f"capabilities-{uuid4()}"
    async with client_of(emulator.url) as client:
        await client.call("CreateTable", table_request(table), repeatable=True)
        found = {one for one, check in CHECKS.items() if await check(client, table)}
    assert found == CAPABILITIES[name] & CHECKS.keys()
