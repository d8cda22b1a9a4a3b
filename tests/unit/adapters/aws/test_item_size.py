"""Sizes of items against figures computed by hand from AWS's rules."""

import base64

import pytest

from conveyor.adapters.aws.item_size import AttributeValue, item_size, number_size, value_size


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ({"S": ""}, 0),
        ({"S": "abc"}, 3),
        ({"S": "é€😀"}, 2 + 3 + 4),
        ({"B": base64.b64encode(b"").decode()}, 0),
        ({"B": base64.b64encode(b"1").decode()}, 1),
        ({"B": base64.b64encode(b"12").decode()}, 2),
        ({"B": base64.b64encode(b"1234567").decode()}, 7),
        ({"BOOL": False}, 1),
        ({"NULL": True}, 1),
        ({"SS": ["a", "bcd"]}, 4),
        ({"NS": ["1", "22", "333"]}, 2 + 2 + 3),
        ({"BS": [base64.b64encode(b"12").decode(), base64.b64encode(b"345").decode()]}, 5),
        ({"L": []}, 3),
        ({"M": {}}, 3),
        ({"L": [{"S": "ab"}, {"N": "1"}]}, 3 + (1 + 2) + (1 + 2)),
        ({"M": {"k": {"S": "v"}, "kk": {"BOOL": True}}}, 3 + (1 + 1 + 1) + (1 + 2 + 1)),
        ({"M": {"l": {"L": [{"M": {}}]}}}, 3 + 1 + 1 + (3 + 1 + 3)),
    ],
)
def test_a_value_has_the_size_of_its_type(value: AttributeValue, size: int) -> None:
    assert value_size(value) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 1),
        ("0.00", 1),
        ("7", 2),
        ("27", 2),
        ("-27", 3),
        ("100", 2),  # trailing zeros are trimmed
        ("1000", 2),
        ("0.5", 2),
        ("0.05", 2),
        ("123", 3),
        ("1234", 3),
        ("1.5E3", 2),
        ("0012", 2),
        ("1790000000", 1 + 2),
        ("1790000001", 1 + 5),
        ("1" * 38, 1 + 19),
        ("-" + "1" * 38, 1 + 19 + 1),
    ],
)
def test_a_number_takes_a_byte_for_two_digits_and_one_more(text: str, size: int) -> None:
    assert number_size(text) == size


def test_an_item_is_the_sum_of_its_names_and_values() -> None:
    assert item_size({"pk": {"S": "Job#1"}, "n": {"N": "12"}, "naïve": {"NULL": True}}) == (
        (2 + 5) + (1 + 2) + (6 + 1)
    )


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="got 'X'"):
        value_size({"X": "1"})
