"""Schedules in words, as commands tell them."""

import msgspec
import pytest

from conveyor.cli.shapes import Job, Schedule
from conveyor.cli.telling import schedule_facts

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
def test_a_schedule_is_told_in_words(schedule: object, words: str) -> None:
    assert str(msgspec.convert(schedule, Schedule)).strip() == words


def test_what_a_job_tells_of_its_schedule() -> None:
    regular = Job(job_id="j", status="closed", created_at="")
    assert schedule_facts(regular) == []
    hourly = msgspec.convert({"rate": {"every": 1, "unit": "hour"}}, Schedule)
    job = msgspec.structs.replace(
        regular, schedule=hourly, schedule_state="paused", skipped_fires=2, last_skipped_at="now"
    )
    assert schedule_facts(job) == [
        ("schedule", hourly),
        ("schedule_state", "paused"),
        ("next_scheduled_run", "none"),
        ("skipped_fires", 2),
        ("last_skipped_at", "now"),
    ]
