"""A client whose requests go to the fake without a socket, for tests in simulated time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto
from random import Random
from typing import Any, cast

import aiohttp
import msgspec

from conveyor.adapters.aws.client import DYNAMODB, AwsClient
from conveyor.adapters.aws.credentials import RefreshedKeys
from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.testing.dynamodb.engine import DynamoDbEngine
from conveyor.testing.dynamodb.refusals import Refusal
from conveyor.testing.dynamodb.server import TARGET

LATENCY = timedelta(milliseconds=5)  # of each request


class Loss(Enum):
    """How the answer to a request is lost: before it takes effect, or afterwards."""

    BEFORE = auto()
    AFTER = auto()


def client_in_process(
    engine: DynamoDbEngine,
    *,
    latency: timedelta = LATENCY,
    seed: int = 0,
    loss: Callable[[str], Loss | None] = lambda _operation: None,
) -> AwsClient:
    """The client that the program uses, with its retries, over an engine in this process.

    `loss` is asked for each attempt of an operation.
    """
    return AwsClient(
        DYNAMODB,
        cast("aiohttp.ClientSession", _Session(engine, latency, loss)),
        endpoint="http://in-process",
        region="eu-west-1",
        keys=_KnownKeys(lambda: Keys("test", "test"), engine.clock),
        clock=engine.clock,
        jitter=Random(seed),  # noqa: S311 - repeatable on purpose
    )


class _KnownKeys(RefreshedKeys):
    """Credentials that no thread has to bring."""

    async def current(self) -> Keys:
        return Keys("test", "test")


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    async def read(self) -> bytes:
        return self.content


@dataclass(frozen=True, slots=True)
class _Session:
    engine: DynamoDbEngine
    latency: timedelta
    loss: Callable[[str], Loss | None]

    @asynccontextmanager
    async def post(
        self, url: object, *, data: bytes, headers: Mapping[str, str], **more: Any
    ) -> AsyncIterator[_Response]:
        del url, more
        await asyncio.sleep(self.latency.total_seconds() / 2)
        operation = headers["x-amz-target"].removeprefix(TARGET)
        lost = self.loss(operation)
        if lost is Loss.BEFORE:
            raise aiohttp.ServerDisconnectedError
        try:
            status, answer = 200, self.engine.execute(operation, msgspec.json.decode(data))
        except Refusal as refusal:
            status, answer = refusal.status, refusal.body
        if lost is Loss.AFTER:
            raise aiohttp.ServerDisconnectedError
        await asyncio.sleep(self.latency.total_seconds() / 2)
        yield _Response(status, msgspec.json.encode(answer))
