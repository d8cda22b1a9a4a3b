"""Query, over a table or an index."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conveyor.adapters.aws.item_size import Item, item_size
from conveyor.testing.dynamodb import capacity
from conveyor.testing.dynamodb.capacity import TABLE
from conveyor.testing.dynamodb.engine import DynamoDbEngine
from conveyor.testing.dynamodb.expressions import Placeholders, parse_condition
from conveyor.testing.dynamodb.item_operations import Request, consumed_capacity, projection
from conveyor.testing.dynamodb.refusals import Refusal, invalid
from conveyor.testing.dynamodb.schema import KeySchema
from conveyor.testing.dynamodb.storage import SortRange, StoredTable, Token, token
from conveyor.testing.dynamodb.syntax import (
    Between,
    Comparison,
    Condition,
    FunctionTest,
    Literal,
    Path,
    conditions_of,
    holds,
    paths_of,
)
from conveyor.testing.dynamodb.updates import projected
from conveyor.testing.dynamodb.values import canonical, kind_of

LARGEST_PAGE = 1024 * 1024  # bytes
BAD_START = "The provided starting key is invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    partition: Token
    sort: SortRange


def query(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    table, index = engine.table(request.get("TableName")), request.get("IndexName")
    check_index(table, index, is_consistent=bool(request.get("ConsistentRead")))
    keys, placeholders = table.keys_of(index), Placeholders.of(request)
    if "KeyConditionExpression" not in request:
        raise invalid(
            "Either the KeyConditions or KeyConditionExpression parameter must be specified"
        )
    wanted = key_range(
        table,
        keys,
        parse_condition(request["KeyConditionExpression"], placeholders, "KeyConditionExpression"),
    )
    condition = _filter(request, placeholders, keys)
    paths = projection(request, placeholders)
    placeholders.check_used()
    limit = request.get("Limit")
    if limit is not None and limit < 1:
        raise invalid("Limit must be greater than or equal to 1")
    engine.admit_query(table, index, wanted.partition)
    page, last = read_page(
        table,
        index,
        wanted,
        limit=limit,
        is_forward=request.get("ScanIndexForward", True),
        start=_start(table, index, request, wanted),
    )
    units = capacity.query(
        page, consistent=bool(request.get("ConsistentRead")), index=index or TABLE
    )
    engine.charge_query(table, index, wanted.partition, units)
    kept = [item for item in page if condition is None or holds(condition, item)]
    answer: dict[str, Any] = {"Count": len(kept), "ScannedCount": len(page)}
    if request.get("Select") != "COUNT":
        answer["Items"] = [projected(item, paths) for item in kept]
    if last is not None:
        answer["LastEvaluatedKey"] = last
    return answer | consumed_capacity(request, {table.schema.name: units})


def check_index(table: StoredTable, index: str | None, *, is_consistent: bool) -> None:
    if index is None:
        return
    if index not in table.schema.indexes:
        raise invalid(f"The table does not have the specified index: {index}")
    if is_consistent:
        raise invalid("Consistent reads are not supported on global secondary indexes")


def read_page(
    table: StoredTable,
    index: str | None,
    wanted: KeyRange,
    *,
    limit: int | None,
    is_forward: bool = True,
    start: Item | None = None,
) -> tuple[list[Item], Item | None]:
    """Items up to a number or to 1 MB, and the key after which the next page begins."""
    after = None if start is None else table.place(start, index)[1]
    page: list[Item] = []
    size = 0
    for item in table.range(
        wanted.partition, wanted.sort, index=index, is_forward=is_forward, after=after
    ):
        if page and size + item_size(item) > LARGEST_PAGE:
            return page, _key_after(table, index, page[-1])
        page.append(item)
        size += item_size(item)
        if len(page) == limit:
            return page, _key_after(table, index, item)  # whether anything follows or not
    return page, None


def _key_after(table: StoredTable, index: str | None, item: Item) -> Item:
    names = {*table.schema.keys, *table.keys_of(index)}
    return {name: item[name] for name in item if name in names}


def _start(
    table: StoredTable, index: str | None, request: Request, wanted: KeyRange
) -> Item | None:
    given: Mapping[str, Any] | None = request.get("ExclusiveStartKey")
    if given is None:
        return None
    start = {name: canonical(value) for name, value in given.items()}
    names = {*table.schema.keys, *table.keys_of(index)}
    if start.keys() != names or any(
        kind_of(start[name]) != table.schema.types[name] for name in names
    ):
        raise invalid(f"{BAD_START}: The provided key element does not match the schema")
    partition, order = table.place(start, index)
    if partition != wanted.partition or not wanted.sort.includes(order):
        raise invalid(
            "The provided starting key is outside query boundaries based on provided conditions"
        )
    return start


def _filter(request: Request, placeholders: Placeholders, keys: KeySchema) -> Condition | None:
    if "FilterExpression" not in request:
        return None
    condition = parse_condition(request["FilterExpression"], placeholders, "FilterExpression")
    for path in paths_of(condition):
        if path.attribute in set(keys):
            raise invalid(
                "Filter Expression can only contain non-primary key attributes: "
                f"Primary key attribute: {path.attribute}"
            )
    return condition


# Key conditions.


def key_range(table: StoredTable, keys: KeySchema, condition: Condition) -> KeyRange:
    """What a key condition asks for: one partition, and a range of its sort keys."""
    parts = conditions_of(condition)
    partition = [part for part in parts if _named(part) == keys.partition]
    sort = [part for part in parts if _named(part) == keys.sort]
    if len(partition) != 1 or not isinstance(partition[0], Comparison):
        raise invalid(f"Query condition missed key schema element: {keys.partition}")
    if partition[0].operator != "=":
        raise invalid("Query key condition not supported")
    if len(partition) + len(sort) < len(parts) or len(sort) > 1:
        raise _unsupported(table, keys, parts)
    [value] = _values(table, keys.partition, partition[0])
    wanted = _sort_range(table, keys, sort[0]) if sort else SortRange()
    return KeyRange(partition=value, sort=wanted)


def _unsupported(table: StoredTable, keys: KeySchema, parts: Sequence[Condition]) -> Refusal:
    if len(parts) > 2:
        return invalid("Conditions can be of length 1 or 2 only")
    return invalid(f"Query condition missed key schema element: {keys.sort} of {table.schema.name}")


def _named(part: Condition) -> str | None:
    match part:
        case Comparison(left=Path() as path, right=Literal()):
            return path.attribute if len(path.parts) == 1 else None
        case Comparison(left=Literal(), right=Path() as path):
            return path.attribute if len(path.parts) == 1 else None
        case (
            Between(operand=Path() as path) | FunctionTest(name="begins_with", path=Path() as path)
        ):
            return path.attribute if len(path.parts) == 1 else None
        case _:
            return None


def _values(table: StoredTable, name: str, part: Condition) -> list[Token]:
    match part:
        case Comparison(left=Path(), right=Literal(value=value)):
            values = [value]
        case Comparison(left=Literal(value=value)):
            values = [value]
        case Between(low=Literal(value=low), high=Literal(value=high)):
            values = [low, high]
        case FunctionTest(argument=Literal(value=value)):
            values = [value]
        case _:
            raise invalid("Query key condition not supported")
    for value in values:
        if kind_of(value) != table.schema.types[name]:
            raise invalid(
                "One or more parameter values were invalid: Condition parameter type does not match schema type"
            )
        if "" in value.values():
            raise invalid(
                "One or more parameter values are not valid. The AttributeValue for a key "
                f"attribute cannot contain an empty string value. Key: {name}"
            )
    return [token(value) for value in values]


def _sort_range(table: StoredTable, keys: KeySchema, part: Condition) -> SortRange:
    assert keys.sort is not None
    values = _values(table, keys.sort, part)
    if isinstance(part, Between):
        if values[0] > values[1]:
            raise invalid(
                "The BETWEEN operator requires upper bound to be greater than or equal to lower bound"
            )
        return SortRange(low=values[0], high=values[1])
    if isinstance(part, FunctionTest):
        return SortRange(prefix=values[0])
    assert isinstance(part, Comparison)
    operator = part.operator
    if isinstance(part.left, Literal):  # a value before the name
        operator = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
    match operator:
        case "=":
            return SortRange(low=values[0], high=values[0])
        case "<" | "<=":
            return SortRange(high=values[0], is_high_included=operator == "<=")
        case ">" | ">=":
            return SortRange(low=values[0], is_low_included=operator == ">=")
        case _:
            raise invalid("Query key condition not supported")
