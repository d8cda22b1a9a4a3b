"""A mock of the ZenRows gateway over real HTTP, for the demo, the tests and the benchmarks.

What it answers is decided by the first label of the target's host, and by nothing else:
`https://flaky.example/a?fails=2` is flaky, whatever its path. Options stand in the target's
query. Any other host is a page that is there.

    ok          a page that tells what was received (never the key); `size=` bytes, 2048 if
                not said; JSON, Markdown or text when the parameters ask for it
    gzip        the same, compressed           big         8 MiB or `size=`, length not told
    slow        ok after `ms=` (250)           drip        ok, a byte every `ms=` (20)
    bomb        gzip, a small answer that unpacks to `size=` zeros (100 MiB)
    flaky       422 RESP001 for the first `fails=` (1) calls of that very URL, then ok;
                502 RESP003 with `status=502`
    busy        429 AUTH006 for the first `fails=` (1) calls, with `Retry-After: after=` (1)
    permanent   404 RESP002                    nohost      404 RESP007
    blocked     403 REQS001                    captcha     424 RESP006
    unparsed    502 RESP003                    timedout    504 CTX0002
    nocredits   402 AUTH004                    capped      402 api_key_cap_reached
    badkey      401 AUTH002                    banned      403 BLK0001
    leaky       422 RESP001 whose detail repeats the caller's key
    status      `code=` (404) with a page and no problem document
    dropped     closed without an answer       cut         closed in the middle of the page
                                                           (of a chunk, with `chunked=1`)
    truncated   gzip that ends too soon, in an answer that is whole
    encoded     ok, and said to be encoded `as=` (foo), which it is not
    stuck       half a page, then silence (with `chunked=1`, after a chunk)
    rubbish     bytes that are no HTTP         hang        no answer, ever

Each answer has an `X-Request-Id` of its own; a page tells the one it was asked with.
No key gets 401 AUTH001, no target 400 REQS004. `GET /_mock/stats` tells what was counted,
`POST /_mock/reset` starts counting anew. `POST /_mock/refuse?key=…&as=nocredits` has every call
of a key refused like that target, and `POST /_mock/accept?key=…` ends it.
"""

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

from conveyor.testing.mock_answers import (
    FAULTS,
    NO_KEY,
    NO_TARGET,
    TOO_MANY,
    Call,
    answer_to,
    refusal,
)
from conveyor.testing.mock_connection import Answer, Connection, Load, Received

ROOMY = 1000  # the concurrency told to callers when none is enforced
BACKLOG = 1024
MOST_TOLD = 10_000


async def serve(host: str, port: int, announce: Callable[[str], None] | None = None) -> None:
    """Run until cancelled; `announce` is told the address once it answers."""
    async with MockGateway(host, port) as gateway:
        if announce:
            announce(gateway.url)
        await asyncio.Event().wait()


class MockGateway:
    """The mock, on a port of its own. `concurrency` refuses a key more calls at once than that,
    which `tells` tells in the headers of every answer.
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
        self._connections: set[Connection] = set()
        self._all_closed = asyncio.Event()
        self.load = Load()
        self.keys: dict[str, Load] = {}
        self.urls: Counter[str] = Counter()
        self.refused: dict[str, str] = {}  # key, and the target that it is refused like

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), self._host, self._port, backlog=BACKLOG
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
        """Everything counted; of the URLs the first ten thousand by name, the rest as a number."""
        return {
            "calls": self.calls,
            "in_flight": self.in_flight,
            "most_in_flight": self.most_in_flight,
            "connections": self.connections,
            "distinct_urls": len(self.urls),
            "repeated_urls": sum(1 for times in self.urls.values() if times > 1),
            "urls": dict(islice(self.urls.items(), MOST_TOLD)),
            "keys": {hashed: load.calls for hashed, load in self.keys.items()},
        }

    def reset(self) -> None:
        self.urls.clear()
        for load in (self.load, *self.keys.values()):
            load.forget()

    def opened(self, connection: Connection) -> None:
        self._all_closed.clear()
        self._connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def answer(self, request: Received) -> tuple[Answer, Load | None]:
        path, _, query = request.address.partition("?")
        if path.startswith("/_mock/"):
            return self._about_itself(request.method, path, dict(parse_qsl(query))), None
        params = dict(parse_qsl(query, keep_blank_values=True))
        key, target = params.pop("apikey", ""), params.pop("url", "")
        load = self._load_of(key)
        load.enter()
        self.urls[target] += 1
        call = Call(
            request.method,
            target,
            key,
            params,
            request.headers,
            request.body,
            self.urls[target],
            self._standing(load),
        )
        return self._answer(call, load), load

    def _answer(self, call: Call, load: Load) -> Answer:
        if not call.key:
            return refusal(call, NO_KEY)
        if call.key in self.refused:
            return refusal(call, FAULTS[self.refused[call.key]])
        if not call.target:
            return refusal(call, NO_TARGET)
        if self._concurrency is not None and load.in_flight > self._concurrency:
            return refusal(call, TOO_MANY)
        return answer_to(call)

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

    def _about_itself(self, method: str, path: str, asked: dict[str, str]) -> Answer:
        if (method, path) == ("POST", "/_mock/reset"):
            self.reset()
        elif (method, path) == ("POST", "/_mock/refuse"):
            self.refused[asked["key"]] = asked["as"]
        elif (method, path) == ("POST", "/_mock/accept"):
            self.refused.pop(asked["key"], None)
        elif (method, path) != ("GET", "/_mock/stats"):
            return Answer(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        body = msgspec.json.encode(self.stats())
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        return Answer(head % len(body) + body)


@lru_cache(maxsize=1024)
def hashed_key(key: str) -> str:
    """The name a key goes by in the figures."""
    return sha256(key.encode()).hexdigest()[:16]
