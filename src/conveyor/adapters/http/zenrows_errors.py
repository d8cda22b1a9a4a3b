"""ZenRows' errors: what each of its codes and statuses means for a task.

Its list of codes is at https://docs.zenrows.com/api-error-codes. Some codes of its newer endpoints
are words.
"""

import re
from datetime import timedelta

from conveyor.adapters.http.page_wire import CONVEYOR_CODES
from conveyor.domain.failure import (
    AccountReason,
    FailureReason,
    Handling,
    RefusalRule,
    account,
    by_status,
    fail,
    retry,
)

ERROR_PAGE = "docs.zenrows.com/api-error-codes"
CODE = re.compile(r"[A-Z]+\d+")
BLOCKED_WAIT = timedelta(minutes=1)  # a block of the caller's address is lifted within minutes
WAIT = RefusalRule(Handling.WAIT, FailureReason.RATE_LIMITED)

BY_CODE: dict[str, RefusalRule] = {
    "REQS001": fail(FailureReason.BLOCKED),  # a domain the gateway will not fetch
    "REQS002": fail(FailureReason.BLOCKED),  # the page needs js_render or premium_proxy
    "REQS004": fail(FailureReason.OTHER),  # bad parameters
    "REQS006": fail(FailureReason.OTHER),
    "REQS007": fail(FailureReason.BAD_TARGET),  # Extract does not serve this target
    "REQS008": fail(FailureReason.BLOCKED),
    "RESP001": retry(FailureReason.BLOCKED),  # could not get the content
    "RESP002": fail(FailureReason.BAD_TARGET),  # the page is not there
    "RESP003": retry(FailureReason.GATEWAY_ERROR),  # could not parse
    "RESP004": fail(FailureReason.OTHER),  # bad css_extractor
    "RESP005": fail(FailureReason.BAD_TARGET),  # larger than the plan allows
    "RESP006": retry(FailureReason.BLOCKED),  # captcha
    "RESP007": fail(FailureReason.BAD_TARGET),  # no such host
    "RESP008": fail(FailureReason.BAD_TARGET),
    "no_data_extracted": fail(FailureReason.BAD_TARGET),  # Extract found nothing on the page
    "CTX0002": retry(FailureReason.TIMEOUT),
    "AUTH001": account(AccountReason.SUBSCRIPTION_INACTIVE),
    "AUTH002": account(AccountReason.SUBSCRIPTION_INACTIVE),
    "AUTH003": account(AccountReason.SUBSCRIPTION_INACTIVE),
    "AUTH004": account(AccountReason.INSUFFICIENT_CREDITS),
    "AUTH005": account(AccountReason.SUBSCRIPTION_INACTIVE),
    "AUTH006": WAIT,  # concurrency
    "AUTH008": WAIT,  # rate
    "AUTH009": account(AccountReason.SUBSCRIPTION_INACTIVE),  # e-mail not verified
    "AUTH010": fail(FailureReason.AUTH_FAILED),  # this feature is not in the plan: this task only
    "BLK0001": RefusalRule(  # the caller's address is blocked
        Handling.WAIT, FailureReason.BLOCKED, least_wait=BLOCKED_WAIT
    ),
    "api_key_cap_reached": account(AccountReason.API_KEY_CAP_REACHED),
    "payment_required": account(AccountReason.INSUFFICIENT_CREDITS),
    "subscription_inactive": account(AccountReason.SUBSCRIPTION_INACTIVE),
}
TARGET_STATUS = {"RESP002": 404}  # what a code says about the response of the target
BY_STATUS: dict[int, RefusalRule] = {
    401: account(AccountReason.SUBSCRIPTION_INACTIVE),
    402: account(AccountReason.INSUFFICIENT_CREDITS),
    403: fail(FailureReason.BLOCKED),
    404: fail(FailureReason.BAD_TARGET),
    408: retry(FailureReason.TIMEOUT),
    410: fail(FailureReason.BAD_TARGET),
    413: fail(FailureReason.BAD_TARGET),
    422: retry(FailureReason.BLOCKED),
    424: retry(FailureReason.BLOCKED),
    429: WAIT,
    504: retry(FailureReason.TIMEOUT),
}


def rule_for(status: int, code: str) -> RefusalRule:
    """The rule for a refusal: by its code if that is known, else by its HTTP status."""
    return BY_CODE.get(code) or CONVEYOR_CODES.get(code) or by_status(status, BY_STATUS)


def is_gateway_problem(document: object) -> bool:
    """Whether a body is the gateway's own problem, and not a page that happens to be JSON."""
    if not isinstance(document, dict):
        return False
    code, kind = document.get("code"), document.get("type")
    is_known = isinstance(code, str) and (code in BY_CODE or code in CONVEYOR_CODES)
    return bool(
        is_known
        or (isinstance(code, str) and CODE.fullmatch(code))
        or (isinstance(kind, str) and ERROR_PAGE in kind)
    )
