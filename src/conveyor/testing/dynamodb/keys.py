"""Keys that DynamoDB accepts."""

from collections.abc import Mapping
from typing import Any

from conveyor.adapters.aws.item_size import AttributeValue, Item, value_size
from conveyor.testing.dynamodb.refusals import invalid, invalid_parameter
from conveyor.testing.dynamodb.schema import TableSchema
from conveyor.testing.dynamodb.values import canonical, kind_of

LONGEST_PARTITION, LONGEST_SORT = 2048, 1024  # bytes
NO_MATCH = "The provided key element does not match the schema"


def parse_key(schema: TableSchema, given: Mapping[str, Any] | None) -> Item:
    """The key of an item, from `Key` of a request."""
    key = {name: canonical(value) for name, value in (given or {}).items()}
    if key.keys() != set(schema.keys):
        raise invalid(NO_MATCH)
    if any(kind_of(value) != schema.types[name] for name, value in key.items()):
        raise invalid(NO_MATCH)
    _check_contents(schema, key)
    return key


def parse_item(schema: TableSchema, given: Mapping[str, Any] | None) -> Item:
    item = {name: canonical(value) for name, value in (given or {}).items()}
    check_item_keys(schema, item)
    return item


def check_item_keys(schema: TableSchema, item: Item) -> None:
    for name in schema.keys:
        if name not in item:
            raise invalid_parameter(f"Missing the key {name} in the item")
        if (kind := kind_of(item[name])) != schema.types[name]:
            raise invalid_parameter(
                f"Type mismatch for key {name} expected: {schema.types[name]} actual: {kind}"
            )
    _check_contents(schema, item)


def _check_contents(schema: TableSchema, item: Item) -> None:
    for name in schema.keys:
        _check_not_empty(item[name], f"Key: {name}")
        limit = LONGEST_SORT if name == schema.keys.sort else LONGEST_PARTITION
        what = "range" if name == schema.keys.sort else "hash"
        if value_size(item[name]) > limit:
            raise invalid_parameter(
                f"Aggregated size of all {what} keys has exceeded the size limit of {limit} bytes"
            )


def check_index_keys(schema: TableSchema, item: Item) -> None:
    for index in schema.indexes.values():
        for name in index.keys:
            if name not in item:
                continue
            if (kind := kind_of(item[name])) != schema.types[name]:
                raise invalid_parameter(
                    f"Type mismatch for Index Key {name} Expected: {schema.types[name]} "
                    f"Actual: {kind} IndexName: {index.name}"
                )
            _check_not_empty(item[name], f"IndexName: {index.name}, IndexKey: {name}")


def _check_not_empty(value: AttributeValue, where: str) -> None:
    for kind, what in (("S", "string"), ("B", "binary")):
        if value.get(kind) == "":
            raise invalid(
                "One or more parameter values are not valid. The AttributeValue for a key "
                f"attribute cannot contain an empty {what} value. {where}"
            )
