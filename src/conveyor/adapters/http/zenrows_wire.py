"""ZenRows' wire without the I/O: how a request is put, and what an answer's headers and
problem documents mean. The key is in every request and may be in no problem.
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
SHORTEST_SECRET = 6  # a shorter key is for trying things out, and part of many words
DEEPEST = 16  # a problem nested deeper is not told further
QUOTED = {code: quote(chr(code), "") for code in range(128)}


def separated(url: str) -> tuple[str, dict[str, str]]:
    """The gateway's address without the name and password in it, and the header they make.

    A driver that is left to make it refuses a request that brings an `Authorization` of its own.
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
    """The gateway's address up to the key."""
    return f"{url}{'&' if '?' in url else '?'}apikey="


def address(asked: str, request: PageRequest, headers: Mapping[str, str]) -> str:
    """The whole address of a request, quoted for the wire."""
    settings = _settings(tuple(request.params.items()))
    marked = f"&{HEADERS}=true" if headers else ""
    return f"{asked}{_quoted_key(request.key)}&url={quoted(request.url)}{settings}{marked}"


def quoted(text: str) -> str:
    """Fit to be a value in a query. Most is ASCII, for which a table takes half of the time."""
    return text.translate(QUOTED) if text.isascii() else quote(text, "")


def keeps_headers(url: str) -> bool:
    """Whether the gateway passes no headers on by itself; one may be told to, in its address."""
    return HEADERS not in dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def request_id(text: str | None, key: str) -> str | None:
    """What the gateway calls a call, if that is fit to be kept."""
    return _hidden(text, key) if text and REQUEST_ID.fullmatch(text) else None


@lru_cache(maxsize=1024)
def spend(credit: str | None, cost: str | None) -> Spend:
    """What an answer says it cost. What makes no sense counts as nothing."""
    charged = Spend(_credits(credit), _nanos(cost))
    return charged if charged != NOTHING else NOTHING


def limit(text: str | None) -> int | None:
    """How many calls a key may have at once, if that is told and makes sense."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 7):
        return None
    return int(text) or None


def gateway_problem(body: bytes) -> dict[str, object] | None:
    """The gateway's own problem, when a body is one."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return document if is_gateway_problem(document) else None


def refusal(
    document: dict[str, object], status: int, key: str, *, named: str | None = None
) -> Refusal:
    """A refusal in the gateway's own words, but for the key; `named` is its id of the call."""
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
    """A refusal that came without a problem document: ours says what came instead."""
    text = " ".join(body.decode(errors="replace").split())
    excerpt = _hidden(text, key)[:EXCERPT]
    said = f": {excerpt}" if excerpt else ", with nothing to say"
    detail = f"The gateway answered {status} with no problem document{said}"
    code = f"http_{status}"
    return page_wire.synthesised(code, status, detail, named=named, ruling=ruling(status, code))


@lru_cache(maxsize=256)
def _quoted_key(key: str) -> str:
    return quote(key, "")


# A job's tasks share their parameters: their part of the address is made once.
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
