"""The HTTP/1.1 protocol of the service: uvicorn's, with limits on slow and malformed clients.

Uvicorn's own protocol waits for a head without a time limit, buffers any number of bytes of it,
answers malformed requests in plain text, and closes connections with unread bytes, which makes the
kernel reset them and drop the response. This class changes that by overriding methods of
`HttpToolsProtocol` that are not its public interface. Hence the upper bound on uvicorn in
pyproject.toml: raise it only with `tests/e2e/test_http_bounds.py` green.

| overridden | hostile or broken client | what the override does |
|---|---|---|
| connection_made | opens connections until sockets run out | refuses those above the limit with 503 |
| connection_made, data_received, on_message_begin | sends a head byte by byte, or only empty lines (slowloris) | the head must be whole within HEAD_TIMEOUT |
| data_received | sends a head without an end | at most LARGEST_UNPARSED bytes, then 431 |
| on_headers_complete | sends two Host headers, or a Transfer-Encoding that a proxy reads differently (request smuggling) | 400 |
| on_headers_complete, on_message_complete | asks to upgrade to HTTP/2 or a WebSocket | serves the request as HTTP/1.1 |
| eof_received, on_body | ends the connection in the middle of a body, and waits for the response | 400 |
| send_400_response | sends bytes that are not HTTP | a problem document instead of plain text |
| on_response_complete | goes on sending a body that was refused | closes after LINGER, so that the client can read the refusal |
| _start_asgi_task | pipelines good and bad requests | knows which request is being answered |
| connection_lost | leaves before its response | ends the response and all timers |

Responses are written through `_ResponseTransport`, which closes connections whose client reads
nothing. Where strangers can reach the service, put a reverse proxy in front of it all the same.
"""

import asyncio
import contextlib
import fcntl
import struct
import termios
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from conveyor.api.app import Application
from conveyor.api.limits import CONNECTION, OpenConnection
from conveyor.errors import (
    ConveyorError,
    HeadTooLarge,
    InvalidArgument,
    Overloaded,
    RequestTimeout,
)

HEAD_TIMEOUT = 15.0  # seconds for the whole head of a request
LINGER = 5.0  # seconds for the rest of a body that was answered before it ended
READ_STALL = 60.0  # seconds in which a client reads nothing of a response that waits for it
LARGEST_UNPARSED = 64 * 1024  # bytes of a head that does not end


def bounded(
    app: Application, *, connections: int, stalled: float = READ_STALL
) -> type[HttpToolsProtocol]:
    """Return the protocol class of a service; `app` renders the refusals of the protocol."""
    limits = {"application": app, "most": connections, "stalled": stalled}
    return type("Connection", (_Connection,), limits)


class _Connection(HttpToolsProtocol):
    application: Application
    most: int
    stalled: float

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._connection = OpenConnection()
        self._timer: asyncio.TimerHandle | None = None  # for a head, or to close after LINGER
        self._in_head = True  # the next bytes belong to a head
        self._head_begun = False
        self._head_bytes = 0
        self._body_bytes = 0  # received so far
        self._request_ended = False  # in the bytes that were received last
        self._answering: RequestResponseCycle | None = None
        self._fault = ""  # what is wrong with a head that the parser accepts
        self._discarding = False  # received bytes are dropped
        self._lingering = False  # the response is written, and the client still sends
        self._stall_timer: asyncio.TimerHandle | None = None
        self._written = 0
        self._read_by_client = 0  # bytes, when the stall timer was started

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # A client that connects and sends nothing must not hold a connection.
        self._start_timer(HEAD_TIMEOUT, self._head_timed_out)
        if len(self.connections) > self.most:
            self._reject(Overloaded(f"There are {self.most} connections already: try later"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.release()
        self._stop_timer()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        # Requests that wait in the pipeline have no client left to answer.
        self.pipeline.clear()
        if self._is_answering:
            self._abandon_response()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        # Not only when a message begins: the parser skips empty lines before a request, and a client
        # that sends nothing else must not keep the connection open.
        if self._in_head and self._timer is None:
            self._start_timer(HEAD_TIMEOUT, self._head_timed_out)
        self._request_ended = False
        self._unset_keepalive_if_required()
        self._parse(data)
        # The parser reports headers one by one and never complains about their number or length.
        if self._in_head and not self._request_ended:
            self._head_bytes += len(data)
            if self._head_bytes > LARGEST_UNPARSED:
                self._reject(
                    HeadTooLarge(f"The head must have at most {LARGEST_UNPARSED} bytes, got more")
                )

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a body that is cut short; return whether the connection stays open to be written to.

        The client may have shut down its sending side only. If it has left, the response is lost.
        """
        if self._in_head or self._discarding:
            return False
        self._reject(InvalidArgument(self._cut_short()))
        if self._lingering:
            self.transport.close()  # once the response is written: there is no more to read
        return True

    def _cut_short(self) -> str:
        declared = dict(self.headers).get(b"content-length")
        if declared is None:
            return (
                f"The body must end with a chunk of length 0, got {self._body_bytes} bytes before"
            )
        return (
            f"The body must have the {declared.decode()} bytes that `Content-Length` says, "
            f"got {self._body_bytes}"
        )

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, object]", self.scope)[CONNECTION] = self._connection
        self._head_begun = True
        if self._timer is None:
            self._start_timer(HEAD_TIMEOUT, self._head_timed_out)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("CONNECT is not served")
            return  # `_ignore_upgrade` parses the head again, and this method is called again
        self._check_head()
        self._stop_timer()
        super().on_headers_complete()
        # Uvicorn has created the cycle of this request just now.
        self.cycle.transport = _ResponseTransport(self)
        self._in_head = False
        self._body_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the end of the head, not of the request
        self._stop_timer()
        self._in_head, self._head_begun = True, False
        self._head_bytes, self._request_ended = 0, True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._lingering:
            return
        super().on_response_complete()
        # The request was answered before its body ended, as most refusals are. Uvicorn would read the
        # rest without a limit.
        if self.cycle.response_complete and not self._in_head and not self.transport.is_closing():
            self._start_timer(LINGER, self.transport.close)

    def _check_head(self) -> None:
        """Raise for a head that a proxy in front may have read differently.

        A client could otherwise smuggle a second request past the proxy. The parser accepts any
        number of Host headers, and reads a body as chunked whatever other codings are listed.
        """
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            self._fault = f"A request must have one Host header, got {hosts}"
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and b",".join(codings).strip().lower() != b"chunked":
            self._fault = "Transfer-Encoding must be `chunked` alone; send the body unpacked"
        if self._fault:
            raise ValueError(self._fault)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's text
        self._reject(InvalidArgument(self._fault or "This is not an HTTP/1.1 request"))

    # Parsing.

    def _parse(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while (upgrade_at := self._parsed(left)) is not None:
                left = left[upgrade_at:]
                self._ignore_upgrade()
        except httptools.HttpParserError:
            self.send_400_response("")

    def _parsed(self, data: memoryview) -> int | None:
        """Parse all bytes, or return where a head ends that asks for another protocol."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return int(upgrade.args[0])
        return None

    def _ignore_upgrade(self) -> None:
        """Parse a head again without its Upgrade header, as RFC 9110 7.8 allows a server to do.

        curl and Java's client ask for HTTP/2 with their first request. The parser treats what
        follows as the other protocol, and has no option against it: it would lose the body, or read
        it as the next request.
        """
        version = str(self.parser.get_http_version()).encode()
        head = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        head += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        # As uvicorn creates its parser.
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"\r\n".join([*head, b"", b""]))

    # Time limits on heads, and the end of a connection.

    def _start_timer(self, seconds: float, on_timeout: Any) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_timed_out(self) -> None:
        self._timer = None
        if self._head_begun:
            self._reject(RequestTimeout(f"The head must be whole within {HEAD_TIMEOUT:g} s"))
        elif not self._is_answering:
            self.transport.close()  # idle: there is no request to answer

    def close_gracefully(self) -> None:
        """Close once the client has stopped sending, at the latest after LINGER.

        The kernel resets a socket that is closed with unread bytes, and the client may then lose the
        response.
        """
        if self._lingering or self.transport.is_closing():
            return
        if self._in_head and not self._discarding and not self.flow.read_paused:
            self.transport.close()
            return
        self._discarding = self._lingering = True
        with contextlib.suppress(OSError):  # the client has closed already
            self.transport.write_eof()
        self.flow.resume_reading()
        self._start_timer(LINGER, self.transport.close)

    def _reject(self, error: ConveyorError) -> None:
        """Answer a request that never reached the application, and close the connection."""
        if self._discarding or self.transport.is_closing():
            return
        self._discarding = True
        if self._is_answering and (self._in_head or self.cycle is not self._answering):
            self._close_after_pipeline()
            return
        # No request is being answered, or the faulty bytes are in the body of that very request.
        is_answered = not self._in_head and self.cycle.response_started
        if self._is_answering:
            self._abandon_response()
        if not is_answered:
            headers = self.headers if self._head_begun and self.headers else []
            self.write(self.application.rejection(error, headers))
        self.close_gracefully()

    def _close_after_pipeline(self) -> None:
        """Answer the requests that were received whole; the last response closes the connection.

        Responses of HTTP/1.1 come in the order of requests: a client would take a rejection now for
        the response to an earlier request.
        """
        if not self._in_head:
            self.pipeline.popleft()  # the request with the faulty body; uvicorn appends on the left
        last = self.pipeline[0][0] if self.pipeline else self._answering
        assert last
        last.keep_alive = False

    # Responses.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    def _abandon_response(self) -> None:
        """Let the application's next `receive` report a disconnect, and drop what it sends."""
        assert self._answering
        self._answering.disconnected = self._answering.response_complete = True
        self._answering.message_event.set()

    def write(self, data: bytes) -> None:
        """Write a part of a response, and start to watch whether the client reads it.

        A client that reads nothing would hold the response, and its memory, forever.
        """
        self.transport.write(data)
        self._written += len(data)
        if self._stall_timer is None and self.transport.get_write_buffer_size():
            self._watch_client()

    def _watch_client(self) -> None:
        self._read_by_client = self._written - _unread_by_client(self.transport)
        self._stall_timer = self.loop.call_later(self.stalled, self._check_client)

    def _check_client(self) -> None:
        self._stall_timer = None
        if not self.transport.get_write_buffer_size():
            return
        if self._written - _unread_by_client(self.transport) == self._read_by_client:
            self.transport.abort()
        else:
            self._watch_client()


class _ResponseTransport(asyncio.Transport):
    """The transport of a response: `write` and `close` go through the connection's limits."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__()
        self._connection = connection
        self._transport = connection.transport

    def write(self, data: Any) -> None:
        self._connection.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._connection.close_gracefully()


def _unread_by_client(transport: asyncio.Transport) -> int:
    """Count the bytes that the client has not read, in the transport and in the kernel.

    The kernel buffers megabytes, and takes more only when a good part of that is free: by the
    transport alone, a slow reader would look like one that reads nothing.
    """
    buffered = transport.get_write_buffer_size()
    connection = transport.get_extra_info("socket")
    if connection is None:
        return buffered
    with contextlib.suppress(OSError, ValueError):
        in_kernel = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4)
        return buffered + int(struct.unpack("i", in_kernel)[0])
    return buffered
