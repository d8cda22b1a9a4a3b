"""One connection to a server: one HTTP/1.1 request at a time, and its response.

Callbacks of the event loop do the work, without a task: a response that arrives in one piece costs
one future, any other that fits in memory two.
"""

import asyncio
import os
from typing import Protocol, cast

import httptools

from conveyor.adapters.http.client.transport import (
    LISTS,
    LONGEST_HEAD,
    LONGEST_HEADER,
    MOST_BUFFERED,
    MOST_HEADERS,
    HttpRequest,
    IncompleteResponse,
    NoResponse,
    ResponseStalled,
    Server,
    header_lines,
)

WITHOUT_BODY = frozenset({204, 304})


class ConnectionOwner(Protocol):
    def release(self, connection: "Connection") -> None:
        """Called when an exchange is over."""
        ...

    def closed(self, connection: "Connection") -> None:
        """Called when the connection is closed, by either side."""
        ...


class Connection(asyncio.Protocol):
    """`send` a request, wait for the `head`, `read` the body until it returns nothing.

    `finish` says whether another request may follow: only after a complete response, with nothing
    behind it, on a connection that both sides keep open.
    """

    __slots__ = (
        "_enough",
        "_error",
        "_fields",
        "_head_received",
        "_headers",
        "_is_paused",
        "_keep_alive",
        "_last_data_at",
        "_loop",
        "_non_body_bytes",
        "_owner",
        "_parser",
        "_pieces",
        "_request_sent",
        "_silence_timer",
        "_size",
        "_transport",
        "_until_close",
        "_waiter",
        "_wanted",
        "_whole",
        "length",
        "rested",
        "server",
        "status",
    )

    def __init__(self, owner: ConnectionOwner, server: Server, wanted: frozenset[bytes]) -> None:
        self._owner, self._wanted = owner, wanted
        self.server = server
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        # Targets send odd bytes in their headers, end lines with LF alone (RFC 9112 2.2 lets a
        # recipient accept that) and put spaces after the length of a chunk. Browsers, curl and
        # aiohttp accept all three; a strict parser would lose the pages. What is dangerous for a
        # proxy is harmless here: a connection with anything behind its response is closed.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._request_sent = self._is_paused = False
        self.length: int | None = None  # of the body, if the head tells it
        self._last_data_at = self.rested = 0.0  # when last, by the loop's clock
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._size = 0
        self._begin()

    # For the caller.

    def send(self, request: HttpRequest) -> None:
        """Send a request. What arrives from now on is its response."""
        self._begin()
        self._request_sent = True
        if not self._transport.is_closing():  # else `head` raises
            self._transport.write(encoded(request))

    async def head(self) -> None:
        """Wait for the status and the headers. Raises `NoResponse`."""
        if not self._head_received:
            await self._wait(0)
        if not self._head_received:
            raise self._error or NoResponse

    def header(self, name: bytes) -> str | None:
        value = self._headers.get(name)
        return None if value is None else value.strip().decode(errors="replace")

    async def read(self, enough: int, silence: float) -> bytes:
        if self._size < enough and not self._whole and self._error is None:
            await self._wait_for_body(min(enough, MOST_BUFFERED), silence)
        if self._error is not None and not self._whole:
            raise self._error
        pieces, self._pieces, self._size = self._pieces, [], 0
        self._resume()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def release(self) -> None:
        self._owner.release(self)

    def finish(self) -> bool:
        """End this exchange. Return whether the connection can be used for another.

        A server may respond before it has read the request: the rest of a request that is still
        buffered would precede the next one.
        """
        self._request_sent = False
        self._pieces = []
        self._resume()
        return self.is_fit and self._transport.get_write_buffer_size() == 0

    @property
    def is_lost(self) -> bool:
        """Whether it failed, so that neither this exchange nor another can use it."""
        return self._error is not None

    @property
    def is_fit(self) -> bool:
        """Whether another request may be sent; the server may have closed it meanwhile."""
        return self._keep_alive and not self._transport.is_closing()

    def abort(self) -> None:
        """Close it at once."""
        self._keep_alive = False
        self._transport.abort()

    # For the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not an assertion: uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._request_sent or self._whole:
            self.abort()  # without a request: it must not become the response to the next one
            return
        size = self._size
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break_off()
        # Bytes that bring no body are heads, interim responses, trailers or chunk extensions. A
        # server could send them for ever.
        self._bound(0 if self._size > size else len(data))
        self._wake()

    def eof_received(self) -> None:
        self._keep_alive = False
        # An orderly end completes a body without a length. A reset comes without this call.
        if self._head_received and self._until_close and self._error is None:
            self._whole = True
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._keep_alive = self._is_paused = False
        if not self._whole and self._error is None:
            self._error = IncompleteResponse() if self._head_received else NoResponse(_why(exc))
            self._wake()
        self._owner.closed(self)

    # For the parser. What these raise ends the parsing.

    def on_message_begin(self) -> None:
        if self._whole:
            raise IncompleteResponse  # a second response to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > MOST_HEADERS or len(name) + len(value) > LONGEST_HEADER:
            raise NoResponse
        name = name.strip().lower()  # the parser accepts `Content-Length : 1` as well
        if name not in self._wanted or self._head_received:  # trailers are ignored
            return
        if name not in self._headers:
            self._headers[name] = value
        elif name in LISTS:
            self._headers[name] += b"," + value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = {}
            if status < 100 or status == 101:
                raise NoResponse
            return
        self.status, self._head_received = status, True
        coding, length = map(self._headers.get, (b"transfer-encoding", b"content-length"))
        if coding is not None and coding.strip().lower() != b"chunked":
            raise IncompleteResponse
        if length is not None:
            self.length = int(length)
        self._until_close = coding is None and length is None and status not in WITHOUT_BODY

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        if self._head_received:  # else it was an interim response (1xx)
            self._whole = True
            self._keep_alive = self._parser.should_keep_alive()

    # Internals.

    def _begin(self) -> None:
        self.status, self.length = 0, None
        self._headers = {}
        self._pieces = []
        self._size = self._fields = self._non_body_bytes = self._enough = 0
        self._head_received = self._whole = self._keep_alive = self._until_close = False

    def _break_off(self) -> None:
        """The bytes cannot be parsed: as a response, or behind a complete one."""
        if not self._whole:
            self._fail(
                IncompleteResponse()
                if self._head_received
                else NoResponse("what came back is not HTTP")
            )
        self.abort()

    def _bound(self, non_body: int) -> None:
        """Limit what a response makes us buffer or parse."""
        self._non_body_bytes = self._non_body_bytes + non_body if non_body else 0
        if self._whole:
            return
        if self._non_body_bytes > LONGEST_HEAD:
            self._break_off()
        elif self._size > MOST_BUFFERED and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if (
            self._whole
            or self._error is not None
            or (self._head_received and self._size >= self._enough)
        ):
            waiter.set_result(None)
        else:
            self._last_data_at = self._loop.time()  # not enough yet, but the server is not silent

    async def _wait(self, enough: int) -> None:
        if self._error is not None:
            return
        self._enough = enough
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def _wait_for_body(self, enough: int, silence: float) -> None:
        """Wait for more of the body, for a limited time."""
        self._last_data_at = self._loop.time()
        self._silence_timer = self._loop.call_later(silence, self._check_silence, silence)
        try:
            await self._wait(enough)
        finally:
            self._silence_timer.cancel()

    def _check_silence(self, silence: float) -> None:
        left = self._last_data_at + silence - self._loop.time()
        if left > 0:  # data arrived meanwhile: moving the timer each time would cost more
            self._silence_timer = self._loop.call_later(left, self._check_silence, silence)
        else:
            self._fail(ResponseStalled())
            self.abort()


def _why(lost: Exception | None) -> str:
    if isinstance(lost, OSError) and lost.errno:
        return os.strerror(lost.errno)
    return "the connection was closed first"


def encoded(request: HttpRequest) -> bytes:
    """A request as HTTP/1.1 bytes."""
    method, target, fixed, headers, content = request
    lines = header_lines(headers) if headers else ""
    head = f"{method} {target} HTTP/1.1\r\n{fixed.lines}{lines}"
    if content is None and method == "GET":
        return f"{head}\r\n".encode()
    content = content or b""
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
