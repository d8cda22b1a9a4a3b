"""The ports of a shared store that another process serves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, cast

from conveyor.errors import Unavailable
from conveyor.testing.shared.store import SharedPorts
from conveyor.testing.shared.wire import Frames, Hello, PortCall, PortReply

DEADLINE = 10.0  # seconds


@asynccontextmanager
async def connected(
    host: str, port: int, hello: Hello, *, deadline: float = DEADLINE
) -> AsyncIterator[SharedPorts]:
    """Open the ports of a served store. It connects at the first call, and again after a loss."""
    connection = _Connection(host, port, hello, deadline)
    ports = {name: cast("Any", _Port(connection, name)) for name in SharedPorts.__slots__}
    try:
        yield SharedPorts(**ports)
    finally:
        connection.close()


class _Port:
    """Every method of a port is one call."""

    def __init__(self, connection: "_Connection", name: str) -> None:
        self._connection = connection
        self._name = name

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(*given: Any, **named: Any) -> Any:
            return await self._connection.call(self._name, method, given, named)

        return call


class _Connection:
    def __init__(self, host: str, port: int, hello: Hello, deadline: float) -> None:
        self._host, self._port, self._hello, self._deadline = host, port, hello, deadline
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._frames: Frames | None = None
        self._connecting = asyncio.Lock()

    async def call(self, port: str, method: str, given: Any, named: Any) -> Any:
        frames = await self._connected()
        number = next(self._numbers)
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        frames.send(PortCall(number, port, method, given, named))
        try:
            async with asyncio.timeout(self._deadline):
                return await reply
        except TimeoutError:
            raise Unavailable(f"the shared store has not answered {port}.{method}") from None
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        if self._frames:
            self._frames.close()

    async def _connected(self) -> Frames:
        async with self._connecting:
            if self._frames is None or not self._frames.is_open:
                self._frames = await self._connect()
            return self._frames

    async def _connect(self) -> Frames:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._deadline):
                _, frames = await loop.create_connection(
                    lambda: Frames(self._received, self._lost), self._host, self._port
                )
        except OSError as error:  # `TimeoutError` is one
            raise Unavailable(f"the shared store does not answer: {error}") from None
        frames.send(self._hello)
        return frames

    def _received(self, reply: PortReply) -> None:
        waiting = self._waiting.get(reply.number)
        if waiting is None or waiting.done():
            return
        if reply.error:
            waiting.set_exception(reply.error)
        else:
            waiting.set_result(reply.value)

    def _lost(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Unavailable("the connection to the shared store was lost"))
