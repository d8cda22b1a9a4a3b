# ruff: noqa: S608 - the name of a table cannot be a parameter of a statement
"""Compare a DynamoDB with what this project assumes: answers, refusals and capacity units.

Each check is one request, sent to the database and to the fake, whose tables hold the same items. For
an account there is a report of every difference; `docs/aws-unverified.md` says what each would mean.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from typing import Any

from conveyor.adapters.aws.attribute_values import encode, encode_item
from conveyor.adapters.aws.client import AwsClient
from conveyor.adapters.aws.faults import OutcomeUnknown, ServiceRefusal
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.refusals import Refusal

READY_WITHIN = 300  # seconds
KB = 1024
LAG_SAMPLES = 50
LONGEST_LAG = 30.0  # seconds
RACERS = 20
WRITERS, BATCH = 40, 25

Request = dict[str, Any]
Outcome = tuple[str, Any]  # "ok" or the code of the refusal, and what belongs to it


@dataclass(frozen=True, slots=True)
class ProbeResult:
    check: str
    theirs: str
    ours: str

    @property
    def agrees(self) -> bool:
        return self.theirs == self.ours


@dataclass(frozen=True, slots=True)
class DatabaseProbe:
    """Checks of one database. `client` must have access to a table that may be created and deleted."""

    client: AwsClient
    clock: Clock
    table: str
    fake: DynamoDbEngine = field(init=False)

    def __post_init__(self) -> None:
        knobs = Knobs(writes_per_second=None, reads_per_second=None)
        object.__setattr__(self, "fake", DynamoDbEngine(self.clock, knobs))

    async def comparisons(self) -> AsyncIterator[ProbeResult]:
        """Create the table and make the checks, each of which builds on those before it."""
        await self.create()
        for check, operation, request in _checks(self.table):
            for part in await self._compare(check, operation, request):
                yield part

    async def delete(self) -> None:
        await self.client.call("DeleteTable", {"TableName": self.table}, repeatable=True)

    async def index_lags(self) -> Sequence[float]:
        """Seconds from a write to its entry in an index, LONGEST_LAG if it is not there by then."""
        lags = []
        for n in range(LAG_SAMPLES):
            item = _item("lag", str(n), g1=f"lag-{n}")
            await self.client.call("PutItem", {"TableName": self.table, "Item": item})
            since = self.clock.monotonic()
            query = _query(self.table, "g1 = :g", {":g": f"lag-{n}"}, IndexName="by-g1")
            while (lag := self.clock.monotonic() - since) < LONGEST_LAG:
                if (await self.client.call("Query", query))["Count"]:
                    break
            lags.append(min(lag, LONGEST_LAG))
        return lags

    async def conflicts(self) -> Counter[str]:
        """What comes of transactions that change one item at the same time."""
        found: Counter[str] = Counter()

        async def add(number: int) -> None:
            request = {
                "TransactItems": [{"Update": _added(self.table, "race")}],
                "ClientRequestToken": f"race-{number}",
            }
            try:
                await self.client.call("TransactWriteItems", request)
            except (ServiceRefusal, OutcomeUnknown, Unavailable) as error:
                found[type(error).__name__] += 1
            else:
                found["done"] += 1

        async with asyncio.TaskGroup() as group:
            for number in range(RACERS):
                group.create_task(add(number))
        query = {"TableName": self.table, "Key": _key("p", "race"), "ConsistentRead": True}
        answer = await self.client.call("GetItem", query)
        found["counted"] = int(answer.get("Item", {}).get("c", {}).get("N", 0))
        return found

    async def write_rates(self, partitions: int, *, seconds: float) -> tuple[float, int]:
        """Rows of one unit written a second to so many partition keys, and how many were refused."""
        since, done, refused = self.clock.monotonic(), 0, 0

        async def write(writer: int) -> None:
            nonlocal done, refused
            for n in count():
                if self.clock.monotonic() >= since + seconds:
                    return
                pk = f"load-{(writer + n) % partitions}"
                rows = [_item(pk, f"{writer}-{n}-{row}") for row in range(BATCH)]
                puts = [{"PutRequest": {"Item": item}} for item in rows]
                request = {"RequestItems": {self.table: puts}}
                try:
                    answer = await self.client.call("BatchWriteItem", request, repeatable=True)
                    left = len((answer.get("UnprocessedItems") or {}).get(self.table, ()))
                except Unavailable:
                    left = BATCH
                done, refused = done + BATCH - left, refused + left

        async with asyncio.TaskGroup() as group:
            for writer in range(WRITERS):
                group.create_task(write(writer))
        return done / (self.clock.monotonic() - since), refused

    async def create(self) -> None:
        request = table_of(self.table)
        self.fake.execute("CreateTable", request)
        await self.client.call("CreateTable", request)
        async with asyncio.timeout(READY_WITHIN):
            while await self._status() != "ACTIVE":  # noqa: ASYNC110 - only a poll can tell
                await asyncio.sleep(1)

    async def _status(self) -> str:
        described = await self.client.call("DescribeTable", {"TableName": self.table})
        return str(described["Table"]["TableStatus"])

    async def _compare(self, check: str, operation: str, request: Request) -> list[ProbeResult]:
        request = request | {"ReturnConsumedCapacity": "INDEXES"}
        theirs, their_units = await self._theirs(operation, request)
        ours, our_units = self._ours(operation, request)
        compared = [ProbeResult(check, _shown(theirs), _shown(ours))]
        if theirs[0] == ours[0] == "ok":
            units = f"{check}: units"
            compared.append(ProbeResult(units, _shown(their_units), _shown(our_units)))
        return compared

    async def _theirs(self, operation: str, request: Request) -> tuple[Outcome, Any]:
        try:
            answer = await self.client.call(operation, request)
        except ServiceRefusal as refusal:
            return _refused(refusal.error, refusal.fields), None
        return ("ok", _normal(answer)), _units(answer)

    def _ours(self, operation: str, request: Request) -> tuple[Outcome, Any]:
        try:
            answer = self.fake.execute(operation, json.loads(json.dumps(request)))
        except Refusal as refusal:
            return _refused(refusal.code, refusal.body), None
        return ("ok", _normal(answer)), _units(answer)


def table_of(name: str) -> Request:
    """Keys and a sparse index of keys, as the engine's table has them."""

    def keys(partition: str, sort: str) -> list[dict[str, str]]:
        return [
            {"AttributeName": partition, "KeyType": "HASH"},
            {"AttributeName": sort, "KeyType": "RANGE"},
        ]

    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": keys("pk", "sk"),
        "AttributeDefinitions": [
            {"AttributeName": attribute, "AttributeType": "S"} for attribute in ("pk", "sk", "g1")
        ],
        "GlobalSecondaryIndexes": [
            {
                "IndexName": "by-g1",
                "KeySchema": keys("g1", "sk"),
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    }


# The checks, in order.


def _checks(table: str) -> Iterator[tuple[str, str, Request]]:
    yield from _statement_checks(table)
    yield from _transaction_checks(table)
    yield from _size_checks(table)
    yield from _index_checks(table)
    yield from _read_checks(table)
    yield from _refusal_checks(table)


def _statement_checks(table: str) -> Iterator[tuple[str, str, Request]]:
    insert = f"INSERT INTO \"{table}\" VALUE {{'pk': ?, 'sk': ?, 'st': ?, 'cn': ?}}"
    update = f'UPDATE "{table}" SET st = ? SET cn = cn + 1 WHERE pk = ? AND sk = ? AND st = ?'

    def inserted(*names: str) -> Request:
        return _batch(*((insert, ["p", name, "pending", 0]) for name in names))

    def claimed(*names: str) -> Request:
        statements = [(f"{update} RETURNING ALL NEW *", ["held", "p", n, "pending"]) for n in names]
        return _batch(*statements)

    yield "rows are inserted by a batch", "BatchExecuteStatement", inserted("1", "2", "3")
    yield "a row that exists is a DuplicateItem", "BatchExecuteStatement", inserted("1", "4")
    yield "a batch of updates returns the rows", "BatchExecuteStatement", claimed("1", "2")
    yield "a failed condition returns the row", "BatchExecuteStatement", claimed("1", "3")
    yield "an update makes no row", "BatchExecuteStatement", claimed("missing")
    yield "a key may not be twice in a batch", "BatchExecuteStatement", claimed("4", "4")
    many = [str(n) for n in range(100, 126)]
    yield "a batch has 25 statements at most", "BatchExecuteStatement", inserted(*many)
    absent = f'UPDATE "{table}" SET st = ? WHERE pk = ? AND sk = ? AND gone IS MISSING'
    request = _batch((absent, ["held", "p", "4"]))
    yield "a condition may ask for a missing attribute", "BatchExecuteStatement", request


def _transaction_checks(table: str) -> Iterator[tuple[str, str, Request]]:
    def settled(number: int, token: str, *names: str) -> Request:
        updates = [{"Update": _settled(table, name, number)} for name in names]
        actions = [*updates, {"Update": _added(table, "counter")}]
        return {"TransactItems": actions, "ClientRequestToken": token}

    yield "tasks and a counter are settled", "TransactWriteItems", settled(1, "a", "1", "2")
    yield "a repeat by its token does nothing", "TransactWriteItems", settled(1, "a", "1", "2")
    yield "a token is for one request", "TransactWriteItems", settled(1, "a", "1")
    canceled = settled(1, "b", "1", "3")
    yield "a canceled transaction says why, with rows", "TransactWriteItems", canceled
    twice = {"TransactItems": [{"Update": _added(table, "counter")}] * 2}
    yield "an item is once in a transaction", "TransactWriteItems", twice
    many = {"TransactItems": [{"Update": _added(table, f"many-{n}")} for n in range(101)]}
    yield "a transaction has 100 actions at most", "TransactWriteItems", many


def _size_checks(table: str) -> Iterator[tuple[str, str, Request]]:
    def put(item: Mapping[str, Any]) -> Request:
        return {"TableName": table, "Item": item}

    # pk, sk and x with their values are 2 + 1 + 2 + 4 + 1 bytes and the text.
    for length in (KB - 10, KB - 9):
        yield f"a text of {length} bytes", "PutItem", put(_item("p", "size", x="x" * length))
    parts = {"n": 12_345, "m": {"a": [1, -1, 0.5]}, "f": True, "b": b"\x00" * 10}
    for length in range(KB - 52, KB - 42):
        item = _item("p", str(length), x="x" * length, **parts)
        yield f"numbers, lists and a text of {length}", "PutItem", put(item)
    text = f'UPDATE "{table}" SET st = ? WHERE pk = ? AND sk = ?'
    yield (
        "a statement bills the whole row",
        "BatchExecuteStatement",
        _batch((text, ["new", "p", "size"])),
    )
    yield "a smaller row bills the larger", "PutItem", put(_item("p", "size"))
    condition = {"ConditionExpression": "attribute_not_exists(pk)"}
    yield "a put on a condition", "PutItem", put(_item("p", "size")) | condition


def _index_checks(table: str) -> Iterator[tuple[str, str, Request]]:
    def set_index(value: str) -> Request:
        return {
            "TableName": table,
            "Key": _key("p", "indexed"),
            "UpdateExpression": "SET g1 = :g",
            "ExpressionAttributeValues": {":g": encode(value)},
        }

    item = {"TableName": table, "Item": _item("p", "indexed", a=1)}
    yield "a row outside the index", "PutItem", item
    yield "an entry of an index", "UpdateItem", set_index("one")
    yield "an index key that changes", "UpdateItem", set_index("two")
    update = {"TransactItems": [{"Update": set_index("three")}]}
    yield "an index key that changes in a transaction", "TransactWriteItems", update
    delete = {"TransactItems": [{"Delete": {"TableName": table, "Key": _key("p", "indexed")}}]}
    yield "an entry that goes in a transaction", "TransactWriteItems", delete
    put = {"TransactItems": [{"Put": {"TableName": table, "Item": _item("p", "i", g1="one")}}]}
    yield "an entry that comes in a transaction", "TransactWriteItems", put


def _read_checks(table: str) -> Iterator[tuple[str, str, Request]]:
    rows = [{"PutRequest": {"Item": _item("q", f"{n:02}", x="x" * 490)}} for n in range(20)]
    yield "a batch of puts", "BatchWriteItem", {"RequestItems": {table: rows}}
    between = "pk = :p AND sk BETWEEN :a AND :b"
    values = {":p": "q", ":a": "00", ":b": "19~"}
    for consistent in (True, False):
        how = "consistent" if consistent else "cheap"
        query = _query(table, between, values, ConsistentRead=consistent)
        if consistent:  # an eventual read may miss what was written just now
            yield f"a {how} query", "Query", query
        yield f"a {how} count", "Query", query | {"Select": "COUNT"}
        missing = {"TableName": table, "Key": _key("q", "none"), "ConsistentRead": consistent}
        yield f"a {how} get of nothing", "GetItem", missing
    keys = [_key("q", f"{n:02}") for n in range(10)]
    request = {"RequestItems": {table: {"Keys": keys, "ConsistentRead": True}}}
    yield "a batch of gets rounds each row", "BatchGetItem", request
    yield "a query of no rows", "Query", _query(table, "pk = :p", {":p": "none"})


def _refusal_checks(table: str) -> Iterator[tuple[str, str, Request]]:
    index = _query(table, "g1 = :g", {":g": "one"}, IndexName="by-g1", ConsistentRead=True)
    yield "an index has no consistent reads", "Query", index
    yield "a key may not be empty", "PutItem", {"TableName": table, "Item": _item("", "1")}
    big = _item("p", "big", x="x" * (400 * KB))
    yield "a row has 400 KB at most", "PutItem", {"TableName": table, "Item": big}
    word = {
        "TableName": table,
        "Key": _key("p", "1"),
        "UpdateExpression": "SET status = :v",
        "ExpressionAttributeValues": {":v": encode(1)},
    }
    yield "a reserved word", "UpdateItem", word


# Requests.


def _key(pk: str, sk: str) -> Request:
    return {"pk": encode(pk), "sk": encode(sk)}


def _item(pk: str, sk: str, **attributes: Any) -> Request:
    return {**_key(pk, sk), **encode_item(attributes)}


def _batch(*statements: tuple[str, Sequence[Any]]) -> Request:
    return {
        "Statements": [
            {
                "Statement": text,
                "Parameters": [encode(value) for value in parameters],
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
            for text, parameters in statements
        ]
    }


def _query(table: str, condition: str, values: Mapping[str, Any], **more: Any) -> Request:
    return {
        "TableName": table,
        "KeyConditionExpression": condition,
        "ExpressionAttributeValues": {name: encode(value) for name, value in values.items()},
        **more,
    }


def _settled(table: str, name: str, number: int) -> Request:
    return {
        "TableName": table,
        "Key": _key("p", name),
        "UpdateExpression": "SET st = :done",
        "ConditionExpression": "attribute_exists(pk) AND st = :held AND cn = :cn",
        "ExpressionAttributeValues": {
            ":done": encode("done"),
            ":held": encode("held"),
            ":cn": encode(number),
        },
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def _added(table: str, name: str) -> Request:
    return {
        "TableName": table,
        "Key": _key("p", name),
        "UpdateExpression": "ADD c :one",
        "ExpressionAttributeValues": {":one": encode(1)},
    }


# What must be equal.


def _refused(code: str, fields: Mapping[str, Any]) -> Outcome:
    reasons = [
        (reason.get("Code"), _normal(reason.get("Item")))
        for reason in fields.get("CancellationReasons", ())
    ]
    return code, (_normal(fields.get("Item")), reasons)


def _units(answer: Mapping[str, Any]) -> dict[str, float]:
    told = answer.get("ConsumedCapacity") or []
    found: Counter[str] = Counter()
    for one in told if isinstance(told, list) else [told]:
        found["all"] += one.get("CapacityUnits", 0)
        for name, index in (one.get("GlobalSecondaryIndexes") or {}).items():
            found[name] += index.get("CapacityUnits", 0)
    return {name: amount for name, amount in found.items() if amount}


def _normal(value: Any) -> Any:
    """Without what may differ: the order of a batch's items, and messages."""
    match value:
        case {"N": str() as number}:
            return {"N": str(Decimal(number).normalize())}
        case {"Error": error}:
            return {"Error": error["Code"], "Item": _normal(error.get("Item"))}
        case {"Responses": dict() as tables}:
            return [sorted(map(repr, map(_normal, items))) for items in tables.values()]
        case dict():
            dropped = {"ConsumedCapacity", "UnprocessedKeys", "UnprocessedItems", "TableName"}
            return {name: _normal(one) for name, one in value.items() if name not in dropped}
        case list():
            return [_normal(one) for one in value]
        case _:
            return value


def _shown(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
