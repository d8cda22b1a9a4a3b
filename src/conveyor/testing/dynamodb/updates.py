"""Applying updates to items, and picking what a projection names."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

from conveyor.adapters.aws.item_size import AttributeValue, Item
from conveyor.testing.dynamodb.expressions import UpdateActions
from conveyor.testing.dynamodb.refusals import invalid
from conveyor.testing.dynamodb.syntax import (
    INCORRECT,
    MISSING,
    Path,
    SetChange,
    add_numbers,
    added_to_set,
    evaluate,
    lookup,
    removed_from_set,
)

BAD_PATH = "The document path provided in the update expression is invalid for update"


def updated(item: Item, actions: UpdateActions) -> dict[str, Any]:
    """The item after an update. Every value is computed from the item as it was."""
    new = _copied(item, actions.paths)
    for path, operand in actions.set:
        value = evaluate(operand, item)
        if value is not None:
            assign(new, path, value)
        elif isinstance(operand, SetChange):
            remove(new, path)  # nothing is left of the set
        else:
            raise invalid(MISSING)
    for path in sorted(actions.remove, key=_last_elements_first):
        remove(new, path)
    for path, value in actions.add:
        assign(new, path, _sum(lookup(path, item), value))
    for path, members in actions.delete:
        current = lookup(path, item)
        if current is None:
            continue
        left = removed_from_set(current, members)
        if left is None:
            remove(new, path)
        else:
            assign(new, path, left)
    return new


def _copied(item: Item, paths: Iterable[Path]) -> dict[str, Any]:
    new = dict(item)
    for path in paths:
        if len(path.parts) > 1 and path.attribute in new:  # it is changed in place
            new[path.attribute] = deepcopy(new[path.attribute])
    return new


def _sum(current: AttributeValue | None, value: AttributeValue) -> AttributeValue:
    if "N" not in value:
        return added_to_set(current, value)
    if current is not None and "N" not in current:
        raise invalid(INCORRECT)
    return add_numbers(current or {"N": "0"}, value)


def _last_elements_first(path: Path) -> tuple[int, ...]:
    """Removing an element of a list moves those behind it."""
    return tuple(-part if isinstance(part, int) else 0 for part in path.parts)


def assign(item: dict[str, Any], path: Path, value: AttributeValue) -> None:
    *_, last = path.parts
    if len(path.parts) == 1:
        item[path.attribute] = deepcopy(value)
        return
    parent = _parent(item, path)
    if isinstance(last, str) and parent is not None and "M" in parent:
        parent["M"][last] = deepcopy(value)
    elif isinstance(last, int) and parent is not None and "L" in parent:
        parent["L"][last : last + 1] = [deepcopy(value)]  # beyond its end: appended
    else:
        raise invalid(BAD_PATH)


def remove(item: dict[str, Any], path: Path) -> None:
    *_, last = path.parts
    if len(path.parts) == 1:
        item.pop(path.attribute, None)
        return
    parent = _parent(item, path)
    if isinstance(last, str) and parent is not None and "M" in parent:
        parent["M"].pop(last, None)
    elif isinstance(last, int) and parent is not None and "L" in parent:
        del parent["L"][last : last + 1]
    else:
        raise invalid(BAD_PATH)


def _parent(item: dict[str, Any], path: Path) -> Any:
    found: Any = item.get(path.attribute)
    for part in path.parts[1:-1]:
        if found is None:
            return None
        if isinstance(part, str):
            found = found.get("M", {}).get(part)
        else:
            elements = found.get("L", [])
            found = elements[part] if part < len(elements) else None
    return found


def projected(item: Item, paths: Sequence[Path] | None) -> Item:
    """What the paths name of an item; elements of lists move together."""
    return item if paths is None else picked(item, paths)


def picked(item: Item, paths: Iterable[Path]) -> dict[str, Any]:
    tree: dict[Any, Any] = {}
    for path in paths:
        node = tree
        for part in path.parts:
            node = node.setdefault(part, {})
    chosen = {}
    for name, below in tree.items():
        if name in item and (value := _picked(item[name], below)) is not None:
            chosen[name] = value
    return chosen


def _picked(value: AttributeValue, tree: dict[Any, Any]) -> AttributeValue | None:
    if not tree:
        return value
    if "M" in value:
        inner = {
            name: found
            for name, below in tree.items()
            if name in value["M"] and (found := _picked(value["M"][name], below)) is not None
        }
        return {"M": inner} if inner else None
    if "L" in value:
        elements = [
            found
            for number in sorted(part for part in tree if isinstance(part, int))
            if number < len(value["L"])
            and (found := _picked(value["L"][number], tree[number])) is not None
        ]
        return {"L": elements} if elements else None
    return None
