"""Connections to any number of servers: few at a time, kept for the next request to the same one."""

import asyncio
import ssl
from functools import cached_property

from conveyor.adapters.http.exchange import Connection, Lost, Owner, Unconnected
from conveyor.adapters.http.lookup import Lookup
from conveyor.adapters.http.pool import (
    CLOSED,
    CLOSING,
    LAST_ADDRESS,
    ONE_ADDRESS,
    Keeping,
    Server,
    why,
)

LOCATION = b"location"


class Visiting(Connection):
    """A connection that knows whose it is."""

    __slots__ = ("server",)

    def __init__(self, owner: Owner, wanted: frozenset[bytes], server: Server) -> None:
        super().__init__(owner, wanted | {LOCATION})
        self.server = server

    @property
    def location(self) -> str | None:
        """Where the answer points to; sites write what they like there, so not only ASCII."""
        value = self._headers.get(LOCATION)
        return None if value is None else value.strip().decode(errors="replace")


class Origins(Keeping):
    """At most so many connections over all servers, resting ones included: who needs a new one
    closes the one that has rested longest. Nothing is remembered of a server without one.
    """

    def __init__(self, lookup: Lookup, *, connections: int, wanted: frozenset[bytes]) -> None:
        super().__init__(connections=connections)
        self._lookup, self._wanted = lookup, wanted
        self._by_server: dict[Server, dict[Connection, None]] = {}  # resting; the latest at the end

    @cached_property
    def _security(self) -> ssl.SSLContext:
        # Reading the trusted certificates takes 30 ms: a process that opens no TLS connection
        # must not pay for it when it starts.
        security = ssl.create_default_context()
        security.set_alpn_protocols(["http/1.1"])
        return security

    async def take(self, server: Server, *, fresh: bool = False) -> Visiting:
        """A connection, to be given back; `fresh`: one that is made now. Raises `Lost` and `Denied`."""
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

    def give_back(self, connection: Connection) -> None:
        super().give_back(connection)
        if connection in self._resting and isinstance(connection, Visiting):
            self._by_server.setdefault(connection.server, {})[connection] = None

    def gone(self, connection: Connection) -> None:
        super().gone(connection)
        if isinstance(connection, Visiting):
            self._forget(connection)

    def _rested(self, server: Server) -> Visiting | None:
        while resting := self._by_server.get(server):
            connection = next(reversed(resting))
            assert isinstance(connection, Visiting)
            self._forget(connection)
            self._resting.pop(connection, None)
            if connection.is_fit:
                return connection
        return None

    def _forget(self, connection: Visiting) -> None:
        resting = self._by_server.get(connection.server)
        if resting is not None:
            resting.pop(connection, None)
            if not resting:
                del self._by_server[connection.server]

    async def _connect(self, server: Server) -> Visiting:
        if self._is_closed:
            raise Lost(CLOSED)
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
            raise Unconnected(why(lost)) from lost

    def _make_room(self) -> None:
        """Those in use and those at rest are no more than there may be in all."""
        while len(self._resting) > self._free:
            eldest = next(iter(self._resting))
            del self._resting[eldest]
            eldest.abort()

    async def _connected(self, address: str, server: Server) -> Visiting:
        safety = self._security if server.is_safe else None
        _, connection = await self._loop.create_connection(
            lambda: Visiting(self, self._wanted, server),
            address,
            server.port,
            ssl=safety,
            server_hostname=server.host.rstrip(".") if safety else None,
            ssl_shutdown_timeout=CLOSING if safety else None,
        )
        self._made(connection)
        return connection
