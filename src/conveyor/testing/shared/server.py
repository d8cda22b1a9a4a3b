"""Serves a shared store on loopback: `python -m conveyor.testing.shared --port 0`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from conveyor.testing.shared.store import SharedPorts, SharedStore, SkewedClock
from conveyor.testing.shared.wire import Frames, Hello, PortCall, PortReply

HOST = "127.0.0.1"

OpenPorts = Callable[[Hello], SharedPorts]


def opening(store: SharedStore) -> OpenPorts:
    """Open the store for each service that connects, with the faults that it has."""

    def open_ports(hello: Hello) -> SharedPorts:
        clock = SkewedClock(store.clock, timedelta(seconds=hello.ahead))
        return store.open(clock=clock, holder=hello.incarnation)

    return open_ports


@asynccontextmanager
async def serving(open_ports: OpenPorts, *, port: int = 0) -> AsyncIterator[int]:
    """Serve the ports on loopback, and yield the port of the socket."""
    loop = asyncio.get_running_loop()
    calls = set[asyncio.Task[None]]()
    links = set[_Link]()

    def connected() -> Frames:
        link = _Link(open_ports, calls, links.discard)
        links.add(link)
        return link.frames

    server = await loop.create_server(connected, HOST, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for link in links:
            link.frames.close()
        for call in calls:
            call.cancel()
        await server.wait_closed()


class _Link:
    """The connection of one service. Its calls run side by side."""

    def __init__(
        self,
        open_ports: OpenPorts,
        calls: set[asyncio.Task[None]],
        forget: Callable[["_Link"], None],
    ) -> None:
        self._open_ports = open_ports
        self._calls = calls
        self._ports: SharedPorts | None = None
        self.frames = Frames(self._receive, lambda: forget(self))

    def _receive(self, message: Hello | PortCall) -> None:
        if isinstance(message, Hello):
            self._ports = self._open_ports(message)
            return
        # Not in a task group: a call that was sent goes on when its service dies.
        call = asyncio.create_task(self._answer(message))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _answer(self, call: PortCall) -> None:
        method = getattr(getattr(self._ports, call.port), call.method)
        try:
            reply = PortReply(call.number, await method(*call.given, **call.named))
        except Exception as error:  # noqa: BLE001 - it is raised where the call was made
            reply = PortReply(call.number, error=error)
        self.frames.send(reply)
