"""The protocol of ZenRows, without I/O: addresses of requests, headers and problem documents.

The gateway key is in every request. It must not appear in a problem, so it is redacted there.
"""

from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

import msgspec

from conveyor.adapters.http.page_wire import is_allowed, redacted, redacted_value
from conveyor.adapters.http.zenrows_errors import is_gateway_problem, rule_for
from conveyor.domain.counts import NANO, NOTHING, Spend
from conveyor.domain.page_facts import NO_FACTS, PageFacts, final_url
from conveyor.domain.params import HEADERS
from conveyor.domain.problem import completed, encoded
from conveyor.ports.gateway import GatewayRefusal, PageRequest

MOST_CREDITS = 1_000_000
MOST_DOLLARS = 10_000
QUOTED = {code: quote(chr(code), "") for code in range(128)}


def split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """The gateway's URL without user and password, and the `Authorization` header that they make.

    A caller's own `Authorization` header replaces it.
    """
    parts = urlsplit(url)
    userinfo, _, host = parts.netloc.rpartition("@")
    if not userinfo:
        return url, {}
    user, _, password = userinfo.partition(":")
    pair = f"{unquote(user)}:{unquote(password)}".encode()
    bare = urlunsplit(parts._replace(netloc=host))
    return bare, {"Authorization": f"Basic {b64encode(pair).decode()}"}


def base_query(url: str) -> str:
    """The gateway's URL up to the gateway key."""
    return f"{url}{'&' if '?' in url else '?'}apikey="


def address(base: str, request: PageRequest, headers: Mapping[str, str]) -> str:
    """The target of a request, with its query percent-encoded."""
    settings = _settings(tuple(request.params.items()))
    marked = f"&{HEADERS}=true" if headers else ""
    return f"{base}{_quoted_key(request.gateway_key)}&url={quoted(request.url)}{settings}{marked}"


def quoted(text: str) -> str:
    """Percent-encode a value of a query. For ASCII a table takes half of the time of `quote`."""
    return text.translate(QUOTED) if text.isascii() else quote(text, "")


def keeps_headers(url: str) -> bool:
    """Whether the gateway forwards no headers: its URL may set `custom_headers` for all calls."""
    return HEADERS not in dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))


@lru_cache(maxsize=1024)
def spend(credit: str | None, cost: str | None) -> Spend:
    """The cost that a response states; a malformed one counts as nothing."""
    charged = Spend(_credits(credit), _nanos(cost))
    return charged if charged != NOTHING else NOTHING


def limit(text: str | None) -> int | None:
    """How many calls a gateway key may have at once, if the response states it."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 7):
        return None
    return int(text) or None


def facts(request: PageRequest, status: int, reached: str | None) -> PageFacts:
    """What the head of a response says about the target.

    The gateway answers 200 for any page that it got, unless the caller asks for other statuses.
    """
    passed_on = bool(request.params) and is_allowed(request.params, status)
    if not passed_on and (reached is None or reached == request.url):
        return NO_FACTS
    there = redacted(reached, request.gateway_key) if reached else None
    return PageFacts(
        http_status=status if passed_on else None, final_url=final_url(request.url, there)
    )


def gateway_problem(body: bytes) -> dict[str, object] | None:
    """The gateway's own problem document, if a body is one."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return document if is_gateway_problem(document) else None


def refusal(
    document: dict[str, object], status: int, key: str, *, gateway_request_id: str | None = None
) -> GatewayRefusal:
    """A refusal with the gateway's own problem document, with the key redacted."""
    clean = {redacted(name, key): redacted_value(item, key) for name, item in document.items()}
    given = clean.get("code")
    code = given if isinstance(given, str) else f"http_{status}"
    whole = completed(clean, status, code)
    if gateway_request_id:
        whole["gateway_request_id"] = gateway_request_id
    return GatewayRefusal(
        status=status,
        code=code,
        problem=encoded(whole),
        rule=rule_for(status, code),
        gateway_request_id=gateway_request_id,
    )


@lru_cache(maxsize=256)
def _quoted_key(key: str) -> str:
    return quote(key, "")


# A job's tasks share their parameters: their part of the address is encoded once.
@lru_cache(maxsize=256)
def _settings(params: tuple[tuple[str, str], ...]) -> str:
    return "".join(
        f"&{quote(name, '')}={quote(value, '')}" for name, value in params if name != HEADERS
    )


def _credits(text: str | None) -> int:
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 10):
        return 0
    number = int(text)
    return number if number <= MOST_CREDITS else 0


def _nanos(text: str | None) -> int:
    try:
        dollars = Decimal(text or 0)
        return int((dollars * NANO).to_integral_value()) if 0 <= dollars <= MOST_DOLLARS else 0
    except InvalidOperation:
        return 0
