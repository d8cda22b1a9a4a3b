"""Calls of ports over a loopback socket: frames of a length and a pickled message.

Unpickling runs code that the sender chooses. This is for tests on one machine: the server listens
on loopback only.
"""

import asyncio
import pickle
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, cast

LENGTH = struct.Struct("!I")


class Hello(NamedTuple):
    """The first frame of a service: what the store must know about it."""

    incarnation: str
    ahead: float = 0.0  # seconds by which its clock is ahead of the store's


class PortCall(NamedTuple):
    number: int
    port: str
    method: str
    given: tuple[Any, ...]
    named: dict[str, Any]


class PortReply(NamedTuple):
    number: int
    value: Any = None
    error: Exception | None = None


class Frames(asyncio.Protocol):
    """One end of a connection. It passes each message that arrives to `receive`."""

    def __init__(self, receive: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._receive = receive
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's has another base

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            [length] = LENGTH.unpack_from(self._buffer)
            end = LENGTH.size + length
            if len(self._buffer) < end:
                return
            message = pickle.loads(self._buffer[LENGTH.size : end])  # noqa: S301 - loopback, tests
            del self._buffer[:end]
            self._receive(message)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: object) -> None:
        """Send a message; one for a connection that is closed is dropped."""
        if self._transport:
            content = pickle.dumps(message)
            self._transport.write(LENGTH.pack(len(content)) + content)

    def close(self) -> None:
        if self._transport:
            self._transport.close()
