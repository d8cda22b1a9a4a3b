"""The responses of the mock gateway, by the first label of the target's host.

`conveyor.mock_gateway` lists them. Nothing here does I/O or keeps state: the same call gets the
same response each time, but for `time`, which counts the calls for a target.
"""

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from itertools import chain
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

import msgspec

from conveyor.domain.params import result_format
from conveyor.domain.problem import phrase
from conveyor.mock_gateway.connection import AfterResponse, MockResponse

KIB = 1024
BLOCK = 64 * KIB
PAGE = 2 * KIB
BIG = 8 * KIB * KIB
ERROR_CODES = "https://docs.zenrows.com/api-error-codes#"
TYPES = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "markdown": "text/markdown; charset=utf-8",
    "plaintext": "text/plain; charset=utf-8",
    "pdf": "application/pdf",
}
OF_THE_CONNECTION = frozenset(
    {b"host", b"connection", b"content-length", b"accept-encoding", b"transfer-encoding"}
)


class ScrapeCall(NamedTuple):
    """One request to scrape a target."""

    method: str
    target: str
    key: str
    params: Mapping[str, str]
    headers: list[tuple[bytes, bytes]]
    body: bytes
    time: int  # the number of this call among those for its target, from 1
    standing: str  # header lines about the account, each with its line end

    @property
    def options(self) -> dict[str, str]:
        return dict(parse_qsl(self.target.partition("?")[2]))


class MockError(NamedTuple):
    status: int
    code: str
    title: str


ERRORS = {
    "permanent": MockError(404, "RESP002", "Page not found"),
    "nohost": MockError(404, "RESP007", "Could not resolve host"),
    "blocked": MockError(403, "REQS001", "Domain is forbidden"),
    "captcha": MockError(424, "RESP006", "Could not solve the captcha"),
    "unparsed": MockError(502, "RESP003", "Could not parse content"),
    "timedout": MockError(504, "CTX0002", "Operation timeout"),
    "nocredits": MockError(402, "AUTH004", "Usage exceeded"),
    "capped": MockError(402, "api_key_cap_reached", "The cap of this API key is reached"),
    "badkey": MockError(401, "AUTH002", "Invalid API key"),
    "banned": MockError(403, "BLK0001", "IP address blocked"),
}
NO_KEY = MockError(401, "AUTH001", "API key is missing")
NO_TARGET = MockError(400, "REQS004", "Invalid parameters: url is missing")
NO_CONTENT = MockError(422, "RESP001", "Could not get content")
TOO_MANY = MockError(429, "AUTH006", "Concurrency limit exceeded")


def response_to(call: ScrapeCall) -> MockResponse:
    """The response of the behaviour that the target names; an unknown name gets a page."""
    label = call.target.partition("://")[2].partition(".")[0]
    if label in ERRORS:
        return refusal(call, ERRORS[label])
    return BEHAVIOURS.get(label, ok)(call)


def refusal(
    call: ScrapeCall, fault: MockError, *more: str, detail: str | None = None
) -> MockResponse:
    """A problem document in the form of the real gateway, free of charge."""
    problem = {
        "code": fault.code,
        "detail": detail or f"{fault.title}. This is the mock gateway speaking.",
        "instance": "/v1",
        "status": fault.status,
        "title": f"{fault.title} ({fault.code})",
        "type": ERROR_CODES + fault.code,
    }
    body = msgspec.json.encode(problem)
    kind = "Content-Type: application/problem+json"
    return MockResponse(_head(call, fault.status, kind, _length(body), FREE, *more) + body)


def ok(call: ScrapeCall) -> MockResponse:
    return _paged(call, 200, _charge(call))


def slow(call: ScrapeCall) -> MockResponse:
    return ok(call)._replace(delay=_seconds(call, 250))


def big(call: ScrapeCall) -> MockResponse:
    pieces = _pieces(*_page(call, BIG))
    head = _head(call, 200, _kind(call), "Transfer-Encoding: chunked", _charge(call))
    return MockResponse(head, _chunked(pieces))


def zipped(call: ScrapeCall) -> MockResponse:
    opening, closing, size = _page(call, PAGE)
    lines = (_kind(call), "Content-Encoding: gzip", _charge(call))
    pieces = _pieces(opening, closing, size)
    if size > BLOCK:
        head = _head(call, 200, "Transfer-Encoding: chunked", *lines)
        return MockResponse(head, _chunked(_compressed(pieces)))
    body = gzip.compress(b"".join(pieces), mtime=0)
    return MockResponse(_head(call, 200, _length(body), *lines) + body)


def bomb(call: ScrapeCall) -> MockResponse:
    body = _zeros(_number(call, "size", 100 * KIB * KIB))
    lines = (_kind(call), "Content-Encoding: gzip", _charge(call))
    return MockResponse(_head(call, 200, _length(body), *lines) + body)


def flaky(call: ScrapeCall) -> MockResponse:
    if call.time > _number(call, "fails", 1):
        return ok(call)
    fault = ERRORS["unparsed"] if call.options.get("status") == "502" else NO_CONTENT
    return refusal(call, fault)


def premium(call: ScrapeCall) -> MockResponse:
    """A site that blocks requests from data centres."""
    return ok(call) if call.params.get("premium_proxy") == "true" else refusal(call, NO_CONTENT)


def busy(call: ScrapeCall) -> MockResponse:
    if call.time > _number(call, "fails", 1):
        return ok(call)
    return refusal(call, TOO_MANY, "Retry-After: " + _plain(call.options.get("after", "1")))


def status(call: ScrapeCall) -> MockResponse:
    """Any status with a page and no problem document, as from the target itself or a proxy."""
    code = min(max(_number(call, "code", 404), 200), 599)
    return _paged(call, code, "Location: /elsewhere")


def leaky(call: ScrapeCall) -> MockResponse:
    final = call._replace(target=f"{call.target}?apikey={quote(call.key)}")
    return refusal(final, NO_CONTENT, detail=f"asked with apikey={call.key} ({quote(call.key)})")


def dropped(_: ScrapeCall) -> MockResponse:
    return MockResponse(ending=AfterResponse.CLOSE)


def cut(call: ScrapeCall) -> MockResponse:
    opening, closing, size = _page(call, PAGE)
    half = b"".join(_pieces(opening, closing, size))[: size // 2]
    if call.options.get("chunked"):
        head = _head(call, 200, _kind(call), "Transfer-Encoding: chunked", _charge(call))
        half = b"%x\r\n%b" % (size, half)
    else:
        head = _head(call, 200, _kind(call), f"Content-Length: {size}", _charge(call))
    return MockResponse(head + half, ending=AfterResponse.CLOSE)


def truncated(call: ScrapeCall) -> MockResponse:
    whole = gzip.compress(b"".join(_pieces(*_page(call, PAGE))), mtime=0)
    half = whole[: len(whole) // 2]
    lines = (_kind(call), "Content-Encoding: gzip", _length(half), _charge(call))
    return MockResponse(_head(call, 200, *lines) + half)


def encoded(call: ScrapeCall) -> MockResponse:
    named = _plain(call.options.get("as", "foo"))
    return _paged(call, 200, f"Content-Encoding: {named}", _charge(call))


def stuck(call: ScrapeCall) -> MockResponse:
    begun = cut(call)._replace(ending=AfterResponse.HANG)
    if not call.options.get("chunked"):
        return begun
    head = _head(call, 200, _kind(call), "Transfer-Encoding: chunked", _charge(call))
    return MockResponse(head, iter((b"2\r\nok\r\n",)), ending=AfterResponse.HANG)


def rubbish(_: ScrapeCall) -> MockResponse:
    return MockResponse(
        b"\x16\x03 this is no HTTP at all \x00\xff\r\n\r\n", ending=AfterResponse.CLOSE
    )


def hang(_: ScrapeCall) -> MockResponse:
    return MockResponse(ending=AfterResponse.HANG)


def drip(call: ScrapeCall) -> MockResponse:
    whole = ok(call)
    body = chain((whole.first,), whole.rest or ())
    drops = (bytes((byte,)) for piece in body for byte in piece)
    return MockResponse(b"", drops, pace=_seconds(call, 20))


BEHAVIOURS: dict[str, Callable[[ScrapeCall], MockResponse]] = {
    "ok": ok,
    "slow": slow,
    "big": big,
    "gzip": zipped,
    "bomb": bomb,
    "flaky": flaky,
    "premium": premium,
    "busy": busy,
    "status": status,
    "leaky": leaky,
    "dropped": dropped,
    "cut": cut,
    "truncated": truncated,
    "encoded": encoded,
    "stuck": stuck,
    "rubbish": rubbish,
    "hang": hang,
    "drip": drip,
}


def _paged(call: ScrapeCall, code: int, *lines: str) -> MockResponse:
    opening, closing, size = _page(call, PAGE)
    head = _head(call, code, _kind(call), f"Content-Length: {size}", *lines)
    if size <= BLOCK:
        return MockResponse(head + b"".join(_pieces(opening, closing, size)))
    return MockResponse(head, _pieces(opening, closing, size))


def _page(call: ScrapeCall, default: int) -> tuple[bytes, bytes, int]:
    """The beginning of the page, its end, and its size with the filler between them."""
    size = _number(call, "size", default) if "?" in call.target else default
    opening, closing = _ends(call)
    return opening, closing, max(size, len(opening) + len(closing))


def _ends(call: ScrapeCall) -> tuple[bytes, bytes]:
    echo = msgspec.json.encode(_echo(call))
    match result_format(dict(call.params)):
        case "html":
            script = echo.replace(b"<", b"\\u003c")
            return HTML_OPENING + script + b"</script><p>", b"</p></html>\n"
        case "json":
            return echo[:-1] + b',"filler":"', b'"}'
        case _:
            return echo + b"\n", b""


HTML_OPENING = (
    b'<!doctype html><html><title>Mock page</title><script id="echo" type="application/json">'
)


def _echo(call: ScrapeCall) -> dict[str, object]:
    """The request as received, without the key."""
    kind, named, forwarded = None, None, {}
    for name, value in call.headers:
        lower = name.lower()
        if lower == b"content-type":
            kind = value.decode("latin-1")
        if lower == b"x-request-id":
            named = value.decode("latin-1")
        if lower not in OF_THE_CONNECTION:
            forwarded[name.decode("latin-1")] = value.decode(errors="replace")
    return {
        "method": call.method,
        "url": call.target,
        "params": call.params,
        "headers": forwarded if call.params.get("custom_headers") == "true" else {},
        "content_type": kind,
        "request_id": named,
        "body": call.body.decode(errors="replace"),
    }


def _pieces(opening: bytes, closing: bytes, size: int) -> Iterator[bytes]:
    yield opening
    left = size - len(opening) - len(closing)
    filler = _filler()
    while left > 0:
        yield filler if left >= BLOCK else filler[:left]
        left -= BLOCK
    yield closing


@cache
def _filler() -> bytes:
    """Words in a fixed random order, which compress about as well as prose."""
    words = b"belt page crate fetch inbox pallet of the and a to queue ship label sort".split()
    spins = (sha256(b"%d" % turn).digest() for turn in range(BLOCK // 32))
    text = b" ".join(words[byte % len(words)] for spin in spins for byte in spin)
    return text[:BLOCK]


def _chunked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        if piece:
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def _compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    press = zlib.compressobj(wbits=31)
    for piece in pieces:
        yield press.compress(piece)
    yield press.flush()


@cache
def _zeros(size: int) -> bytes:
    blocks = (bytes(min(BLOCK, size - at)) for at in range(0, size, BLOCK))
    return b"".join(_compressed(blocks))


def _head(call: ScrapeCall, status_code: int, *lines: str) -> bytes:
    reached = call.options.get("final", call.target) if "?" in call.target else call.target
    final = f"Zr-Final-Url: {_plain(reached)}"
    listed = "\r\n".join((f"HTTP/1.1 {status_code} {phrase(status_code)}", *lines, final))
    return f"{listed}\r\n{call.standing}\r\n".encode("latin-1")


def _plain(text: str) -> str:
    return text if text.isascii() and text.isprintable() else quote(text, safe=":/?&=#%+,")


def _kind(call: ScrapeCall) -> str:
    return "Content-Type: " + TYPES[result_format(dict(call.params))]


def _length(body: bytes) -> str:
    return f"Content-Length: {len(body)}"


def _charge(call: ScrapeCall) -> str:
    js, premium = call.params.get("js_render"), call.params.get("premium_proxy")
    return CHARGES[js == "true", premium == "true"]


def _charged(credit: int) -> str:
    return f"X-Request-Cost: {credit / 10_000:.4f}\r\nX-Request-Credits: {credit}"


FREE = _charged(0)
CHARGES = {
    (False, False): _charged(1),
    (True, False): _charged(5),
    (False, True): _charged(10),
    (True, True): _charged(25),
}


def _number(call: ScrapeCall, name: str, default: int) -> int:
    text = call.options.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 12 else default


def _seconds(call: ScrapeCall, default: int) -> float:
    return _number(call, "ms", default) / 1000
