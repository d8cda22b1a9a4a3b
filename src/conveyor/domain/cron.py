"""Lines of cron: minute, hour, day of the month, month, day of the week.

A field is `*`, a number, a range, a list of these with commas, or a step (`*/15`, `8-18/2`). Months
and days of the week have names, and 0 and 7 are both Sunday. As in Vixie cron, a day must match both
fields of days, unless neither begins with `*`: then it must match one of them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from functools import lru_cache
from typing import NamedTuple

LONGEST = 256  # characters
EXAMPLE = "`0 6 * * 1-5`"
ELEMENT = re.compile(
    r"(?:\*|(?P<first>[0-9]{1,2}|[a-z]{3})(?:-(?P<last>[0-9]{1,2}|[a-z]{3}))?)"
    r"(?:/(?P<step>[0-9]{1,2}))?"
)


class Field(NamedTuple):
    name: str
    low: int
    high: int
    names: Mapping[str, int] = {}


MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
FIELDS = (
    Field("the minute", 0, 59),
    Field("the hour", 0, 23),
    Field("the day of the month", 1, 31),
    Field("the month", 1, 12, {name: number for number, name in enumerate(MONTHS, 1)}),
    Field("the day of the week", 0, 7, {name: number for number, name in enumerate(WEEKDAYS)}),
)


@dataclass(frozen=True, slots=True)
class CronLine:
    """The days and the times of day at which a line fires."""

    times: tuple[time, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # as `date.isoweekday` counts them, modulo 7
    either: bool  # a day must match `days` or `weekdays`, not both

    def falls_on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_number, by_name = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_number or by_name if self.either else by_number and by_name


@lru_cache(maxsize=1024)
def parse_cron(text: str) -> CronLine:
    """The days and times of a line; `ValueError` says what the line must be."""
    parts = text.lower().split()
    if len(parts) != len(FIELDS) or len(text) > LONGEST:
        raise ValueError(
            "must be five fields (minute, hour, day of the month, month, day of the week) in at most "
            f"{LONGEST} characters, such as {EXAMPLE}, got {text[:40]!r}"
        )
    minutes, hours, days, months, weekdays = map(_numbers, parts, FIELDS)
    return CronLine(
        times=tuple(time(hour, minute) for hour in sorted(hours) for minute in sorted(minutes)),
        days=days,
        months=months,
        weekdays=frozenset(number % 7 for number in weekdays),
        either=parts[2][0] != "*" and parts[4][0] != "*",
    )


def _numbers(text: str, field: Field) -> frozenset[int]:
    return frozenset(number for one in text.split(",") for number in _element(one, field))


def _element(text: str, field: Field) -> Iterator[int]:
    found = ELEMENT.fullmatch(text)
    first = field.low if found is None or found["first"] is None else _number(found["first"], field)
    last = field.high
    if found and found["last"]:
        last = _number(found["last"], field)
    elif found and found["first"] and not found["step"]:
        last = first
    step = int(found["step"] or 1) if found else 0
    if not (field.low <= first <= last <= field.high and step):
        names = f" or {' '.join(field.names)}" if field.names else ""
        raise ValueError(
            f"must have {field.name} as `*`, numbers from {field.low} to {field.high}{names}, ranges "
            f"such as `{field.low}-{field.high}` or steps such as `*/2`, got {text[:40]!r}"
        )
    yield from range(first, last + 1, step)


def _number(text: str, field: Field) -> int:
    """-1 for what is neither a number nor a name of the field."""
    return int(text) if text.isdigit() else field.names.get(text, -1)
