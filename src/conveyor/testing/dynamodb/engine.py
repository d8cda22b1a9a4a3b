"""DynamoDB's tables and rules, in memory: requests in, responses out.

Time comes from a clock, so that lag, throttling and expiry can be simulated. A request is carried
out at once and as a whole. What AWS does in parts (a transaction that is still running) is shown by
`Knobs.transaction_time`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from conveyor.adapters.aws.item_size import Item, item_size
from conveyor.ports.clock import Clock
from conveyor.testing.dynamodb import capacity
from conveyor.testing.dynamodb.capacity import TABLE, Meter, Units
from conveyor.testing.dynamodb.keys import check_index_keys, check_item_keys
from conveyor.testing.dynamodb.partitions import PartitionLimits
from conveyor.testing.dynamodb.refusals import (
    Refusal,
    condition_failed,
    conflict,
    invalid,
    not_found,
)
from conveyor.testing.dynamodb.request_fields import check_fields, kind_of_request
from conveyor.testing.dynamodb.storage import Order, StoredTable
from conveyor.testing.dynamodb.syntax import Condition, holds

LARGEST_ITEM = 400 * 1024  # bytes
TOKEN_LIFE = timedelta(minutes=10)


@dataclass(slots=True)
class Knobs:
    """How the fake differs from a database that is never late and never busy."""

    index_lag: timedelta = timedelta()  # at most; a random part of it is taken
    ttl_delay: timedelta = timedelta(days=2)  # from its expiry to the removal of an item
    # For so long after a transaction other writes to its items meet a conflict.
    transaction_time: timedelta = timedelta()
    writes_per_second: float | None = 1_000.0  # units for each partition key; None: no limit
    reads_per_second: float | None = 3_000.0
    creation_time: timedelta = timedelta()  # of a table, which is not found until then
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """One write that may be carried out."""

    table: StoredTable
    key: Item
    before: Item | None
    after: Item | None
    units: Units

    @property
    def target(self) -> tuple[str, Order]:
        return self.table.schema.name, self.table.key(self.key)


@dataclass(slots=True)
class DynamoDbEngine:
    clock: Clock
    knobs: Knobs = field(default_factory=Knobs)
    meter: Meter = field(default_factory=Meter)
    tables: dict[str, StoredTable] = field(default_factory=dict)
    # Names the kind of a request for the meter.
    classify: Callable[[str, Mapping[str, Any]], str] = kind_of_request
    # Of transactions: the request and when the token ends.
    tokens: dict[str, tuple[Mapping[str, Any], float]] = field(default_factory=dict)
    _limits: PartitionLimits = field(init=False)
    _random: Random = field(init=False)
    _charged: Units = field(default_factory=Units)
    _busy: dict[tuple[str, Order], float] = field(default_factory=dict)  # until when, by item

    def __post_init__(self) -> None:
        self._limits = PartitionLimits(self.clock)
        self._random = Random(self.knobs.seed)  # noqa: S311 - repeatable on purpose

    def execute(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a request and return its response, or raise the `Refusal`."""
        from conveyor.testing.dynamodb.operations import OPERATIONS  # noqa: PLC0415 - they use this

        self._advance()
        self._charged = Units()
        if operation not in OPERATIONS:
            raise Refusal("UnknownOperationException", operation)
        kind = self.classify(operation, request)
        try:
            check_fields(operation, request)
            response = OPERATIONS[operation](self, request)
        except Refusal as refusal:
            self._charged += refusal.units
            self.meter.count(kind, self._charged, refused=refusal.code)
            raise
        self.meter.count(kind, self._charged)
        return response

    @property
    def charged(self) -> Units:
        """What the current request has cost so far; afterwards, what the last one has cost."""
        return self._charged

    def bill(self, units: Units) -> None:
        """Add what a part of the request costs although it was refused."""
        self._charged += units

    def since(self, before: Units) -> Units:
        """What the current request has cost since then."""
        return Units(
            {
                name: units - before.write.get(name, 0)
                for name, units in self._charged.write.items()
            },
            {name: units - before.read.get(name, 0) for name, units in self._charged.read.items()},
            self._charged.items - before.items,
        )

    def table(self, name: object) -> StoredTable:
        if not isinstance(name, str):
            raise invalid(
                "The parameter 'TableName' is required but was not present in the request"
            )
        if name not in self.tables or self.tables[name].ready_at > self.now():
            raise not_found()
        return self.tables[name]

    # Time.

    def now(self) -> float:
        return self.clock.now().timestamp()

    def _advance(self) -> None:
        self._limits.write = self.knobs.writes_per_second
        self._limits.read = self.knobs.reads_per_second
        now = self.now()
        for table in self.tables.values():
            table.advance(now, now - self.knobs.ttl_delay.total_seconds())

    # Writes.

    def plan(
        self,
        table: StoredTable,
        key: Item,
        *,
        change: Callable[[Item | None], Item | None],
        condition: Condition | None = None,
        shows_old: bool = False,
        transactional: bool = False,
    ) -> PlannedWrite:
        """Decide what a write would do. Refuses it if it is throttled or its condition fails."""
        self._limits.admit("write", self._partition(table, key))
        before = table.get(key)
        target = table.schema.name, table.key(key)
        if self._busy.get(target, 0) > self.clock.monotonic():
            raise conflict()
        if condition is not None and not holds(condition, before or {}):
            cost = capacity.failed_write(
                before, _attempted(change, before), transactional=transactional
            )
            self._charge_table(table, key, cost)
            raise condition_failed(before if shows_old else None, cost)
        try:
            after = change(before)
            if after is not None:
                self._check_item(table, after, is_update=before is not None)
        except Refusal as refusal:
            refusal.is_about_content = True
            raise
        units = capacity.write(table.schema, before, after, transactional=transactional)
        self._admit_indexes(table, before, after, units)
        return PlannedWrite(table, key, before, after, units)

    def apply(self, write: PlannedWrite, *, transactional: bool = False) -> None:
        lag = self.knobs.index_lag.total_seconds()
        latest = self.now() + lag
        index_at = self._random.uniform(self.now(), latest) if lag else latest
        left_at = self._random.uniform(index_at, latest) if lag else latest
        write.table.set(write.key, write.after, index_at=index_at, left_at=left_at)
        write.table.advance(self.now(), float("-inf"))
        self.charge_write(write)
        if transactional and self.knobs.transaction_time:
            until = self.clock.monotonic() + self.knobs.transaction_time.total_seconds()
            self._busy[write.target] = until

    def charge_write(self, write: PlannedWrite) -> None:
        self._charged += write.units
        self._charge_table(write.table, write.key, write.units)
        for name, units in write.units.write.items():
            if name == TABLE:
                continue
            entries = self._entries(write.table, name, write.before, write.after)
            partitions = {self._partition(write.table, entry, name) for entry in entries}
            for partition in partitions:
                self._limits.charge("write", partition, units / len(partitions))

    def _charge_table(self, table: StoredTable, key: Item, units: Units) -> None:
        self._limits.charge("write", self._partition(table, key), units.write[TABLE])

    def _check_item(self, table: StoredTable, item: Item, *, is_update: bool) -> None:
        check_item_keys(table.schema, item)
        check_index_keys(table.schema, item)
        if item_size(item) > LARGEST_ITEM:
            what = "Item size to update" if is_update else "Item size"
            raise invalid(f"{what} has exceeded the maximum allowed size")

    def _admit_indexes(
        self, table: StoredTable, before: Item | None, after: Item | None, units: Units
    ) -> None:
        """An index that is throttled throttles the writes to its table."""
        for name in units.write:
            if name != TABLE:
                for entry in self._entries(table, name, before, after):
                    self._limits.admit("write", self._partition(table, entry, name))

    def _entries(
        self, table: StoredTable, name: str, before: Item | None, after: Item | None
    ) -> list[Item]:
        index = table.schema.indexes[name]
        found = [table.schema.entry(index, item) for item in (before, after)]
        return [entry for entry in found if entry is not None]

    def _partition(self, table: StoredTable, item: Item, index: str | None = None) -> object:
        return table.schema.name, index, table.place(item, index)[0]

    # Reads.

    def admit_read(self, table: StoredTable, item: Item) -> None:
        self._limits.admit("read", self._partition(table, item))

    def charge_read(self, table: StoredTable, item: Item, units: Units) -> None:
        self._charged += units
        self._limits.charge("read", self._partition(table, item), units.consumed)

    def admit_query(self, table: StoredTable, index: str | None, partition: object) -> None:
        self._limits.admit("read", (table.schema.name, index, partition))

    def charge_query(
        self, table: StoredTable, index: str | None, partition: object, units: Units
    ) -> None:
        self._charged += units
        self._limits.charge("read", (table.schema.name, index, partition), units.consumed)


def _attempted(change: Callable[[Item | None], Item | None], before: Item | None) -> Item | None:
    try:
        return change(before)
    except Refusal:
        return None
