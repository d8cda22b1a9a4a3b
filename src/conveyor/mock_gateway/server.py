"""The server of the mock gateway: keys, counters and the control routes."""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl

import msgspec

from conveyor.mock_gateway.connection import Load, MockConnection, MockResponse, Received
from conveyor.mock_gateway.responses import (
    ERRORS,
    NO_KEY,
    NO_TARGET,
    TOO_MANY,
    ScrapeCall,
    refusal,
    response_to,
)

ROOMY = 1000  # the concurrency in the headers when none is enforced
BACKLOG = 1024
MOST_LISTED = 10_000


async def serve(host: str, port: int, announce: Callable[[str], None] | None = None) -> None:
    """Run until cancelled; call `announce` with the address once the server listens."""
    async with MockGateway(host, port) as gateway:
        if announce:
            announce(gateway.url)
        await asyncio.Event().wait()


class MockGateway:
    """The mock on one port.

    A key may have `concurrency` calls at once; further calls are refused. With `tells`, every
    response states that limit in its headers.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        concurrency: int | None = None,
        tells: bool = True,
    ) -> None:
        self._host, self._port = host, port
        self._concurrency = concurrency
        self._tells = tells
        self._connections: set[MockConnection] = set()
        self._all_closed = asyncio.Event()
        self.load = Load()
        self.keys: dict[str, Load] = {}
        self.urls: Counter[str] = Counter()
        self.refused: dict[str, str] = {}  # key, and the target whose error it gets

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: MockConnection(self), self._host, self._port, backlog=BACKLOG
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        if self._connections:
            for connection in self._connections:
                connection.abort()
            await self._all_closed.wait()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}/v1/"

    @property
    def calls(self) -> int:
        return self.load.calls

    @property
    def in_flight(self) -> int:
        return self.load.in_flight

    @property
    def most_in_flight(self) -> int:
        return self.load.most_in_flight

    @property
    def connections(self) -> int:
        return len(self._connections)

    def stats(self) -> dict[str, object]:
        """All counters; the first ten thousand URLs by name, and how many there are."""
        return {
            "calls": self.calls,
            "in_flight": self.in_flight,
            "most_in_flight": self.most_in_flight,
            "connections": self.connections,
            "distinct_urls": len(self.urls),
            "repeated_urls": sum(1 for times in self.urls.values() if times > 1),
            "urls": dict(islice(self.urls.items(), MOST_LISTED)),
            "keys": {hashed: load.calls for hashed, load in self.keys.items()},
        }

    def reset(self) -> None:
        self.urls.clear()
        for load in (self.load, *self.keys.values()):
            load.forget()

    def opened(self, connection: MockConnection) -> None:
        self._all_closed.clear()
        self._connections.add(connection)

    def closed(self, connection: MockConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def respond(self, request: Received) -> tuple[MockResponse, Load | None]:
        path, _, query = request.address.partition("?")
        if path.startswith("/_mock/"):
            return self._control(request.method, path, dict(parse_qsl(query))), None
        params = dict(parse_qsl(query, keep_blank_values=True))
        key, target = params.pop("apikey", ""), params.pop("url", "")
        load = self._load_of(key)
        load.enter()
        self.urls[target] += 1
        call = ScrapeCall(
            request.method,
            target,
            key,
            params,
            request.headers,
            request.body,
            self.urls[target],
            self._standing(load),
        )
        return self._response(call, load), load

    def _response(self, call: ScrapeCall, load: Load) -> MockResponse:
        if not call.key:
            return refusal(call, NO_KEY)
        if call.key in self.refused:
            return refusal(call, ERRORS[self.refused[call.key]])
        if not call.target:
            return refusal(call, NO_TARGET)
        if self._concurrency is not None and load.in_flight > self._concurrency:
            return refusal(call, TOO_MANY)
        return response_to(call)

    def _load_of(self, key: str) -> Load:
        hashed = hashed_key(key)
        load = self.keys.get(hashed)
        if load is None:
            load = self.keys[hashed] = Load(self.load)
        return load

    def _standing(self, load: Load) -> str:
        named = f"X-Request-Id: mock-{self.load.calls}\r\n"
        if not self._tells:
            return named
        limit = ROOMY if self._concurrency is None else self._concurrency
        return (
            f"Concurrency-Limit: {limit}\r\n"
            f"Concurrency-Remaining: {max(0, limit - load.in_flight)}\r\n{named}"
        )

    def _control(self, method: str, path: str, asked: dict[str, str]) -> MockResponse:
        if (method, path) == ("POST", "/_mock/reset"):
            self.reset()
        elif (method, path) == ("POST", "/_mock/refuse"):
            self.refused[asked["key"]] = asked["as"]
        elif (method, path) == ("POST", "/_mock/accept"):
            self.refused.pop(asked["key"], None)
        elif (method, path) != ("GET", "/_mock/stats"):
            return MockResponse(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        body = msgspec.json.encode(self.stats())
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        return MockResponse(head % len(body) + body)


@lru_cache(maxsize=1024)
def hashed_key(key: str) -> str:
    """The name of a key in the counters, which are public: it must not reveal the key."""
    return sha256(key.encode()).hexdigest()[:16]
