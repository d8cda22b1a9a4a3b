"""DynamoDB's typed JSON from and to Python values and msgspec structs.

Numbers are int or float. A float that is integral comes back as an int; msgspec converts it where
a field wants a float.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, TypeVar

import msgspec

from conveyor.adapters.aws.item_size import AttributeValue, Item

T = TypeVar("T")
NATIVE = (bytes, bytearray, memoryview)  # types that msgspec leaves as they are


def encode(value: object) -> dict[str, Any]:
    """A str, int, float, bool, None, bytes, list, tuple, dict, or a set of one of the first three."""
    encoder = ENCODERS.get(type(value))
    if encoder is None:
        raise TypeError(f"DynamoDB has no type for {type(value).__name__}")
    return encoder(value)


def decode(value: AttributeValue) -> Any:
    for kind, content in value.items():
        return DECODERS[kind](content)
    raise ValueError("an attribute value must have one type, got none")


def encode_item(fields: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    encoders = ENCODERS
    try:
        return {name: encoders[type(value)](value) for name, value in fields.items()}
    except KeyError as error:
        raise TypeError(f"DynamoDB has no type for {error.args[0].__name__}") from None


def decode_item(item: Item) -> dict[str, Any]:
    decoders = DECODERS
    return {
        name: decoders[kind](content)
        for name, value in item.items()
        for kind, content in value.items()
    }


def item_of(struct: msgspec.Struct) -> dict[str, dict[str, Any]]:
    """The fields of a struct, with those types that JSON has and bytes."""
    return encode_item(msgspec.to_builtins(struct, builtin_types=NATIVE))


def struct_of(item: Item, kind: type[T]) -> T:
    """The reverse of `item_of`. Attributes that the struct does not have are ignored."""
    return msgspec.convert(decode_item(item), kind, builtin_types=NATIVE)


def _number(value: float) -> dict[str, Any]:
    if not isfinite(value):
        raise ValueError(f"DynamoDB has no number {value}")
    return {"N": repr(value)}


def _set(values: frozenset[Any] | set[Any]) -> dict[str, Any]:
    encoded = [encode(value) for value in sorted(values)]
    kinds = {kind for value in encoded for kind in value}
    if len(kinds) != 1 or not kinds <= {"S", "N", "B"}:
        raise ValueError("a set must have elements, all strings, all numbers or all bytes")
    [kind] = kinds
    return {f"{kind}S": [value[kind] for value in encoded]}


def _parsed(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


ENCODERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    str: lambda value: {"S": value},
    bool: lambda value: {"BOOL": value},
    int: lambda value: {"N": str(value)},
    float: _number,
    type(None): lambda _: {"NULL": True},
    bytes: lambda value: {"B": b64encode(value).decode()},
    list: lambda value: {"L": [encode(element) for element in value]},
    tuple: lambda value: {"L": [encode(element) for element in value]},
    dict: lambda value: {"M": encode_item(value)},
    set: _set,
    frozenset: _set,
}
DECODERS: dict[str, Callable[[Any], Any]] = {
    "S": lambda content: content,
    "N": _parsed,
    "BOOL": lambda content: content,
    "NULL": lambda _: None,
    "B": b64decode,
    "L": lambda content: [decode(element) for element in content],
    "M": decode_item,
    "SS": frozenset,
    "NS": lambda content: frozenset(map(_parsed, content)),
    "BS": lambda content: frozenset(map(b64decode, content)),
}
