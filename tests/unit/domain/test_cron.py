"""Lines of cron: which days and times they name, and when schedules by them fire."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conveyor.domain.cron import parse_cron
from conveyor.domain.schedule import Schedule, first_fire, next_fire, parse_schedule
from conveyor.errors import InvalidArgument

BERLIN = "Europe/Berlin"
MINUTE = timedelta(minutes=1)
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)  # a Monday


def by(line: str, zone: str = "UTC") -> Schedule:
    return Schedule(cron=line, timezone=zone)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "times"),
    [
        ("0 6 * * *", [(6, 0)]),
        ("*/30 6,18 * * *", [(6, 0), (6, 30), (18, 0), (18, 30)]),
        ("50/5 8-10/2 * * *", [(8, 50), (8, 55), (10, 50), (10, 55)]),
    ],
)
def test_times_are_those_of_hours_and_minutes(line: str, times: list[tuple[int, int]]) -> None:
    assert parse_cron(line).times == tuple(time(*one) for one in times)


@pytest.mark.parametrize(
    ("line", "days"),
    [
        ("0 0 * * *", range(1, 32)),
        ("0 0 * * mon-fri", [2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20, 23, 24, 25, 26,
                             27, 30, 31]),
        ("0 0 * * 0", [1, 8, 15, 22, 29]),
        ("0 0 * * 7", [1, 8, 15, 22, 29]),
        ("0 0 13 * fri", [6, 13, 20, 27]),  # either
        ("0 0 */10 * fri", []),  # both
        ("0 0 13 mar *", [13]),
        ("0 0 13 apr *", []),
    ],
)  # fmt: skip
def test_days_are_those_of_march_2026(line: str, days: list[int]) -> None:
    found = parse_cron(line)
    assert [n for n in range(1, 32) if found.falls_on(date(2026, 3, n))] == list(days)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "five fields"),
        ("@daily", "five fields"),
        ("0 0 6 * * *", "five fields"),
        ("60 * * * *", "the minute"),
        ("* 24 * * *", "the hour"),
        ("* * 0 * *", "the day of the month"),
        ("* * * 13 *", "the month"),
        ("* * * mai *", "jan feb"),
        ("* * * * 8", "the day of the week"),
        ("*/0 * * * *", "the minute"),
        ("10-5 * * * *", "the minute"),
        ("1,,2 * * * *", "the minute"),
        ("-1 * * * *", "the minute"),
        ("\u0661 * * * *", "the minute"),
        ("0 " * 300, "five fields"),
    ],
)
def test_a_line_that_is_none_is_refused_with_what_it_must_be(line: str, words: str) -> None:
    raw = b'{"cron": "%s", "timezone": "UTC"}' % line.encode()
    with pytest.raises(InvalidArgument, match=words) as caught:
        parse_schedule(raw, within="schedule")
    assert caught.value.extras["field"] == "schedule.cron"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"cron": "0 6 * * *"}', "timezone"),
        (b'{"cron": "0 6 * * *", "rate": {"every": 1, "unit": "day"}}', "exactly one"),
    ],
)
def test_a_line_needs_a_time_zone_and_nothing_else(raw: bytes, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        parse_schedule(raw)


def test_a_line_is_stored_with_single_spaces() -> None:
    raw = b'{"cron": " 0  6 * *   MON ", "timezone": "UTC"}'
    assert parse_schedule(raw) == by("0 6 * * MON")


def test_a_line_that_never_fires_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="never"):
        first_fire(by("0 0 30 2 *"), NOW)


@pytest.mark.parametrize(
    ("line", "after", "fire"),
    [
        ("0 0 29 2 *", "2096-03-01T00:00", "2104-02-29T00:00"),  # 2100 has none
        ("0 0 29 2 */7", "2088-03-01T00:00", "2128-02-29T00:00"),  # on a Sunday
    ],
)
def test_the_rarest_days_are_found(line: str, after: str, fire: str) -> None:
    assert next_fire(by(line), utc(after), anchor=NOW) == utc(fire)


@pytest.mark.parametrize(
    ("after", "fires"),
    [
        # The clock jumps from 02:00 to 03:00 at 01:00 UTC: what it skips fires then, and once.
        ("2026-03-29T00:00", ["2026-03-29T00:30", "2026-03-29T01:00", "2026-03-29T01:30"]),
        # It shows 02:00 to 02:59 twice: only the first time counts.
        ("2026-10-24T23:45", ["2026-10-25T00:00", "2026-10-25T00:30", "2026-10-25T02:00"]),
    ],
)
def test_daylight_saving_time_is_as_for_calendars(after: str, fires: list[str]) -> None:
    schedule, moment = by("*/30 * * * *", BERLIN), utc(after)
    found = list[datetime]()
    while len(found) < len(fires):
        following = next_fire(schedule, moment, anchor=NOW)
        assert following
        moment = following
        found.append(moment)
    assert found == [utc(one) for one in fires]


fields = st.tuples(
    st.sampled_from(["*", "0", "*/7", "5-50/9", "13,59"]),
    st.sampled_from(["*", "0", "2", "*/5", "23"]),
    st.sampled_from(["*", "1", "28-31", "*/9"]),
    st.sampled_from(["*", "2,3,10,11"]),
    st.sampled_from(["*", "mon", "5-7"]),
).map(" ".join)
moments = st.datetimes(
    min_value=datetime(2026, 1, 1),  # noqa: DTZ001
    max_value=datetime(2027, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)


@settings(deadline=None, max_examples=20)  # the oracle takes its time
@given(fields, moments, st.sampled_from(["UTC", "Asia/Kathmandu", "Asia/Tokyo"]))
@example("0 0 * * *", utc("2026-12-31T23:59"), "UTC")
def test_without_clock_changes_a_line_fires_when_every_field_matches(
    line: str, after: datetime, zone: str
) -> None:
    cron = parse_cron(line)
    moment = after.replace(second=0, microsecond=0) + MINUTE
    for _ in range(1440):
        local = moment.astimezone(ZoneInfo(zone))
        if cron.falls_on(local.date()) and local.time() in cron.times:
            break
        moment += MINUTE
    else:
        found = next_fire(by(line, zone), after, anchor=NOW)
        assert found is None or found >= moment
        return
    assert next_fire(by(line, zone), after, anchor=NOW) == moment
