"""Our own transport: connections that are kept for the next request, the latest used first."""

import asyncio
import ssl
from contextlib import suppress
from functools import cached_property

from conveyor.adapters.http.client import transport
from conveyor.adapters.http.client.connection import Connection
from conveyor.adapters.http.client.transport import (
    CLOSED,
    CLOSING,
    FRAMING,
    HttpRequest,
    Lookup,
    NoResponse,
    Server,
    Turns,
    dial,
    tls_context,
)


class ConnectionPool:
    """At most `connections` over all servers, resting ones included.

    A new connection closes the one that has rested longest. The pool keeps nothing about servers
    without a connection, so a crawl over many hosts does not fill memory.
    """

    def __init__(self, lookup: Lookup, *, connections: int, wanted: frozenset[bytes]) -> None:
        self._lookup, self._wanted = lookup, wanted | FRAMING
        self._loop = asyncio.get_running_loop()
        self._turns = Turns(connections)
        self._open: set[Connection] = set()
        # Resting connections, over all servers and by server; the latest at the end.
        self._resting: dict[Connection, None] = {}
        self._by_server: dict[Server, dict[Connection, None]] = {}
        self._is_closed = False
        self._all_gone = asyncio.Event()
        self._tidying: asyncio.TimerHandle | None = None

    @cached_property
    def _security(self) -> ssl.SSLContext:
        # Reading the trusted certificates takes 30 ms: a process that opens no TLS connection
        # must not pay for it when it starts.
        return tls_context()

    async def send(self, server: Server, request: HttpRequest) -> Connection:
        connection = await self.acquire(server)
        try:
            connection.send(request)
            await connection.head()
        except BaseException:
            self.release(connection)
            raise
        return connection

    async def connect(self, server: Server) -> None:
        self.release(await self.acquire(server, fresh=True))

    async def acquire(self, server: Server, *, fresh: bool = False) -> Connection:
        """A connection, to be released; a new one if `fresh`. Raises `NoResponse` and `Denied`."""
        turns = self._turns
        if turns.free and not turns.waiting:  # as `take` does, without a coroutine for each page
            turns.free -= 1
        else:
            await turns.take()
        try:
            rested = None if fresh else self._rested(server)
            return rested or await self._connected(server)
        except BaseException:
            self._turns.pass_on()
            raise

    def release(self, connection: Connection) -> None:
        """Keep it for the next request, or close it if it cannot be used again."""
        if connection.finish() and not self._is_closed:
            connection.rested = self._loop.time()
            self._resting[connection] = None
            self._by_server.setdefault(connection.server, {})[connection] = None
            if self._tidying is None:
                self._tidying = self._loop.call_later(transport.LONGEST_REST, self._tidy)
        else:
            connection.abort()
        self._turns.pass_on()

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._forget(connection)
        if self._is_closed and not self._open:
            self._all_gone.set()

    async def close(self) -> None:
        self._is_closed = True
        if self._tidying is not None:
            self._tidying.cancel()
        for connection in tuple(self._open):
            connection.abort()
        if self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await self._all_gone.wait()

    async def _connected(self, server: Server) -> Connection:
        self._check_open()
        while len(self._resting) > self._turns.free:  # room for one more
            self._drop(next(iter(self._resting)))
        connection = await dial(
            lambda: Connection(self, server, self._wanted),
            server,
            await self._lookup.addresses(server.host),
            self._security if server.is_safe else None,
        )
        if not connection.is_lost:  # it may have failed by now
            self._open.add(connection)
        try:
            self._check_open()
        except NoResponse:
            connection.abort()
            raise
        return connection

    def _check_open(self) -> None:
        if self._is_closed:
            raise NoResponse(CLOSED)

    def _rested(self, server: Server) -> Connection | None:
        while resting := self._by_server.get(server):
            connection, _ = resting.popitem()
            del self._resting[connection]
            if not resting:
                del self._by_server[server]
            if connection.is_fit:
                return connection
        return None

    def _forget(self, connection: Connection) -> None:
        self._resting.pop(connection, None)
        resting = self._by_server.get(connection.server)
        if resting is not None:
            resting.pop(connection, None)
            if not resting:
                del self._by_server[connection.server]

    def _drop(self, connection: Connection) -> None:
        self._forget(connection)
        connection.abort()

    def _tidy(self) -> None:
        """Close connections that rested too long, the oldest first."""
        self._tidying = None
        now = self._loop.time()
        while self._resting:
            eldest = next(iter(self._resting))
            left = eldest.rested + transport.LONGEST_REST - now
            if left > 0:
                self._tidying = self._loop.call_later(left, self._tidy)
                return
            self._drop(eldest)
