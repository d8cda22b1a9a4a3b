"""Sizes of DynamoDB items, which decide what a request costs and whether it is refused.

The rules are AWS's: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/CapacityUnitCalculations.html
AWS calls the size of a number approximate; here it is the size that pairs of decimal digits take.
"""

from collections.abc import Mapping
from typing import Any

# As on the wire: the type and the value, such as {"S": "text"} or {"N": "12"}.
AttributeValue = Mapping[str, Any]
Item = Mapping[str, AttributeValue]

CONTAINER = 3  # bytes of a list or map, beside its elements
ELEMENT = 1  # byte of each element of a list or map, beside the element


def item_size(item: Item) -> int:
    """The bytes of all names and values."""
    return sum(len(name.encode()) + value_size(value) for name, value in item.items())


def value_size(value: AttributeValue) -> int:
    [(kind, content)] = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "N":
            return number_size(content)
        case "B":
            return _decoded_length(content)
        case "BOOL" | "NULL":
            return 1
        case "L":
            return CONTAINER + sum(ELEMENT + value_size(element) for element in content)
        case "M":
            return CONTAINER + len(content) * ELEMENT + item_size(content)
        case "SS":
            return sum(len(element.encode()) for element in content)
        case "NS":
            return sum(map(number_size, content))
        case "BS":
            return sum(map(_decoded_length, content))
        case _:
            raise ValueError(f"a type of DynamoDB must be S, N, B, BOOL, …, got {kind!r}")


def number_size(text: str) -> int:
    """A byte for two significant digits, one for the exponent, and one for a negative sign.

    Pairs of digits are aligned on the decimal point, as those of base 100.
    """
    mantissa, _, exponent = text.lstrip("+-").lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    shift = int(exponent or 0) - len(fraction)
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return 1
    shift += len(digits) - len(significant)
    pairs = (len(significant) + shift % 2 + 1) // 2
    return 1 + pairs + text.startswith("-")


def _decoded_length(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")
