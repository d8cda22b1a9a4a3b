"""What the tests of the gateway and its mock share: a spool that counts, servers, assertions."""

import asyncio
import gc
import hashlib
import re
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from urllib.parse import quote, urlsplit

import msgspec

from conveyor.adapters.http.client.aiohttp_transport import AiohttpTransport
from conveyor.adapters.http.client.pool import ConnectionPool
from conveyor.adapters.http.client.transport import TransportFactory
from conveyor.adapters.http.direct import DirectGateway
from conveyor.adapters.http.zenrows import ZenrowsGateway
from conveyor.domain.public_address import Reach, networks
from conveyor.errors import StorageFull
from conveyor.mock_gateway.server import MockGateway
from conveyor.ports.gateway import Gateway, GatewayRefusal, Page, PageRequest

KEY = "s3cret/key+with=odd&chars"
MIB = 1024 * 1024
UNREACHABLE = "gateway_unreachable"
THIS_MACHINE = Reach(networks(["127.0.0.0/8", "::1"]))
TRANSPORTS: dict[str, TransportFactory] = {"conveyor": ConnectionPool, "aiohttp": AiohttpTransport}
transport: TransportFactory = ConnectionPool  # of the gateways opened here; tests/gateway sets it


class MemorySpool:
    """Counts what it is given; keeps only the first bytes."""

    def __init__(self, fails_after: int | None = None) -> None:
        self._hash = hashlib.sha256()
        self._fails_after = fails_after
        self.length = 0
        self.beginning = b""
        self.discarded = False

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()

    async def write(self, chunk: bytes) -> None:
        if self._fails_after is not None and self.length > self._fails_after:
            raise StorageFull
        self.beginning = self.beginning or chunk[:4096]
        self._hash.update(chunk)
        self.length += len(chunk)

    async def discard(self) -> None:
        self.discarded = True


class Spools:
    """Hands out spools and remembers them."""

    def __init__(self, fails_after: int | None = None) -> None:
        self._fails_after = fails_after
        self.given: list[MemorySpool] = []

    def __call__(self) -> MemorySpool:
        self.given.append(MemorySpool(self._fails_after))
        return self.given[-1]


def opened(url: str, **settings: int | timedelta) -> ZenrowsGateway:
    deadline = settings.get("deadline", timedelta(seconds=200))
    silence = settings.get("silence", timedelta(seconds=200))
    largest = settings.get("largest_body", 50 * MIB)
    assert isinstance(deadline, timedelta)
    assert isinstance(silence, timedelta)
    assert isinstance(largest, int)
    connections = settings.get("connections", 10)
    assert isinstance(connections, int)
    return ZenrowsGateway(
        url,
        deadline=deadline,
        silence=silence,
        largest_body=largest,
        connections=connections,
        transport=transport,
    )


def opened_directly(url: str, **settings: int | timedelta) -> DirectGateway:
    """The other gateway, as `opened` would open it for a server on this machine."""
    like = opened(url, **settings)
    return DirectGateway(
        deadline=timedelta(seconds=like._deadline),
        silence=timedelta(seconds=like._silence),
        largest_body=like._largest,
        connections=like._connections,
        reach=THIS_MACHINE,
        ports={like._server.port},
        heeds_robots=False,
        transport=transport,
    )


def asked(url: str, params: dict[str, str] | None = None) -> PageRequest:
    return PageRequest(url=url, gateway_key=KEY, params=params or {})


async def fetched(
    gateway: Gateway,
    url: str,
    spools: Spools | None = None,
    params: dict[str, str] | None = None,
) -> Page | GatewayRefusal:
    return await gateway.fetch(asked(url, params), spools or Spools())


async def content(gateway: Gateway, url: str, params: dict[str, str] | None = None) -> Page:
    page = await fetched(gateway, url, params=params)
    assert isinstance(page, Page), page
    return page


def echo(page: bytes) -> dict[str, object]:
    """What the mock tells in an HTML page about the request it got."""
    found = re.search(rb'<script id="echo" type="application/json">(.*?)</script>', page)
    assert found
    return msgspec.json.decode(found[1], type=dict[str, object])


def refused(answer: Page | GatewayRefusal, code: str, status: int) -> dict[str, object]:
    """The problem of a refusal that is as expected and whole."""
    assert isinstance(answer, GatewayRefusal), answer
    assert (answer.code, answer.status) == (code, status)
    told = msgspec.json.decode(answer.problem, type=dict[str, object])
    assert (told["code"], told["status"]) == (code, status)
    assert isinstance(told["type"], str)
    assert isinstance(told["title"], str)
    return told


@asynccontextmanager
async def answering(raw: bytes) -> AsyncIterator[str]:
    """A server that says one thing to everyone and closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/"


def wire_call(target: str, *headers: bytes) -> bytes:
    path = f"/v1/?apikey=k&url={quote(target, '')}".encode()
    return b"GET %b HTTP/1.1\r\nHost: mock\r\n%b\r\n" % (path, b"".join(headers))


async def exchange(gateway: MockGateway, sent: bytes, *, answers: int = 0) -> bytes:
    """What comes back: as many answers as expected, or all until the server closes."""
    address = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(sent)
    raw = b""
    while chunk := await asyncio.wait_for(reader.read(65536), 60):
        raw += chunk
        if answers and raw.count(b"HTTP/1.1 ") == answers:
            break
    writer.close()
    await writer.wait_closed()
    return raw


class bounded_memory:  # noqa: N801  # reads as the statement it is
    """Fails when more is held at once than that, over what was held before."""

    def __init__(self, most: int) -> None:
        self._most = most

    def __enter__(self) -> None:
        gc.collect()
        tracemalloc.start()

    def __exit__(self, *_: object) -> None:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < self._most


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # the mock is plain attributes
            await asyncio.sleep(0.002)
