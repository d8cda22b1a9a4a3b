"""The protocol of ZenRows, without I/O: addresses of requests, headers and problem documents.

The key is in every request. It must not appear in a problem, so it is redacted there.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

import msgspec

from conveyor.adapters.http import page_wire
from conveyor.adapters.http.zenrows_errors import is_gateway_problem, ruling
from conveyor.domain.counts import NANO, NOTHING, Spend
from conveyor.domain.params import HEADERS
from conveyor.domain.problem import completed, encoded
from conveyor.ports.gateway import PageRequest, Refusal

MOST_CREDITS = 1_000_000
MOST_DOLLARS = 10_000
EXCERPT = 200
REQUEST_ID = re.compile(r"[!-~]{1,128}")  # printable, without spaces
REDACTED = "***"
SHORTEST_SECRET = 6  # a shorter key is a test key, and occurs in ordinary words
DEEPEST = 16  # levels of a problem; what is nested deeper is redacted
QUOTED = {code: quote(chr(code), "") for code in range(128)}


def separated(url: str) -> tuple[str, dict[str, str]]:
    """The gateway's URL without user and password, and the `Authorization` header that they make.

    A caller's own `Authorization` header replaces it.
    """
    parts = urlsplit(url)
    told, _, host = parts.netloc.rpartition("@")
    if not told:
        return url, {}
    user, _, password = told.partition(":")
    pair = f"{unquote(user)}:{unquote(password)}".encode()
    bare = urlunsplit(parts._replace(netloc=host))
    return bare, {"Authorization": f"Basic {b64encode(pair).decode()}"}


def question(url: str) -> str:
    """The gateway's URL up to the key."""
    return f"{url}{'&' if '?' in url else '?'}apikey="


def address(asked: str, request: PageRequest, headers: Mapping[str, str]) -> str:
    """The target of a request, with its query percent-encoded."""
    settings = _settings(tuple(request.params.items()))
    marked = f"&{HEADERS}=true" if headers else ""
    return f"{asked}{_quoted_key(request.key)}&url={quoted(request.url)}{settings}{marked}"


def quoted(text: str) -> str:
    """Percent-encode a value of a query. For ASCII a table takes half of the time of `quote`."""
    return text.translate(QUOTED) if text.isascii() else quote(text, "")


def keeps_headers(url: str) -> bool:
    """Whether the gateway forwards no headers: its URL may set `custom_headers` for all calls."""
    return HEADERS not in dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def request_id(text: str | None, key: str) -> str | None:
    """The gateway's id of a call, if it can be stored."""
    return _hidden(text, key) if text and REQUEST_ID.fullmatch(text) else None


@lru_cache(maxsize=1024)
def spend(credit: str | None, cost: str | None) -> Spend:
    """The cost that a response states; a malformed one counts as nothing."""
    charged = Spend(_credits(credit), _nanos(cost))
    return charged if charged != NOTHING else NOTHING


def limit(text: str | None) -> int | None:
    """How many calls a key may have at once, if the response states it."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 7):
        return None
    return int(text) or None


def gateway_problem(body: bytes) -> dict[str, object] | None:
    """The gateway's own problem document, if a body is one."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return document if is_gateway_problem(document) else None


def refusal(
    document: dict[str, object], status: int, key: str, *, named: str | None = None
) -> Refusal:
    """A refusal with the gateway's own problem, the key redacted; `named` is its id of the call."""
    clean = {_hidden(name, key): _scrubbed(member, key) for name, member in document.items()}
    said = clean.get("code")
    code = said if isinstance(said, str) else f"http_{status}"
    whole = completed(clean, status, code) | ({"gateway_request_id": named} if named else {})
    return Refusal(
        status=status,
        code=code,
        problem=encoded(whole),
        ruling=ruling(status, code),
        gateway_request_id=named,
    )


def wordless(body: bytes, status: int, key: str, *, named: str | None = None) -> Refusal:
    """A refusal without a problem document: ours has an excerpt of the body instead."""
    text = " ".join(body.decode(errors="replace").split())
    excerpt = _hidden(text, key)[:EXCERPT]
    said = f": {excerpt}" if excerpt else ", with nothing to say"
    detail = f"The gateway answered {status} with no problem document{said}"
    code = f"http_{status}"
    return page_wire.synthesised(code, status, detail, named=named, ruling=ruling(status, code))


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


def _scrubbed(value: object, key: str, depth: int = 0) -> object:
    below = depth + 1
    match value:
        case str():
            return _hidden(value, key)
        case dict() | list() if depth == DEEPEST:
            return REDACTED
        case dict():
            return {_hidden(name, key): _scrubbed(item, key, below) for name, item in value.items()}
        case list():
            return [_scrubbed(item, key, below) for item in value]
        case _:
            return value


def _hidden(text: str, key: str) -> str:
    return _spellings(key).sub(REDACTED, text) if len(key) >= SHORTEST_SECRET else text


@lru_cache(maxsize=256)
def _spellings(key: str) -> re.Pattern[str]:
    """The key, each of its characters as it is, with a backslash before it, or percent-encoded."""
    return re.compile("".join(map(_spelling, key)))


def _spelling(character: str) -> str:
    percent = "".join(f"%{byte:02x}" for byte in character.encode())
    return rf"(?:\\?{re.escape(character)}|(?i:{percent}))"
