"""ExecuteStatement and BatchExecuteStatement."""

from collections.abc import Mapping, Sequence
from typing import Any

from conveyor.adapters.aws.item_size import Item
from conveyor.testing.dynamodb import capacity
from conveyor.testing.dynamodb.capacity import TABLE, Units
from conveyor.testing.dynamodb.engine import DynamoDbEngine
from conveyor.testing.dynamodb.item_operations import (
    DUPLICATES,
    Request,
    check_keys_stay,
    consumed_capacity,
    read_item,
)
from conveyor.testing.dynamodb.keys import parse_item, parse_key
from conveyor.testing.dynamodb.partiql import (
    DeleteStatement,
    InsertStatement,
    SelectStatement,
    Statement,
    UpdateStatement,
    parse_statement,
)
from conveyor.testing.dynamodb.queries import check_index, key_range, read_page
from conveyor.testing.dynamodb.refusals import Refusal, duplicate_item, invalid
from conveyor.testing.dynamodb.storage import StoredTable
from conveyor.testing.dynamodb.syntax import (
    AllOf,
    Comparison,
    Condition,
    FunctionTest,
    Literal,
    Path,
    conditions_of,
    holds,
    paths_of,
)
from conveyor.testing.dynamodb.updates import picked, projected, updated

MOST_STATEMENTS = 25
NO_KEY = "Where clause does not contain a mandatory equality on all key attributes"
ONE_ITEM = "Select statements within BatchExecuteStatement must specify the primary key in the where clause."


def execute_statement(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    statement = parse_statement(request.get("Statement", ""), request.get("Parameters"))
    if isinstance(statement, SelectStatement):
        items = _select(engine, statement, request)
    else:
        found = _write(engine, statement, request)
        items = [] if found is None else [found]
    return {"Items": items} | consumed_capacity(request, {statement.table: engine.charged})


def batch_execute_statement(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    given: Sequence[Mapping[str, Any]] = request.get("Statements") or ()
    if not 1 <= len(given) <= MOST_STATEMENTS:
        raise invalid(
            "1 validation error detected: Value at 'statements' failed to satisfy constraint: "
            f"Member must have length between 1 and {MOST_STATEMENTS}, got {len(given)}"
        )
    parsed = [_parsed(one) for one in given]
    statements = [one for one in parsed if not isinstance(one, Refusal)]
    reads = sum(isinstance(one, SelectStatement) for one in statements)
    if 0 < reads < len(statements):
        raise invalid("Batch must not contain both read and write statements")
    _check_targets(engine, statements)
    units: dict[str, Units] = {}
    answers = []
    for statement, one in zip(parsed, given, strict=True):
        if isinstance(statement, Refusal):
            answers.append({"Error": _error(statement)})
            continue
        answers.append(_entry(engine, statement, one, units))
    return {"Responses": answers} | consumed_capacity(request, units, is_list=True)


def _parsed(request: Request) -> Statement | Refusal:
    try:
        return parse_statement(request.get("Statement", ""), request.get("Parameters"))
    except Refusal as refusal:
        return refusal


def _check_targets(engine: DynamoDbEngine, statements: Sequence[Statement]) -> None:
    targets = []
    for statement in statements:
        if (table := engine.tables.get(statement.table)) is None:
            continue
        try:
            targets.append((statement.table, table.key(statement_key(table, statement))))
        except Refusal:
            continue  # an error of that statement alone
    if len(set(targets)) < len(targets):
        raise invalid(DUPLICATES)


def _entry(
    engine: DynamoDbEngine, statement: Statement, request: Request, units: dict[str, Units]
) -> dict[str, Any]:
    before, cost = engine.charged, Units()
    try:
        if isinstance(statement, SelectStatement):
            found = _select_one(engine, statement, request)
        else:
            found = _write(engine, statement, request)
    except Refusal as refusal:
        engine.bill(refusal.units)
        cost = refusal.units
        entry: dict[str, Any] = {"Error": _error(refusal)}
        if refusal.code in {"ConditionalCheckFailedException", "DuplicateItemException"}:
            entry["TableName"] = statement.table
    else:
        cost = engine.since(before)
        entry = {"TableName": statement.table} | ({} if found is None else {"Item": found})
    units[statement.table] = units.get(statement.table, Units()) + cost
    return entry


def _error(refusal: Refusal) -> dict[str, Any]:
    item = {"Item": refusal.fields["Item"]} if "Item" in refusal.fields else {}
    return {"Code": refusal.short_code, "Message": refusal.message, **item}


# Keys.


def statement_key(table: StoredTable, statement: Statement) -> Item:
    """The key of the one item that a statement is about."""
    if isinstance(statement, InsertStatement):
        return table.schema.key_of(parse_item(table.schema, statement.item))
    parts = conditions_of(statement.where) if statement.where is not None else ()
    found: dict[str, Any] = {}
    for part in parts:
        name = _equal_to(part)
        if name in set(table.schema.keys):
            assert isinstance(part, Comparison)
            assert isinstance(part.right, Literal)
            found[name] = part.right.value
    if found.keys() != set(table.schema.keys):
        raise invalid(NO_KEY)
    return parse_key(table.schema, found)


def _equal_to(part: Condition) -> str:
    match part:
        case Comparison(operator="=", left=Path(parts=(str() as name,)), right=Literal()):
            return name
        case _:
            return ""


# Writes.


def _write(
    engine: DynamoDbEngine,
    statement: InsertStatement | UpdateStatement | DeleteStatement,
    request: Request,
) -> Item | None:
    table = engine.table(statement.table)
    key = statement_key(table, statement)
    shows_old = request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
    match statement:
        case InsertStatement():
            _insert(engine, table, key, statement)
            return None
        case UpdateStatement():
            return _update(engine, table, key, statement, shows_old=shows_old)
        case DeleteStatement():
            return _delete(engine, table, key, statement, shows_old=shows_old)


def _insert(
    engine: DynamoDbEngine, table: StoredTable, key: Item, statement: InsertStatement
) -> None:
    item = parse_item(table.schema, statement.item)
    absent = FunctionTest("attribute_not_exists", Path((table.schema.keys.partition,)))
    try:
        write = engine.plan(table, key, change=lambda _: item, condition=absent)
    except Refusal as refusal:
        if refusal.code == "ConditionalCheckFailedException":
            raise duplicate_item(refusal.units) from None
        raise
    engine.apply(write)


def _update(
    engine: DynamoDbEngine,
    table: StoredTable,
    key: Item,
    statement: UpdateStatement,
    *,
    shows_old: bool,
) -> Item | None:
    check_keys_stay(table.schema, statement.actions.paths)
    exists = FunctionTest("attribute_exists", Path((table.schema.keys.partition,)))
    write = engine.plan(
        table,
        key,
        change=lambda before: updated(before or key, statement.actions),
        condition=AllOf([exists, statement.where]),
        shows_old=shows_old,
    )
    engine.apply(write)
    if not statement.returning:
        return None
    shown = write.before if "OLD" in statement.returning else write.after
    if statement.returning.startswith("ALL") or shown is None:
        return shown
    return picked(shown, statement.actions.paths) or None


def _delete(
    engine: DynamoDbEngine,
    table: StoredTable,
    key: Item,
    statement: DeleteStatement,
    *,
    shows_old: bool,
) -> Item | None:
    condition = statement.where if table.get(key) is not None else None  # else nothing to delete
    write = engine.plan(table, key, change=lambda _: None, condition=condition, shows_old=shows_old)
    engine.apply(write)
    return write.before if statement.returning else None


# Reads.


def _select_one(
    engine: DynamoDbEngine, statement: SelectStatement, request: Request
) -> Item | None:
    table = engine.table(statement.table)
    try:
        key = statement_key(table, statement)
    except Refusal:
        raise invalid(ONE_ITEM) from None
    if statement.index is not None:
        raise invalid(ONE_ITEM)
    is_consistent = bool(request.get("ConsistentRead"))
    found = read_item(engine, table, key, is_consistent=is_consistent)
    if found is None or (statement.where is not None and not holds(statement.where, found)):
        return None
    return projected(found, statement.paths)


def _select(engine: DynamoDbEngine, statement: SelectStatement, request: Request) -> list[Item]:
    table, index = engine.table(statement.table), statement.index
    is_consistent = bool(request.get("ConsistentRead"))
    check_index(table, index, is_consistent=is_consistent)
    if statement.where is None:
        raise invalid("The fake does not scan: a SELECT needs the partition key")
    keys = table.keys_of(index)
    parts = conditions_of(statement.where)
    of_keys = [part for part in parts if {p.attribute for p in paths_of(part)} <= set(keys)]
    wanted = key_range(table, keys, AllOf(of_keys))
    engine.admit_query(table, index, wanted.partition)
    page, last = read_page(
        table, index, wanted, limit=request.get("Limit"), is_forward=statement.is_forward
    )
    if last is not None and "Limit" not in request:
        raise invalid("The fake has no NextToken: use Query for more than 1 MB")
    units = capacity.query(page, consistent=is_consistent, index=index or TABLE)
    engine.charge_query(table, index, wanted.partition, units)
    kept = [item for item in page if holds(statement.where, item)]
    return [projected(item, statement.paths) for item in kept]
