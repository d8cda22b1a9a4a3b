"""The table: created once, checked, queried and written on conditions."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from conveyor.adapters.aws.attribute_values import encode_item
from conveyor.adapters.aws.client import AwsClient
from conveyor.adapters.aws.dynamodb.layout import GSI1, ItemKey, table_definition
from conveyor.adapters.aws.dynamodb.setup import check_table, set_up_table
from conveyor.adapters.aws.dynamodb.table import IS_NEW, Condition, DynamoTable
from conveyor.adapters.aws.faults import ConditionFailed, TransactionCanceled
from conveyor.adapters.system.clock import SystemClock
from conveyor.errors import RefusedToStart
from conveyor.testing.dynamodb.server import dynamodb_server
from tests.emulators import Emulator
from tests.harness.aws_server import client_of


@pytest.fixture(params=["fake", "ministack"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[AwsClient]:
    if request.param == "ministack":
        emulator: Emulator = request.getfixturevalue("ministack")
        async with client_of(emulator.url) as opened:
            yield opened
        return
    async with dynamodb_server(SystemClock()) as server, client_of(server.url) as opened:
        yield opened


@pytest.fixture
async def table(client: AwsClient) -> DynamoTable:
    name = f"table-{uuid4()}"
    await set_up_table(client, name)
    return DynamoTable(client, name)


async def test_a_table_is_created_once(client: AwsClient) -> None:
    name = f"table-{uuid4()}"
    with pytest.raises(RefusedToStart, match="conveyor migrate"):
        await check_table(client, name)

    first = await set_up_table(client, name)
    again = await set_up_table(client, name)

    assert first == ["created", "enabled the removal of expired items"]
    assert again == ["exists", "expired items are removed"]
    await check_table(client, name)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"GlobalSecondaryIndexes": None}, "it has no index gsi1"),
        ({"KeySchema": 0}, "its keys are g1p and g1s"),
        ({"index": {"KeySchema": 1}}, "the keys of index gsi1 are g2p and g2s"),
        ({"index": {"Projection": {"ProjectionType": "KEYS_ONLY"}}}, "index gsi1 lacks attributes"),
    ],
)
async def test_the_table_of_something_else_is_refused(
    client: AwsClient, change: dict[str, Any], told: str
) -> None:
    name = f"table-{uuid4()}"
    await client.call("CreateTable", _changed(table_definition(name), change))
    with pytest.raises(RefusedToStart, match=told):
        await check_table(client, name)
    with pytest.raises(RefusedToStart, match=told):
        await set_up_table(client, name)


def _changed(definition: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The definition of another table, with only those attributes that are keys."""
    indexes = definition["GlobalSecondaryIndexes"]
    schemas = [index["KeySchema"] for index in indexes]
    if "GlobalSecondaryIndexes" in change:
        del definition["GlobalSecondaryIndexes"]
        indexes = []
    if "KeySchema" in change:
        definition["KeySchema"] = schemas[change["KeySchema"]]
    for name, value in change.get("index", {}).items():
        indexes[0][name] = schemas[value] if name == "KeySchema" else value
    used = {key["AttributeName"] for one in (definition, *indexes) for key in one["KeySchema"]}
    definition["AttributeDefinitions"] = [
        {"AttributeName": name, "AttributeType": "S"} for name in sorted(used)
    ]
    return definition


async def test_partitions_are_queried_in_both_directions_page_by_page(table: DynamoTable) -> None:
    for number in range(7):
        item = {"pk": f"p{number % 2}", "sk": f"s{number}", "g1p": "g", "g1s": str(9 - number)}
        await table.put(encode_item({**item, "st": "open", "other": 1}))

    assert await _queried(table, "p0") == ["s0", "s2", "s4", "s6"]
    assert await _queried(table, "p0", first="s1", last="s4", page=1) == ["s2", "s4"]
    assert await _queried(table, "p1", forward=False, last="s3") == ["s3", "s1"]
    assert await _queried(table, "p1", first="s2", consistent=True) == ["s3", "s5"]
    assert await _queried(table, "g", index=GSI1, first="7") == ["s2", "s1", "s0"]
    [answer] = [answer async for answer in table.query("g", index=GSI1, last="3")]
    assert answer["Items"] == [
        encode_item({"pk": "p0", "sk": "s6", "g1p": "g", "g1s": "3", "st": "open"})
    ]


async def _queried(table: DynamoTable, partition: str, **how: Any) -> list[str]:
    return [
        item["sk"]["S"]
        async for answer in table.query(partition, **how)
        for item in answer["Items"]
    ]


async def test_items_are_read_by_their_keys(table: DynamoTable) -> None:
    keys = [ItemKey("p", str(number)) for number in range(130)]
    for key in keys[::2]:
        await table.put({**key.fields, "n": {"S": key.sk}})

    found = await table.get_many(keys)

    assert found == {key: {**key.fields, "n": {"S": key.sk}} for key in keys[::2]}
    assert await table.get(keys[0]) == found[keys[0]]
    assert await table.get(keys[1]) is None
    await table.delete(keys[0])
    assert await table.get(keys[0]) is None


async def test_a_failed_condition_shows_the_item(table: DynamoTable) -> None:
    item = encode_item({"pk": "p", "sk": "s", "v": 1})
    await table.put(item, IS_NEW)

    with pytest.raises(ConditionFailed) as failed:
        await table.put(item, IS_NEW)
    at_two = Condition("#v = :v", {"#v": "v"}, encode_item({":v": 2}))
    other = table.putting(encode_item({"pk": "p", "sk": "other"}))
    with pytest.raises(TransactionCanceled) as canceled:
        await table.transact([other, table.deleting(ItemKey("p", "s"), at_two)], uuid4().hex)

    assert failed.value.item == item
    assert [reason.code for reason in canceled.value.reasons] == ["None", "ConditionalCheckFailed"]
    assert canceled.value.reasons[1].item == item
    assert await table.get(ItemKey("p", "other")) is None
