"""The seam between the gateways and an HTTP client: requests, responses, and who exchanges them.

`ConnectionPool` (our own client, the default) and `AiohttpTransport` implement `HttpTransport`. The
gateways know nothing else of either, so both must keep the same promises.
"""

import asyncio
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import SplitResult

P = TypeVar("P", bound=asyncio.BaseProtocol)

# Gateways pass on the headers of targets, and some are long.
LONGEST_HEADER = 64 * 1024
MOST_HEADERS = 1024
LONGEST_HEAD = 256 * 1024  # also for later bytes that are no body, such as trailers
MOST_BUFFERED = 256 * 1024  # body bytes that were not read yet; with more, the socket is not read
LONGEST_REST = 15.0  # seconds; a request may cross the closing of a connection that rests longer
ONE_ADDRESS = 10.0  # seconds for one of several addresses to connect, before the next is tried
LAST_ADDRESS = 20.0  # seconds for the last of them, or the only one
CLOSING = 1.0  # seconds for the other side to agree that a connection ends

TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Responses to these have another framing, which our client does not implement.
UNANSWERABLE = frozenset({"HEAD", "CONNECT"})
LISTS = frozenset({b"content-encoding", b"transfer-encoding"})  # may come in several headers
FRAMING = LISTS | {b"content-length"}
PORTS = {"http": 80, "https": 443}
CLOSED = "its connections are closed"


class NoResponse(Exception):
    """No response. The text says why, without quoting the system: an address may hold the key."""


class NotConnected(NoResponse):
    """No connection could be made: no address, refused, or not in time."""


class IncompleteResponse(Exception):
    """A response began, and was cut short or cannot be parsed."""


class ResponseStalled(Exception):
    """A response began, and nothing more arrived for too long."""


class Denied(Exception):
    """A request that must not be sent, or not now; the fields are those of a refusal."""

    def __init__(self, code: str, status: int, detail: str, wait: float | None = None) -> None:
        super().__init__(detail)
        self.code, self.status = code, status
        self.wait = None if wait is None else timedelta(seconds=wait)


class Server(NamedTuple):
    """The address of a server, and its name in the `Host` header."""

    host: str
    port: int
    host_header: str
    is_safe: bool


class FixedHeaders(NamedTuple):
    """Headers that many requests share: checked and encoded once, by `fixed_headers`."""

    values: Mapping[str, str]
    lines: str


class HttpRequest(NamedTuple):
    """A request that can be sent; `http_request` makes it."""

    method: str
    target: str
    fixed: FixedHeaders
    headers: Mapping[str, str]
    content: bytes | None


class Lookup(Protocol):
    async def addresses(self, host: str) -> list[str]:
        """At least one, in the order to try them. Raises `Denied` and `NotConnected`.

        The list is cached: a caller may move an address that failed to its end.
        """
        ...


class HttpResponse(Protocol):
    """A response whose head has arrived. It must be released."""

    @property
    def status(self) -> int: ...

    @property
    def length(self) -> int | None:
        """The length of the body on the wire, if the head states it."""
        ...

    def header(self, name: bytes) -> str | None:
        """One of the wanted headers, by its name in lower case; the first of several."""
        ...

    async def read(self, enough: int, silence: float) -> bytes:
        """At least `enough` bytes of the body, or all that is left; nothing at its end.

        `enough` counts up to `MOST_BUFFERED`. The body is not decompressed. Raises
        `IncompleteResponse`, or `ResponseStalled` if nothing arrives for `silence` seconds.
        """
        ...

    def release(self) -> None:
        """End the exchange. The connection is kept only if the body was read to its end."""
        ...


class HttpTransport(Protocol):
    """Sends requests over at most `connections` connections, idle ones included.

    A transport sends a request once and never repeats it, because gateways charge for each one. It
    follows no redirect, keeps no cookies, and uses no proxy of the environment. Callers that find
    no connection free wait for their turn, in order.
    """

    async def send(self, server: Server, request: HttpRequest) -> HttpResponse:
        """Send a request and wait for the head of its response.

        Raises `NotConnected` or another `NoResponse`, `IncompleteResponse`, and `Denied` for a
        server whose addresses must not be connected to. There is no time-out but for connecting:
        callers cancel.
        """
        ...

    async def connect(self, server: Server) -> None:
        """Open a new connection, and close it. Raises what `send` raises."""
        ...

    async def close(self) -> None:
        """Close all connections. Calls under way get `NoResponse` or `IncompleteResponse`."""
        ...


class TransportFactory(Protocol):
    def __call__(
        self, lookup: "Lookup", /, *, connections: int, wanted: frozenset[bytes]
    ) -> HttpTransport:
        """Open a transport that connects to what `lookup` permits and reads the `wanted` headers."""
        ...


def server_of(parts: SplitResult) -> Server:
    """The server of a gateway's URL. Raises ValueError."""
    host = (parts.hostname or "").encode("idna").decode()
    usual = PORTS[parts.scheme]
    port = parts.port or usual
    shown = f"[{host}]" if ":" in host else host
    return Server(host, port, shown if port == usual else f"{shown}:{port}", usual == 443)


def http_request(
    method: str, target: str, fixed: FixedHeaders, headers: Mapping[str, str], content: bytes | None
) -> HttpRequest:
    """Check a request. Its parts come from callers: what cannot be sent raises ValueError."""
    method = method.upper()
    if method in UNANSWERABLE or not _is_token(method):
        raise ValueError(f"the method must be a token other than HEAD and CONNECT, got {method!r}")
    if not target or " " in target or not (target.isascii() and target.isprintable()):
        raise ValueError("the target must be printable ASCII without spaces")
    if headers:
        _check_headers(headers)
    return HttpRequest(method, target, fixed, headers, content)


def fixed_headers(headers: Mapping[str, str]) -> FixedHeaders:
    """Raises ValueError, as `http_request` does."""
    _check_headers(headers)
    return FixedHeaders(headers, header_lines(headers))


def header_lines(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        # A line end would begin another header, or another request.
        if not _is_token(name) or "\r" in value or "\n" in value or "\0" in value:
            raise ValueError("a header must have a token as its name and a value of one line")
        if not value.isascii():
            value.encode()  # raises for surrogates


def tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Turns:
    """At most `count` callers at once; the others wait in order."""

    __slots__ = ("_loop", "free", "waiting")

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.free = count
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a turn, to be passed on."""
        if self.free and not self.waiting:
            self.free -= 1
            return
        turn = self._loop.create_future()
        self.waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.pass_on()  # the turn came as the caller gave up
            elif turn in self.waiting:
                self.waiting.remove(turn)
            raise

    def pass_on(self) -> None:
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


async def dial(
    protocol: Callable[[], P], server: Server, addresses: list[str], security: ssl.SSLContext | None
) -> P:
    """Connect to the first address that accepts. Raises `NotConnected`."""
    loop = asyncio.get_running_loop()

    async def connected(address: str) -> P:
        _, made = await loop.create_connection(
            protocol,
            address,
            server.port,
            ssl=security,
            server_hostname=server.host.rstrip(".") if security else None,
            ssl_shutdown_timeout=CLOSING if security else None,
        )
        return made

    try:
        *others, last = addresses
        for address in others:
            try:
                async with asyncio.timeout(ONE_ADDRESS):
                    return await connected(address)
            except OSError:  # a TimeoutError is one too
                if address in addresses:  # the list is cached: try this address last from now on
                    addresses.remove(address)
                    addresses.append(address)
        async with asyncio.timeout(LAST_ADDRESS):
            return await connected(last)
    except OSError as lost:
        raise NotConnected(why(lost)) from lost


def why(lost: OSError) -> str:
    """Why connecting failed, without the system's text, which may hold the address."""
    match lost:
        case socket.gaierror():
            return "its host has no address"
        case ssl.SSLError():
            return "no safe connection could be made"
        case TimeoutError(errno=None):
            return "no connection could be made in time"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case _:
            return "the connection failed"


@lru_cache(maxsize=1024)
def _is_token(text: str) -> bool:
    return TOKEN.fullmatch(text) is not None
