"""The entries of a request: which partition each is for, and how to leave some of them out."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from conveyor.testing.dynamodb.engine import DynamoDbEngine
from conveyor.testing.dynamodb.expressions import Placeholders, parse_condition
from conveyor.testing.dynamodb.partiql import SelectStatement, parse_statement
from conveyor.testing.dynamodb.partitions import Kind
from conveyor.testing.dynamodb.queries import key_range
from conveyor.testing.dynamodb.refusals import Refusal
from conveyor.testing.dynamodb.statements import statement_key
from conveyor.testing.dynamodb.storage import token

Request = Mapping[str, Any]
READS = {"GetItem", "BatchGetItem", "TransactGetItems", "Query"}


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One part of a request: all of it, or an element of its batch or transaction."""

    content: Any
    kind: Kind
    partition: object = None  # None: not known


def entries_of(engine: DynamoDbEngine, operation: str, request: Request) -> Sequence[BatchEntry]:
    """The entries, in the order of the request. `engine` knows the keys of the tables."""
    kind: Kind = "read" if operation in READS else "write"
    match operation:
        case "PutItem" | "UpdateItem" | "DeleteItem" | "GetItem":
            return [BatchEntry(request, kind, _partition(engine, request))]
        case "BatchWriteItem" | "BatchGetItem":
            return [
                BatchEntry(
                    (table, one), kind, _partition(engine, {"TableName": table, **_keyed(one)})
                )
                for table, wanted in request["RequestItems"].items()
                for one in (wanted if operation == "BatchWriteItem" else wanted["Keys"])
            ]
        case "TransactWriteItems" | "TransactGetItems":
            actions = [action for one in request["TransactItems"] for action in one.values()]
            return [BatchEntry(action, kind, _partition(engine, action)) for action in actions]
        case "BatchExecuteStatement":
            return [_statement(engine, one) for one in request["Statements"]]
        case "ExecuteStatement":
            return [_statement(engine, request)]
        case "Query":
            return [BatchEntry(request, kind, _guarded(lambda: _queried(engine, request)))]
        case _:
            return []


def tables_of(request: Request) -> set[str]:
    """The tables that a request names."""
    actions = [action for one in request.get("TransactItems", ()) for action in one.values()]
    names = {one.get("TableName") for one in (request, *actions)}
    for one in (request, *request.get("Statements", ())):
        with suppress(Refusal, KeyError):
            names.add(parse_statement(one["Statement"], one.get("Parameters")).table)
    return {*request.get("RequestItems", ()), *(name for name in names if isinstance(name, str))}


def without(operation: str, request: Request, left_out: Collection[int]) -> dict[str, Any]:
    """The request without some of its entries."""
    if operation == "BatchExecuteStatement":
        kept = [one for n, one in enumerate(request["Statements"]) if n not in left_out]
        return {**request, "Statements": kept}
    first, kept_items = 0, {}
    for table, wanted in request["RequestItems"].items():
        elements = wanted if operation == "BatchWriteItem" else wanted["Keys"]
        kept = [one for n, one in enumerate(elements, first) if n not in left_out]
        first += len(elements)
        if kept:
            whole = operation == "BatchWriteItem"
            kept_items[table] = kept if whole else {**wanted, "Keys": kept}
    return {**request, "RequestItems": kept_items}


def unprocessed(
    operation: str, request: Request, left_out: Mapping[int, str], answer: Request
) -> dict[str, Any]:
    """The answer, with what was left out told as DynamoDB tells it."""
    if operation == "BatchExecuteStatement":
        told = iter(answer.get("Responses", ()))
        errors = {
            n: {"Error": {"Code": code, "Message": "by the proxy"}} for n, code in left_out.items()
        }
        count = len(request["Statements"])
        return {**answer, "Responses": [errors.get(n) or next(told) for n in range(count)]}
    name = "UnprocessedItems" if operation == "BatchWriteItem" else "UnprocessedKeys"
    total = sum(1 for _ in _elements(operation, request))
    rest = without(operation, request, set(range(total)) - left_out.keys())["RequestItems"]
    return {**answer, name: {**(answer.get(name) or {}), **rest}}


def _elements(operation: str, request: Request) -> Sequence[Any]:
    return [
        one
        for wanted in request["RequestItems"].values()
        for one in (wanted if operation == "BatchWriteItem" else wanted["Keys"])
    ]


def _keyed(one: Request) -> Request:
    match one:
        case {"PutRequest": put}:
            return dict(put)
        case {"DeleteRequest": delete}:
            return dict(delete)
        case _:
            return {"Key": one}


def _partition(engine: DynamoDbEngine, request: Request) -> object:
    def found() -> object:
        table = engine.table(request.get("TableName"))
        item = request.get("Item") or request["Key"]
        return table.schema.name, None, token(item[table.schema.keys.partition])

    return _guarded(found)


def _queried(engine: DynamoDbEngine, request: Request) -> object:
    table, index = engine.table(request.get("TableName")), request.get("IndexName")
    placeholders = Placeholders.of(request)
    condition = parse_condition(request["KeyConditionExpression"], placeholders)
    return table.schema.name, index, key_range(table, table.keys_of(index), condition).partition


def _statement(engine: DynamoDbEngine, request: Request) -> BatchEntry:
    try:
        parsed = parse_statement(request["Statement"], request.get("Parameters"))
    except Refusal:
        return BatchEntry(request, "write")

    def found() -> object:
        table = engine.table(parsed.table)
        return (
            table.schema.name,
            None,
            token(statement_key(table, parsed)[table.schema.keys.partition]),
        )

    kind: Kind = "read" if isinstance(parsed, SelectStatement) else "write"
    return BatchEntry(request, kind, _guarded(found))


def _guarded(find: Callable[[], object]) -> object:
    """None if the request is malformed: the server that gets it refuses it."""
    try:
        return find()
    except (Refusal, KeyError):
        return None
