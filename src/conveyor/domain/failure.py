"""Failures: the public reasons why tasks and runs fail, and how each refusal is handled.

The error table of each gateway, beside its adapter, says which refusal has which reason.
"""

from collections.abc import Mapping
from datetime import timedelta
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
    """Why a run as a whole failed: the account of its gateway key cannot scrape."""

    INSUFFICIENT_CREDITS = "insufficient_credits"
    SUBSCRIPTION_INACTIVE = "subscription_inactive"
    API_KEY_CAP_REACHED = "api_key_cap_reached"


class Handling(StrEnum):
    """What to do after a refusal of the gateway."""

    RETRY = "retry"
    FAIL = "fail"
    WAIT = "wait"  # too many requests, or the caller's address blocked: not an attempt
    POSTPONE = "postpone"  # the page's host is left alone for now, and it alone: not an attempt
    ACCOUNT = "account"  # ends the run, not the task


class RefusalRule(msgspec.Struct, frozen=True):
    """How a `GatewayRefusal` is handled: a row of a gateway's error table.

    `Scrape` turns it into the `Outcome` of the attempt.
    """

    handling: Handling
    reason: FailureReason
    account: AccountReason | None = None
    least_wait: timedelta = timedelta(seconds=1)  # before the task is tried again, for `WAIT`


def retry(reason: FailureReason) -> RefusalRule:
    return RefusalRule(Handling.RETRY, reason)


def fail(reason: FailureReason) -> RefusalRule:
    return RefusalRule(Handling.FAIL, reason)


def account(reason: AccountReason) -> RefusalRule:
    return RefusalRule(Handling.ACCOUNT, FailureReason.AUTH_FAILED, reason)


def by_status(status: int, known: Mapping[int, RefusalRule]) -> RefusalRule:
    """The rule for a refusal without a known code: 5xx is retried, any other status fails."""
    if status in known:
        return known[status]
    return retry(FailureReason.GATEWAY_ERROR) if status >= 500 else fail(FailureReason.OTHER)
