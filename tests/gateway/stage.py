"""A server on a real socket that plays what a test tells it to, and sees what becomes of it."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from conveyor.adapters.http.client.connection import Connection
from conveyor.adapters.http.direct import DirectGateway
from conveyor.adapters.http.zenrows import ZenrowsGateway

Opened = Callable[..., ZenrowsGateway | DirectGateway]  # by a URL, and `opened`'s settings

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\n"


def sized(length: int, *lines: bytes) -> bytes:
    """The head of an answer of that length."""
    more = b"".join(line + b"\r\n" for line in lines)
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%b\r\n" % (length, more)


class Line:
    """One connection, from the server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def request(self) -> bytes:
        """The head of the next request."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def say(self, said: bytes) -> None:
        self.writer.write(said)
        await self.writer.drain()

    async def gone(self) -> None:
        """Wait until the other side has closed it."""
        while await self.reader.read(65_536):
            pass

    def reset(self) -> None:
        """Close it as a machine that went down would: with a reset, not an end."""
        at_once = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, at_once
        )
        self.writer.transport.abort()


class Stage:
    """How many lines were opened, and how many of them are over."""

    def __init__(self) -> None:
        self.opened = self.over = 0
        self.url = ""


Play = Callable[[Line], Awaitable[None]]


@asynccontextmanager
async def playing(play: Play, safety: ssl.SSLContext | None = None) -> AsyncIterator[Stage]:
    """The play is over when it returns, or when the other side is gone."""
    stage = Stage()
    plays: set[asyncio.Task[None]] = set()

    async def line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stage.opened += 1
        try:
            await play(Line(reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            stage.over += 1

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(line(reader, writer))
        plays.add(task)
        task.add_done_callback(plays.discard)
        # Not in `line`: a task that is cancelled before its first step runs no `finally`.
        task.add_done_callback(lambda _: writer.close())

    server = await asyncio.start_server(begin, "127.0.0.1", 0, ssl=safety)
    port = server.sockets[0].getsockname()[1]
    stage.url = f"{'https' if safety else 'http'}://127.0.0.1:{port}/v1/"
    try:
        yield stage
    finally:
        server.close()
        for task in tuple(plays):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*plays, return_exceptions=True)


def saying(*pieces: bytes) -> Play:
    """Answers every request with the same pieces, and keeps the connection."""

    async def play(line: Line) -> None:
        while True:
            await line.request()
            for piece in pieces:
                await line.say(piece)

    return play


def saying_last(said: bytes) -> Play:
    """Answers one request, and closes."""

    async def play(line: Line) -> None:
        await line.request()
        await line.say(said)

    return play


def going_on(head: bytes, piece: bytes) -> Play:
    """Answers with a body that never ends."""

    async def play(line: Line) -> None:
        await line.request()
        await line.say(head)
        while True:
            await line.say(piece)

    return play


def inside(gateway: ZenrowsGateway | DirectGateway) -> Any:
    """The transport of a gateway. Both have `_open`, `_resting`, `_turns` and `_lookup`."""
    return gateway._transport


def is_paused(gateway: ZenrowsGateway | DirectGateway) -> bool:
    """Whether a connection is not read because its bytes are not read."""
    return any(
        one._is_paused if isinstance(one, Connection) else one._reading_paused
        for one in inside(gateway)._open
    )


def buffered(gateway: ZenrowsGateway | DirectGateway) -> int:
    """Body bytes that arrived and were not read."""
    return sum(
        one._size if isinstance(one, Connection) else one._payload._size if one._payload else 0
        for one in inside(gateway)._open
    )


def has_arrived(gateway: ZenrowsGateway | DirectGateway) -> bool:
    """Whether a part of a body has arrived."""
    return any(one._size for one in inside(gateway)._open)


def kept_by_server(gateway: ZenrowsGateway | DirectGateway) -> int:
    """How many servers, or connections to them, the transport still knows."""
    transport = inside(gateway)
    kept = getattr(transport, "_by_server", None)
    return len(transport._resting if kept is None else kept)
