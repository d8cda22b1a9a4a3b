"""Schedules and waits in words, as commands tell them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from conveyor.cli.output import job_facts, schedule_in_words, waiting_in_words
from conveyor.client import Job, Waiting

WORDS = [
    ({"rate": {"every": 1, "unit": "hour"}}, "every hour"),
    ({"rate": {"every": 15, "unit": "minute"}}, "every 15 minutes"),
    ({"at": "2026-09-01T09:00:00", "timezone": "UTC"}, "once, at 2026-09-01T09:00:00 UTC"),
    (
        {"calendar": {"times_of_day": ["09:00", "18:00"], "cadence": {"daily": {}}}, "timezone": "UTC"},
        "daily at 09:00 18:00 UTC",
    ),
    (
        {"calendar": {"times_of_day": ["09:00"], "cadence": {"monthly": {"days": [1, 31]}}}},
        "monthly 1 31 at 09:00",
    ),
    ({"something": "new"}, "at"),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "words"), WORDS)
def test_a_schedule_is_told_in_words(schedule: dict[str, Any], words: str) -> None:
    assert schedule_in_words(schedule).strip() == words


def test_what_a_job_tells_of_its_schedule() -> None:
    regular = Job(job_id="j", status="closed")
    assert job_facts(regular) == [("job_status", "closed")]
    hourly: dict[str, object] = {"rate": {"every": 1, "unit": "hour"}}
    skipped = datetime(2026, 3, 2, 12, tzinfo=UTC)
    job = msgspec.structs.replace(
        regular, schedule=hourly, schedule_state="paused", skipped_fires=2, last_skipped_at=skipped
    )
    assert job_facts(job) == [
        ("job_status", "closed"),
        ("schedule", "every hour"),
        ("schedule_state", "paused"),
        ("next_scheduled_run", "none"),
        ("skipped_fires", 2),
        ("last_skipped_at", "2026-03-02T12:00:00Z"),
    ]


@pytest.mark.parametrize(("days", "form"), [(0, "%H:%M"), (2, "%Y-%m-%d %H:%M")])
def test_a_wait_that_began_today_shows_the_time_alone(days: int, form: str) -> None:
    now = datetime.now(UTC)
    since = now - timedelta(days=days)
    waiting = Waiting(
        reason="key_unreadable", since=since, next_attempt_at=now - timedelta(seconds=1)
    )
    began = f"for the encryption key of the service since {since.astimezone():{form}}"
    assert waiting_in_words(waiting) == f"{began}, next attempt in 0 s"
    unknown = Waiting(reason="something_new")
    assert waiting_in_words(unknown) == "(something_new)"
