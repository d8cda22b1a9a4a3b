"""The parts of conditions and paths, and what they mean for an item.

Condition expressions and the WHERE clauses of PartiQL are parsed into the same parts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import eq, ge, gt, le, lt
from typing import Any

from conveyor.adapters.aws.item_size import AttributeValue, Item
from conveyor.testing.dynamodb.refusals import invalid
from conveyor.testing.dynamodb.values import EXACT, comparable, format_number, kind_of

ORDERED = {"S", "N", "B"}
COMPARATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": eq, "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip
INCORRECT = "An operand in the update expression has an incorrect data type"
MISSING = "The provided expression refers to an attribute that does not exist in the item"


@dataclass(frozen=True, slots=True)
class Path:
    """An attribute, or an element within one: names, and numbers of list elements."""

    parts: tuple[str | int, ...]

    @property
    def attribute(self) -> str:
        assert isinstance(self.parts[0], str)
        return self.parts[0]

    def __str__(self) -> str:
        return "[" + ", ".join(f"[{p}]" if isinstance(p, int) else p for p in self.parts) + "]"


@dataclass(frozen=True, slots=True)
class Literal:
    value: AttributeValue


@dataclass(frozen=True, slots=True)
class SizeOf:
    path: Path


@dataclass(frozen=True, slots=True)
class IfNotExists:
    path: Path
    otherwise: "Operand"


@dataclass(frozen=True, slots=True)
class ListAppend:
    first: "Operand"
    second: "Operand"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    sign: int
    left: "Operand"
    right: "Operand"


@dataclass(frozen=True, slots=True)
class SetChange:
    """`set_add` and `set_delete` of PartiQL."""

    name: str
    path: Path
    members: "Operand"


Operand = Path | Literal | SizeOf | IfNotExists | ListAppend | Arithmetic | SetChange


@dataclass(frozen=True, slots=True)
class Comparison:
    operator: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Between:
    operand: Operand
    low: Operand
    high: Operand


@dataclass(frozen=True, slots=True)
class Among:
    operand: Operand
    choices: Sequence[Operand]


@dataclass(frozen=True, slots=True)
class FunctionTest:
    name: str  # attribute_exists, attribute_not_exists, attribute_type, begins_with, contains
    path: Operand
    argument: Operand | None = None


@dataclass(frozen=True, slots=True)
class AllOf:
    conditions: Sequence["Condition"]


@dataclass(frozen=True, slots=True)
class AnyOf:
    conditions: Sequence["Condition"]


@dataclass(frozen=True, slots=True)
class NotHolding:
    condition: "Condition"


Condition = Comparison | Between | Among | FunctionTest | AllOf | AnyOf | NotHolding


# Values.


def lookup(path: Path, item: Item) -> AttributeValue | None:
    found: Any = item.get(path.attribute)
    for part in path.parts[1:]:
        if found is None:
            return None
        if isinstance(part, str):
            found = found.get("M", {}).get(part)
        else:
            elements = found.get("L", [])
            found = elements[part] if part < len(elements) else None
    return found if found is None else dict(found)


def evaluate(operand: Operand, item: Item) -> AttributeValue | None:
    """The value of an operand; None if it names an attribute that is missing."""
    match operand:
        case Path():
            return lookup(operand, item)
        case Literal():
            return operand.value
        case SizeOf():
            found = lookup(operand.path, item)
            return None if found is None else _size(found)
        case IfNotExists():
            found = lookup(operand.path, item)
            return evaluate(operand.otherwise, item) if found is None else found
        case ListAppend():
            lists = [required(part, item) for part in (operand.first, operand.second)]
            if any("L" not in one for one in lists):
                raise invalid(INCORRECT)
            return {"L": [*lists[0]["L"], *lists[1]["L"]]}
        case Arithmetic():
            left, right = required(operand.left, item), required(operand.right, item)
            return add_numbers(left, right, operand.sign)
        case SetChange():
            return _changed_set(operand, item)


def required(operand: Operand, item: Item) -> AttributeValue:
    found = evaluate(operand, item)
    if found is None:
        raise invalid(MISSING)
    return found


def add_numbers(left: AttributeValue, right: AttributeValue, sign: int = 1) -> AttributeValue:
    if "N" not in left or "N" not in right:
        raise invalid(INCORRECT)
    total = EXACT.add(Decimal(left["N"]), sign * Decimal(right["N"]))
    return {"N": format_number(total)}


def _changed_set(change: SetChange, item: Item) -> AttributeValue | None:
    members = required(change.members, item)
    current = lookup(change.path, item)
    if change.name == "set_add":
        return added_to_set(current, members)
    return removed_from_set(current, members)


def added_to_set(current: AttributeValue | None, members: AttributeValue) -> AttributeValue:
    kind = kind_of(members)
    if kind not in {"SS", "NS", "BS"} or (current is not None and kind not in current):
        raise invalid(INCORRECT)
    held = list(current[kind]) if current else []
    return {kind: held + [one for one in members[kind] if one not in held]}


def removed_from_set(
    current: AttributeValue | None, members: AttributeValue
) -> AttributeValue | None:
    """None if nothing is left of the set."""
    kind = kind_of(members)
    if kind not in {"SS", "NS", "BS"} or (current is not None and kind not in current):
        raise invalid(INCORRECT)
    kept = [one for one in current[kind] if one not in members[kind]] if current else []
    return {kind: kept} if kept else None


def _size(value: AttributeValue) -> AttributeValue | None:
    [(kind, content)] = value.items()
    if kind in {"N", "BOOL", "NULL"}:
        return None
    if kind == "S":
        return {"N": str(len(content.encode("utf-16-le")) // 2)}
    if kind == "B":
        return {"N": str(len(comparable(value)[1]))}
    return {"N": str(len(content))}


# Conditions.


def holds(condition: Condition, item: Item) -> bool:
    match condition:
        case AllOf():
            return all(holds(one, item) for one in condition.conditions)
        case AnyOf():
            return any(holds(one, item) for one in condition.conditions)
        case NotHolding():
            return not holds(condition.condition, item)
        case Comparison():
            left, right = evaluate(condition.left, item), evaluate(condition.right, item)
            return compare(condition.operator, left, right)
        case Between():
            value = evaluate(condition.operand, item)
            low, high = evaluate(condition.low, item), evaluate(condition.high, item)
            return compare(">=", value, low) and compare("<=", value, high)
        case Among():
            value = evaluate(condition.operand, item)
            return any(compare("=", value, evaluate(one, item)) for one in condition.choices)
        case FunctionTest():
            return _function(condition, item)


def compare(operator: str, left: AttributeValue | None, right: AttributeValue | None) -> bool:
    if operator == "<>":
        return not compare("=", left, right)
    if left is None or right is None:
        return False
    (kind, one), (other_kind, other) = comparable(left), comparable(right)
    if kind != other_kind or (operator != "=" and kind not in ORDERED):
        return False
    return COMPARATORS[operator](one, other)


def _function(test: FunctionTest, item: Item) -> bool:
    found = evaluate(test.path, item)
    if test.name == "attribute_exists":
        return found is not None
    if test.name == "attribute_not_exists":
        return found is None
    assert test.argument is not None
    argument = evaluate(test.argument, item)
    if found is None or argument is None:
        return False
    if test.name == "attribute_type":
        return argument.get("S") in found
    if test.name == "begins_with":
        kind, content = comparable(argument)
        return kind in {"S", "B"} and kind in found and comparable(found)[1].startswith(content)
    return _contains(found, argument)


def _contains(found: AttributeValue, argument: AttributeValue) -> bool:
    (kind, content), (sought_kind, sought) = comparable(found), comparable(argument)
    if kind == "L":
        return (sought_kind, sought) in content
    if kind in {"SS", "NS", "BS"}:
        return sought_kind == kind[0] and sought in content
    return kind in {"S", "B"} and kind == sought_kind and sought in content


def conditions_of(condition: Condition) -> Sequence[Condition]:
    """The conditions that all must hold."""
    if isinstance(condition, AllOf):
        return [part for one in condition.conditions for part in conditions_of(one)]
    return [condition]


def paths_of(part: Condition | Operand | None) -> list[Path]:  # noqa: C901 - a case for each part
    """Every path that a condition or operand names."""
    match part:
        case None | Literal():
            return []
        case Path():
            return [part]
        case SizeOf():
            return [part.path]
        case IfNotExists() | SetChange():
            inner = part.otherwise if isinstance(part, IfNotExists) else part.members
            return [part.path, *paths_of(inner)]
        case ListAppend():
            return paths_of(part.first) + paths_of(part.second)
        case Arithmetic() | Comparison():
            return paths_of(part.left) + paths_of(part.right)
        case Between():
            return paths_of(part.operand) + paths_of(part.low) + paths_of(part.high)
        case Among():
            return paths_of(part.operand) + [p for one in part.choices for p in paths_of(one)]
        case FunctionTest():
            return paths_of(part.path) + paths_of(part.argument)
        case AllOf() | AnyOf():
            return [path for one in part.conditions for path in paths_of(one)]
        case NotHolding():
            return paths_of(part.condition)
