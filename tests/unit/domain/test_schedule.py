"""When schedules fire: held to a clock that is read minute by minute."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conveyor.domain.schedule import (
    LONGEST_RATE,
    Cadence,
    Calendar,
    Daily,
    Monthly,
    Rate,
    RateUnit,
    Schedule,
    ScheduleState,
    Weekday,
    Weekly,
    first_fire,
    first_instant,
    next_fire,
    parse_schedule,
    parse_turn,
    step_of,
)
from conveyor.errors import InvalidArgument

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
BERLIN = "Europe/Berlin"
# Jumps of an hour, half an hour, from midnight, at odd minutes, and of a whole day; and none.
ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "Australia/Lord_Howe",
    "America/Havana", "Africa/Cairo", "Asia/Kathmandu", "Asia/Tokyo", "Pacific/Apia",
    "America/Santiago", "Antarctica/Troll", "Asia/Tehran", "Pacific/Chatham",
)  # fmt: skip
LEAP = date(2028, 2, 29)


def daily(*hours: int, zone: str = BERLIN) -> Schedule:
    return on(Cadence(daily=Daily()), *hours, zone=zone)


def weekly(*days: Weekday, hour: int = 9, zone: str = BERLIN) -> Schedule:
    return on(Cadence(weekly=Weekly(days)), hour, zone=zone)


def monthly(*days: int, hour: int = 9, zone: str = BERLIN) -> Schedule:
    return on(Cadence(monthly=Monthly(days)), hour, zone=zone)


def on(cadence: Cadence, *hours: int, zone: str) -> Schedule:
    times = tuple(f"{hour:02}:00" for hour in hours)
    return Schedule(calendar=Calendar(times, cadence), timezone=zone)


def rate(every: int, unit: RateUnit = RateUnit.MINUTE) -> Schedule:
    return Schedule(rate=Rate(every, unit))


def at(text: str, zone: str = BERLIN) -> Schedule:
    return Schedule(at=text, timezone=zone)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(schedule: Schedule, after: datetime, count: int) -> list[datetime]:
    """The next so many, each found from the one before."""
    found: list[datetime] = []
    while len(found) < count:
        moment = next_fire(schedule, found[-1] if found else after, anchor=after)
        assert moment is not None
        found.append(moment)
    return found


def reading(moment: datetime, zone: str) -> datetime:
    return moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)


def oracle_instant(local: datetime, zone: str) -> datetime:
    """Look at the clock once a minute, from two days before on, until it reads so much."""
    moment = local.replace(tzinfo=UTC) - 2 * DAY
    while reading(moment, zone) < local:
        moment += MINUTE
    return moment


def oracle_next(schedule: Schedule, after: datetime) -> datetime:
    """Every day by its name and number, every time of it by the clock."""
    calendar, zone = schedule.calendar, schedule.timezone
    assert calendar
    assert zone
    day = reading(after, zone).date() - 3 * DAY
    while True:
        moments = [
            oracle_instant(datetime(day.year, day.month, day.day, int(text[:2])), zone)  # noqa: DTZ001
            for text in calendar.times_of_day
            if _is_wanted(calendar.cadence, day)
        ]
        later = sorted(moment for moment in moments if moment > after)
        if later:
            return later[0]
        day += DAY


def _is_wanted(cadence: Cadence, day: date) -> bool:
    if cadence.weekly:
        return day.strftime("%a").lower() in cadence.weekly.days
    if cadence.monthly:
        return day.day in cadence.monthly.days
    return True


# Days around which clocks jump are tried as often as all others together.
JUMPS = tuple(
    utc(text)
    for text in (
        "2026-03-29T00:30", "2026-10-25T00:30", "2026-03-08T06:30", "2026-11-01T05:30",
        "2010-03-14T03:20", "2010-11-07T02:20", "2026-04-04T14:30", "2026-10-03T15:20",
        "2011-12-30T09:30", "2026-04-24T21:30", "2026-09-06T03:30", "2028-02-29T12:00",
    )
)  # fmt: skip
moments = st.one_of(
    st.datetimes(
        min_value=datetime(1975, 1, 1),  # noqa: DTZ001
        max_value=datetime(2120, 1, 1),  # noqa: DTZ001
        timezones=st.just(UTC),
    ),
    st.builds(
        lambda jump, minutes: jump + minutes * MINUTE,
        st.sampled_from(JUMPS),
        st.integers(-2 * 1440, 2 * 1440),
    ),
)
zones = st.sampled_from(ZONES)
hours = st.lists(st.integers(0, 23), min_size=1, max_size=4, unique=True)
cadences = st.one_of(
    st.just(Cadence(daily=Daily())),
    st.builds(
        lambda days: Cadence(weekly=Weekly(tuple(days))),
        st.lists(st.sampled_from(Weekday), min_size=1, max_size=7, unique=True),
    ),
    st.builds(
        lambda days: Cadence(monthly=Monthly(tuple(days))),
        st.lists(st.integers(1, 31), min_size=1, max_size=4, unique=True),
    ),
)


@settings(deadline=None)  # the oracle takes its time
@given(moments, zones)
@example(utc("2026-03-29T02:30"), BERLIN)  # left out
@example(utc("2026-10-25T02:30"), BERLIN)  # twice
@example(utc("2011-12-30T09:00"), "Pacific/Apia")  # a day that was not
@example(utc("2010-03-14T00:30"), "America/St_Johns")  # a jump at a minute past
@example(utc("2026-10-04T02:10"), "Australia/Lord_Howe")  # a jump of half an hour
def test_a_local_time_is_the_first_moment_at_which_the_clock_reads_so_much(
    moment: datetime, zone: str
) -> None:
    local = moment.replace(tzinfo=None, second=0, microsecond=0)
    found = first_instant(local, ZoneInfo(zone))
    assert found == oracle_instant(local, zone)
    assert found.tzinfo is UTC


@settings(deadline=None)  # the oracle takes its time
@given(moments, zones, cadences, hours)
@example(utc("2026-03-29T00:59"), BERLIN, Cadence(daily=Daily()), [2, 3])
@example(utc("2011-12-30T09:59"), "Pacific/Apia", Cadence(monthly=Monthly((30,))), [9, 18])
@example(utc("2027-01-31T09:00"), "UTC", Cadence(monthly=Monthly((31,))), [0])
def test_a_calendar_fires_when_a_clock_read_all_the_time_says_so(
    after: datetime, zone: str, cadence: Cadence, given_hours: list[int]
) -> None:
    schedule = on(cadence, *given_hours, zone=zone)
    assert next_fire(schedule, after, anchor=NOW) == oracle_next(schedule, after)


@given(moments, zones, cadences, hours)
def test_nothing_lies_between_one_fire_and_the_next(
    after: datetime, zone: str, cadence: Cadence, given_hours: list[int]
) -> None:
    """Asking from anywhere between two fires gives the second; so a fire acted upon late, or
    asked for in vain, loses nothing.
    """
    schedule = on(cadence, *given_hours, zone=zone)
    first, second = fires(schedule, after, 2)
    between = first + (second - first) / 3
    assert after < first < second
    assert next_fire(schedule, between, anchor=NOW) == second
    assert next_fire(schedule, second - timedelta(microseconds=1), anchor=NOW) == second


@given(
    moments,
    st.integers(1, 5_000),
    st.sampled_from(RateUnit),
    st.lists(st.floats(0, 3), min_size=1, max_size=20),
)
def test_a_rate_never_drifts_however_late_each_fire_is(
    anchor: datetime, every: int, unit: RateUnit, delays: list[float]
) -> None:
    schedule = rate(every, unit)
    step = every * {"minute": MINUTE, "hour": HOUR, "day": DAY}[unit]
    due = first_fire(schedule, anchor)
    assert due == anchor + step
    for delay in delays:
        acted = due + delay * step
        following = next_fire(schedule, acted, anchor=due)
        assert following is not None
        assert acted < following <= acted + step
        assert (following - anchor) % step == timedelta()
        due = following


def test_a_time_that_is_left_out_fires_once_when_the_clock_has_jumped() -> None:
    assert fires(daily(2), utc("2026-03-28T12:00"), 2) == [
        utc("2026-03-29T01:00"),  # 03:00 there: there is no 02:00
        utc("2026-03-30T00:00"),
    ]
    both = fires(daily(2, 3), utc("2026-03-28T12:00"), 3)
    assert both[0] == utc("2026-03-29T01:00")
    assert both[1:] == [utc("2026-03-30T00:00"), utc("2026-03-30T01:00")]


def test_a_time_that_comes_twice_fires_at_its_first() -> None:
    assert fires(daily(2), utc("2026-10-24T12:00"), 2) == [
        utc("2026-10-25T00:00"),
        utc("2026-10-26T01:00"),
    ]


def test_a_moment_within_a_jump_waits_for_its_end() -> None:
    assert first_fire(at("2026-03-29T02:30:00"), NOW) == utc("2026-03-29T01:00")
    assert first_fire(at("2026-03-29T02:30:00.5"), NOW) == utc("2026-03-29T01:00")
    assert first_fire(at("2026-10-25T02:30:15.25"), NOW) == utc("2026-10-25T00:30:15.250")


def test_months_without_the_day_are_skipped() -> None:
    found = fires(monthly(31, zone="UTC"), utc("2026-01-31T09:00"), 7)
    assert [moment.month for moment in found] == [3, 5, 7, 8, 10, 12, 1]
    assert {moment.day for moment in found} == {31}
    assert [moment.date() for moment in fires(monthly(30), utc("2027-01-30T12:00"), 1)] == [
        date(2027, 3, 30)
    ]


def test_the_29th_of_february_is_a_day_in_leap_years_only() -> None:
    found = fires(monthly(29, zone="UTC"), utc("2026-01-01T00:00"), 36)
    assert LEAP in {moment.date() for moment in found}
    assert {moment.year for moment in found if moment.month == 2} == {2028}


def test_days_of_the_week_are_those_of_the_zone() -> None:
    """Monday 00:00 in Tokyo is Sunday 15:00 in UTC."""
    found = fires(weekly(Weekday.MON, hour=0, zone="Asia/Tokyo"), NOW, 3)
    assert [moment.strftime("%a %H") for moment in found] == ["Sun 15"] * 3
    assert all(later - sooner == 7 * DAY for sooner, later in pairwise(found))


def test_wall_clock_times_keep_their_hour_through_the_year() -> None:
    found = fires(daily(9), NOW, 365)
    assert {reading(moment, BERLIN).hour for moment in found} == {9}
    assert {moment.hour for moment in found} == {7, 8}


def test_years_ahead_are_as_good_as_tomorrow() -> None:
    assert next_fire(daily(9), utc("2399-06-01T00:00"), anchor=NOW) == utc("2399-06-01T07:00")
    assert first_fire(at("2500-01-01T00:00:00", "UTC"), NOW) == utc("2500-01-01T00:00")


def test_once_is_once() -> None:
    schedule = at("2026-09-01T09:00:00")
    moment = utc("2026-09-01T07:00")
    assert next_fire(schedule, moment - MINUTE, anchor=NOW) == moment
    assert next_fire(schedule, moment, anchor=NOW) is None


@pytest.mark.parametrize("text", ["2026-03-02T13:00:00", "2025-09-01T09:00:00", "1900-01-01T00:00"])
def test_a_moment_that_has_passed_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="must be in the future, got") as refused:
        first_fire(at(text), NOW, within="schedule")
    assert refused.value.extras == {"field": "schedule.at"}


GOOD = [
    {"at": "2026-09-01T09:00:00", "timezone": BERLIN},
    {"at": "2026-09-01 09:00", "timezone": "UTC"},
    {"at": "2026-09-01T09:00:00.5", "timezone": "America/Argentina/Buenos_Aires"},
    {"rate": {"every": 15, "unit": "minute"}},
    {"rate": {"every": 3650, "unit": "day"}},
    {
        "calendar": {"times_of_day": ["09:00", "18:00"], "cadence": {"daily": {}}},
        "timezone": BERLIN,
    },
    {
        "calendar": {"times_of_day": ["00:00"], "cadence": {"weekly": {"days": ["mon", "sun"]}}},
        "timezone": BERLIN,
    },
    {
        "calendar": {"times_of_day": ["23:00"], "cadence": {"monthly": {"days": [1, 31]}}},
        "timezone": BERLIN,
    },
]


@pytest.mark.parametrize("schedule", GOOD)
def test_a_good_schedule_comes_back_as_it_was_sent(schedule: object) -> None:
    parsed = parse_schedule(msgspec.json.encode(schedule))
    assert msgspec.to_builtins(parsed, str_keys=True) == _with_tuples(schedule)
    assert first_fire(parsed, NOW) > NOW


def _with_tuples(value: object) -> object:
    if isinstance(value, dict):
        return {key: _with_tuples(one) for key, one in value.items()}
    return tuple(value) if isinstance(value, list) else value


def test_what_is_null_is_absent_and_what_a_rate_ignores_is_dropped() -> None:
    sent = {"at": None, "rate": {"every": 1, "unit": "hour"}, "calendar": None, "timezone": "Mars"}
    assert parse_schedule(msgspec.json.encode(sent)) == rate(1, RateUnit.HOUR)


def test_what_is_said_twice_counts_once() -> None:
    cadence = {"weekly": {"days": ["mon", "fri", "mon"]}}
    sent = {"calendar": {"times_of_day": ["09:00"] * 1000, "cadence": cadence}, "timezone": "UTC"}
    calendar = parse_schedule(msgspec.json.encode(sent)).calendar
    assert calendar == Calendar(("09:00",), Cadence(weekly=Weekly((Weekday.MON, Weekday.FRI))))


def a_calendar(
    times: object = ("09:00",), cadence: object = None, zone: object = BERLIN
) -> dict[str, object]:
    held = {"times_of_day": times, "cadence": {"daily": {}} if cadence is None else cadence}
    return {"calendar": held, "timezone": zone}


BAD: list[tuple[object, str]] = [
    ({}, "schedule"),
    ([], "schedule"),
    ("daily", "schedule"),
    ({"timezone": BERLIN}, "schedule"),
    ({"rate": {"every": 1, "unit": "day"}, "at": "2026-09-01T09:00:00"}, "schedule"),
    ({"cron": "* * * * *"}, "timezone"),
    ({"cron": "* * * *", "timezone": BERLIN}, "cron"),
    ({"at": "2026-09-01T09:00:00"}, "timezone"),
    ({"at": "2026-09-01T09:00:00", "timezone": ""}, "timezone"),
    ({"at": "2026-09-01T09:00:00", "timezone": "CEST+2"}, "timezone"),
    ({"at": "2026-09-01T09:00:00", "timezone": "Europe"}, "timezone"),
    ({"at": "2026-09-01T09:00:00", "timezone": "localtime"}, "timezone"),
    ({"at": "2026-09-01T09:00:00", "timezone": "../../../etc/passwd"}, "timezone"),
    ({"at": "2026-09-01T09:00:00", "timezone": "/etc/localtime"}, "timezone"),
    ({"at": "2026-09-01T09:00:00", "timezone": "a" * 5000}, "timezone"),
    ({"at": "2026-09-01T09:00:00", "timezone": "Europe/Ber\0lin"}, "timezone"),
    ({"at": "2026-09-01T09:00:00", "timezone": "right/UTC"}, "timezone"),
    ({"at": "2026-09-01T09:00:00", "timezone": 2}, "timezone"),
    ({"at": "2026-09-01T09:00:00Z", "timezone": "UTC"}, "at"),
    ({"at": "2026-09-01T09:00:00+02:00", "timezone": BERLIN}, "at"),
    ({"at": "2026-09-01T09:00-0200", "timezone": BERLIN}, "at"),
    ({"at": "2026-09-01", "timezone": BERLIN}, "at"),
    ({"at": "tomorrow", "timezone": BERLIN}, "at"),
    ({"at": "2026-02-30T09:00:00", "timezone": BERLIN}, "at"),
    ({"at": "9999-12-31T23:59:59", "timezone": "America/New_York"}, "at"),
    ({"at": "0001-01-01T00:00:00", "timezone": BERLIN}, "at"),
    ({"at": "", "timezone": BERLIN}, "at"),
    ({"at": 1788246000, "timezone": BERLIN}, "at"),
    ({"rate": {"every": 0, "unit": "day"}}, "rate.every"),
    ({"rate": {"every": -1, "unit": "day"}}, "rate.every"),
    ({"rate": {"every": True, "unit": "day"}}, "rate.every"),
    ({"rate": {"every": 1.5, "unit": "day"}}, "rate.every"),
    ({"rate": {"every": 3651, "unit": "day"}}, "rate.every"),
    ({"rate": {"every": 10**30, "unit": "minute"}}, "rate.every"),
    ({"rate": {"every": 1, "unit": "week"}}, "rate.unit"),
    ({"rate": {"every": 1}}, "rate.unit"),
    (a_calendar(zone=None), "timezone"),
    (a_calendar(times=[]), "calendar.times_of_day"),
    (a_calendar(times=["09:30"]), "calendar.times_of_day"),
    (a_calendar(times=["9:00"]), "calendar.times_of_day"),
    (a_calendar(times=["24:00"]), "calendar.times_of_day"),
    (a_calendar(times=["09:00", "noon"]), "calendar.times_of_day"),
    (a_calendar(cadence={}), "calendar.cadence"),
    (a_calendar(cadence={"daily": {}, "weekly": {"days": ["mon"]}}), "calendar.cadence"),
    (a_calendar(cadence={"daily": {"at": 1}}), "calendar.cadence.daily.at"),
    (a_calendar(cadence={"weekly": {"days": []}}), "calendar.cadence.weekly.days"),
    (a_calendar(cadence={"weekly": {"days": ["Mon"]}}), "calendar.cadence.weekly.days[0]"),
    (a_calendar(cadence={"monthly": {"days": []}}), "calendar.cadence.monthly.days"),
    (a_calendar(cadence={"monthly": {"days": [0]}}), "calendar.cadence.monthly.days"),
    (a_calendar(cadence={"monthly": {"days": [32]}}), "calendar.cadence.monthly.days"),
    (a_calendar(cadence={"monthly": {"days": ["1"]}}), "calendar.cadence.monthly.days[0]"),
]


@pytest.mark.parametrize(("schedule", "field"), BAD)
def test_what_is_wrong_with_a_schedule_is_named(schedule: object, field: str) -> None:
    raw = msgspec.json.encode(schedule)
    with pytest.raises(InvalidArgument) as refused:
        parse_schedule(raw)
    assert refused.value.extras == {"field": field}
    assert f"`{field}`" in str(refused.value)
    assert len(str(refused.value)) < 500
    inside = "schedule" if field == "schedule" else f"schedule.{field}"
    with pytest.raises(InvalidArgument) as refused:
        parse_schedule(raw, within="schedule")
    assert refused.value.extras == {"field": inside}


def test_a_zone_that_is_nearly_right_is_put_right() -> None:
    sent = msgspec.json.encode({"at": "2026-09-01T09:00:00", "timezone": "Europe/Berln"})
    with pytest.raises(InvalidArgument, match="did you mean `Europe/Berlin`"):
        parse_schedule(sent)


MISSPELT: list[tuple[object, str, str]] = [
    ({"calender": {}}, "calender", "calendar"),
    ({"rate": {"evry": 1, "unit": "day"}}, "rate.evry", "every"),
    ({"rate": {"every": 1, "unit": "hours"}}, "rate.unit", "hour"),
    (a_calendar(cadence={"weakly": {}}), "calendar.cadence.weakly", "weekly"),
    (a_calendar(cadence={"weekly": {"days": ["Mon"]}}), "calendar.cadence.weekly.days[0]", "mon"),
]


@pytest.mark.parametrize(("schedule", "field", "meant"), MISSPELT)
def test_a_misspelt_name_in_a_schedule_is_answered_with_the_one_that_was_meant(
    schedule: object, field: str, meant: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"did you mean `{meant}`") as refused:
        parse_schedule(msgspec.json.encode(schedule), within="schedule")
    assert refused.value.extras == {"field": f"schedule.{field}"}


def test_a_misspelt_state_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidArgument, match="did you mean `paused`"):
        parse_turn(b'{"schedule_state": "pause"}')


@pytest.mark.parametrize("raw", [b"", b"{", b"nonsense", b'{"at": "\xff"}', b"[" * 5000])
def test_what_is_no_json_is_said_to_be_none(raw: bytes) -> None:
    for parse in (parse_schedule, parse_turn):
        with pytest.raises(InvalidArgument):
            parse(raw)


@pytest.mark.parametrize("every", [1, 60, 1440])
def test_the_longest_rate_is_the_same_in_every_unit(every: int) -> None:
    most = LONGEST_RATE // (every * MINUTE)
    unit = {1: "minute", 60: "hour", 1440: "day"}[every]
    longest = parse_schedule(msgspec.json.encode({"rate": {"every": most, "unit": unit}}))
    assert longest.rate
    assert step_of(longest.rate) == LONGEST_RATE


def test_a_state_is_active_or_paused() -> None:
    assert parse_turn(b'{"schedule_state": "paused"}') is ScheduleState.PAUSED
    for raw in (b"{}", b'{"schedule_state": "stopped"}', b'{"schedule_state": null}', b"[]"):
        with pytest.raises(InvalidArgument) as refused:
            parse_turn(raw)
        assert "schedule" in str(refused.value.extras["field"])
    with pytest.raises(InvalidArgument, match="one of active, paused"):
        parse_turn(b'{"schedule_state": "stopped"}')
