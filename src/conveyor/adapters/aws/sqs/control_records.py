"""The records of control messages, in a DynamoDB table.

A live message has an item under its kind and subject, a dead letter one under its id:

| pk | sk | attributes |
|---|---|---|
| `control#<kind>#<subject>` | `live` | id, kind, subject, caller, payload, v, deliveries, due_at, receipt |
| `dead-letters` | id | the same without the last three, reason, dead_lettered_at |

Times are microseconds since 1970. A write is on condition of the receipt, or that there is no item.
After a lost answer the receipt, or the id of a new message, tells whether the write took effect.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from conveyor.adapters.aws.attribute_values import encode_item, item_of, struct_of
from conveyor.adapters.aws.client import AwsClient
from conveyor.adapters.aws.faults import ConditionFailed, ServiceRefusal, TransactionCanceled
from conveyor.errors import RefusedToStart, Unavailable

DEAD_LETTERS = "dead-letters"
LIVE = "live"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
CREATED_WITHIN = 120  # attempts to see a new table, with a pause after each
SHOW_OLD = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


class MessageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A live message. It is due when `due_at` has passed: at once, after a delay, or at the end of
    the lease of the delivery that has the receipt.
    """

    id: str
    kind: str
    subject: str
    caller: str
    payload: Mapping[str, str]
    v: int
    deliveries: int = 0
    due_at: int
    receipt: str = ""


class DeadRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    subject: str
    caller: str
    payload: Mapping[str, str]
    v: int
    reason: str
    dead_lettered_at: int


class ControlRecords:
    def __init__(self, client: AwsClient, table: str) -> None:
        self._client, self._table = client, table

    async def find(self, kind: str, subject: str) -> MessageRecord | None:
        found = await self._call("GetItem", {"Key": _live(kind, subject), "ConsistentRead": True})
        return struct_of(found["Item"], MessageRecord) if found.get("Item") else None

    async def add(self, record: MessageRecord) -> MessageRecord | None:
        """Add a live message. If its subject has one already, change nothing and return that."""
        request = {
            "Item": {**_live(record.kind, record.subject), **item_of(record)},
            "ConditionExpression": "attribute_not_exists(pk)",
            **SHOW_OLD,
        }
        while True:
            try:
                await self._call("PutItem", request)
            except ConditionFailed as failed:
                found = _record(failed) or await self.find(record.kind, record.subject)
                if found is None:
                    continue  # it was removed just now
                return None if found.id == record.id else found
            return None

    async def change(
        self, record: MessageRecord, expected: Mapping[str, object], **values: object
    ) -> tuple[MessageRecord | None, bool]:
        """Set attributes if others are as expected; return the record as it is now, and whether."""
        names = {f"#{name}": name for name in (*expected, *values)}
        request = {
            "Key": _live(record.kind, record.subject),
            "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in values),
            "ConditionExpression": _equal(expected),
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": {
                **encode_item({f":{name}": value for name, value in values.items()}),
                **encode_item({f":was_{name}": value for name, value in expected.items()}),
            },
            "ReturnValues": "ALL_NEW",
            **SHOW_OLD,
        }
        try:
            answer = await self._call("UpdateItem", request)
        except ConditionFailed as failed:
            found = _record(failed)
            is_mine = found is not None and failed.follows_unknown and _has(found, values)
            return found, is_mine
        return struct_of(answer["Attributes"], MessageRecord), True

    async def remove(self, record: MessageRecord) -> bool:
        """Remove a live message; return False if its receipt is no longer valid."""
        request = {
            "Key": _live(record.kind, record.subject),
            **_with_receipt(record),
            **SHOW_OLD,
        }
        try:
            await self._call("DeleteItem", request)
        except ConditionFailed as failed:
            return failed.follows_unknown and _record(failed) is None
        return True

    async def dead_letter(self, record: MessageRecord, dead: DeadRecord, token: str) -> bool:
        """Turn a live message into a dead letter; return False if its receipt is no longer valid."""
        live = {"Key": _live(record.kind, record.subject), **_with_receipt(record)}
        return await self._transact(
            token, {"Delete": live}, {"Put": {"Item": {**_dead(dead.id), **item_of(dead)}}}
        )

    async def redrive(self, dead: DeadRecord, record: MessageRecord, token: str) -> bool:
        """Turn a dead letter into a live message; False if it is gone, or its subject is live."""
        live = {**_live(record.kind, record.subject), **item_of(record)}
        return await self._transact(
            token,
            {"Delete": {"Key": _dead(dead.id), "ConditionExpression": "attribute_exists(pk)"}},
            {"Put": {"Item": live, "ConditionExpression": "attribute_not_exists(pk)"}},
        )

    async def find_dead(self, message_id: str) -> DeadRecord | None:
        found = await self._call("GetItem", {"Key": _dead(message_id), "ConsistentRead": True})
        return struct_of(found["Item"], DeadRecord) if found.get("Item") else None

    async def dead(self, *, limit: int, after: str) -> Sequence[DeadRecord]:
        answer = await self._call(
            "Query",
            {
                "KeyConditionExpression": "pk = :pk AND sk > :sk",
                "ExpressionAttributeValues": encode_item(
                    {":pk": DEAD_LETTERS, ":sk": after or " "}
                ),
                "Limit": limit,
                "ConsistentRead": True,
            },
        )
        return [struct_of(item, DeadRecord) for item in answer["Items"]]

    async def drop(self, message_id: str) -> bool:
        """Remove a dead letter; return whether it existed."""
        answer = await self._call(
            "DeleteItem", {"Key": _dead(message_id), "ReturnValues": "ALL_OLD"}
        )
        return bool(answer.get("Attributes"))

    async def set_up(self) -> str:
        """Create the table, and say what was done."""
        attributes = [{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")]
        keys = {"pk": "HASH", "sk": "RANGE"}
        schema = [{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()]
        request = {
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": attributes,
            "KeySchema": schema,
        }
        try:
            await self._call("CreateTable", request)
        except ServiceRefusal as refusal:
            if refusal.error != "ResourceInUseException":
                raise RefusedToStart(f"the table {self._table} cannot be created: {refusal}") from (
                    refusal
                )
            if not refusal.follows_unknown:  # else an attempt whose answer was lost created it
                return f"the table {self._table} exists"
        for attempt in range(CREATED_WITHIN):
            described = await self._call("DescribeTable", {})
            if described["Table"]["TableStatus"] == "ACTIVE":
                return f"created the table {self._table}"
            await self._client.pause(attempt)
        raise Unavailable(f"the new table {self._table} is not active yet: try again later")

    async def _transact(self, token: str, *actions: Mapping[str, Mapping[str, Any]]) -> bool:
        items = [
            {kind: {"TableName": self._table, **fields} for kind, fields in action.items()}
            for action in actions
        ]
        request = {"TransactItems": items, "ClientRequestToken": token}
        try:
            await self._client.call("TransactWriteItems", request)
        except TransactionCanceled:
            return False
        except ServiceRefusal as refusal:
            raise self._unavailable(refusal) from None
        return True

    async def _call(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self._client.call(
                operation, {"TableName": self._table, **request}, repeatable=True
            )
        except ConditionFailed:
            raise
        except ServiceRefusal as refusal:
            if operation == "CreateTable":
                raise
            raise self._unavailable(refusal) from None

    def _unavailable(self, refusal: ServiceRefusal) -> Unavailable:
        if refusal.error == "ResourceNotFoundException":
            return Unavailable(f"the table {self._table} does not exist: run `conveyor migrate`")
        return Unavailable(str(refusal))


def stamp(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def moment(stamped: int) -> datetime:
    return EPOCH + stamped * MICROSECOND


def _live(kind: str, subject: str) -> dict[str, Any]:
    return encode_item({"pk": f"control#{kind}#{subject}", "sk": LIVE})


def _dead(message_id: str) -> dict[str, Any]:
    return encode_item({"pk": DEAD_LETTERS, "sk": message_id})


def _equal(expected: Mapping[str, object]) -> str:
    return " AND ".join(f"#{name} = :was_{name}" for name in expected)


def _with_receipt(record: MessageRecord) -> dict[str, Any]:
    expected = {"id": record.id, "receipt": record.receipt}
    return {
        "ConditionExpression": _equal(expected),
        "ExpressionAttributeNames": {f"#{name}": name for name in expected},
        "ExpressionAttributeValues": encode_item(
            {f":was_{name}": value for name, value in expected.items()}
        ),
    }


def _record(failed: ConditionFailed) -> MessageRecord | None:
    return struct_of(failed.item, MessageRecord) if failed.item else None


def _has(record: MessageRecord, values: Mapping[str, object]) -> bool:
    return all(getattr(record, name) == value for name, value in values.items())
