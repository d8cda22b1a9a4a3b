"""What can go wrong with a page, told apart: the public reasons and what each means for a task.

The gateway's word (an HTTP status and, mostly, a problem document with a code) is read into
one of the outcomes of `domain.task`. Nothing here does I/O.
"""

import re
from enum import StrEnum

import msgspec


class FailureReason(StrEnum):
    """The public taxonomy of failed tasks: the keys of `stats.failure_reasons`."""

    AUTH_FAILED = "auth_failed"
    BLOCKED = "blocked"
    BAD_TARGET = "bad_target"
    RATE_LIMITED = "rate_limited"
    TIMEOUT = "timeout"
    GATEWAY_ERROR = "gateway_error"
    OTHER = "other"


class AccountReason(StrEnum):
    """Why a run as a whole failed: the account behind its key cannot scrape."""

    INSUFFICIENT_CREDITS = "insufficient_credits"
    SUBSCRIPTION_INACTIVE = "subscription_inactive"
    API_KEY_CAP_REACHED = "api_key_cap_reached"


class Handling(StrEnum):
    """What a refusal of the gateway asks for."""

    RETRY = "retry"
    FAIL = "fail"
    WAIT = "wait"  # too many requests, or the caller's address blocked: not an attempt
    POSTPONE = "postpone"  # the page's host is left alone for now, and it alone: not an attempt
    ACCOUNT = "account"  # ends the run, not the task


class Ruling(msgspec.Struct, frozen=True):
    handling: Handling
    reason: FailureReason
    account: AccountReason | None = None


def _retry(reason: FailureReason) -> Ruling:
    return Ruling(Handling.RETRY, reason)


def _fail(reason: FailureReason) -> Ruling:
    return Ruling(Handling.FAIL, reason)


def _account(account: AccountReason) -> Ruling:
    return Ruling(Handling.ACCOUNT, FailureReason.AUTH_FAILED, account)


WAIT = Ruling(Handling.WAIT, FailureReason.RATE_LIMITED)

BY_CODE: dict[str, Ruling] = {
    "REQS001": _fail(FailureReason.BLOCKED),  # a domain the gateway will not fetch
    "REQS002": _fail(FailureReason.BLOCKED),  # the page needs js_render or premium_proxy
    "REQS004": _fail(FailureReason.OTHER),  # bad parameters
    "REQS006": _fail(FailureReason.OTHER),
    "REQS007": _fail(FailureReason.BAD_TARGET),  # Extract does not serve this target
    "REQS008": _fail(FailureReason.BLOCKED),
    "RESP001": _retry(FailureReason.BLOCKED),  # could not get the content
    "RESP002": _fail(FailureReason.BAD_TARGET),  # the page is not there
    "RESP003": _retry(FailureReason.GATEWAY_ERROR),  # could not parse
    "RESP004": _fail(FailureReason.OTHER),  # bad css_extractor
    "RESP005": _fail(FailureReason.BAD_TARGET),  # larger than the plan allows
    "RESP006": _retry(FailureReason.BLOCKED),  # captcha
    "RESP007": _fail(FailureReason.BAD_TARGET),  # no such host
    "RESP008": _fail(FailureReason.BAD_TARGET),
    "no_data_extracted": _fail(FailureReason.BAD_TARGET),  # Extract found nothing on the page
    "CTX0002": _retry(FailureReason.TIMEOUT),
    "AUTH001": _account(AccountReason.SUBSCRIPTION_INACTIVE),
    "AUTH002": _account(AccountReason.SUBSCRIPTION_INACTIVE),
    "AUTH003": _account(AccountReason.SUBSCRIPTION_INACTIVE),
    "AUTH004": _account(AccountReason.INSUFFICIENT_CREDITS),
    "AUTH005": _account(AccountReason.SUBSCRIPTION_INACTIVE),
    "AUTH006": WAIT,  # concurrency
    "AUTH008": WAIT,  # rate
    "AUTH009": _account(AccountReason.SUBSCRIPTION_INACTIVE),  # e-mail not verified
    "AUTH010": _fail(FailureReason.AUTH_FAILED),  # this feature is not in the plan: this task only
    "BLK0001": Ruling(Handling.WAIT, FailureReason.BLOCKED),  # the caller's address, for minutes
    "api_key_cap_reached": _account(AccountReason.API_KEY_CAP_REACHED),
    "payment_required": _account(AccountReason.INSUFFICIENT_CREDITS),
    "subscription_inactive": _account(AccountReason.SUBSCRIPTION_INACTIVE),
    "gateway_unreachable": _retry(FailureReason.GATEWAY_ERROR),
    "gateway_timeout": _retry(FailureReason.TIMEOUT),
    "gateway_garbled": _retry(FailureReason.GATEWAY_ERROR),
    "body_too_large": _fail(FailureReason.BAD_TARGET),
    "worker_lost": _fail(FailureReason.OTHER),
}

# Of a gateway that asks sites itself: what a site says is about its pages, never about the account.
BY_CODE_OF_SITES: dict[str, Ruling] = {
    "target_refused": _fail(FailureReason.BLOCKED),
    "target_missing": _fail(FailureReason.BAD_TARGET),
    "target_throttled": _retry(FailureReason.RATE_LIMITED),
    "target_timeout": _retry(FailureReason.TIMEOUT),
    "target_failed": _retry(FailureReason.BAD_TARGET),
    "target_not_allowed": _fail(FailureReason.BAD_TARGET),
    "too_many_redirects": _fail(FailureReason.BAD_TARGET),
    "robots_disallowed": _fail(FailureReason.BLOCKED),
    "robots_unreachable": _retry(FailureReason.BLOCKED),
    "unsupported_parameter": _fail(FailureReason.OTHER),
    "host_resting": Ruling(Handling.POSTPONE, FailureReason.RATE_LIMITED),
}
BY_CODE |= BY_CODE_OF_SITES

BY_STATUS: dict[int, Ruling] = {
    401: _account(AccountReason.SUBSCRIPTION_INACTIVE),
    402: _account(AccountReason.INSUFFICIENT_CREDITS),
    403: _fail(FailureReason.BLOCKED),
    404: _fail(FailureReason.BAD_TARGET),
    408: _retry(FailureReason.TIMEOUT),
    410: _fail(FailureReason.BAD_TARGET),
    413: _fail(FailureReason.BAD_TARGET),
    422: _retry(FailureReason.BLOCKED),
    424: _retry(FailureReason.BLOCKED),
    429: WAIT,
    504: _retry(FailureReason.TIMEOUT),
}


def ruling(status: int, code: str) -> Ruling:
    """What a refusal asks for: by its code where we know it, else by its HTTP status."""
    known = BY_CODE.get(code) or BY_STATUS.get(status)
    if known:
        return known
    return _retry(FailureReason.GATEWAY_ERROR) if status >= 500 else _fail(FailureReason.OTHER)


GATEWAY_CODE = re.compile(r"[A-Z]+\d+")
GATEWAYS_OWN = BY_CODE.keys() - BY_CODE_OF_SITES.keys()
ERROR_PAGE = "docs.zenrows.com/api-error-codes"


def is_gateway_problem(document: object) -> bool:
    """Whether a body is the gateway's own problem, and not a page that happens to be JSON."""
    if not isinstance(document, dict):
        return False
    code, kind = document.get("code"), document.get("type")
    return bool(
        (isinstance(code, str) and (GATEWAY_CODE.fullmatch(code) or code in GATEWAYS_OWN))
        or (isinstance(kind, str) and ERROR_PAGE in kind)
    )
