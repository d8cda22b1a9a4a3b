"""A gateway that is never what is waited for: it reads no more of a request than where it ends,
and answers each with the same page, after as long as it is told.

Run as a program of its own: `python -m benchmarks.fast_gateway PORT SIZE LATENCY`.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import uvloop

from conveyor.testing.local.ports import free_port

STARTS_WITHIN = 10.0  # seconds
END = b"\r\n\r\n"
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n"
    b"X-Request-Credits: 1\r\nX-Request-Cost: 0.0001\r\nX-Request-ID: %032x\r\n\r\n"
)


class Answering(asyncio.Protocol):
    """One connection. Requests have no body: what ends a head ends a request."""

    def __init__(self, page: bytes, latency: float) -> None:
        self._page, self._latency = page, latency
        self._rest = b""
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(END)
        for _ in whole:
            if self._latency:
                self._loop.call_later(self._latency, self._answer)
            else:
                self._answer()

    def _answer(self) -> None:
        self._number += 1
        if not self._transport.is_closing():
            head = HEAD % (len(self._page), self._number)
            self._transport.writelines((head, self._page))


async def _serve(port: int, size: int, latency: float) -> None:
    page = b"<p>a page</p>\n".ljust(size)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Answering(page, latency), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


@contextmanager
def fast_gateway(size: int, *, latency: float = 0.0) -> Iterator[str]:
    """The address of a gateway in a process of its own, on a core of its own if there are two."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.fast_gateway", str(port), str(size), str(latency)]
    process = subprocess.Popen(command)
    try:
        if len(cores := os.sched_getaffinity(0)) > 1:
            os.sched_setaffinity(process.pid, {max(cores)})
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}/v1/"
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + STARTS_WITHIN
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError("the gateway does not start")


if __name__ == "__main__":
    port_given, size_given, latency_given = sys.argv[1:]
    uvloop.run(_serve(int(port_given), int(size_given), float(latency_given)))
