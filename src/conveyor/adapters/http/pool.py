"""Connections to one server, kept for the next request: few, fresh, and the latest used first."""

import asyncio
import os
import socket
import ssl
from collections import deque
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import SplitResult

from conveyor.adapters.http.exchange import Connection, Lost, Unconnected

LONGEST_REST = 15.0  # seconds; servers close what rests, and a request may cross that
TRUSTED_FOR = 10.0  # seconds that the addresses of a host are believed
ONE_ADDRESS = 10.0  # seconds for one of several addresses to connect, before the next is tried
LAST_ADDRESS = 20.0  # seconds for the last of them, or the only one
CLOSING = 1.0  # seconds for the other side to agree that a connection ends

CLOSED = "its connections are closed"
PORTS = {"http": 80, "https": 443}


class Server(NamedTuple):
    """Whom to talk to, and the `Host` to call it by."""

    host: str
    port: int
    named: str
    is_safe: bool


def server(parts: SplitResult) -> Server:
    """Of a gateway's address. Raises ValueError."""
    host = (parts.hostname or "").encode("idna").decode()
    usual = PORTS[parts.scheme]
    port = parts.port or usual
    shown = f"[{host}]" if ":" in host else host
    return Server(host, port, shown if port == usual else f"{shown}:{port}", usual == 443)


class Keeping:
    """Connections, to whomever: at most so many at a time, and those given back kept for a while.

    Who finds none free waits for a turn. Nothing is ever sent from here, so nothing can be sent
    twice.
    """

    def __init__(self, *, connections: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._free = connections
        self._turns: deque[asyncio.Future[None]] = deque()
        self._resting: dict[Connection, None] = {}  # the latest at the end
        self._open: set[Connection] = set()
        self._is_closed = False
        self._all_gone = asyncio.Event()
        self._tidying: asyncio.TimerHandle | None = None

    def give_back(self, connection: Connection) -> None:
        """Keep it for the next, or close it when it is not fit for another request."""
        if connection.settle() and not self._is_closed:
            connection.rested = self._loop.time()
            self._resting[connection] = None
            if self._tidying is None:
                self._tidying = self._loop.call_later(LONGEST_REST, self._tidy)
        else:
            connection.abort()
        self._pass_on()

    def gone(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._resting.pop(connection, None)
        if self._is_closed and not self._open:
            self._all_gone.set()

    async def close(self) -> None:
        """Close all connections; whoever waits for an answer gets none."""
        self._is_closed = True
        if self._tidying is not None:
            self._tidying.cancel()
        for connection in tuple(self._open):
            connection.abort()
        if self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await self._all_gone.wait()

    async def _turn(self) -> None:
        turn = self._loop.create_future()
        self._turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._pass_on()  # it came too late
            elif turn in self._turns:
                self._turns.remove(turn)
            raise

    def _pass_on(self) -> None:
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _tidy(self) -> None:
        """Close what has rested too long; the eldest come first."""
        self._tidying = None
        now = self._loop.time()
        while self._resting:
            eldest = next(iter(self._resting))
            left = eldest.rested + LONGEST_REST - now
            if left > 0:
                self._tidying = self._loop.call_later(left, self._tidy)
                return
            del self._resting[eldest]
            eldest.abort()

    def _made(self, connection: Connection) -> None:
        """A connection that was just made. Raises `Lost` when it comes too late."""
        if not connection.is_lost:  # it may be by now
            self._open.add(connection)
        if self._is_closed:
            connection.abort()
            raise Lost(CLOSED)


class Pool(Keeping):
    """Connections to one server."""

    def __init__(self, server: Server, *, connections: int, wanted: frozenset[bytes]) -> None:
        super().__init__(connections=connections)
        self._server, self._wanted = server, wanted
        self._security = ssl.create_default_context() if server.is_safe else None
        self._asking = asyncio.Lock()
        self._addresses: list[tuple[str, int]] = []
        self._asked = 0.0

    async def take(self) -> Connection:
        """A connection, to be given back. Raises `Lost`."""
        if self._free and not self._turns:
            self._free -= 1
        else:
            await self._turn()
        while self._resting:
            connection, _ = self._resting.popitem()
            if connection.is_fit:
                return connection
        try:
            return await self._connect()
        except BaseException:
            self._pass_on()
            raise

    async def _connect(self) -> Connection:
        if self._is_closed:
            raise Lost(CLOSED)
        try:
            *others, last = await self._resolved()
            for address in others:
                try:
                    async with asyncio.timeout(ONE_ADDRESS):
                        return await self._connected(address)
                except OSError:  # a TimeoutError is one too
                    self._set_back(address)
            async with asyncio.timeout(LAST_ADDRESS):
                return await self._connected(last)
        except OSError as lost:
            raise Unconnected(why(lost)) from lost

    def _set_back(self, address: tuple[str, int]) -> None:
        """Let the next to connect begin with another one."""
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.append(address)

    async def _resolved(self) -> list[tuple[str, int]]:
        """The server's addresses; many who need them at once ask once."""
        async with self._asking:
            if not self._addresses or self._loop.time() > self._asked + TRUSTED_FOR:
                found = await self._loop.getaddrinfo(
                    self._server.host, self._server.port, type=socket.SOCK_STREAM
                )
                self._addresses = [(str(one[4][0]), int(one[4][1])) for one in found]
                self._asked = self._loop.time()
            return self._addresses

    async def _connected(self, address: tuple[str, int]) -> Connection:
        safety = self._security
        _, connection = await self._loop.create_connection(
            lambda: Connection(self, self._wanted),
            *address,
            ssl=safety,
            server_hostname=self._server.host if safety else None,
            ssl_shutdown_timeout=CLOSING if safety else None,
        )
        self._made(connection)
        return connection


def why(lost: OSError) -> str:
    """In words of our own: those of the system may hold the address."""
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
