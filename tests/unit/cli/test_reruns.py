"""The age or time of `conveyor rerun --older-than`, and what is shown of a failure."""

from datetime import UTC, datetime, timedelta

import pytest

from conveyor.cli import reruns
from conveyor.errors import RefusedToStart


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("30s", timedelta(seconds=30)),
        ("90m", timedelta(minutes=90)),
        ("12h", timedelta(hours=12)),
        ("7d", timedelta(days=7)),
    ],
)
def test_an_age_counts_back_from_now(text: str, age: timedelta) -> None:
    before = datetime.now(UTC) - age
    assert before <= reruns.moment_of(text) <= datetime.now(UTC) - age


@pytest.mark.parametrize(
    "text", ["2026-01-31T02:00:00+02:00", "2026-01-31T00:00:00Z", "2026-01-31"]
)
def test_a_time_without_an_offset_is_in_utc(text: str) -> None:
    assert reruns.moment_of(text) == datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "7", "7w", "-1d", "yesterday", "999999d"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(RefusedToStart, match="an age like 90m, 12h or 7d"):
        reruns.moment_of(text)


@pytest.mark.parametrize(
    ("title", "detail", "shown"),
    [
        ("Page not found (RESP002)", "", "Page not found (RESP002)"),
        ("Page not found (RESP002)", "Page not found.", "Page not found (RESP002)"),
        (
            "Page not found (RESP002)",
            "Page not found. Try  it\nlater.",
            "Page not found. Try it later.",
        ),
        ("Bad gateway", "The target answered 503.", "Bad gateway: The target answered 503."),
        ("", "a" * 200, "a" * 119 + "…"),
    ],
)
def test_the_detail_of_a_failure_is_shown_where_it_says_more(
    title: str, detail: str, shown: str
) -> None:
    assert reruns.in_a_line(title, detail) == shown
