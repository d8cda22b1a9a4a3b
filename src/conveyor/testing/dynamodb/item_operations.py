"""PutItem, UpdateItem, DeleteItem, GetItem and their batches."""

from collections.abc import Mapping, Sequence
from typing import Any

from conveyor.adapters.aws.item_size import Item, item_size
from conveyor.testing.dynamodb import capacity
from conveyor.testing.dynamodb.capacity import TABLE, Units
from conveyor.testing.dynamodb.engine import DynamoDbEngine, PlannedWrite
from conveyor.testing.dynamodb.expressions import (
    Placeholders,
    UpdateActions,
    parse_condition,
    parse_projection,
    parse_update,
)
from conveyor.testing.dynamodb.keys import parse_item, parse_key
from conveyor.testing.dynamodb.refusals import Refusal, invalid, invalid_parameter
from conveyor.testing.dynamodb.schema import TableSchema
from conveyor.testing.dynamodb.storage import StoredTable
from conveyor.testing.dynamodb.syntax import Condition, Path
from conveyor.testing.dynamodb.updates import picked, projected, updated

Request = Mapping[str, Any]

MOST_READ, MOST_WRITTEN = 100, 25
LARGEST_READ = 16 * 1024 * 1024
DUPLICATES = "Provided list of item keys contains duplicates"


def put_item(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    _check_choice(request, "ReturnValues", {"NONE", "ALL_OLD"})
    write = plan_put(engine, request)
    engine.apply(write)
    return _answer(engine, request, write, _old(request, write))


def delete_item(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    _check_choice(request, "ReturnValues", {"NONE", "ALL_OLD"})
    write = plan_delete(engine, request)
    engine.apply(write)
    return _answer(engine, request, write, _old(request, write))


def update_item(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    every = {"NONE", "ALL_OLD", "ALL_NEW", "UPDATED_OLD", "UPDATED_NEW"}
    choice = _check_choice(request, "ReturnValues", every)
    write, actions = plan_update(engine, request)
    engine.apply(write)
    shown = None if choice == "NONE" else write.before if choice.endswith("OLD") else write.after
    if shown is not None and choice.startswith("UPDATED"):
        shown = picked(shown, actions.paths) or None
    return _answer(engine, request, write, shown)


def _old(request: Request, write: PlannedWrite) -> Item | None:
    return write.before if request.get("ReturnValues") == "ALL_OLD" else None


def _answer(
    engine: DynamoDbEngine, request: Request, write: PlannedWrite, shown: Item | None
) -> dict[str, Any]:
    answer: dict[str, Any] = {"Attributes": shown} if shown else {}
    return answer | consumed_capacity(request, {write.table.schema.name: engine.charged})


# Plans, which transactions use as well.


def plan_put(
    engine: DynamoDbEngine, request: Request, *, transactional: bool = False
) -> PlannedWrite:
    table = engine.table(request.get("TableName"))
    condition = _condition(request, Placeholders.of(request))
    item = parse_item(table.schema, request.get("Item"))
    return engine.plan(
        table,
        table.schema.key_of(item),
        change=lambda _: item,
        condition=condition,
        shows_old=_shows_old(request),
        transactional=transactional,
    )


def plan_delete(
    engine: DynamoDbEngine, request: Request, *, transactional: bool = False
) -> PlannedWrite:
    table = engine.table(request.get("TableName"))
    condition = _condition(request, Placeholders.of(request))
    return engine.plan(
        table,
        parse_key(table.schema, request.get("Key")),
        change=lambda _: None,
        condition=condition,
        shows_old=_shows_old(request),
        transactional=transactional,
    )


def plan_check(engine: DynamoDbEngine, request: Request) -> PlannedWrite:
    """ConditionCheck of a transaction: it writes nothing, and costs as a write."""
    table = engine.table(request.get("TableName"))
    if "ConditionExpression" not in request:
        raise invalid("The parameter 'ConditionExpression' is required")
    condition = _condition(request, Placeholders.of(request))
    return engine.plan(
        table,
        parse_key(table.schema, request.get("Key")),
        change=lambda before: before,
        condition=condition,
        shows_old=_shows_old(request),
        transactional=True,
    )


def plan_update(
    engine: DynamoDbEngine, request: Request, *, transactional: bool = False
) -> tuple[PlannedWrite, UpdateActions]:
    table = engine.table(request.get("TableName"))
    placeholders = Placeholders.of(request)
    actions = UpdateActions()
    if "UpdateExpression" in request:
        actions = parse_update(request["UpdateExpression"], placeholders)
    elif transactional:
        raise invalid("The parameter 'UpdateExpression' is required")
    condition = _condition(request, placeholders)
    key = parse_key(table.schema, request.get("Key"))
    check_keys_stay(table.schema, actions.paths)
    planned = engine.plan(
        table,
        key,
        change=lambda before: updated(before or key, actions),
        condition=condition,
        shows_old=_shows_old(request),
        transactional=transactional,
    )
    return planned, actions


def check_expressions(request: Request) -> None:
    """Refuse expressions that are wrong whatever is stored."""
    placeholders = Placeholders.of(request)
    if "UpdateExpression" in request:
        parse_update(request["UpdateExpression"], placeholders)
    _condition(request, placeholders)


def check_keys_stay(schema: TableSchema, paths: Sequence[Path]) -> None:
    for path in paths:
        if path.attribute in set(schema.keys):
            raise invalid_parameter(
                f"Cannot update attribute {path.attribute}. This attribute is part of the key"
            )


def _condition(request: Request, placeholders: Placeholders) -> Condition | None:
    condition = None
    if "ConditionExpression" in request:
        condition = parse_condition(request["ConditionExpression"], placeholders)
    placeholders.check_used()
    return condition


def _shows_old(request: Request) -> bool:
    name = "ReturnValuesOnConditionCheckFailure"
    return _check_choice(request, name, {"NONE", "ALL_OLD"}) == "ALL_OLD"


def _check_choice(request: Request, name: str, choices: set[str]) -> str:
    chosen: str = request.get(name, "NONE")
    if chosen not in choices:
        raise invalid(
            f"1 validation error detected: Value '{chosen}' at '{name}' failed to satisfy "
            f"constraint: Member must satisfy enum value set: {sorted(choices)}"
        )
    return chosen


# Reads.


def get_item(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    table = engine.table(request.get("TableName"))
    placeholders = Placeholders.of(request)
    paths = projection(request, placeholders)
    placeholders.check_used()
    key = parse_key(table.schema, request.get("Key"))
    found = read_item(engine, table, key, is_consistent=bool(request.get("ConsistentRead")))
    answer: dict[str, Any] = {} if found is None else {"Item": projected(found, paths)}
    return answer | consumed_capacity(request, {table.schema.name: engine.charged})


def read_item(
    engine: DynamoDbEngine, table: StoredTable, key: Item, *, is_consistent: bool
) -> Item | None:
    engine.admit_read(table, key)
    found = table.get(key)
    engine.charge_read(table, key, capacity.get(found, consistent=is_consistent))
    return found


def projection(request: Request, placeholders: Placeholders) -> Sequence[Path] | None:
    if "ProjectionExpression" not in request:
        return None
    return parse_projection(request["ProjectionExpression"], placeholders)


def batch_get_item(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    asked: Mapping[str, Any] = request.get("RequestItems") or {}
    count = sum(len(wanted.get("Keys", ())) for wanted in asked.values())
    _check_length(count, MOST_READ, "Too many items requested for the BatchGetItem call")
    plans = [(engine.table(name), wanted) for name, wanted in asked.items()]
    reads = [_batch_read(table, wanted) for table, wanted in plans]
    found: dict[str, list[Item]] = {table.schema.name: [] for table, _ in plans}
    left: dict[str, Any] = {}
    units: dict[str, Units] = {}
    size = 0
    for (table, wanted), (keys, paths) in zip(plans, reads, strict=True):
        name, is_consistent = table.schema.name, bool(wanted.get("ConsistentRead"))
        for key in keys:
            before = engine.charged
            try:
                _check_room(size)
                item = read_item(engine, table, key, is_consistent=is_consistent)
            except Refusal as refusal:
                _only_throttled(refusal)
                left.setdefault(name, {**wanted, "Keys": []})["Keys"].append(key)
                last = refusal
                continue
            units[name] = units.get(name, Units()) + engine.since(before)
            if item is not None:
                size += item_size(item)
                found[name].append(projected(item, paths))
    if left and not units:
        raise last
    answer = {"Responses": found, "UnprocessedKeys": left}
    return answer | consumed_capacity(request, units, is_list=True)


def _check_room(size: int) -> None:
    if size >= LARGEST_READ:
        raise Refusal("ThrottlingException", "The response is full")


def _batch_read(
    table: StoredTable, wanted: Request
) -> tuple[Sequence[Item], Sequence[Path] | None]:
    placeholders = Placeholders.of(wanted)
    paths = projection(wanted, placeholders)
    placeholders.check_used()
    keys = [parse_key(table.schema, key) for key in wanted.get("Keys", ())]
    if len({table.key(key) for key in keys}) < len(keys):
        raise invalid(DUPLICATES)
    return keys, paths


def batch_write_item(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    asked: Mapping[str, Any] = request.get("RequestItems") or {}
    count = sum(map(len, asked.values()))
    _check_length(count, MOST_WRITTEN, "Too many items requested for the BatchWriteItem call")
    for name, writes in asked.items():
        table = engine.table(name)
        keys = [_batch_key(table, write) for write in writes]
        if len(set(keys)) < len(keys):
            raise invalid(DUPLICATES)
    left: dict[str, list[Any]] = {}
    units: dict[str, Units] = {}
    for name, writes in asked.items():
        for write in writes:
            before = engine.charged
            try:
                _batch_write(engine, name, write)
            except Refusal as refusal:
                _only_throttled(refusal)
                left.setdefault(name, []).append(write)
                last = refusal
                continue
            units[name] = units.get(name, Units()) + engine.since(before)
    if left and not units:
        raise last
    return {"UnprocessedItems": left} | consumed_capacity(request, units, is_list=True)


def _batch_key(table: StoredTable, write: Request) -> object:
    match write:
        case {"PutRequest": {"Item": item}}:
            return table.key(parse_item(table.schema, item))
        case {"DeleteRequest": {"Key": key}}:
            return table.key(parse_key(table.schema, key))
        case _:
            raise invalid("Supplied AttributeValue has neither PutRequest nor DeleteRequest")


def _batch_write(engine: DynamoDbEngine, name: str, write: Request) -> None:
    if "PutRequest" in write:
        planned = plan_put(engine, {"TableName": name, **write["PutRequest"]})
    else:
        planned = plan_delete(engine, {"TableName": name, **write["DeleteRequest"]})
    engine.apply(planned)


def _only_throttled(refusal: Refusal) -> None:
    """A conflict leaves an item of a batch unprocessed, too."""
    if refusal.code not in {"ThrottlingException", "TransactionConflictException"}:
        raise refusal


def _check_length(count: int, most: int, message: str) -> None:
    if not count:
        raise invalid("The batch request list should not be empty: Member must have length >= 1")
    if count > most:
        raise invalid(message)


# Capacity.


def consumed_capacity(
    request: Request, units: Mapping[str, Units], *, is_list: bool = False
) -> dict[str, Any]:
    """The field of a response, where the request wants it."""
    choice = _check_choice(request, "ReturnConsumedCapacity", {"NONE", "TOTAL", "INDEXES"})
    if choice == "NONE":
        return {}
    told = [_consumed(name, one, with_indexes=choice == "INDEXES") for name, one in units.items()]
    return {"ConsumedCapacity": told if is_list else told[0]}


def _consumed(table: str, units: Units, *, with_indexes: bool) -> dict[str, Any]:
    names = {**units.write, **units.read}
    each = {name: units.write.get(name, 0) + units.read.get(name, 0) for name in names}
    told: dict[str, Any] = {"TableName": table, "CapacityUnits": sum(each.values())}
    if with_indexes:
        told["Table"] = {"CapacityUnits": each.pop(TABLE, 0.0)}
        if each:
            told["GlobalSecondaryIndexes"] = {n: {"CapacityUnits": u} for n, u in each.items()}
    return told
