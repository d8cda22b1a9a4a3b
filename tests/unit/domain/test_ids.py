"""Ids: ULIDs sort by time, task ids by index, and both always have the same form."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.domain.ids import (
    MOST_TASKS,
    RunId,
    is_ulid,
    task_ids,
    task_index,
    ulid,
    ulid_milliseconds,
)

CLIENT_PATTERN = re.compile(r"^[0-9A-HJKMNP-TV-Z]{26}$")
RUN = RunId("01HZZZZZZZZZZZZZZZZZZZZZZZ")

moments = st.integers(0, 2**48 - 1)
noises = st.integers(0, 2**80 - 1)
indexes = st.integers(0, MOST_TASKS - 1)


@given(moment=moments, noise=noises)
def test_a_ulid_is_26_characters_that_strict_clients_accept(moment: int, noise: int) -> None:
    text = ulid(moment, noise)
    assert CLIENT_PATTERN.match(text)
    assert is_ulid(text)


@given(one=st.tuples(moments, noises), other=st.tuples(moments, noises))
def test_ulids_sort_as_their_moments_and_then_as_their_noise(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    assert (ulid(*one) < ulid(*other)) == (one < other)
    assert (ulid(*one) == ulid(*other)) == (one == other)


@given(moment=moments, noise=noises)
def test_a_ulid_tells_its_moment(moment: int, noise: int) -> None:
    assert ulid_milliseconds(ulid(moment, noise)) == moment


def test_a_known_ulid_comes_out_as_the_format_says() -> None:
    assert ulid(1_469_918_176_385, 1) == "01ARYZ6S41" + "0" * 15 + "1"
    assert ulid(0, 0) == "0" * 26
    assert ulid(2**48 - 1, 2**80 - 1) == "7" + "Z" * 25


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 25,
        "0" * 27,
        "8" + "0" * 25,
        "0" * 25 + "I",
        "0" * 25 + "L",
        "0" * 25 + "O",
        "0" * 25 + "U",
        "0" * 25 + "a",
        "0" * 26 + "\n",
        "\u0660" * 26,
    ],
)
def test_other_text_is_no_ulid(text: str) -> None:
    assert not is_ulid(text)


def test_a_task_id_is_its_index_and_a_hash_of_run_and_index() -> None:
    # `printf 01HZZZZZZZZZZZZZZZZZZZZZZZ:255 | sha256sum` begins so.
    assert task_ids(RUN)(255) == "000000ff-fe431109f7fa08fbb5405f8f"


@given(index=indexes)
def test_a_task_id_has_its_form_and_tells_its_index(index: int) -> None:
    task_id = task_ids(RUN)(index)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{24}", task_id)
    assert task_index(task_id) == index


@given(index=indexes)
def test_the_same_run_and_index_always_get_the_same_id(index: int) -> None:
    name = task_ids(RUN)
    assert name(index) == name(index) == task_ids(RUN)(index)


@given(one=indexes, other=indexes)
def test_task_ids_of_a_run_sort_by_index_and_never_meet(one: int, other: int) -> None:
    name = task_ids(RUN)
    assert (name(one) < name(other)) == (one < other)
    assert (name(one) == name(other)) == (one == other)


@given(index=indexes, moment=moments, noise=noises)
def test_runs_name_the_same_index_differently(index: int, moment: int, noise: int) -> None:
    other = RunId(ulid(moment, noise))
    assert other == RUN or task_ids(other)(index) != task_ids(RUN)(index)


def test_ten_thousand_tasks_have_ten_thousand_ids_in_order() -> None:
    ids = [task_ids(RUN)(index) for index in range(10_000)]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0000000-" + "0" * 24,
        "00000000-" + "0" * 23,
        "00000000-" + "0" * 25,
        "00000000_" + "0" * 24,
        "0000000G-" + "0" * 24,
        "0000000A-" + "0" * 24,
        "00000000-" + "0" * 24 + "\n",
        "sh:00000000-" + "0" * 24,
    ],
)
def test_other_text_is_no_task_id(text: str) -> None:
    assert task_index(text) is None
