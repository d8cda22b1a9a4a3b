"""The fake over HTTP, on loopback: `async with dynamodb_server(clock) as server`.

By hand: `python -m conveyor.testing.dynamodb fake --port 8000`.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
from aiohttp import web

from conveyor.ports.clock import Clock
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.refusals import Refusal

TARGET = "DynamoDB_20120810."
CONTENT_TYPE = "application/x-amz-json-1.0"
LARGEST_BODY = 32 * 1024 * 1024
SIGNED = "AWS4-HMAC-SHA256 Credential="


@dataclass(frozen=True, slots=True)
class DynamoDbServer:
    url: str
    engine: DynamoDbEngine

    @property
    def knobs(self) -> Knobs:
        return self.engine.knobs


@asynccontextmanager
async def dynamodb_server(
    clock: Clock, knobs: Knobs | None = None, *, port: int = 0
) -> AsyncIterator[DynamoDbServer]:
    engine = DynamoDbEngine(clock, knobs or Knobs())
    numbers = count(1)

    async def serve(request: web.Request) -> web.Response:
        body = await request.read()
        status, answer = _answer(engine, request, body)
        return web.Response(
            status=status,
            body=msgspec.json.encode(answer),
            content_type=CONTENT_TYPE,
            headers={"x-amzn-RequestId": f"FAKE{next(numbers):020d}"},
        )

    async with serving(serve, engine.meter.summary, port=port) as url:
        yield DynamoDbServer(url, engine)


def _answer(
    engine: DynamoDbEngine, request: web.Request, body: bytes
) -> tuple[int, dict[str, Any]]:
    try:
        return 200, engine.execute(_operation(request), _decoded(body))
    except Refusal as refusal:
        return refusal.status, refusal.body


def _operation(request: web.Request) -> str:
    if not request.headers.get("Authorization", "").startswith(SIGNED):
        raise Refusal("MissingAuthenticationTokenException", "Request is missing a signature")
    target = request.headers.get("X-Amz-Target", "")
    if not target.startswith(TARGET) or request.content_type != CONTENT_TYPE:
        raise Refusal("UnknownOperationException", f"{target} {request.content_type}")
    return target.removeprefix(TARGET)


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Refusal("SerializationException", str(error)) from None


@asynccontextmanager
async def serving(
    serve: Any, counts: Callable[[], Mapping[str, object]], *, port: int = 0
) -> AsyncIterator[str]:
    """Serve POST requests to /, and the counts at /meter, on loopback; gives the URL."""

    async def show(request: web.Request) -> web.Response:
        del request
        return web.json_response(counts())

    app = web.Application(client_max_size=LARGEST_BODY)
    app.add_routes([web.post("/", serve), web.get("/meter", show)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
