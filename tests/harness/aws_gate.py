"""A proxy between processes and an emulator of AWS: it notes what they call, and can be cut."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from anyio.from_thread import start_blocking_portal

from conveyor.testing.dynamodb.server import serving

NOT_FORWARDED = {"host", "content-length", "connection", "accept-encoding"}
STATEMENTS = {"INSERT": "PartiQLInsert", "UPDATE": "PartiQLUpdate"}
SERVICES = {
    "AWSStepFunctions": "states",
    "AmazonSQS": "sqs",
    "DynamoDB_20120810": "dynamodb",
    "TrentService": "kms",
}


class AwsGate:
    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.url = ""
        self.actions: Counter[str] = Counter()  # as policies of IAM name them
        self.received: set[str] = set()  # URLs of queues
        self.is_cut = False  # nothing is forwarded, and nothing answered

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        heads = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in NOT_FORWARDED
        }
        if not self.is_cut:
            target, content = request.headers["X-Amz-Target"], msgspec.json.decode(body)
            self.actions.update(actions_of(target, content))
            if target.endswith(".ReceiveMessage"):
                self.received.add(content["QueueUrl"])
            try:
                async with (
                    aiohttp.ClientSession() as session,
                    session.post(self.upstream, data=body, headers=heads) as answer,
                ):
                    told, kind = await answer.read(), answer.content_type
                if not self.is_cut:
                    return web.Response(status=answer.status, body=told, content_type=kind)
            except aiohttp.ClientError:
                pass
        assert request.transport is not None
        request.transport.abort()
        return web.Response()


def actions_of(target: str, request: Mapping[str, Any]) -> list[str]:
    """The actions that a request must be allowed to do."""
    prefix, _, operation = target.partition(".")
    service = SERVICES[prefix]
    match operation:
        case "BatchExecuteStatement":
            names = [STATEMENTS[one["Statement"].split()[0]] for one in request["Statements"]]
        case "TransactWriteItems":
            names = [f"{kind}Item" for one in request["TransactItems"] for kind in one]
        case _:
            names = [operation.removesuffix("Batch") if service == "sqs" else operation]
    return [f"{service}:{name}" for name in names]


@contextmanager
def aws_gate(upstream: str) -> Iterator[AwsGate]:
    gate = AwsGate(upstream)

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        async with serving(gate.serve, lambda: {"actions": gate.actions}) as gate.url:
            yield

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened()):
        yield gate
