"""Calls to one table. Items have DynamoDB's typed JSON; `attribute_values` converts it.

Every write with a condition returns the item that failed it (`ConditionFailed.item`, or the reasons
of `TransactionCanceled`), so that a caller can tell its own effect by a token in the item. Reading
it back so costs nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conveyor.adapters.aws.client import AwsClient
from conveyor.adapters.aws.dynamodb.batches import MOST_KEYS, DynamoDbBatches
from conveyor.adapters.aws.dynamodb.calls import ItemCalls
from conveyor.adapters.aws.dynamodb.layout import INDEX_KEYS, PK, SK, ItemKey
from conveyor.adapters.aws.item_size import AttributeValue, Item

MOST_ACTIONS = 100  # of a transaction
LARGEST_ITEM = 400 * 1024  # bytes
LARGEST_TRANSACTION = 4_000_000  # bytes of all its items: AWS says 4 MB
SHOW_OLD = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a write. Names begin with `#`, values with `:`."""

    text: str
    names: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, AttributeValue] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "ConditionExpression": self.text,
            **({"ExpressionAttributeNames": self.names} if self.names else {}),
            **({"ExpressionAttributeValues": self.values} if self.values else {}),
            **SHOW_OLD,
        }


IS_NEW = Condition(f"attribute_not_exists({PK})")
EXISTS = Condition(f"attribute_exists({PK})")


def key_of_item(item: Item) -> ItemKey:
    return ItemKey(item[PK]["S"], item[SK]["S"])


class DynamoTable:
    def __init__(self, client: AwsClient, name: str) -> None:
        self.client, self.name = client, name
        self.calls = ItemCalls(client)
        self.batches = DynamoDbBatches(self.calls)

    async def get(self, key: ItemKey, *, consistent: bool = True) -> Item | None:
        answer = await self.calls.call(
            "GetItem", {"TableName": self.name, "Key": key.fields, "ConsistentRead": consistent}
        )
        item: Item | None = answer.get("Item")
        return item

    async def get_many(
        self, keys: Sequence[ItemKey], *, consistent: bool = True
    ) -> dict[ItemKey, Item]:
        """Read items by their keys; those that do not exist are left out."""
        keys = list(dict.fromkeys(keys))  # DynamoDB refuses a request that names a key twice
        chunks = [keys[at : at + MOST_KEYS] for at in range(0, len(keys), MOST_KEYS)]
        found = await asyncio.gather(
            *[
                self.batches.get(self.name, [key.fields for key in chunk], consistent=consistent)
                for chunk in chunks
            ]
        )
        return {key_of_item(item): item for items in found for item in items}

    async def query(
        self, partition: str, *, start: Item | None = None, **more: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Query a partition page by page, with the arguments of `query_page`.

        Yields the responses, whose `Items` may be empty before the end. Stop iterating to read no
        further.
        """
        while True:
            answer = await self.query_page(partition, start=start, **more)
            start = answer.get("LastEvaluatedKey")
            yield answer
            if not start:
                return

    async def query_page(
        self,
        partition: str,
        *,
        first: str | None = None,
        last: str | None = None,
        index: str | None = None,
        forward: bool = True,
        consistent: bool = False,
        page: int | None = None,
        start: Item | None = None,
        where: Condition | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Read one page of a partition, from the sort key `first` to `last`, both included.

        `page` is the most items that DynamoDB reads for it. It leaves out those for which `where`
        does not hold, but reads and bills them.
        """
        partition_key, sort_key = INDEX_KEYS[index] if index else (PK, SK)
        request: dict[str, Any] = {
            "TableName": self.name,
            **({"IndexName": index} if index else {"ConsistentRead": consistent}),
            **_key_condition(partition_key, sort_key, partition, first, last),
            "ScanIndexForward": forward,
            **({"Limit": page} if page else {}),
            **({"ExclusiveStartKey": start} if start else {}),
            **more,
        }
        if where:
            request["FilterExpression"] = where.text
            request["ExpressionAttributeValues"] |= where.values
            if where.names:
                request["ExpressionAttributeNames"] = where.names
        return await self.calls.call("Query", request)

    async def put(self, item: Item, condition: Condition | None = None) -> None:
        """Write an item; `ConditionFailed` if the condition does not hold.

        It is repeated after a lost answer, so the item must have a token by which the caller
        recognises its own effect when the failure `follows_unknown`.
        """
        request = {"TableName": self.name, "Item": item, **_fields(condition)}
        await self.calls.call("PutItem", request, repeatable=True)

    async def delete(self, key: ItemKey) -> None:
        """Remove an item, if it exists."""
        request = {"TableName": self.name, "Key": key.fields}
        await self.calls.call("DeleteItem", request, repeatable=True)

    async def transact(self, actions: Sequence[Mapping[str, Any]], token: str) -> None:
        """Do all actions, or none: `TransactionCanceled`.

        `token` has up to 36 characters. Within 10 minutes the same actions under it take effect
        once; other actions under it are refused.
        """
        await self.calls.call(
            "TransactWriteItems", {"TransactItems": actions, "ClientRequestToken": token}
        )

    # Actions of transactions.

    def putting(self, item: Item, condition: Condition | None = None) -> dict[str, Any]:
        return {"Put": {"TableName": self.name, "Item": item, **_fields(condition)}}

    def deleting(self, key: ItemKey, condition: Condition | None = None) -> dict[str, Any]:
        return {"Delete": {"TableName": self.name, "Key": key.fields, **_fields(condition)}}


def _fields(condition: Condition | None) -> dict[str, Any]:
    return condition.fields if condition else {}


def _key_condition(
    partition_key: str, sort_key: str, partition: str, first: str | None, last: str | None
) -> dict[str, Any]:
    text, values = f"{partition_key} = :p", {":p": {"S": partition}}
    match first, last:
        case str(), str():
            text += f" AND {sort_key} BETWEEN :f AND :l"
        case str(), None:
            text += f" AND {sort_key} >= :f"
        case None, str():
            text += f" AND {sort_key} <= :l"
    if first is not None:
        values[":f"] = {"S": first}
    if last is not None:
        values[":l"] = {"S": last}
    return {"KeyConditionExpression": text, "ExpressionAttributeValues": values}
