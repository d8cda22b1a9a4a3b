"""Sites on this machine, under whatever names a test gives them, for the direct gateway."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from conveyor.adapters.http.direct import DirectGateway
from conveyor.adapters.system.clock import SystemClock
from conveyor.ports.gateway import GatewayRefusal, Page, PageRequest
from tests.gateway.stage import OK, Line, playing
from tests.harness import gateways
from tests.harness.gateways import KEY, THIS_MACHINE, Spools

HERE = "127.0.0.1"


@dataclass(frozen=True)
class Heard:
    """A request as a site got it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float  # by the loop's clock

    @property
    def host(self) -> str:
        return self.headers["host"].partition(":")[0]


Answer = Callable[[Heard], bytes]


@dataclass
class Site:
    """Where it is, what it was asked, and how to ask it."""

    port: int
    heard: list[Heard] = field(default_factory=list)

    def url(self, path: str = "/", host: str = "a.example") -> str:
        return f"http://{host}:{self.port}{path}"

    @property
    def asked(self) -> list[str]:
        return [f"{one.host}{one.path}" for one in self.heard]


class Names:
    """A resolver that says what it is told to, one answer after the other, and then the last."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): list(said) for name, said in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        said = self._answers.get(host, [[HERE]])
        return said.pop(0) if len(said) > 1 else said[0]


@asynccontextmanager
async def site(answer: Answer = lambda _: OK) -> AsyncIterator[Site]:
    loop = asyncio.get_running_loop()

    async def play(line: Line) -> None:
        while True:
            head = (await line.request()).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = dict(one.lower().split(": ", 1)[:1] + one.split(": ", 1)[1:] for one in lines)
            body = await line.reader.readexactly(int(headers.get("content-length", "0")))
            method, path, _ = first.split(" ")
            heard = Heard(method, path, headers, body, loop.time())
            here.heard.append(heard)
            await line.say(answer(heard))

    async with playing(play) as stage:
        here = Site(int(stage.url.rsplit(":", 1)[1].split("/")[0]))
        yield here


def visiting(here: Site, **settings: Any) -> DirectGateway:
    """A gateway that may go to this site, under any name, and minds nothing else."""
    return DirectGateway(
        **{
            "deadline": timedelta(seconds=20),
            "connections": 10,
            "reach": THIS_MACHINE,
            "ports": {here.port},
            "heeds_robots": False,
            "resolve": Names(),
            "transport": gateways.transport,
            "clock": SystemClock(),
            **settings,
        }
    )


async def fetched(gateway: DirectGateway, url: str, **more: Any) -> Page | GatewayRefusal:
    return await gateway.fetch(PageRequest(url=url, gateway_key=KEY, **more), Spools())


async def page(gateway: DirectGateway, url: str, **more: Any) -> bytes:
    answer = await fetched(gateway, url, **more)
    assert isinstance(answer, Page), answer
    assert isinstance(answer.content, bytes)
    return answer.content


def said(status: str, *lines: str, body: bytes = b"") -> bytes:
    """A whole answer."""
    head = "\r\n".join([f"HTTP/1.1 {status}", *lines, f"Content-Length: {len(body)}", "", ""])
    return head.encode() + body


def to(place: str, status: str = "302 Found") -> bytes:
    return said(status, f"Location: {place}")
