"""Connections: bytes become requests, within bounds of size and time.

The server's own protocol waits for ever for a head, and answers what is no HTTP in plain text.
"""

import asyncio
import contextlib
import fcntl
import struct
import termios
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from conveyor.api.app import Front
from conveyor.api.connections import LINE, Line
from conveyor.errors import (
    ConveyorError,
    HeadTooLarge,
    InvalidArgument,
    Overloaded,
    RequestTimeout,
)

HEAD_WITHIN = 15.0  # seconds for all of a request's head
LINGER = 5.0  # seconds for the rest of a body that was answered already
STALLED = 60.0  # seconds in which a reader takes nothing of what is there for it
LARGEST_UNREAD = 64 * 1024  # bytes of a head that does not end


def bounded(front: Front, *, connections: int, stalled: float = STALLED) -> type[HttpToolsProtocol]:
    """The protocol of a service: `front` words its refusals."""
    bounds = {"front": front, "most": connections, "stalled": stalled}
    return type("Connection", (_Connection,), bounds)


class _Connection(HttpToolsProtocol):
    front: Front
    most: int
    stalled: float

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._line = Line()
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False  # whether any head has come whole
        self._in_head = True
        self._begun = False  # whether anything of the head has come
        self._answering: RequestResponseCycle | None = None  # others may wait in line behind it
        self._fault = ""  # of a head that is HTTP and refused all the same
        self._deaf = False  # what comes is dropped
        self._hung_up = False
        self._unread = 0
        self._reader: asyncio.TimerHandle | None = None  # looks whether it takes anything
        self._written = 0
        self._taken = 0
        self._ended = False  # whether a request ended in the bytes that came last

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect(HEAD_WITHIN, self._give_up_head)
        if len(self.connections) > self.most:
            self._turn_away(Overloaded(f"There are {self.most} connections already: try later"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._line.let_go()
        self._stop_timer()
        if self._reader is not None:
            self._reader.cancel()
        self.pipeline.clear()
        if self._is_answering:
            self._give_up_answer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._in_head and self._timer is None:
            self._expect(HEAD_WITHIN, self._give_up_head)
        self._ended = False
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._in_head and not self._ended:
            self._unread += len(data)
            if self._unread > LARGEST_UNREAD:
                self._turn_away(HeadTooLarge(f"The head has more than {LARGEST_UNREAD} bytes"))

    def shutdown(self) -> None:
        if self._hung_up:
            self.transport.close()
        else:
            super().shutdown()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, object]", self.scope)[LINE] = self._line
        self._begun = True
        if self._timer is None:
            self._expect(HEAD_WITHIN, self._give_up_head)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("a tunnel is nothing that is served here")
            return  # the head is read once more, without the upgrade
        self._check_head()
        self._stop_timer()
        super().on_headers_complete()
        self.cycle.transport = _Answers(self)
        self._in_head, self._asked = False, True

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._stop_timer()
        self._in_head, self._begun, self._unread, self._ended = True, False, 0, True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._hung_up:
            return
        super().on_response_complete()
        if self.cycle.response_complete and not self._in_head and not self.transport.is_closing():
            self._expect(LINGER, self.transport.close)

    def _check_head(self) -> None:
        """Refuse heads that another server on the way may have read otherwise.

        The parser takes any number of hosts, and a body as chunked whatever else was done to it.
        """
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            self._fault = f"A request must have one Host header, got {hosts}"
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and b",".join(codings).strip().lower() != b"chunked":
            self._fault = "Transfer-Encoding must be `chunked` alone; send the body unpacked"
        if self._fault:
            raise ValueError(self._fault)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - theirs is not ours
        self._turn_away(InvalidArgument(self._fault or "These bytes are no request of HTTP/1.1"))

    def hang_up(self) -> None:
        """Close, but hear out whoever is still sending, for a while.

        A connection that is cut with bytes unread takes the answer with it.
        """
        if self._hung_up or self.transport.is_closing():
            return
        if self._in_head and not self._deaf and not self.flow.read_paused:
            self.transport.close()
            return
        self._deaf = self._hung_up = True
        with contextlib.suppress(OSError):  # nobody is there any more
            self.transport.write_eof()
        self.flow.resume_reading()
        self._expect(LINGER, self.transport.close)

    def write(self, data: bytes) -> None:
        """Write something that must be taken in time, or else the connection is cut."""
        self.transport.write(data)
        self._written += len(data)
        if self._reader is None and self.transport.get_write_buffer_size():
            self._watch_reader()

    def _watch_reader(self) -> None:
        self._taken = self._written - _untaken(self.transport)
        self._reader = self.loop.call_later(self.stalled, self._look_at_reader)

    def _look_at_reader(self) -> None:
        self._reader = None
        if not self.transport.get_write_buffer_size():
            return
        if self._written - _untaken(self.transport) == self._taken:
            self.transport.abort()
        else:
            self._watch_reader()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _parse(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while (upgrade_at := self._parsed(left)) is not None:
                left = left[upgrade_at:]
                self._ignore_upgrade()
        except httptools.HttpParserError:
            self.send_400_response("")

    def _parsed(self, data: memoryview) -> int | None:
        """Parse all of it, or up to the end of a head that asks for another protocol."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return int(upgrade.args[0])
        return None

    def _ignore_upgrade(self) -> None:
        """Read a head again as if it asked for no other protocol.

        The parser takes what follows such a head for that protocol, and cannot be told otherwise:
        the body would be lost, or be read as the next request.
        """
        version = str(self.parser.get_http_version()).encode()
        head = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        head += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"\r\n".join([*head, b"", b""]))

    def _expect(self, within: float, otherwise: Any) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(within, otherwise)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up_head(self) -> None:
        self._timer = None
        if self._begun:
            self._turn_away(RequestTimeout(f"The head was not whole within {HEAD_WITHIN:g} s"))
        elif not self._is_answering:
            self.transport.close()  # nobody asked anything

    @property
    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    def _give_up_answer(self) -> None:
        assert self._answering
        self._answering.disconnected = self._answering.response_complete = True
        self._answering.message_event.set()

    def _turn_away(self, error: ConveyorError) -> None:
        """Answer for a request that never reached the application, and hang up."""
        if self._deaf or self.transport.is_closing():
            return
        self._deaf = True
        if self._is_answering and (self._in_head or self.cycle is not self._answering):
            self._end_with_those_before()
            return
        is_answered = not self._in_head and self.cycle.response_started
        if self._is_answering:
            self._give_up_answer()
        if not is_answered:
            told = self.headers if self._begun and self.headers else []
            self.write(self.front.turned_away(error, told))
        self.hang_up()

    def _end_with_those_before(self) -> None:
        """Answers to requests that came whole come first. The last of them ends the connection."""
        if not self._in_head:
            self.pipeline.popleft()  # of this one the body is at fault
        last = self.pipeline[0][0] if self.pipeline else self._answering
        assert last
        last.keep_alive = False


class _Answers(asyncio.Transport):
    """What answers are written to: when they close it, the connection is hung up in good order."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__()
        self._connection = connection
        self._transport = connection.transport

    def write(self, data: Any) -> None:
        self._connection.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._connection.hang_up()


def _untaken(transport: asyncio.Transport) -> int:
    """Bytes that the other side has not taken yet: here, and with the system where it tells.

    The system has room for megabytes, and asks for more only when a good part of it is free:
    without it, who reads slowly would look like one who does not read.
    """
    here = transport.get_write_buffer_size()
    connection = transport.get_extra_info("socket")
    if connection is None:
        return here
    with contextlib.suppress(OSError, ValueError):
        told = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4)
        return here + int(struct.unpack("i", told)[0])
    return here
