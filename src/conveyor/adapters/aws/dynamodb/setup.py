"""Creating the table, and checking the one that exists."""

import asyncio
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from conveyor.adapters.aws.client import AwsClient
from conveyor.adapters.aws.dynamodb.layout import TTL, table_definition
from conveyor.adapters.aws.faults import ServiceRefusal
from conveyor.errors import RefusedToStart, Unavailable

CREATION = 300.0  # seconds for a table to become active
TTL_ON = frozenset({"ENABLED", "ENABLING"})


async def set_up_table(client: AwsClient, name: str) -> list[str]:
    """Create or complete a table; say what was done, a line each. Repeating it changes nothing."""
    try:
        created = await _create(client, name)
        await _wait_until_active(client, name)
        await check_table(client, name)
        expiry = await _enable_ttl(client, name)
    except (ServiceRefusal, Unavailable) as error:
        raise RefusedToStart(
            f"the table {name} cannot be set up: {error}. Check the AWS_* variables, and that "
            "dynamodb:CreateTable, dynamodb:DescribeTable, dynamodb:DescribeTimeToLive and "
            "dynamodb:UpdateTimeToLive are allowed"
        ) from error
    return ["created" if created else "exists", expiry]


async def check_table(client: AwsClient, name: str) -> None:
    """Refuse a table that does not exist or was made by something else."""
    described = await _described(client, name)
    if described is None:
        raise RefusedToStart(f"the table {name} does not exist: run `conveyor migrate`")
    differences = list(_differences(described, table_definition(name)))
    if differences:
        raise RefusedToStart(
            f"the table {name} is not as this version needs it: {', '.join(differences)}. "
            "Choose the name of a new table"
        )


async def _create(client: AwsClient, name: str) -> bool:
    if await _described(client, name) is not None:
        return False
    try:
        await client.call("CreateTable", table_definition(name), repeatable=True)
    except ServiceRefusal as refusal:
        if refusal.error != "ResourceInUseException":  # another process creates it now
            raise
    return True


async def _described(client: AwsClient, name: str) -> dict[str, Any] | None:
    try:
        table: dict[str, Any] = (await client.call("DescribeTable", {"TableName": name}))["Table"]
    except ServiceRefusal as refusal:
        if refusal.error == "ResourceNotFoundException":
            return None
        raise
    return table


async def _wait_until_active(client: AwsClient, name: str) -> None:
    try:
        async with asyncio.timeout(CREATION):
            for attempt in count():
                if _is_active(await _described(client, name)):
                    return
                await client.pause(attempt)
    except TimeoutError:
        raise Unavailable(f"it is not active after {CREATION:.0f} s") from None


def _is_active(described: Mapping[str, Any] | None) -> bool:
    if described is None:  # not visible yet
        return False
    indexes = described.get("GlobalSecondaryIndexes", ())
    return described["TableStatus"] in {"ACTIVE", "UPDATING"} and all(
        index.get("IndexStatus", "ACTIVE") == "ACTIVE" for index in indexes
    )


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    if _keys(found) != _keys(wanted):
        yield f"its keys are {' and '.join(_keys(found))}"
    indexes = {index["IndexName"]: index for index in found.get("GlobalSecondaryIndexes", ())}
    for index in wanted["GlobalSecondaryIndexes"]:
        name = index["IndexName"]
        if name not in indexes:
            yield f"it has no index {name}"
        elif _keys(indexes[name]) != _keys(index):
            yield f"the keys of index {name} are {' and '.join(_keys(indexes[name]))}"
        elif _projected(index) - _projected(indexes[name]):
            yield f"index {name} lacks attributes"


def _keys(described: Mapping[str, Any]) -> list[str]:
    """The names of the partition key and the sort key."""
    elements = sorted(described["KeySchema"], key=lambda element: str(element["KeyType"]))
    return [element["AttributeName"] for element in elements]


def _projected(index: Mapping[str, Any]) -> set[str]:
    return set(index["Projection"].get("NonKeyAttributes", ()))


async def _enable_ttl(client: AwsClient, name: str) -> str:
    found = await client.call("DescribeTimeToLive", {"TableName": name})
    described = found["TimeToLiveDescription"]
    if described["TimeToLiveStatus"] in TTL_ON and described.get("AttributeName") == TTL:
        return "expired items are removed"
    wanted = {"Enabled": True, "AttributeName": TTL}
    request = {"TableName": name, "TimeToLiveSpecification": wanted}
    try:
        await client.call("UpdateTimeToLive", request, repeatable=True)
    except ServiceRefusal as refusal:
        if not refusal.follows_unknown:  # else an attempt without an answer has enabled it
            raise
    return "enabled the removal of expired items"
