"""One connection of the mock gateway: HTTP/1.1 requests in, responses out in the same order.

Callbacks of the event loop do all the work. There are no tasks, so nothing outlives its socket,
and thousands of open connections are cheap. It does not use an HTTP server library, because the
responses break the protocol on purpose.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, Protocol, cast

import httptools

MOST_WAITING = 100  # pipelined requests behind a slow one
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Received(NamedTuple):
    """A complete request."""

    method: str
    address: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    keep_alive: bool


class AfterResponse(Enum):
    """What happens to the connection after a response."""

    KEEP = "keep"
    CLOSE = "close"
    HANG = "hang"


class MockResponse(NamedTuple):
    """The first bytes are sent after `delay` seconds, the rest `pace` seconds apart."""

    first: bytes = b""
    rest: Iterator[bytes] | None = None
    delay: float = 0.0
    pace: float = 0.0
    ending: AfterResponse = AfterResponse.KEEP


class Load:
    """Counters of calls: all, in flight, most in flight. A call also counts for `above`."""

    __slots__ = ("_above", "calls", "in_flight", "most_in_flight")

    def __init__(self, above: "Load | None" = None) -> None:
        self._above = above
        self.calls = self.in_flight = self.most_in_flight = 0

    def enter(self) -> None:
        self.calls += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if self._above is not None:
            self._above.enter()

    def leave(self) -> None:
        self.in_flight -= 1
        if self._above is not None:
            self._above.leave()

    def forget(self) -> None:
        """Set the counters to zero, except for calls in flight, which will still leave."""
        self.calls, self.most_in_flight = 0, self.in_flight


class Site(Protocol):
    """What a connection needs of its server."""

    def opened(self, connection: "MockConnection") -> None: ...

    def closed(self, connection: "MockConnection") -> None: ...

    def respond(self, request: Received) -> tuple[MockResponse, Load | None]:
        """The response, and the load to leave when it is sent or the connection is lost."""
        ...


class MockConnection(asyncio.Protocol):
    """Parses requests and sends their responses, one after the other."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Received] = deque()
        self._busy = False
        self._writable = True
        self._keep = True
        self._hangs = False
        self._load: Load | None = None
        self._rest: Iterator[bytes] | None = None
        self._pace = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not an assertion: uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._site.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the loop's signature
        self._waiting.clear()
        self._rest = None
        self._stop_timer()
        self._leave()
        self._site.closed(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._transport.write(BAD_REQUEST)
            self._transport.close()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._rest is not None and self._timer is None:
            self._send_rest()

    def abort(self) -> None:
        self._transport.abort()

    def on_message_begin(self) -> None:
        self._address = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self._address += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        request = Received(
            self._parser.get_method().decode(),
            self._address.decode("latin-1"),
            self._headers,
            self._body,
            self._parser.should_keep_alive(),
        )
        if not self._busy:
            self._begin(request)
        elif len(self._waiting) < MOST_WAITING:
            self._waiting.append(request)
        else:
            self.abort()

    def _begin(self, request: Received) -> None:
        if self._transport.is_closing():
            return
        self._busy = True
        response, self._load = self._site.respond(request)
        self._keep = request.keep_alive and response.ending is AfterResponse.KEEP
        self._hangs = response.ending is AfterResponse.HANG
        if response.delay:
            self._timer = self._loop.call_later(response.delay, self._send, response)
        else:
            self._send(response)

    def _send(self, response: MockResponse) -> None:
        self._timer = None
        if response.first:
            self._transport.write(response.first)
        if response.rest is not None:
            self._rest, self._pace = response.rest, response.pace
            self._send_rest()
        else:
            self._finish()

    def _send_rest(self) -> None:
        """Send the rest as fast as the client reads it, so that memory stays flat."""
        self._timer = None
        while self._writable and self._rest is not None:
            chunk = next(self._rest, None)
            if chunk is None:
                self._rest = None
                self._finish()
                return
            self._transport.write(chunk)
            if self._pace:
                self._timer = self._loop.call_later(self._pace, self._send_rest)
                return

    def _finish(self) -> None:
        if self._hangs:
            return
        self._leave()
        if not self._keep:
            self._transport.close()
        elif self._waiting:
            self._loop.call_soon(self._begin, self._waiting.popleft())
        else:
            self._busy = False

    def _leave(self) -> None:
        if self._load is not None:
            self._load.leave()
            self._load = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
