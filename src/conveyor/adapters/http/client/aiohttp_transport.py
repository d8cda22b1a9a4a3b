"""The transport over aiohttp, for `http_client = aiohttp` (decision 0044).

aiohttp connects, pools and parses. Some of what it does breaks the promises of `HttpTransport`:

- It sends an idempotent request again when a reused connection fails.
- Bytes that arrive on an idle connection become the response to the next request.
- It bounds neither interim responses (1xx) nor trailers nor the head as a whole. A parse error in
  a body does not reach the reader. A body that ends with its connection counts as complete even
  after a reset.
- It does not resolve hosts that are addresses, so no resolver can refuse them.
- It bounds the connections in use, but not the idle ones. Closing it cancels the callers that wait.
- Closing a connection flushes what the other side may never read.

Most of this has no option. `CheckedProtocol` replaces the protocol of each connection, and two
private names (`PRIVATE`) are set. A version of aiohttp without them is refused at the start.
"""

import asyncio
import os
import re
import socket
import ssl
from contextlib import suppress
from functools import cached_property
from inspect import isfunction
from io import BytesIO
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from conveyor.adapters.http.client import transport
from conveyor.adapters.http.client.transport import (
    CLOSED,
    CLOSING,
    FRAMING,
    LISTS,
    LONGEST_HEAD,
    LONGEST_HEADER,
    MOST_BUFFERED,
    MOST_HEADERS,
    HttpRequest,
    IncompleteResponse,
    Lookup,
    NoResponse,
    NotConnected,
    ResponseStalled,
    Server,
    Turns,
    dial,
    tls_context,
    why,
)
from conveyor.domain.public_address import parsed
from conveyor.errors import RefusedToStart

PRIVATE = ("_retry_connection", "_factory")  # of sessions, and of connectors
BLANK_LINE = re.compile(rb"\n\r?\n")  # aiohttp accepts lines that end with LF alone, as we do
INTERIM = frozenset(range(100, 200)) - {101}  # responses that another one follows
AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")  # not to be added


class AiohttpTransport:
    """An `HttpTransport` over one session of aiohttp."""

    def __init__(self, lookup: Lookup, *, connections: int, wanted: frozenset[bytes]) -> None:
        self._lookup, self._wanted = lookup, wanted | FRAMING
        self._turns = Turns(connections)
        self._open: set[CheckedProtocol] = set()
        self._resting: dict[CheckedProtocol, None] = {}  # the latest at the end
        self._is_closed = False
        _check_version()
        connector = aiohttp.TCPConnector(
            resolver=LookupResolver(lookup),
            use_dns_cache=False,  # the lookup has a cache, and checks what it returns
            limit=0,  # `Turns` bounds the connections
            keepalive_timeout=transport.LONGEST_REST,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=AUTOMATIC,
            auto_decompress=False,  # `BodyReader` bounds decompressed sizes
            read_bufsize=MOST_BUFFERED // 2,  # aiohttp stops reading at twice this size
            max_line_size=LONGEST_HEADER - 1,
            max_field_size=LONGEST_HEADER - 1,
            max_headers=MOST_HEADERS,
        )
        self._session._retry_connection = False  # noqa: SLF001
        # Else a handshake that is given up keeps its socket for 30 s. The parameter is deprecated.
        connector._ssl_shutdown_timeout = CLOSING  # noqa: SLF001
        connector._factory = lambda: CheckedProtocol(self)  # type: ignore[assignment]  # noqa: SLF001

    @cached_property
    def _security(self) -> ssl.SSLContext:
        return tls_context()

    async def send(self, server: Server, request: HttpRequest) -> "AiohttpResponse":
        await self._turns.take()
        try:
            response = await self._sent(server, request)
        except BaseException:
            self._turns.pass_on()
            raise
        received = AiohttpResponse(response, self._wanted, self._turns)
        if received.status < 200:  # 101, or no status at all
            received.release()
            raise NoResponse("what came back is not HTTP")
        return received

    async def _sent(self, server: Server, request: HttpRequest) -> aiohttp.ClientResponse:
        self._check_open()
        if _is_address(server.host):
            await self._lookup.addresses(server.host)  # aiohttp would not ask the resolver
        path, _, query = request.target.partition("?")
        # aiohttp warns of large bodies that are bytes.
        body = None if request.method == "GET" else BytesIO(request.content or b"")
        try:
            return await self._session.request(
                request.method,
                URL.build(
                    scheme="https" if server.is_safe else "http",
                    host=server.host,
                    port=server.port,
                    path=path,
                    query_string=query,
                    encoded=True,
                ),
                headers={**request.fixed.values, **request.headers},
                data=body,
                allow_redirects=False,
                ssl=self._security if server.is_safe else True,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=transport.LAST_ADDRESS),
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failure(error) from error

    async def connect(self, server: Server) -> None:
        await self._turns.take()
        try:
            self._check_open()
            addresses = await self._lookup.addresses(server.host)
            security = self._security if server.is_safe else None
            made = await dial(lambda: CheckedProtocol(self), server, addresses, security)
            made.abort()
        finally:
            self._turns.pass_on()

    async def close(self) -> None:
        self._is_closed = True
        for protocol in tuple(self._open):
            protocol.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                await self._session.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise NoResponse(CLOSED)

    # For the protocols.

    def opened(self, protocol: "CheckedProtocol") -> None:
        self._open.add(protocol)
        if self._is_closed:
            protocol.abort()
        while len(self._resting) > self._turns.free:
            eldest = next(iter(self._resting))
            del self._resting[eldest]
            eldest.abort()

    def used(self, protocol: "CheckedProtocol") -> None:
        self._resting.pop(protocol, None)

    def rests(self, protocol: "CheckedProtocol") -> None:
        self._resting[protocol] = None

    def closed(self, protocol: "CheckedProtocol") -> None:
        self._open.discard(protocol)
        self._resting.pop(protocol, None)


class AiohttpResponse:
    """An `HttpResponse` of aiohttp."""

    def __init__(
        self, response: aiohttp.ClientResponse, wanted: frozenset[bytes], turns: Turns
    ) -> None:
        self._response, self._turns = response, turns
        self._headers: dict[bytes, bytes] = {}
        for name, value in response.raw_headers:
            if (lower := name.strip().lower()) not in wanted:
                continue
            if lower not in self._headers:
                self._headers[lower] = value
            elif lower in LISTS:
                self._headers[lower] += b"," + value
        self._is_unknown = (self.header(b"transfer-encoding") or "chunked").lower() != "chunked"
        length = self._headers.get(b"content-length")
        self.status = response.status
        self.length = None if length is None else int(length)

    def header(self, name: bytes) -> str | None:
        value = self._headers.get(name)
        return None if value is None else value.strip().decode(errors="replace")

    async def read(self, enough: int, silence: float) -> bytes:
        if self._is_unknown:
            raise IncompleteResponse
        pieces, size = [], 0
        try:
            while size < min(enough, MOST_BUFFERED):
                async with asyncio.timeout(silence):
                    piece = await self._response.content.readany()
                if not piece:
                    break
                pieces.append(piece)
                size += len(piece)
        except aiohttp.ClientError as error:
            raise IncompleteResponse from error
        except TimeoutError as error:
            raise ResponseStalled from error
        return b"".join(pieces)

    def release(self) -> None:
        # At the end of a body aiohttp has kept the connection already. Any other is closed.
        self._response.close()
        self._turns.pass_on()


class CheckedProtocol(ResponseHandler):
    """One connection. It accepts one response to each request, within bounds."""

    def __init__(self, owner: AiohttpTransport) -> None:
        super().__init__(asyncio.get_running_loop())
        self._owner = owner
        self._has_head = False
        self._is_over = True  # whether nothing more may arrive
        self._non_body_bytes = 0  # bytes since the last of a body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._owner.opened(self)

    def set_response_params(self, **params: Any) -> None:
        """Called by aiohttp before each request."""
        self._has_head = self._is_over = False
        self._non_body_bytes = 0
        self._owner.used(self)
        super().set_response_params(**params)

    def is_connected(self) -> bool:
        """Whether a request may be sent: aiohttp asks before it reuses a connection."""
        return super().is_connected() and not self.should_close

    def data_received(self, data: bytes) -> None:
        # Up to each blank line by itself: after a parse error aiohttp loses all that it parsed of
        # the same bytes, and thousands of interim responses would be in memory at once.
        start = 0
        while not (self._has_head or self._is_over) and (found := BLANK_LINE.search(data, start)):
            self._parse(data[start : found.end()])
            start = found.end()
        if start < len(data) or not data:
            self._parse(data[start:])

    def _parse(self, data: bytes) -> None:
        if self._is_over:
            if data:
                self._cut()  # without a request: it must not become the response to the next one
            return
        size = self._size
        super().data_received(data)
        if self._exception is not None:
            self._fail()
        elif self._has_head and self._payload is not None and self._payload.is_eof():
            self._is_over = True
            self._owner.rests(self)
        else:
            self._bound(0 if self._size > size else len(data))

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Called by aiohttp for each head."""
        message, _ = data
        if self._has_head:
            self._fail()  # a second response to one request
        elif message.code not in INTERIM:
            self._has_head = True
            super().feed_data(data, size)

    def eof_received(self) -> None:
        super().eof_received()
        self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        if exc is not None:
            self._fail_body()  # else aiohttp would take it for the end of a body without a length
        super().connection_lost(exc)
        self._owner.closed(self)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self._fail_body()  # aiohttp would forget its reader
        super().abort()
        # uvloop does not call `connection_lost` if connecting was cancelled.
        self._owner.closed(self)

    @property
    def _size(self) -> int:
        return self._payload.total_bytes if self._has_head and self._payload else 0

    def _bound(self, non_body: int) -> None:
        self._non_body_bytes = self._non_body_bytes + non_body if non_body else 0
        # While reading is paused, what arrived is parsed later.
        if self._non_body_bytes > LONGEST_HEAD and not self._reading_paused:
            self.set_exception(HttpProcessingError(message="the head is too long"))
            self._fail()

    def _fail(self) -> None:
        self._is_over = True
        self._fail_body()
        self._cut()

    def _fail_body(self) -> None:
        payload = self._payload
        if self._has_head and payload is not None and not payload.is_eof():
            payload.set_exception(aiohttp.ClientPayloadError())

    def _cut(self) -> None:
        """Close the socket at once; aiohttp cleans up when the connection is lost."""
        self.force_close()
        if self.transport is not None:
            self.transport.abort()


class LookupResolver(AbstractResolver):
    """Gives aiohttp the addresses that a lookup permits."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002 - aiohttp's signature
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._lookup.addresses(host)
        ]

    async def close(self) -> None:
        pass


def _check_version() -> None:
    """Refuse a version of aiohttp whose code does not read the names that are set here."""
    read = {
        name
        for owner in (aiohttp.ClientSession, aiohttp.TCPConnector)
        for method, function in vars(owner).items()
        if isfunction(function) and method != "__init__"
        for name in function.__code__.co_names
    }
    for name in PRIVATE:
        if name not in read:
            raise RefusedToStart(
                f"http_client = aiohttp needs a version of aiohttp with {name}, got "
                f"{aiohttp.__version__}: set http_client to conveyor, or install aiohttp 3.14"
            )


def _is_address(host: str) -> bool:
    try:
        parsed(host)
    except ValueError:
        return False
    return True


def _failure(error: Exception) -> NoResponse:
    """What a failed request means, without aiohttp's text, which holds the address and the key."""
    match error:
        case aiohttp.ClientSSLError():
            return NotConnected("no safe connection could be made")
        case aiohttp.ClientConnectorError():
            return NotConnected(why(error.os_error))
        case aiohttp.ConnectionTimeoutError():
            return NotConnected("no connection could be made in time")
        case aiohttp.ClientResponseError():
            return NoResponse("what came back is not HTTP")
        case OSError(errno=int(number)):
            return NoResponse(os.strerror(number))
        case aiohttp.InvalidURL() | ValueError():
            return NotConnected("its host has no address")
        case _:
            return NoResponse("the connection was closed first")
