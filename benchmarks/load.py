"""A small HTTP load generator: keep-alive connections that each send one request at a time."""

import asyncio
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import msgspec
import uvloop


class Load(msgspec.Struct, frozen=True):
    rate: float  # requests a second
    median: float  # milliseconds
    p99: float


def measure(url: str, make: Callable[[int], bytes], *, count: int, connections: int = 20) -> Load:
    """Send `make(n)` for n below `count` over some connections; every answer must be a success."""
    return uvloop.run(_measure(url, make, count, connections))


def request(method: str, path: str, body: bytes = b"", key: str = "benchmark") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _measure(url: str, make: Callable[[int], bytes], count: int, connections: int) -> Load:
    numbers = iter(range(count))
    times: list[float] = []
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(_talk(url, make, numbers, times))
    taken = time.perf_counter() - started
    times.sort()
    return Load(count / taken, times[len(times) // 2] * 1000, times[len(times) * 99 // 100] * 1000)


async def _talk(
    url: str, make: Callable[[int], bytes], numbers: Iterator[int], times: list[float]
) -> None:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    for number in numbers:
        started = time.perf_counter()
        writer.write(make(number))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 2"), head
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        times.append(time.perf_counter() - started)
    writer.close()
