"""One connection to a server: requests of HTTP/1.1 out, answers in, one at a time.

All of it is callbacks of the loop, and no task is born: an answer that comes in one piece costs
one future, any other two for what fits in memory.
"""

import asyncio
import os
from typing import Protocol, cast

import httptools

# Targets' headers come back too, and some are long.
LONGEST_HEADER = 64 * 1024
MOST_HEADERS = 1024
LONGEST_HEAD = 256 * 1024  # and as much that brings no body later on: trailers, say
MOST_BUFFERED = 256 * 1024  # what is not read yet; more waits in the network

LISTS = frozenset({b"content-encoding", b"transfer-encoding"})  # may come in several headers
FRAMING = LISTS | {b"content-length"}
WITHOUT_BODY = frozenset({204, 304})


class Lost(Exception):
    """There is no answer. Its text says why, in words of our own: an address holds the key."""


class Unconnected(Lost):
    """There is no connection either: no address, refused, or not made in time."""


class Cut(Exception):
    """An answer has begun, and is cut short or cannot be read."""


class FellSilent(Exception):
    """An answer has begun, and does not go on."""


class Owner(Protocol):
    def gone(self, connection: "Connection") -> None:
        """The connection is closed, by whomever."""
        ...


class Connection(asyncio.Protocol):
    """Ask, wait for the head, take some of the body until nothing comes.

    `settle` tells whether another request may follow: only after an answer that came whole, with
    nothing behind it, on a connection that both sides keep.
    """

    __slots__ = (
        "_asked",
        "_barren",
        "_ear",
        "_enough",
        "_error",
        "_fields",
        "_headed",
        "_headers",
        "_heard",
        "_is_paused",
        "_keeps",
        "_loop",
        "_owner",
        "_parser",
        "_pieces",
        "_size",
        "_transport",
        "_until_close",
        "_waiter",
        "_wanted",
        "_whole",
        "length",
        "rested",
        "status",
    )

    def __init__(self, owner: Owner, wanted: frozenset[bytes]) -> None:
        self._owner, self._wanted = owner, wanted | FRAMING
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        # What targets send in their headers is handed through, odd bytes and all.
        self._parser.set_dangerous_leniencies(lenient_headers=True)
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._asked = self._is_paused = False
        self.length: int | None = None  # of the body, if the head tells it
        self._heard = self.rested = 0.0  # when last, by the loop's clock
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._size = 0
        self._begin()

    # For whoever asks.

    def ask(self, request: bytes) -> None:
        """Send a request: what comes from now on is its answer."""
        self._begin()
        self._asked = True
        if not self._transport.is_closing():  # else that is told when the answer is waited for
            self._transport.write(request)

    async def head(self) -> None:
        """Wait for the status and the headers. Raises `Lost`."""
        if not self._headed:
            await self._wait(0)
        if not self._headed:
            raise self._error or Lost

    def header(self, name: bytes) -> str | None:
        """One of the headers wanted, by its name in small letters; the first if there are more."""
        value = self._headers.get(name)
        return None if value is None else value.strip().decode("ascii", "replace")

    async def some(self, enough: int, silence: float) -> bytes:
        """What has come of the body: so much at least, or else all that is left; in the end
        nothing. Raises `Cut`, or `FellSilent` when nothing comes for `silence` seconds.
        """
        if self._size < enough and not self._whole and self._error is None:
            await self._listen(min(enough, MOST_BUFFERED), silence)
        if self._error is not None and not self._whole:
            raise self._error
        pieces, self._pieces, self._size = self._pieces, [], 0
        self._resume()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def settle(self) -> bool:
        """End an exchange; whether the connection is fit for another."""
        self._asked = False
        self._pieces = []
        self._resume()
        return self.is_fit and self._transport.get_write_buffer_size() == 0

    @property
    def is_lost(self) -> bool:
        """Whether it is of no use any more, for this exchange or another."""
        return self._error is not None

    @property
    def is_fit(self) -> bool:
        """Whether it still is; the other side may have closed it, or said what nobody asked."""
        return self._keeps and not self._transport.is_closing()

    def abort(self) -> None:
        """Close it at once."""
        self._keeps = False
        self._transport.abort()

    # For the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not an assertion: uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._asked or self._whole:
            self.abort()  # nobody asked: it must not be taken for the answer to what comes next
            return
        size = self._size
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break_off()
        self._bound(0 if self._size > size else len(data))
        self._wake()

    def eof_received(self) -> None:
        self._keeps = False
        if self._headed and self._until_close and self._error is None:
            self._whole = True
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._keeps = self._is_paused = False
        if not self._whole and self._error is None:
            self._error = Cut() if self._headed else Lost(_why(exc))
            self._wake()
        self._owner.gone(self)

    # For the parser. What these raise ends the parsing.

    def on_message_begin(self) -> None:
        if self._whole:
            raise Cut  # a second answer to one question

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > MOST_HEADERS or len(name) + len(value) > LONGEST_HEADER:
            raise Lost
        name = name.strip().lower()  # so the parser reads `Content-Length : 1` as well
        if name not in self._wanted or self._headed:  # trailers change nothing any more
            return
        if name in self._headers:
            if name in LISTS:
                self._headers[name] += b"," + value
        else:
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = {}
            if status < 100 or status == 101:
                raise Lost
            return
        self.status, self._headed = status, True
        coding, length = map(self._headers.get, (b"transfer-encoding", b"content-length"))
        if coding is not None and coding.strip().lower() != b"chunked":
            raise Cut
        if length is not None:
            self.length = int(length)
        self._until_close = coding is None and length is None and status not in WITHOUT_BODY

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        if self._headed:  # else it was only the announcement of one
            self._whole = True
            self._keeps = self._parser.should_keep_alive()

    # Beneath.

    def _begin(self) -> None:
        self.status, self.length = 0, None
        self._headers = {}
        self._pieces = []
        self._size = self._fields = self._barren = self._enough = 0
        self._headed = self._whole = self._keeps = self._until_close = False

    def _break_off(self) -> None:
        """What came cannot be parsed: as an answer, or behind one that is whole."""
        if not self._whole:
            self._fail(Cut() if self._headed else Lost("what came back is not HTTP"))
        self.abort()

    def _bound(self, barren: int) -> None:
        """Keep what is held of an answer small."""
        self._barren = self._barren + barren if barren else 0
        if self._whole:
            return
        if self._barren > LONGEST_HEAD:
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
        if self._whole or self._error is not None or (self._headed and self._size >= self._enough):
            waiter.set_result(None)
        else:
            self._heard = self._loop.time()

    async def _wait(self, enough: int) -> None:
        if self._error is not None:
            return
        self._enough = enough
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def _listen(self, enough: int, silence: float) -> None:
        """Wait for more of the body, but not for ever."""
        self._heard = self._loop.time()
        self._ear = self._loop.call_later(silence, self._listened, silence)
        try:
            await self._wait(enough)
        finally:
            self._ear.cancel()

    def _listened(self, silence: float) -> None:
        left = self._heard + silence - self._loop.time()
        if left > 0:  # something came meanwhile: that moves no timer
            self._ear = self._loop.call_later(left, self._listened, silence)
        else:
            self._fail(FellSilent())
            self.abort()


def _why(lost: Exception | None) -> str:
    if isinstance(lost, OSError) and lost.errno:
        return os.strerror(lost.errno)
    return "the connection was closed first"
