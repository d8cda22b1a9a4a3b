"""Attribute values: what DynamoDB accepts, stores and compares."""

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Any

from conveyor.adapters.aws.item_size import AttributeValue
from conveyor.testing.dynamodb.refusals import invalid, invalid_parameter

DIGITS = 38
LARGEST, SMALLEST = 125, -130  # exponents
DEEPEST = 32
EXACT = Context(prec=200, Emax=10_000, Emin=-10_000)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
SCALARS = {"S", "N", "B"}
TYPES = SCALARS | {"BOOL", "NULL", "L", "M", "SS", "NS", "BS"}
EMPTY_VALUE = (
    "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes"
)
SEVERAL = "Supplied AttributeValue has more than one datatypes set, must contain exactly one of the supported datatypes"


def canonical(value: object, depth: int = 1) -> dict[str, Any]:
    """The value as it is stored, or a refusal."""
    if not isinstance(value, Mapping) or not value or not value.keys() <= TYPES:
        raise invalid(EMPTY_VALUE)
    if len(value) > 1:
        raise invalid(SEVERAL)
    if depth > DEEPEST:
        raise invalid("Nesting Levels have exceeded supported limits")
    [(kind, content)] = value.items()
    return {kind: _content(kind, content, depth)}


def _content(kind: str, content: Any, depth: int) -> Any:
    match kind:
        case "S" | "N" | "B":
            return _scalar(kind, content)
        case "BOOL":
            return bool(content)
        case "NULL":
            if content is not True:
                raise invalid_parameter("Null attribute value types must have the value of true")
            return True
        case "L":
            return [canonical(element, depth + 1) for element in content]
        case "M":
            return {name: canonical(element, depth + 1) for name, element in content.items()}
        case _:
            return _set(kind, content)


def _scalar(kind: str, content: object) -> str:
    if not isinstance(content, str):
        raise invalid("Unexpected type of a value")
    if kind == "N":
        return number_text(content)
    if kind == "B":
        _bytes(content)
    return content


def _set(kind: str, content: list[str]) -> list[str]:
    if not content:
        raise invalid_parameter(f"An {_set_name(kind)} set  may not be empty")
    elements = [_scalar(kind[0], element) for element in content]
    if len(set(elements)) < len(elements):
        raise invalid_parameter("Input collection contains duplicates.")
    return elements


def _set_name(kind: str) -> str:
    return {"SS": "string", "NS": "number", "BS": "binary"}[kind]


def number_text(text: str) -> str:
    """A number as it is stored: without exponent and needless zeros."""
    if not NUMBER.fullmatch(text):
        raise invalid(f"The parameter cannot be converted to a numeric value: {text}")
    return format_number(Decimal(text))


def format_number(number: Decimal) -> str:
    number = number.normalize(EXACT)
    if not number:
        return "0"
    if len(number.as_tuple().digits) > DIGITS:
        raise invalid("Attempting to store more than 38 significant digits in a Number")
    if number.adjusted() > LARGEST:
        raise invalid(
            "Number overflow. Attempting to store a number with magnitude larger than supported range"
        )
    if number.adjusted() < SMALLEST:
        raise invalid(
            "Number underflow. Attempting to store a number with magnitude smaller than supported range"
        )
    return f"{number:f}"


def _bytes(content: str) -> bytes:
    try:
        return b64decode(content, validate=True)
    except binascii.Error:
        raise invalid("Invalid base64 data") from None


def kind_of(value: AttributeValue) -> str:
    [kind] = value
    return kind


def comparable(value: AttributeValue) -> tuple[str, Any]:
    """The type, and a value that compares as DynamoDB compares."""
    [(kind, content)] = value.items()
    return kind, _comparable(kind, content)


def _comparable(kind: str, content: Any) -> Any:
    match kind:
        case "S":
            return content.encode()  # by bytes of UTF-8
        case "N":
            return Decimal(content)
        case "B":
            return _bytes(content)
        case "L":
            return [comparable(element) for element in content]
        case "M":
            return {name: comparable(element) for name, element in content.items()}
        case "SS" | "NS" | "BS":
            return {_comparable(kind[0], element) for element in content}
        case _:
            return content


def is_equal(one: AttributeValue, other: AttributeValue) -> bool:
    return comparable(one) == comparable(other)
