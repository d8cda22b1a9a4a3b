"""When a scheduled job runs: once, at a rate, or by the calendar of a time zone."""

from enum import StrEnum

import msgspec


class ScheduleState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"


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
    """Exactly one of them."""

    daily: Daily | None = None
    weekly: Weekly | None = None
    monthly: Monthly | None = None


class Calendar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    times_of_day: tuple[str, ...]
    cadence: Cadence


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """As it goes over the wire: exactly one of `at`, `rate` and `calendar`."""

    at: str | None = None
    rate: Rate | None = None
    calendar: Calendar | None = None
    timezone: str | None = None
