"""The meter against the examples of AWS's developer guide, and against its rules for indexes."""

import pytest

from conveyor.testing.dynamodb import capacity
from conveyor.testing.dynamodb.capacity import TABLE, Meter, Units
from conveyor.testing.dynamodb.schema import IndexSchema, KeySchema, Projection, TableSchema

KB = 1024
PLAIN = TableSchema(
    name="plain",
    keys=KeySchema(partition="pk", sort="sk"),
    types={"pk": "S", "sk": "S"},
    indexes={},
)
INDEXED = TableSchema(
    name="indexed",
    keys=PLAIN.keys,
    types={"pk": "S", "sk": "S", "g": "S"},
    indexes={
        "all": IndexSchema(name="all", keys=KeySchema(partition="g")),
        "keys": IndexSchema(
            name="keys", keys=KeySchema(partition="g"), projection=Projection.KEYS_ONLY
        ),
        "some": IndexSchema(
            name="some",
            keys=KeySchema(partition="h", sort="g"),
            projection=Projection.INCLUDE,
            included=frozenset({"shown"}),
        ),
    },
)


def sized(size: int, **more: str) -> dict[str, dict[str, str]]:
    """An item of so many bytes."""
    item = {
        "pk": {"S": "p"},
        "sk": {"S": "s"},
        **{name: {"S": text} for name, text in more.items()},
    }
    used = 6 + sum(len(name) + len(text) for name, text in more.items())
    return {**item, "x": {"S": "x" * (size - used - 1)}}


# Reads: "DynamoDB read and write operations", capacity unit consumption for read operations.


@pytest.mark.parametrize(
    ("size", "consistent", "units"),
    [
        (3_500, True, 1),
        (int(3.5 * KB), True, 1),
        (10 * KB, True, 3),  # rounded up to 12 KB
        (8 * KB, True, 2),
        (8 * KB, False, 1),
        (100, False, 0.5),
        (4 * KB, True, 1),
        (4 * KB + 1, True, 2),
    ],
)
def test_a_get_rounds_up_to_4_kb(size: int, consistent: bool, units: float) -> None:
    assert capacity.get(sized(size), consistent=consistent).consumed == units


def test_a_get_of_an_item_that_does_not_exist_costs_as_the_smallest() -> None:
    assert capacity.get(None, consistent=True).consumed == 1
    assert capacity.get(None, consistent=False).consumed == 0.5


def test_a_batch_get_rounds_each_item() -> None:
    items = [sized(int(1.5 * KB)), sized(int(6.5 * KB))]
    read = capacity.total(capacity.get(item, consistent=True) for item in items)
    assert read.consumed == 12 / 4  # 4 KB + 8 KB


def test_a_query_rounds_the_sum_of_its_items() -> None:
    ten = [sized(int(4.08 * KB))] * 10  # 40.8 KB together
    assert capacity.query(ten, consistent=True).consumed == 44 / 4
    many = [sized(64)] * 1_500  # 96,000 bytes
    assert capacity.query(many, consistent=True).consumed == 24
    assert capacity.query(many, consistent=False).consumed == 12


def test_a_query_of_an_index_counts_its_entries_and_is_eventual() -> None:
    read = capacity.query([sized(2_000)] * 8, consistent=False, index="all")
    assert read.read == {"all": 2}
    assert read.written == 0


def test_a_query_that_finds_nothing_costs_as_the_smallest() -> None:
    assert capacity.query([], consistent=False).consumed == 0.5


def test_a_transactional_get_costs_twice() -> None:
    read = capacity.total(capacity.transactional_get(sized(500)) for _ in range(3))
    assert read.consumed == 6
    assert capacity.transactional_get(sized(8 * KB)).consumed == 4
    assert capacity.transactional_get(None).consumed == 2


# Writes.


def test_a_write_rounds_the_larger_of_before_and_after_up_to_1_kb() -> None:
    def units(before: int, after: int) -> float:
        was, becomes = sized(before) if before else None, sized(after) if after else None
        return capacity.write(PLAIN, was, becomes).written

    assert units(0, 500) == 1
    assert units(0, 512) == 1
    assert units(0, int(1.6 * KB)) == 2
    assert units(int(1.6 * KB), 0) == 2  # a delete
    assert units(3 * KB, 100) == 3
    assert units(100, 3 * KB) == 3
    assert units(KB, KB) == 1
    assert units(KB, KB + 1) == 2
    assert units(0, 0) == 1  # a delete of nothing


def test_a_batch_write_rounds_each_item() -> None:
    put = [sized(500), sized(int(3.5 * KB))]
    assert capacity.total(capacity.write(PLAIN, None, item) for item in put).written == 5


def test_a_failed_condition_costs_as_the_larger_item() -> None:
    assert capacity.failed_write(sized(300 * KB), sized(310 * KB)).written == 310
    assert capacity.failed_write(None).written == 1
    assert capacity.failed_write(sized(2 * KB)).written == 2


def test_a_transactional_write_costs_twice() -> None:
    three = capacity.total(
        capacity.write(PLAIN, None, sized(500), transactional=True) for _ in range(3)
    )
    assert three.written == 6
    assert capacity.write(PLAIN, None, sized(KB + 1), transactional=True).written == 4
    assert capacity.failed_write(sized(500), transactional=True).written == 2


# Index writes: "Global secondary indexes", write capacity units.


def units_of(
    before: dict[str, str] | None, after: dict[str, str] | None, size: int = 200
) -> object:
    was = None if before is None else sized(size, **before)
    becomes = None if after is None else sized(size, **after)
    return capacity.write(INDEXED, was, becomes).write


def test_an_item_without_the_keys_of_an_index_costs_nothing_there() -> None:
    assert units_of(None, {"other": "1"}) == {TABLE: 1}
    assert units_of({"other": "1"}, {"other": "2"}) == {TABLE: 1}
    assert units_of(None, {"h": "1"}) == {TABLE: 1}  # one of two keys


def test_an_entry_that_comes_or_goes_costs_one_write() -> None:
    entered = {TABLE: 1, "all": 1, "keys": 1}
    assert units_of(None, {"g": "1"}) == entered
    assert units_of({}, {"g": "1"}) == entered
    assert units_of({"g": "1"}, {}) == entered
    assert units_of({"g": "1"}, None) == entered


def test_a_changed_index_key_costs_two_writes() -> None:
    assert units_of({"g": "1"}, {"g": "2"}) == {TABLE: 1, "all": 2, "keys": 2}
    both = units_of({"g": "1", "h": "1"}, {"g": "2", "h": "1"})
    assert both == {TABLE: 1, "all": 2, "keys": 2, "some": 2}


def test_a_changed_projected_attribute_costs_one_write_where_it_is_projected() -> None:
    base = {"g": "1", "h": "1", "shown": "1", "hidden": "1"}
    assert units_of(base, base | {"shown": "2"}) == {TABLE: 1, "all": 1, "some": 1}
    assert units_of(base, base | {"hidden": "2"}) == {TABLE: 1, "all": 1}
    assert units_of(base, base) == {TABLE: 1}


def test_large_entries_cost_more_and_narrow_projections_do_not() -> None:
    entered = units_of(None, {"g": "1"}, size=3 * KB)
    assert entered == {TABLE: 3, "all": 3, "keys": 1}


def test_index_writes_in_a_transaction_are_counted_twice() -> None:
    written = capacity.write(INDEXED, None, sized(200, g="1"), transactional=True)
    assert written.write == {TABLE: 2, "all": 2, "keys": 2}


def test_the_meter_adds_up_requests_and_units() -> None:
    meter = Meter()
    meter.count("PutItem", Units(write={TABLE: 1.0, "all": 2.0}, items=1))
    put = Units(write={TABLE: 1.0}, items=1)
    meter.count("PutItem", put, refused="ConditionalCheckFailedException")
    meter.count("Query", Units(read={"all": 0.5}, items=7))
    assert meter.summary() == {
        "requests": {"PutItem": 2, "Query": 1},
        "items": {"PutItem": 2, "Query": 7},
        "refused": {"ConditionalCheckFailedException": 1},
        "wcu": 4.0,
        "rcu": 0.5,
        "wcu_by_kind": {"PutItem": 4.0, "Query": 0.0},
        "rcu_by_kind": {"PutItem": 0.0, "Query": 0.5},
        "wcu_by_index": {"table": 2.0, "all": 2.0},
        "rcu_by_index": {"all": 0.5},
    }
    assert [line.split() for line in meter.table().splitlines()] == [
        ["requests", "items", "WCU", "RCU"],
        ["PutItem", "2", "2", "4.0", "0.0"],
        ["Query", "1", "7", "0.0", "0.5"],
        ["all", "3", "9", "4.0", "0.5"],
        ["refused:", "ConditionalCheckFailedException", "1"],
    ]
