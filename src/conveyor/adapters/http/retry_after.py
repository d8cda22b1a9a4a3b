"""The header `Retry-After`, of gateways, sites and webhooks."""

import math
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

LONGEST_WAIT = timedelta(hours=1)


def retry_after(
    text: str | None, date: str | None, *, longest: timedelta = LONGEST_WAIT
) -> timedelta | None:
    """The wait that `Retry-After` asks for, at most `longest`.

    A point in time counts from the response's own `Date`, because clocks differ.
    """
    seconds = _seconds(text, date) if text else None
    if seconds is None or math.isnan(seconds):
        return None
    return timedelta(seconds=min(max(seconds, 0.0), longest.total_seconds()))


def _seconds(text: str, date: str | None) -> float | None:
    try:
        return float(text)
    except ValueError:
        until, since = _moment(text), _moment(date)
        return (until - since).total_seconds() if until and since else None


def _moment(text: str | None) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
