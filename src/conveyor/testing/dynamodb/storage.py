"""Items of tables and of their indexes, in memory and in order.

Indexes follow the table late, each item in its own time, but never out of order for one item. An
entry that moves may be at its old and at its new place for a while.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from conveyor.adapters.aws.item_size import AttributeValue, Item
from conveyor.testing.dynamodb.schema import IndexSchema, KeySchema, TableSchema
from conveyor.testing.dynamodb.values import comparable

Token = Any  # a key's value, in a form that compares as DynamoDB compares: bytes or Decimal
Order = tuple[Token, ...]  # the place of an item in its partition
OLDEST_EXPIRY = 5 * 365 * 86_400  # seconds; AWS takes an earlier time for a mistake


def _is_removed(ends: float, expired_before: float) -> bool:
    return expired_before - OLDEST_EXPIRY < ends <= expired_before


def token(value: AttributeValue) -> Token:
    return comparable(value)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SortRange:
    """Which sort keys a query wants."""

    low: Token = None
    high: Token = None
    is_low_included: bool = True
    is_high_included: bool = True
    prefix: Token = None

    def includes(self, order: Order) -> bool:
        start, end = self.slice_of([order])
        return start < end

    def slice_of(self, orders: list[Order]) -> tuple[int, int]:
        if self.prefix is not None:
            length = len(self.prefix)
            start = bisect_left(orders, self.prefix, key=lambda order: order[0])
            return start, bisect_right(orders, self.prefix, key=lambda order: order[0][:length])
        start, end = 0, len(orders)
        if self.low is not None:
            find = bisect_left if self.is_low_included else bisect_right
            start = find(orders, self.low, key=lambda order: order[0])
        if self.high is not None:
            find = bisect_right if self.is_high_included else bisect_left
            end = find(orders, self.high, key=lambda order: order[0])
        return start, max(start, end)


class _Items:
    """Partitions of items, each in order."""

    def __init__(self) -> None:
        self._orders: dict[Token, list[Order]] = {}
        self._items: dict[tuple[Token, Order], Item] = {}

    def get(self, partition: Token, order: Order) -> Item | None:
        return self._items.get((partition, order))

    def put(self, partition: Token, order: Order, item: Item) -> None:
        if (partition, order) not in self._items:
            insort(self._orders.setdefault(partition, []), order)
        self._items[partition, order] = item

    def remove(self, partition: Token, order: Order) -> None:
        if self._items.pop((partition, order), None) is not None:
            orders = self._orders[partition]
            del orders[bisect_left(orders, order)]

    def all(self) -> Iterator[Item]:
        for partition in sorted(self._orders):
            yield from self.range(partition, SortRange(), is_forward=True, after=None)

    def range(
        self, partition: Token, wanted: SortRange, *, is_forward: bool, after: Order | None
    ) -> Iterator[Item]:
        orders = self._orders.get(partition, [])
        start, end = wanted.slice_of(orders)
        if after is not None and is_forward:
            start = max(start, bisect_right(orders, after))
        elif after is not None:
            end = min(end, bisect_left(orders, after))
        chosen = orders[start:end] if is_forward else orders[start:end][::-1]
        for order in chosen:
            yield self._items[partition, order]


@dataclass(slots=True)
class _Index:
    schema: IndexSchema
    items: _Items = field(default_factory=_Items)
    places: dict[Order, tuple[Token, Order]] = field(default_factory=dict)  # by the table's key
    # When, a number, the table's key, the entry, and when it leaves its old place.
    changes: list[tuple[float, int, Order, Item | None, float]] = field(default_factory=list)
    leaving: list[tuple[float, int, Order, tuple[Token, Order]]] = field(default_factory=list)
    due: dict[Order, float] = field(default_factory=dict)  # of the last change of each item


class StoredTable:
    def __init__(self, schema: TableSchema, described: dict[str, Any]) -> None:
        self.schema = schema
        self.described = described  # what DescribeTable returns
        self.ready_at = 0.0  # a table takes a while to create
        self.ttl_attribute: str | None = None
        self.ttl_changed_at = float("-inf")
        self._items = _Items()
        self._indexes = {name: _Index(index) for name, index in schema.indexes.items()}
        self._numbers = count()
        self._expiries: list[tuple[float, int, Order]] = []

    # Keys.

    def place(self, item: Item, index: str | None = None) -> tuple[Token, Order]:
        """The partition of an item and its place there."""
        keys = self.schema.keys if index is None else self.schema.indexes[index].keys
        order = () if keys.sort is None else (token(item[keys.sort]),)
        if index is not None:
            order = (*order, *self.key(item))  # keys of an index are not unique
        return token(item[keys.partition]), order

    def key(self, item: Item) -> Order:
        return tuple(token(item[name]) for name in self.schema.keys)

    def keys_of(self, index: str | None) -> KeySchema:
        return self.schema.keys if index is None else self.schema.indexes[index].keys

    # Items.

    def get(self, key: Item) -> Item | None:
        return self._items.get(*self.place(key))

    def set(
        self, key: Item, item: Item | None, *, index_at: float, left_at: float = float("-inf")
    ) -> None:
        """Store or remove an item. Indexes follow at `index_at`; entries that move leave at `left_at`."""
        if item is None:
            self._items.remove(*self.place(key))
        else:
            self._items.put(*self.place(key), item)
            self._note_expiry(item)
        for name, index in self._indexes.items():
            entry = self.schema.entry(self.schema.indexes[name], item)
            self._change(index, self.key(key), entry, index_at, left_at)

    def items(self) -> Iterator[Item]:
        return self._items.all()

    def range(
        self,
        partition: Token,
        wanted: SortRange,
        *,
        index: str | None,
        is_forward: bool,
        after: Order | None,
    ) -> Iterator[Item]:
        items = self._items if index is None else self._indexes[index].items
        return items.range(partition, wanted, is_forward=is_forward, after=after)

    # Time.

    def advance(self, now: float, expired_before: float) -> None:
        """Let indexes catch up, and remove items that expired before a time."""
        for name, index in self._indexes.items():
            while index.changes and index.changes[0][0] <= now:
                _, _, key, entry, left_at = heappop(index.changes)
                self._follow(name, index, key, entry, left_at)
            while index.leaving and index.leaving[0][0] <= now:
                _, _, key, place = heappop(index.leaving)
                if index.places.get(key) != place:  # it may have come back
                    index.items.remove(*place)
        while self._expiries and self._expiries[0][0] <= expired_before:
            _, _, key = heappop(self._expiries)
            item = self._items.get(key[0], key[1:])
            ends = None if item is None else self._expiry(item)
            if item is not None and ends is not None and _is_removed(ends, expired_before):
                self.set(item, None, index_at=now)

    def enable_ttl(self, attribute: str | None) -> None:
        self.ttl_attribute = attribute
        for item in self.items():
            self._note_expiry(item)

    def _note_expiry(self, item: Item) -> None:
        if (ends := self._expiry(item)) is not None:
            heappush(self._expiries, (ends, next(self._numbers), self.key(item)))

    def _expiry(self, item: Item) -> float | None:
        value = item.get(self.ttl_attribute or "", {})
        return float(value["N"]) if "N" in value else None

    def _change(
        self, index: _Index, key: Order, entry: Item | None, at: float, left_at: float
    ) -> None:
        at = max(at, index.due.get(key, at))
        index.due[key] = at
        heappush(index.changes, (at, next(self._numbers), key, entry, left_at))

    def _follow(
        self, name: str, index: _Index, key: Order, entry: Item | None, left_at: float
    ) -> None:
        if key in index.places:
            left = index.places.pop(key)
            if entry is None:
                index.items.remove(*left)
            else:
                heappush(index.leaving, (left_at, next(self._numbers), key, left))
        if entry is not None:
            index.places[key] = self.place(entry, name)
            index.items.put(*index.places[key], entry)
