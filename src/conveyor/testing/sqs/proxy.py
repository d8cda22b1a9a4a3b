"""A proxy between a client and SQS that counts requests, and does what SQS may do and emulators do not.

It forwards requests as they are, so it stands before an emulator, which does not check signatures of SQS.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from conveyor.adapters.aws.client import SQS
from conveyor.testing.dynamodb.server import serving

TARGET = f"{SQS.target}."
FORWARDED = ("Authorization", "Content-Type", "X-Amz-Date", "X-Amz-Target")
BATCHES = {"SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"}
RECEIVE = "ReceiveMessage"


@dataclass(slots=True)
class SqsFaults:
    """Shares are of requests, of messages, or of the entries of batches; 0 is never, 1 is always."""

    seed: int = 0
    lost_before: float = 0.0  # the connection is closed, and nothing is done
    lost_after: float = 0.0  # it is done, and the connection is closed; not of receives
    lost_receives: float = 0.0  # the same of receives: the messages stay hidden
    throttled: float = 0.0
    failed: float = 0.0  # of entries: not done, by a fault of SQS
    empty: float = 0.0  # a receive finds nothing
    late: float = 0.0  # a receive passes some messages over
    doubled: float = 0.0  # of messages: delivered, and visible at once
    undead: float = 0.0  # of deleted messages: they come back
    vanished: float = 0.0  # of sent messages: accepted, and never delivered
    slow: float = 0.0
    delay: timedelta = timedelta(milliseconds=200)  # of slow answers


class _Lost(Exception):
    """The connection is to be closed."""


@dataclass(slots=True)
class SqsProxy:
    upstream: str
    session: aiohttp.ClientSession
    faults: SqsFaults
    url: str = ""
    requests: Counter[str] = field(default_factory=Counter)  # by operation
    entries: Counter[str] = field(default_factory=Counter)  # of batches, and received messages
    made: Counter[str] = field(default_factory=Counter)  # faults, by kind
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.faults.seed)  # noqa: S311 - repeatable on purpose

    def counts(self) -> dict[str, object]:
        return {"requests": self.requests, "entries": self.entries, "faults": self.made}

    async def serve(self, request: web.Request) -> web.StreamResponse:
        operation = request.headers.get("X-Amz-Target", "").removeprefix(TARGET)
        content = msgspec.json.decode(await request.read(), type=dict[str, Any])
        heads = {name: request.headers[name] for name in FORWARDED if name in request.headers}
        self.requests[operation] += 1
        try:
            status, answer = await self._answer(operation, content, heads)
        except _Lost:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.Response(
            status=status, body=msgspec.json.encode(answer), content_type=SQS.content_type
        )

    async def _answer(
        self, operation: str, request: dict[str, Any], heads: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        if self._chance("lost_before"):
            raise _Lost
        if self._chance("slow"):
            await asyncio.sleep(self.faults.delay.total_seconds())
        if self._chance("throttled"):
            return 400, {"__type": "com.amazonaws.sqs#RequestThrottled", "message": "by the proxy"}
        if operation in BATCHES:
            status, answer = await self._batch(operation, request, heads)
        elif operation == RECEIVE:
            status, answer = await self._receive(request, heads)
        else:
            status, answer = await self._forward(request, heads)
        if self._chance("lost_receives" if operation == RECEIVE else "lost_after"):
            raise _Lost
        return status, answer

    async def _batch(
        self, operation: str, request: dict[str, Any], heads: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        entries = request["Entries"]
        self.entries[operation] += len(entries)
        failed = [entry for entry in entries if self._chance("failed")]
        rest = [entry for entry in entries if entry not in failed]
        ignored = {"SendMessageBatch": "vanished", "DeleteMessageBatch": "undead"}.get(operation)
        left_out = [entry for entry in rest if ignored and self._chance(ignored)]
        forwarded = [entry for entry in rest if entry not in left_out]
        status, answer = 200, dict[str, Any]()
        if forwarded:
            status, answer = await self._forward(request | {"Entries": forwarded}, heads)
        if status != 200:
            return status, answer
        answer["Successful"] = [
            *(answer.get("Successful") or ()),
            *({"Id": entry["Id"], "MessageId": "-"} for entry in left_out),
        ]
        answer["Failed"] = [
            *(answer.get("Failed") or ()),
            *(
                {"Id": entry["Id"], "Code": "InternalError", "SenderFault": False}
                for entry in failed
            ),
        ]
        return status, answer

    async def _receive(
        self, request: dict[str, Any], heads: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        if self._chance("empty"):
            # A missing queue is missing, though.
            attributes = {"QueueUrl": request["QueueUrl"], "AttributeNames": ["QueueArn"]}
            heads = {**heads, "X-Amz-Target": f"{TARGET}GetQueueAttributes"}
            status, answer = await self._forward(attributes, heads)
            return status, answer if status != 200 else {}
        if request.get("MaxNumberOfMessages", 1) > 1 and self._chance("late"):
            request = request | {"MaxNumberOfMessages": 1}
        status, answer = await self._forward(request, heads)
        messages = answer.get("Messages") or ()
        self.entries[RECEIVE] += len(messages)
        doubled = [message for message in messages if self._chance("doubled")]
        if doubled:
            shown = [
                {
                    "Id": str(number),
                    "ReceiptHandle": message["ReceiptHandle"],
                    "VisibilityTimeout": 0,
                }
                for number, message in enumerate(doubled)
            ]
            heads = {**heads, "X-Amz-Target": f"{TARGET}ChangeMessageVisibilityBatch"}
            await self._forward({"QueueUrl": request["QueueUrl"], "Entries": shown}, heads)
        return status, answer

    async def _forward(
        self, request: Mapping[str, Any], heads: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        body = msgspec.json.encode(request)
        try:
            async with self.session.post(self.upstream, data=body, headers=heads) as response:
                content = await response.read()
        except (aiohttp.ClientError, OSError):
            raise _Lost from None
        return response.status, msgspec.json.decode(content) if content else {}

    def _chance(self, name: str) -> bool:
        happens: bool = self._random.random() < getattr(self.faults, name)
        self.made[name] += happens
        return happens


@asynccontextmanager
async def sqs_proxy(upstream: str, faults: SqsFaults | None = None) -> AsyncIterator[SqsProxy]:
    """Serve a proxy on loopback before the SQS at a URL."""
    async with aiohttp.ClientSession() as session:
        proxy = SqsProxy(upstream, session, faults or SqsFaults())
        async with serving(proxy.serve, proxy.counts) as proxy.url:
            yield proxy
