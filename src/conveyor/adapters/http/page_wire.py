"""What all gateways share, without I/O: headers and bodies of callers, `Retry-After`, statuses that
count as pages, and refusals that Conveyor words itself.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache

import msgspec

from conveyor.domain.breaker import HealthSignal
from conveyor.domain.counts import NOTHING, Spend
from conveyor.domain.failure import FailureReason, Ruling, by_status, fail, retry
from conveyor.domain.params import HEADERS, Params, load
from conveyor.domain.problem import encoded, problem
from conveyor.ports.gateway import PageRequest, Refusal

LONGEST_WAIT = timedelta(hours=1)
NO_ROOM = ("storage_full", 503, "There is no room on the disk to store the page.")

# Codes that Conveyor itself gives, with any gateway.
OWN_CODES: dict[str, Ruling] = {
    "gateway_unreachable": retry(FailureReason.GATEWAY_ERROR),
    "gateway_timeout": retry(FailureReason.TIMEOUT),
    "gateway_garbled": retry(FailureReason.GATEWAY_ERROR),
    "body_too_large": fail(FailureReason.BAD_TARGET),
    "worker_lost": fail(FailureReason.OTHER),
}

# Headers of one hop, and those that the gateway must set itself. A caller's Accept-Encoding, for
# example, could ask for a coding that Conveyor does not decode.
OWN_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class Unsendable(Exception):
    """A request that cannot be written as HTTP."""


class Denied(Exception):
    """A page that must not be fetched, or not now; the fields are those of its refusal."""

    def __init__(self, code: str, status: int, detail: str, wait: float | None = None) -> None:
        super().__init__(detail)
        self.code, self.status = code, status
        self.wait = None if wait is None else timedelta(seconds=wait)


def forwarded(request: PageRequest) -> Mapping[str, str]:
    """The caller's headers for the target. Those of the request override those of the job."""
    stored = _stored_headers(request.params.get(HEADERS))
    return _allowed({**stored, **request.headers}) if request.headers else stored


def payload(body: str) -> tuple[bytes, str]:
    """The body to post and its type: a JSON string holds an encoded form, anything else is JSON."""
    if body.lstrip().startswith('"'):
        return msgspec.json.decode(body, type=str).encode(), "application/x-www-form-urlencoded"
    return body.encode(), "application/json"


def has(headers: Mapping[str, str], lower: str) -> bool:
    """Whether a header is among these, by its name in lower case."""
    return any(name.lower() == lower for name in headers)


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


def is_allowed(params: Mapping[str, str], status: int) -> bool:
    """Whether the caller accepts this status as a page; a redirect of the gateway never is one."""
    if 300 <= status < 400:
        return False
    if params.get("original_status") == "true":
        return True
    return str(status) in re.findall(r"\d+", params.get("allowed_status_codes", ""))


def synthesised(
    code: str,
    status: int,
    detail: str,
    *,
    charged: Spend = NOTHING,
    named: str | None = None,
    signal: HealthSignal = HealthSignal.ALIVE,
    ruling: Ruling | None = None,
) -> Refusal:
    """A refusal that Conveyor words itself, with the ruling of its code if that is one of ours."""
    document = problem(status=status, code=code, detail=detail, gateway_request_id=named)
    return Refusal(
        status=status,
        code=code,
        problem=encoded(document),
        ruling=ruling or OWN_CODES.get(code) or by_status(status, {}),
        spend=charged,
        gateway_request_id=named,
        signal=signal,
    )


def later(refusal: Refusal, wait: timedelta | None) -> Refusal:
    """The refusal, with a wait before the next attempt."""
    return refusal if wait is None else msgspec.structs.replace(refusal, retry_after=wait)


@lru_cache(maxsize=256)
def _stored_headers(text: str | None) -> Mapping[str, str]:
    return _allowed(load(text))


def _allowed(headers: Mapping[str, str]) -> Params:
    by_name = {name.lower(): (name, value) for name, value in headers.items()}
    return dict(kept for lower, kept in by_name.items() if lower not in OWN_HEADERS)


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
