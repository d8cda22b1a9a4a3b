from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.adapters.aws.attribute_values import (
    decode,
    decode_item,
    encode,
    encode_item,
    item_of,
    struct_of,
)

SCALARS = (
    st.text()
    | st.integers(-(10**37), 10**37)
    | st.booleans()
    | st.none()
    | st.binary()
    | st.floats(allow_nan=False, allow_infinity=False)
)
SETS = st.frozensets(st.text(), min_size=1) | st.frozensets(st.integers(), min_size=1)
VALUES = st.recursive(
    SCALARS | SETS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(VALUES)
def test_what_is_encoded_comes_back(value: Any) -> None:
    assert decode(encode(value)) == value
    assert decode_item(encode_item({"name": value})) == {"name": value}


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ("text", {"S": "text"}),
        (True, {"BOOL": True}),
        (12, {"N": "12"}),
        (-0.5, {"N": "-0.5"}),
        (None, {"NULL": True}),
        (b"\x00\xff", {"B": "AP8="}),
        ([1, "a"], {"L": [{"N": "1"}, {"S": "a"}]}),
        ((1,), {"L": [{"N": "1"}]}),
        ({"k": []}, {"M": {"k": {"L": []}}}),
        ({"b", "a"}, {"SS": ["a", "b"]}),
        ({2, 1}, {"NS": ["1", "2"]}),
        (frozenset({b"1"}), {"BS": ["MQ=="]}),
    ],
)
def test_values_have_the_types_of_dynamodb(value: object, encoded: dict[str, Any]) -> None:
    assert encode(value) == encoded


@pytest.mark.parametrize("value", [float("nan"), float("inf"), set(), {1, "a"}, {(1,)}])
def test_values_that_dynamodb_does_not_have_are_refused(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        encode(value)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(TypeError, match="object"):
        encode(object())
    with pytest.raises(TypeError, match="complex"):
        encode_item({"a": 1j})


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    at: datetime
    weight: float
    raw: bytes = b""
    tags: frozenset[str] = frozenset()


def test_a_struct_becomes_an_item_and_back() -> None:
    row = Row(
        name="n",
        at=datetime(2026, 3, 2, 12, tzinfo=UTC),
        weight=2.0,
        raw=b"\0",
        tags=frozenset("a"),
    )
    item = item_of(row)
    assert item["at"] == {"S": "2026-03-02T12:00:00Z"}
    assert item["raw"] == {"B": "AA=="}
    assert struct_of(item, Row) == row
    assert struct_of({**item, "unknown": {"S": ""}}, Row) == row


def test_defaults_that_a_struct_omits_are_not_in_its_item() -> None:
    assert item_of(Row(name="n", at=datetime(2026, 3, 2, tzinfo=UTC), weight=1)).keys() == {
        "name",
        "at",
        "weight",
    }
