"""Metrics of ports: one wrapper times the calls of every engine."""

import functools
import inspect
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sized,
)
from datetime import timedelta
from typing import TypeVar, cast

import structlog

from conveyor.errors import Unavailable
from conveyor.ports.control_queue import ReceivedMessage
from conveyor.telemetry import Metrics

CONTENT = "content"  # what a method calls a stream that it takes in
IDS = {"job_id", "run_id", "task_id"}
IDS_OF = {"Job": "job_id", "Run": "run_id"}  # other keys may hold what a caller chose

log = structlog.get_logger()

Port = TypeVar("Port")
Value = TypeVar("Value")
Ended = Callable[[float, tuple[object, ...], Mapping[str, object]], None]


def timed(port: Port, name: str, metrics: Metrics, *, slow: timedelta) -> Port:
    """Return the port with every call timed; calls over `slow` are also counted and logged.

    A stream that is read is timed up to its first chunk: from there on it is as slow as its reader.
    For a stream that is written, the time spent waiting for content is left out. Methods that are
    neither coroutines nor streams are not timed.
    """
    return cast("Port", _Timed(port, _CallTimer(name, metrics, slow.total_seconds())))


class _Timed:
    """A port with its methods wrapped. They are wrapped once, here, so that a call costs little."""

    def __init__(self, port: object, timer: "_CallTimer") -> None:
        self._port = port
        for name, method in inspect.getmembers(port, inspect.ismethod):
            if not name.startswith("_"):
                setattr(self, name, timer.wrapped(name, method))

    def __getattr__(self, name: str) -> object:
        return getattr(self._port, name)


class _CallTimer:
    """Wraps the methods of one port."""

    def __init__(self, port: str, metrics: Metrics, slow: float) -> None:
        self._port, self._metrics, self._slow = port, metrics, slow

    def wrapped(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        if inspect.iscoroutinefunction(method):
            fed = CONTENT in inspect.signature(method).parameters
            return self._fed(name, method) if fed else self._call(name, method)
        return self._stream(name, method) if inspect.isasyncgenfunction(method) else method

    def _call(
        self, name: str, method: Callable[..., Awaitable[Value]]
    ) -> Callable[..., Awaitable[Value]]:
        ended, away = self._ended(name, method), self._metrics.away.labels(self._port, name)
        now = time.perf_counter

        @functools.wraps(method)
        async def call(*given: object, **named: object) -> Value:
            started = now()
            try:
                return await method(*given, **named)
            except Unavailable:
                away.inc()
                raise
            finally:
                ended(now() - started, given, named)

        return call

    def _fed(
        self, name: str, method: Callable[[str, AsyncIterable[bytes]], Awaitable[Value]]
    ) -> Callable[..., Awaitable[Value]]:
        ended, away = self._ended(name, method), self._metrics.away.labels(self._port, name)

        @functools.wraps(method)
        async def call(key: str, content: AsyncIterable[bytes]) -> Value:
            awaited = _TimedContent(content)
            started = time.perf_counter()
            try:
                return await method(key, awaited.content())
            except Unavailable:
                away.inc()
                raise
            finally:
                ended(time.perf_counter() - started - awaited.seconds, (key, content), {})

        return call

    def _stream(
        self, name: str, method: Callable[..., AsyncGenerator[Value, None]]
    ) -> Callable[..., AsyncGenerator[Value, None]]:
        ended, away = self._ended(name, method), self._metrics.away.labels(self._port, name)
        now = time.perf_counter

        @functools.wraps(method)
        async def stream(*given: object, **named: object) -> AsyncGenerator[Value, None]:
            started: float | None = now()
            chunks = method(*given, **named)
            try:
                async for chunk in chunks:
                    if started is not None:
                        ended(now() - started, given, named)
                        started = None
                    yield chunk
            except Unavailable:
                away.inc()
                raise
            finally:
                if started is not None:  # nothing came
                    ended(now() - started, given, named)
                await chunks.aclose()

        return stream

    def _ended(self, name: str, method: Callable[..., object]) -> Ended:
        port, limit = self._port, self._slow
        observe = self._metrics.port.labels(port, name).observe
        slow = self._metrics.slow.labels(port, name)
        signature = inspect.signature(method)

        def ended(took: float, given: tuple[object, ...], named: Mapping[str, object]) -> None:
            observe(took)
            if took >= limit:
                slow.inc()
                about = _about(signature.bind(*given, **named).arguments)
                fields = about | {"port": port, "method": name, "seconds": round(took, 3)}
                log.warning("port.slow", **fields)

        return ended


class _TimedContent:
    """Content that is being written, and the seconds spent waiting for it."""

    def __init__(self, content: AsyncIterable[bytes]) -> None:
        self._content = content
        self.seconds = 0.0

    async def content(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._content)
        while (piece := await self._next(pieces)) is not None:
            yield piece

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        began = time.perf_counter()
        try:
            return await anext(pieces, None)
        finally:  # also when its sender is gone and nothing comes
            self.seconds += time.perf_counter() - began


def _about(arguments: Mapping[str, object]) -> dict[str, object]:
    """What a log line may say of a call's arguments: ids, kinds, and how many; no content."""
    about: dict[str, object] = {}
    for name, value in arguments.items():
        if name in IDS:
            about[name] = value
        elif isinstance(value, type):
            about[name] = value.__name__
        elif name == "key":
            about |= {IDS_OF[kind]: value} if (kind := about.get("kind")) in IDS_OF else {}
        elif isinstance(value, ReceivedMessage):
            about["message_id"] = value.id
        elif isinstance(value, Sized) and not isinstance(value, str | bytes):
            about[name] = len(value)
    return about
