"""Connections that are kept for the next request, the most recently used first.

`ServerPool` connects to one server, a gateway; `SitePool` to any number of sites, at addresses that
a resolver has checked.
"""

import asyncio
import os
import socket
import ssl
from collections import deque
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple
from urllib.parse import SplitResult

from conveyor.adapters.http.client.connection import (
    Connection,
    ConnectionOwner,
    NoResponse,
    NotConnected,
)
from conveyor.adapters.http.client.resolver import CheckedResolver

LOCATION = b"location"
LONGEST_REST = 15.0  # seconds; a request may cross the closing of a connection that rests longer
TRUSTED_FOR = 10.0  # seconds for which the addresses of a host are cached
ONE_ADDRESS = 10.0  # seconds for one of several addresses to connect, before the next is tried
LAST_ADDRESS = 20.0  # seconds for the last of them, or the only one
CLOSING = 1.0  # seconds for the other side to agree that a connection ends

CLOSED = "its connections are closed"
PORTS = {"http": 80, "https": 443}


class Server(NamedTuple):
    """The address of a server, and its name in the `Host` header."""

    host: str
    port: int
    named: str
    is_safe: bool


def server(parts: SplitResult) -> Server:
    """The server of a gateway's URL. Raises ValueError."""
    host = (parts.hostname or "").encode("idna").decode()
    usual = PORTS[parts.scheme]
    port = parts.port or usual
    shown = f"[{host}]" if ":" in host else host
    return Server(host, port, shown if port == usual else f"{shown}:{port}", usual == 443)


class ConnectionPool:
    """At most `connections` in use; those released are kept for a while.

    A caller that finds none free waits for its turn, in order. A pool never sends anything, so it
    cannot send a request twice.
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

    def release(self, connection: Connection) -> None:
        """Keep it for the next request, or close it if it cannot be used again."""
        if connection.finish() and not self._is_closed:
            connection.rested = self._loop.time()
            self._resting[connection] = None
            if self._tidying is None:
                self._tidying = self._loop.call_later(LONGEST_REST, self._tidy)
        else:
            connection.abort()
        self._pass_on()

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._resting.pop(connection, None)
        if self._is_closed and not self._open:
            self._all_gone.set()

    async def close(self) -> None:
        """Close all connections. Callers that wait for a response get `NoResponse`."""
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
                self._pass_on()  # the turn came as the caller gave up
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
        """Close connections that rested too long, the oldest first."""
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
        """Register a new connection. Raises `NoResponse` if the pool was closed meanwhile."""
        if not connection.is_lost:  # it may have failed by now
            self._open.add(connection)
        if self._is_closed:
            connection.abort()
            raise NoResponse(CLOSED)


class ServerPool(ConnectionPool):
    """Connections to one server."""

    def __init__(self, server: Server, *, connections: int, wanted: frozenset[bytes]) -> None:
        super().__init__(connections=connections)
        self._server, self._wanted = server, wanted
        self._security = ssl.create_default_context() if server.is_safe else None
        self._asking = asyncio.Lock()
        self._addresses: list[tuple[str, int]] = []
        self._asked = 0.0

    async def acquire(self) -> Connection:
        """A connection, to be released. Raises `NoResponse`."""
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
            raise NoResponse(CLOSED)
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
            raise NotConnected(why(lost)) from lost

    def _set_back(self, address: tuple[str, int]) -> None:
        """Try this address last from now on."""
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.append(address)

    async def _resolved(self) -> list[tuple[str, int]]:
        """The server's addresses; callers at the same time share one lookup."""
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


class SiteConnection(Connection):
    """A connection that knows its server."""

    __slots__ = ("server",)

    def __init__(self, owner: ConnectionOwner, wanted: frozenset[bytes], server: Server) -> None:
        super().__init__(owner, wanted | {LOCATION})
        self.server = server

    @property
    def location(self) -> str | None:
        """The target of a redirect; sites send more than ASCII here."""
        value = self._headers.get(LOCATION)
        return None if value is None else value.strip().decode(errors="replace")


class SitePool(ConnectionPool):
    """At most `connections` over all servers, resting ones included.

    A new connection closes the one that has rested longest. The pool keeps nothing about servers
    without a connection, so a crawl over many hosts does not fill memory.
    """

    def __init__(
        self, lookup: CheckedResolver, *, connections: int, wanted: frozenset[bytes]
    ) -> None:
        super().__init__(connections=connections)
        self._lookup, self._wanted = lookup, wanted
        self._by_server: dict[Server, dict[Connection, None]] = {}  # resting; the latest at the end

    @cached_property
    def _security(self) -> ssl.SSLContext:
        # BodyReader the trusted certificates takes 30 ms: a process that opens no TLS connection
        # must not pay for it when it starts.
        security = ssl.create_default_context()
        security.set_alpn_protocols(["http/1.1"])
        return security

    async def acquire(self, server: Server, *, fresh: bool = False) -> SiteConnection:
        """A connection, to be released; a new one if `fresh`. Raises `NoResponse` and `Denied`."""
        if self._free and not self._turns:
            self._free -= 1
        else:
            await self._turn()
        try:
            rested = None if fresh else self._rested(server)
            return rested or await self._connect(server)
        except BaseException:
            self._pass_on()
            raise

    def release(self, connection: Connection) -> None:
        super().release(connection)
        if connection in self._resting and isinstance(connection, SiteConnection):
            self._by_server.setdefault(connection.server, {})[connection] = None

    def closed(self, connection: Connection) -> None:
        super().closed(connection)
        if isinstance(connection, SiteConnection):
            self._forget(connection)

    def _rested(self, server: Server) -> SiteConnection | None:
        while resting := self._by_server.get(server):
            connection = next(reversed(resting))
            assert isinstance(connection, SiteConnection)
            self._forget(connection)
            self._resting.pop(connection, None)
            if connection.is_fit:
                return connection
        return None

    def _forget(self, connection: SiteConnection) -> None:
        resting = self._by_server.get(connection.server)
        if resting is not None:
            resting.pop(connection, None)
            if not resting:
                del self._by_server[connection.server]

    async def _connect(self, server: Server) -> SiteConnection:
        if self._is_closed:
            raise NoResponse(CLOSED)
        self._make_room()
        *others, last = await self._lookup.addresses(server.host)
        try:
            for address in others:
                try:
                    async with asyncio.timeout(ONE_ADDRESS):
                        return await self._connected(address, server)
                except OSError:  # a TimeoutError is one too
                    continue
            async with asyncio.timeout(LAST_ADDRESS):
                return await self._connected(last, server)
        except OSError as lost:
            raise NotConnected(why(lost)) from lost

    def _make_room(self) -> None:
        """Close resting connections until one more may be opened."""
        while len(self._resting) > self._free:
            eldest = next(iter(self._resting))
            del self._resting[eldest]
            eldest.abort()

    async def _connected(self, address: str, server: Server) -> SiteConnection:
        safety = self._security if server.is_safe else None
        _, connection = await self._loop.create_connection(
            lambda: SiteConnection(self, self._wanted, server),
            address,
            server.port,
            ssl=safety,
            server_hostname=server.host.rstrip(".") if safety else None,
            ssl_shutdown_timeout=CLOSING if safety else None,
        )
        self._made(connection)
        return connection


def why(lost: OSError) -> str:
    """Why it failed, without the system's text, which may hold the address."""
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
