"""Cursors and limits: what this service gave out is taken back, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.domain import cursor
from conveyor.domain.ids import MOST_TASKS, RunId, task_ids, ulid
from conveyor.errors import InvalidArgument

RUN = RunId("01HZZZZZZZZZZZZZZZZZZZZZZZ")


@pytest.mark.parametrize("nothing", [None, ""])
def test_without_a_cursor_a_listing_starts_at_the_beginning(nothing: str | None) -> None:
    assert cursor.after_id(nothing) is None
    assert cursor.after_index(nothing) == -1


@given(moment=st.integers(0, 2**48 - 1), noise=st.integers(0, 2**80 - 1))
def test_a_listing_of_jobs_goes_on_from_an_id(moment: int, noise: int) -> None:
    assert cursor.after_id(ulid(moment, noise)) == ulid(moment, noise)


@given(index=st.integers(0, MOST_TASKS - 1))
def test_a_listing_of_results_goes_on_after_the_task_it_ended_with(index: int) -> None:
    assert cursor.after_index(cursor.at_task(task_ids(RUN)(index))) == index


@pytest.mark.parametrize("read", [cursor.after_id, cursor.after_index])
@given(text=st.text(min_size=1, max_size=40))
def test_any_other_text_is_refused_and_the_field_named(read: object, text: str) -> None:
    assert callable(read)
    with pytest.raises(InvalidArgument) as refusal:
        read(text)
    assert refusal.value.extras == {"field": "cursor"}


def test_without_a_limit_the_default_holds() -> None:
    assert cursor.limit(None, default=50, most=100) == 50


@given(count=st.integers(1, 100))
def test_a_limit_up_to_the_most_is_taken(count: int) -> None:
    assert cursor.limit(str(count), default=50, most=100) == count


@pytest.mark.parametrize(
    "text", ["", "0", "101", "-1", "+5", "5.0", " 5", "ten", "٣", "²", "1_0", "9" * 5000, "\x00"]
)
def test_any_other_limit_is_refused_and_the_range_told(text: str) -> None:
    with pytest.raises(InvalidArgument, match="from 1 to 100") as refusal:
        cursor.limit(text, default=50, most=100)
    assert refusal.value.extras == {"field": "limit"}
