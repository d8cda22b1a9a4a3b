"""A service of AWS that answers as a test tells it to."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from conveyor.adapters.aws.client import DYNAMODB, AwsClient, AwsService, open_client
from conveyor.adapters.aws.credentials import RefreshedKeys
from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.adapters.system.clock import SystemClock


@dataclass(frozen=True, slots=True)
class Answer:
    fields: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    is_cut: bool = False  # the connection is closed instead
    is_late: bool = False  # there is no answer
    raw: bytes | None = None


def refusal(error: str, status: int = 400, **fields: Any) -> Answer:
    return Answer({"__type": f"com.amazonaws.x#{error}", "message": "so", **fields}, status)


CUT, LATE = Answer(is_cut=True), Answer(is_late=True)


@dataclass(slots=True)
class ScriptedService:
    url: str = ""
    answers: deque[Answer] = field(default_factory=deque)  # the last is repeated
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    heads: list[Mapping[str, str]] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def script(self, *answers: Answer) -> None:
        self.answers.extend(answers)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.calls.append((request.headers["x-amz-target"], msgspec.json.decode(body)))
        self.heads.append(dict(request.headers))
        answer = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        if answer.is_late:
            await self.ended.wait()
        if answer.is_cut:
            assert request.transport is not None
            request.transport.abort()
        content = msgspec.json.encode(answer.fields) if answer.raw is None else answer.raw
        head = {"x-amzn-RequestId": f"id-{len(self.calls)}"}
        return web.Response(status=answer.status, body=content, headers=head)


@asynccontextmanager
async def scripted_service() -> AsyncIterator[ScriptedService]:
    service = ScriptedService()
    app = web.Application()
    app.router.add_post("/", service.serve)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield service
    finally:
        service.ended.set()
        await runner.cleanup()


@asynccontextmanager
async def client_of(
    url: str,
    *,
    service: AwsService = DYNAMODB,
    keys: RefreshedKeys | None = None,
    connections: int = 8,
) -> AsyncIterator[AwsClient]:
    clock = SystemClock()
    keys = keys or RefreshedKeys(lambda: Keys("test", "test"), clock)
    async with open_client(
        service, endpoint=url, region="eu-west-1", keys=keys, clock=clock, connections=connections
    ) as client:
        yield client
