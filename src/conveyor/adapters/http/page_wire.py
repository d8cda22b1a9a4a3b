"""What all gateways share, without I/O: headers and bodies of callers, statuses that count as pages,
refusals that Conveyor words itself, and the redaction of keys.

A gateway that takes a key must redact it in all that it returns but pages.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from html import unescape

import msgspec

from conveyor.domain.breaker import HealthSignal
from conveyor.domain.counts import NOTHING, Spend
from conveyor.domain.failure import FailureReason, RefusalRule, by_status, fail, retry
from conveyor.domain.page_facts import NO_FACTS, PageFacts
from conveyor.domain.params import HEADERS, Params, load
from conveyor.domain.problem import encoded, problem
from conveyor.ports.gateway import GatewayRefusal, PageRequest

EXCERPT = 200  # characters of a body that a refusal quotes
LONGEST_BEGINNING = 2_048  # characters of a body among which these are sought
TITLE = re.compile(r"<title[^>]*>([^<]*)", re.IGNORECASE)
TAG = re.compile(r"<[^<>]*>|[<>]")
UNSEEN = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE
)
REQUEST_ID = re.compile(r"[!-~]{1,128}")  # printable, without spaces
REDACTED = "***"
SHORTEST_SECRET = 6  # a shorter key is a test key, and occurs in ordinary words
DEEPEST = 16  # levels of a problem; what is nested deeper is redacted
NO_ROOM = ("storage_full", 503, "There is no room on the disk to store the page.")

# Codes that Conveyor itself gives, with any gateway.
CONVEYOR_CODES: dict[str, RefusalRule] = {
    "gateway_unreachable": retry(FailureReason.GATEWAY_ERROR),
    "gateway_timeout": retry(FailureReason.TIMEOUT),
    "gateway_garbled": retry(FailureReason.GATEWAY_ERROR),
    "body_too_large": fail(FailureReason.BAD_TARGET),
    "worker_lost": fail(FailureReason.OTHER),
}

# Headers of one hop, and those that the gateway must set itself. A caller's Accept-Encoding, for
# example, could ask for a coding that Conveyor does not decode.
NOT_FORWARDED = frozenset(
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
    gateway_request_id: str | None = None,
    signal: HealthSignal = HealthSignal.ALIVE,
    rule: RefusalRule | None = None,
    facts: PageFacts = NO_FACTS,
) -> GatewayRefusal:
    """A refusal that Conveyor words itself, with the rule of its code if that is one of ours."""
    document = problem(
        status=status, code=code, detail=detail, gateway_request_id=gateway_request_id
    )
    return GatewayRefusal(
        status=status,
        code=code,
        problem=encoded(document),
        rule=rule or CONVEYOR_CODES.get(code) or by_status(status, {}),
        spend=charged,
        gateway_request_id=gateway_request_id,
        signal=signal,
        facts=facts,
    )


def without_problem(
    body: bytes,
    status: int,
    key: str,
    *,
    gateway_request_id: str | None = None,
    rule: RefusalRule | None = None,
) -> GatewayRefusal:
    """The refusal for an error without a problem document: ours has an excerpt of the body."""
    # Redact before each cut, which could be inside the key; and what was escaped.
    text = redacted(body.decode(errors="replace"), key)
    excerpt = redacted(_words(text), key)[:EXCERPT]
    described = f"no problem document: {excerpt}" if excerpt else "no problem document"
    ending = described if body.strip() else "an empty body"
    return synthesised(
        f"http_{status}",
        status,
        f"The gateway answered {status} with {ending}",
        gateway_request_id=gateway_request_id,
        rule=rule,
    )


def _words(text: str) -> str:
    """The title of a page, or what it says; of any other text the words."""
    beginning = text[:LONGEST_BEGINNING]
    title = TITLE.search(beginning)
    shown = (title and title[1].strip()) or UNSEEN.sub(" ", beginning)
    # Twice, because escaped markup is markup when it is shown elsewhere.
    return " ".join(TAG.sub(" ", unescape(TAG.sub(" ", shown))).split())


def request_id(text: str | None, key: str) -> str | None:
    """The gateway's id of a call, if it can be stored."""
    return redacted(text, key) if text and REQUEST_ID.fullmatch(text) else None


def redacted(text: str, key: str) -> str:
    """Text with the key redacted. What a gateway returns may repeat the request with its key."""
    return _spellings(key).sub(REDACTED, text) if len(key) >= SHORTEST_SECRET else text


def redacted_value(value: object, key: str, depth: int = 0) -> object:
    """A decoded JSON value with the key redacted, in names as well."""
    below = depth + 1
    match value:
        case str():
            return redacted(value, key)
        case dict() | list() if depth == DEEPEST:
            return REDACTED
        case dict():
            return {
                redacted(name, key): redacted_value(item, key, below)
                for name, item in value.items()
            }
        case list():
            return [redacted_value(item, key, below) for item in value]
        case _:
            return value


def later(refusal: GatewayRefusal, wait: timedelta | None) -> GatewayRefusal:
    """The refusal, with a wait before the next attempt."""
    return refusal if wait is None else msgspec.structs.replace(refusal, retry_after=wait)


@lru_cache(maxsize=256)
def _stored_headers(text: str | None) -> Mapping[str, str]:
    return _allowed(load(text))


def _allowed(headers: Mapping[str, str]) -> Params:
    by_name = {name.lower(): (name, value) for name, value in headers.items()}
    return dict(kept for lower, kept in by_name.items() if lower not in NOT_FORWARDED)


@lru_cache(maxsize=256)
def _spellings(key: str) -> re.Pattern[str]:
    """The key, each of its characters as it is, with a backslash before it, or percent-encoded."""
    return re.compile("".join(map(_spelling, key)))


def _spelling(character: str) -> str:
    percent = "".join(f"%{byte:02x}" for byte in character.encode())
    return rf"(?:\\?{re.escape(character)}|(?i:{percent}))"
