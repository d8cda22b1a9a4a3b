"""Schedules: when a scheduled job runs, once, at a rate, or by a calendar or cron in a time zone.

A local time means the first instant at which the clock of its zone shows that time or a later one.
Both changes of daylight saving time follow from this rule. For 02:30 in `Europe/Berlin`:

- In spring the clock jumps from 02:00 to 03:00. The job fires at that instant, when it shows 03:00.
- In autumn the clock shows 02:30 twice. The job fires once, at the first of them.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache, partial
from typing import TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec

from conveyor.domain.cron import parse_cron
from conveyor.domain.json_bodies import Fault, decode_body, fault_within, nearest
from conveyor.errors import InvalidArgument

LONGEST_RATE = timedelta(days=3650)
YEARS = range(1900, 9001)  # that an `at` can be in
# Days searched for the next fire. A 31st comes within 64 days. For a line of cron, 29 February on a
# given day of the week comes within 40 years, the longest time that any line can need.
DAYS_AHEAD = 64
CRON_DAYS_AHEAD = 41 * 366
MOST_DAYS = 31


class ScheduleState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"


class PauseReason(StrEnum):
    """Why a schedule was paused by the service, not by its caller."""

    API_KEY_REVOKED = "api_key_revoked"
    API_KEY_EXPIRED = "api_key_expired"
    CANNOT_FIRE = "cannot_fire"  # its time zone is no longer known, or its list is gone


class RateUnit(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


class Weekday(StrEnum):
    MON = "mon"
    TUE = "tue"
    WED = "wed"
    THU = "thu"
    FRI = "fri"
    SAT = "sat"
    SUN = "sun"


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    every: int
    unit: RateUnit


class Daily(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every day."""


class Weekly(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    days: tuple[Weekday, ...]


class Monthly(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    days: tuple[int, ...]


class Cadence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """On which days: exactly one of the three is set."""

    daily: Daily | None = None
    weekly: Weekly | None = None
    monthly: Monthly | None = None


class Calendar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    times_of_day: tuple[str, ...]
    cadence: Cadence


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule as the API has it: exactly one of `at`, `rate`, `calendar` and `cron` is set."""

    at: str | None = None
    rate: Rate | None = None
    calendar: Calendar | None = None
    timezone: str | None = None
    cron: str | None = None  # an extension: the ZenRows API has the other three


class ScheduleTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a call that pauses or resumes a schedule."""

    schedule_state: ScheduleState


UNITS = {
    RateUnit.MINUTE: timedelta(minutes=1),
    RateUnit.HOUR: timedelta(hours=1),
    RateUnit.DAY: timedelta(days=1),
}
WEEKDAYS = tuple(Weekday)  # as `date.weekday` counts them
FULL_HOUR = re.compile(r"([01][0-9]|2[0-3]):00")
LOCAL_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)
OFFSET = re.compile(r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$", re.IGNORECASE | re.ASCII)
NO_PLACES = re.compile(r"(posix|right)/.*|localtime|posixrules|Factory")

T = TypeVar("T")


def parse_schedule(raw: bytes, *, within: str = "") -> Schedule:
    """Parse and check a schedule. `within` is the field that holds it, for error messages."""
    fault = _fault(within)
    return _checked(decode_body(raw, Schedule, fault), fault)


def parse_turn(raw: bytes) -> ScheduleState:
    return decode_body(raw, ScheduleTurn, _fault("")).schedule_state


def first_fire(schedule: Schedule, now: datetime, *, within: str = "") -> datetime:
    """The first fire of a schedule that begins now. A schedule that never fires is refused."""
    moment = next_fire(schedule, now, anchor=now)
    if moment is None:
        if schedule.cron is not None:
            what = f"must fire on some day, got {schedule.cron!r}, which never does"
            raise _fault(within)("cron", what)
        today = now.isoformat(timespec="seconds")
        raise _fault(within)("at", f"must be in the future, got {schedule.at}: it is {today} now")
    return moment


def next_fire(schedule: Schedule, after: datetime, *, anchor: datetime) -> datetime | None:
    """The first fire after `after`; None when there is none.

    `anchor` is any fire of a rate. All others are whole steps away from it, so a fire that was
    handled late does not shift the following ones.
    """
    if schedule.rate:
        step = step_of(schedule.rate)
        return anchor + ((after - anchor) // step + 1) * step
    zone = zone_of(schedule.timezone)
    if schedule.at is not None:
        moment = first_instant(datetime.fromisoformat(schedule.at), zone)
        return moment if moment > after else None
    if schedule.cron is not None:
        line = parse_cron(schedule.cron)
        return _next_on(line.falls_on, line.times, zone, after, CRON_DAYS_AHEAD)
    if schedule.calendar is None:
        return None
    hours = sorted(int(text[:2]) for text in schedule.calendar.times_of_day)
    on_days = partial(_falls_on, schedule.calendar.cadence)
    return _next_on(on_days, [time(hour) for hour in hours], zone, after, DAYS_AHEAD)


def first_instant(local: datetime, zone: ZoneInfo) -> datetime:
    """The first instant, in UTC, at which the clock of a zone shows `local` or a later time."""
    # For a time that the clock shows twice, `fold=0` selects the first.
    moment = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if _clock(moment, zone) == local:
        return moment
    # The clock jumps over `local`. Python then uses the offset before the jump for `fold=0`, which
    # gives an instant after the jump, and the offset after the jump for `fold=1`, which gives one
    # before it. A binary search between the two finds the jump; clocks jump at whole seconds.
    before = int(local.replace(tzinfo=zone, fold=1).timestamp())
    past = int(moment.timestamp())
    while past - before > 1:
        middle = (before + past) // 2
        if _clock(datetime.fromtimestamp(middle, UTC), zone) < local:
            before = middle
        else:
            past = middle
    return datetime.fromtimestamp(past, UTC)


def step_of(rate: Rate) -> timedelta:
    return rate.every * UNITS[rate.unit]


@lru_cache(maxsize=1024)
def zone_of(name: str | None) -> ZoneInfo:
    """The time zone with an IANA name; `InvalidArgument` when it is unknown."""
    try:
        if name and not NO_PLACES.fullmatch(name):
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # `ZoneInfo` opens a file of that name: the name of a folder, such as `Europe`, raises an
        # OSError, and a path that leads elsewhere a ValueError.
        pass
    raise InvalidArgument(f"`timezone` must be an IANA name, got {str(name)[:80]!r}")


def _next_on(
    falls_on: Callable[[date], bool],
    times: Sequence[time],
    zone: ZoneInfo,
    after: datetime,
    days_ahead: int,
) -> datetime | None:
    """The first of these times, which are in order, on one of these days."""
    today = _clock(after, zone).date()
    # Yesterday is included: if the clock jumped over its end, a time of yesterday fires today.
    for day in (today + timedelta(days=number) for number in range(-1, days_ahead)):
        if falls_on(day):
            moment_at = partial(_moment_on, day, zone)
            found = bisect_right(times, after, key=moment_at)
            if found < len(times):
                return moment_at(times[found])
    return None


def _moment_on(day: date, zone: ZoneInfo, local: time) -> datetime:
    return first_instant(datetime.combine(day, local), zone)


def _falls_on(cadence: Cadence, day: date) -> bool:
    if cadence.weekly:
        return WEEKDAYS[day.weekday()] in cadence.weekly.days
    return cadence.monthly is None or day.day in cadence.monthly.days


def _clock(moment: datetime, zone: ZoneInfo) -> datetime:
    """What the clock of a zone shows at an instant."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _checked(schedule: Schedule, fault: Fault) -> Schedule:
    given = (schedule.at, schedule.rate, schedule.calendar, schedule.cron)
    if (count := sum(one is not None for one in given)) != 1:
        raise fault(
            "", f"must hold exactly one of `at`, `rate`, `calendar` and `cron`, got {count}"
        )
    if schedule.rate:
        _check_rate(schedule.rate, fault)
        return Schedule(rate=schedule.rate)  # a time zone has no effect on a rate
    _check_zone(schedule.timezone, fault)
    if schedule.at is not None:
        _check_at(schedule.at, fault)
        return schedule
    if schedule.cron is not None:
        return msgspec.structs.replace(schedule, cron=_checked_cron(schedule.cron, fault))
    calendar = _checked_calendar(schedule.calendar, fault) if schedule.calendar else None
    return msgspec.structs.replace(schedule, calendar=calendar)


def _check_rate(rate: Rate, fault: Fault) -> None:
    most = LONGEST_RATE // UNITS[rate.unit]
    if not 1 <= rate.every <= most:
        raise fault(
            "rate.every", f"must be from 1 to {most} of unit `{rate.unit}`, got {rate.every}"
        )


def _check_zone(name: str | None, fault: Fault) -> None:
    if not name:
        raise fault(
            "timezone", "must be given with `at`, `calendar` and `cron`, such as `Europe/Berlin`"
        )
    try:
        zone_of(name)
    except InvalidArgument:
        hint = nearest(name, _zone_names())
        what = f"must be an IANA name such as `Europe/Berlin`, got {name[:80]!r}{hint}"
        raise fault("timezone", what) from None


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    return frozenset(available_timezones())


def _check_at(text: str, fault: Fault) -> None:
    if OFFSET.search(text):
        what = f"must be a local time without `Z` or an offset, got {text[:40]!r}: set `timezone`"
        raise fault("at", what)
    try:
        moment = datetime.fromisoformat(text) if LOCAL_TIME.fullmatch(text) else None
    except ValueError:
        moment = None
    if moment is None or moment.year not in YEARS:
        what = f"must be a local time such as `2026-09-01T09:00:00`, got {text[:40]!r}"
        raise fault("at", what)


def _checked_cron(text: str, fault: Fault) -> str:
    try:
        parse_cron(text)
    except ValueError as error:
        raise fault("cron", str(error)) from None
    return " ".join(text.split())


def _checked_calendar(calendar: Calendar, fault: Fault) -> Calendar:
    hours = _once_each(calendar.times_of_day)
    if not hours or not all(map(FULL_HOUR.fullmatch, hours)):
        what = f"must be one or more full hours such as `09:00`, got {_listed(hours)}"
        raise fault("calendar.times_of_day", what)
    cadence = calendar.cadence
    given = (cadence.daily, cadence.weekly, cadence.monthly)
    if (count := sum(one is not None for one in given)) != 1:
        what = f"must hold exactly one of `daily`, `weekly` and `monthly`, got {count}"
        raise fault("calendar.cadence", what)
    if cadence.weekly:
        cadence = Cadence(weekly=Weekly(_once_each(cadence.weekly.days)))
    if cadence.monthly:
        cadence = Cadence(monthly=Monthly(_once_each(cadence.monthly.days)))
    if cadence.weekly and not cadence.weekly.days:
        raise fault("calendar.cadence.weekly.days", "must be one or more of mon to sun, got none")
    days = cadence.monthly.days if cadence.monthly else (1,)
    if not days or not all(1 <= day <= MOST_DAYS for day in days):
        what = f"must be one or more days from 1 to {MOST_DAYS}, got {_listed(days)}"
        raise fault("calendar.cadence.monthly.days", what)
    return Calendar(hours, cadence)


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(repr, values))[:80] or "none"


def _once_each(values: Sequence[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _fault(within: str) -> Fault:
    return fault_within(within, whole="schedule")
