"""What requests cost, by the rules that AWS publishes: WCU and RCU computed from item sizes.

Sources, of the developer guide: `read-write-operations`, `GSI` (write capacity units) and
`transaction-apis` (capacity management). Where they leave room the higher figure is taken:

- Index writes within a transaction count twice, as the table's own do.
- A canceled transaction costs as much as one that succeeded, without its index writes.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from conveyor.adapters.aws.item_size import Item, item_size
from conveyor.testing.dynamodb.schema import IndexSchema, TableSchema

WRITE_UNIT = 1024  # bytes
READ_UNIT = 4096
TRANSACTIONAL = 2  # underlying writes or reads for each item: one to prepare, one to commit
TABLE = ""  # in place of the name of an index


@dataclass(frozen=True, slots=True)
class Units:
    """Capacity units by index, those of the table itself under `TABLE`."""

    write: Mapping[str, float] = field(default_factory=dict)
    read: Mapping[str, float] = field(default_factory=dict)
    items: int = 0  # written or, before any filter, read

    @property
    def written(self) -> float:
        return sum(self.write.values())

    @property
    def consumed(self) -> float:
        return sum(self.read.values())

    def __add__(self, other: Self) -> "Units":
        return Units(
            _sum(self.write, other.write), _sum(self.read, other.read), self.items + other.items
        )


def total(units: Iterable[Units]) -> Units:
    return sum(units, Units())


def write(
    schema: TableSchema, before: Item | None, after: Item | None, *, transactional: bool = False
) -> Units:
    """Put, update or delete one item. Both None: a delete of an item that does not exist."""
    factor = TRANSACTIONAL if transactional else 1
    units = {TABLE: float(factor * _write_units(before, after))}
    for name, index in schema.indexes.items():
        if cost := _index_units(schema, index, before, after):
            units[name] = float(factor * cost)
    return Units(write=units, items=1)


def failed_write(
    before: Item | None, after: Item | None = None, *, transactional: bool = False
) -> Units:
    """A write whose condition did not hold: the larger of the stored and the attempted item."""
    factor = TRANSACTIONAL if transactional else 1
    return Units(write={TABLE: float(factor * _write_units(before, after))}, items=1)


def get(item: Item | None, *, consistent: bool) -> Units:
    """Read one item by its key, or find that it does not exist. Each item of a batch is one get."""
    return query([] if item is None else [item], consistent=consistent)


def transactional_get(item: Item | None) -> Units:
    units = float(TRANSACTIONAL * _read_units(_size(item)))
    return Units(read={TABLE: units}, items=item is not None)


def query(evaluated: Collection[Item], *, consistent: bool, index: str = TABLE) -> Units:
    """Read one page: the items read, before any filter, as they are in the table or index."""
    units = _read_units(sum(map(item_size, evaluated)))
    return Units(read={index: units if consistent else units / 2}, items=len(evaluated))


class Meter:
    """Adds up requests by kind, and their units."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.by_kind: dict[str, Units] = {}

    @property
    def units(self) -> Units:
        return total(self.by_kind.values())

    def count(self, kind: str, units: Units, *, refused: str = "") -> None:
        """Count one request. `refused` is the code of its error."""
        self.requests[kind] += 1
        if refused:
            self.refused[refused] += 1
        self.by_kind[kind] = self.by_kind.get(kind, Units()) + units

    def table(self) -> str:
        """The counts as text, a line for each kind of request."""
        lines = [
            (kind, self.requests[kind], units.items, units.written, units.consumed)
            for kind, units in sorted(self.by_kind.items())
        ]
        told = self.units
        lines.append(("all", self.requests.total(), told.items, told.written, told.consumed))
        shown = [f"{'':32}{'requests':>10}{'items':>10}{'WCU':>12}{'RCU':>12}"]
        shown += [
            f"{kind:32}{requests:10,}{items:10,}{written:12,.1f}{consumed:12,.1f}"
            for kind, requests, items, written, consumed in lines
        ]
        shown += [f"refused: {code} {times:,}" for code, times in sorted(self.refused.items())]
        return "\n".join(shown)

    def summary(self) -> dict[str, object]:
        units = self.units
        return {
            "requests": dict(sorted(self.requests.items())),
            "items": {kind: units.items for kind, units in sorted(self.by_kind.items())},
            "refused": dict(sorted(self.refused.items())),
            "wcu": units.written,
            "rcu": units.consumed,
            "wcu_by_kind": {kind: one.written for kind, one in sorted(self.by_kind.items())},
            "rcu_by_kind": {kind: one.consumed for kind, one in sorted(self.by_kind.items())},
            "wcu_by_index": _named(units.write),
            "rcu_by_index": _named(units.read),
        }


def _write_units(before: Item | None, after: Item | None) -> int:
    return max(1, _units(max(_size(before), _size(after)), WRITE_UNIT))


def _index_units(
    schema: TableSchema, index: IndexSchema, before: Item | None, after: Item | None
) -> int:
    was, becomes = schema.entry(index, before), schema.entry(index, after)
    if was == becomes:
        return 0
    if was is None or becomes is None:
        return _write_units(was, becomes)
    if any(was[name] != becomes[name] for name in index.keys):
        return _write_units(was, None) + _write_units(None, becomes)  # a delete and a put
    return _write_units(was, becomes)


def _read_units(size: int) -> float:
    return float(max(1, _units(size, READ_UNIT)))


def _units(size: int, unit: int) -> int:
    return -(-size // unit)


def _size(item: Item | None) -> int:
    return 0 if item is None else item_size(item)


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> Mapping[str, float]:
    if not (one and other):
        return one or other
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


def _named(units: Mapping[str, float]) -> dict[str, float]:
    return {name or "table": amount for name, amount in sorted(units.items())}
