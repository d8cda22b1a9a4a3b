"""Calls to AWS services that speak its JSON protocol: DynamoDB and SQS.

A call has a deadline, and is repeated within it as far as that is safe:

| the attempt ended with | the call is repeated |
|---|---|
| no connection, throttling, a conflict, expired credentials | always: nothing was done |
| a lost answer, a time-out, an answer of 5xx | if it is `repeatable`, else `OutcomeUnknown` |
| any other refusal | never |

A call is repeatable if doing it twice is the same as doing it once, or if its caller can tell its
own effect from that of others: a transaction by its token, a conditional write by a value in it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, NoReturn

import aiohttp
import msgspec
import structlog
from yarl import URL

from conveyor.adapters.aws.credentials import RefreshedKeys
from conveyor.adapters.aws.faults import (
    CONFLICTS,
    EXPIRED,
    THROTTLED,
    OutcomeUnknown,
    ServiceRefusal,
    TransactionCanceled,
    fault_of,
)
from conveyor.adapters.aws.signing import RequestSigner
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock

log = structlog.get_logger()

DEADLINE = timedelta(seconds=10)  # of a call with all its attempts
ATTEMPT = timedelta(seconds=5)  # for one attempt; a further one may find a better connection
CONNECT = timedelta(seconds=2)
FIRST_PAUSE = 0.05  # seconds; it doubles with each attempt, and a random part of it is taken
LONGEST_PAUSE = 2.0
KEEP_ALIVE = 12.0  # seconds without use; AWS closes idle connections after about 20
CONNECTIONS = 64

# What a connection reports before a request is sent.
UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
JSON = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class AwsService:
    name: str  # in signatures and in the host
    target: str  # the prefix of operations in `X-Amz-Target`
    content_type: str = "application/x-amz-json-1.0"
    # Operations that may be repeated. A request with a `ClientRequestToken` may be, too.
    repeatable: frozenset[str] = frozenset()


DYNAMODB = AwsService(
    "dynamodb",
    "DynamoDB_20120810",
    repeatable=frozenset(
        {
            "BatchGetItem",
            "DescribeTable",
            "DescribeTimeToLive",
            "GetItem",
            "Query",
            "TransactGetItems",
        }
    ),
)
# Doing any of them twice is like doing it once, except that a message may be sent or received twice,
# as SQS itself may do.
SQS = AwsService(
    "sqs",
    "AmazonSQS",
    repeatable=frozenset(
        {
            "ChangeMessageVisibilityBatch",
            "CreateQueue",
            "DeleteMessageBatch",
            "DeleteQueue",
            "GetQueueAttributes",
            "GetQueueUrl",
            "ListQueues",
            "ReceiveMessage",
            "SendMessageBatch",
        }
    ),
)


class _Failed(Exception):
    """An attempt that may be repeated. `is_unknown`: it may have taken effect."""

    def __init__(self, why: str, *, is_unknown: bool) -> None:
        super().__init__(why)
        self.is_unknown = is_unknown


class AwsClient:
    """One service in one region, over a bounded pool of connections."""

    def __init__(
        self,
        service: AwsService,
        session: aiohttp.ClientSession,
        *,
        endpoint: str,
        region: str,
        keys: RefreshedKeys,
        clock: Clock,
        jitter: random.Random | None = None,
    ) -> None:
        self._service, self._session = service, session
        self._keys, self._clock = keys, clock
        self._url = URL(endpoint) / ""
        self._jitter = jitter or random.Random()  # noqa: S311 - spreads retries
        self._signer = RequestSigner(
            service=service.name,
            region=region,
            host=self._url.host_port_subcomponent or "",
            content_type=service.content_type,
        )

    async def call(
        self,
        operation: str,
        request: object,
        *,
        repeatable: bool | None = None,
        deadline: timedelta = DEADLINE,
        waits: timedelta = timedelta(),
    ) -> dict[str, Any]:
        """Make a call and return its response. The module says what it raises and when it repeats.

        `waits` is how long the service may take on purpose: each attempt has that much more.
        """
        if repeatable is None:
            has_token = isinstance(request, Mapping) and "ClientRequestToken" in request
            repeatable = has_token or operation in self._service.repeatable
        body = msgspec.json.encode(request)
        loop = asyncio.get_running_loop()
        end = loop.time() + (deadline + waits).total_seconds()
        longest = (ATTEMPT + waits).total_seconds()
        is_unknown, earlier = False, ""
        for attempt in count():
            try:
                within = min(end - loop.time(), longest)
                return await self._attempt(operation, body, attempt, within)
            except ServiceRefusal as refusal:
                refusal.follows_unknown = is_unknown
                raise
            except Unavailable as fault:
                _give_up(fault, is_unknown=is_unknown)
            except _Failed as failed:
                is_unknown |= failed.is_unknown
                pause = self._pause(attempt)
                if (failed.is_unknown and not repeatable) or loop.time() + pause >= end:
                    _give_up(failed, is_unknown=is_unknown, earlier=earlier)
                earlier = str(failed)
            await asyncio.sleep(pause)
        raise AssertionError

    async def pause(self, attempt: int) -> None:
        """Wait before a repetition, longer after each, for callers that repeat parts of a batch."""
        await asyncio.sleep(self._pause(attempt))

    def _pause(self, attempt: int) -> float:
        # From half to the whole: pauses of no length would only repeat what was throttled.
        return min(FIRST_PAUSE * 2.0**attempt, LONGEST_PAUSE) * self._jitter.uniform(0.5, 1)

    async def _attempt(
        self, operation: str, body: bytes, attempt: int, within: float
    ) -> dict[str, Any]:
        what = f"{self._service.name} {operation}"
        target = f"{self._service.target}.{operation}"
        is_sent = False
        try:
            async with asyncio.timeout(within):
                keys = await self._keys.current()
                headers = self._signer.headers(target, body, keys, self._clock.now())
                is_sent = True
                async with self._session.post(
                    self._url, data=body, headers=headers, allow_redirects=False
                ) as response:
                    content = await response.read()
        except UNSENT as error:
            raise _Failed(f"{what}: {error}", is_unknown=False) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _Failed(f"{what}: {_named(error)}", is_unknown=is_sent) from None
        request_id = response.headers.get("x-amzn-RequestId", "")
        log.debug(
            "aws.response",
            service=self._service.name,
            operation=operation,
            status=response.status,
            aws_request_id=request_id,
            attempt=attempt,
        )
        fields = _decoded(content, f"{what} (request {request_id})")
        if response.status != 200:
            self._refuse(what, response.status, fields, request_id)
        return fields

    def _refuse(
        self, what: str, status: int, fields: Mapping[str, Any], request_id: str
    ) -> NoReturn:
        error = str(fields.get("__type", "")).rpartition("#")[2] or f"HTTP {status}"
        message = fields.get("message") or fields.get("Message") or "no message"
        told = f"{what}: {error}: {message} (request {request_id})"
        if error in EXPIRED:
            self._keys.discard()
        if error in THROTTLED | CONFLICTS | EXPIRED:
            raise _Failed(told, is_unknown=False)
        if status >= 500:
            raise _Failed(told, is_unknown=True)
        fault = fault_of(told, error, fields)
        if isinstance(fault, TransactionCanceled) and fault.is_retryable:
            raise _Failed(told, is_unknown=False)
        raise fault


@asynccontextmanager
async def open_client(
    service: AwsService,
    *,
    endpoint: str,
    region: str,
    keys: RefreshedKeys,
    clock: Clock,
    connections: int = CONNECTIONS,
) -> AsyncIterator[AwsClient]:
    """Open a client. `endpoint` is a URL, or empty for AWS itself."""
    connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=KEEP_ALIVE)
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT.total_seconds()),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
    ) as session:
        yield AwsClient(
            service,
            session,
            endpoint=endpoint or endpoint_of(service, region),
            region=region,
            keys=keys,
            clock=clock,
        )


def endpoint_of(service: AwsService, region: str) -> str:
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://{service.name}.{region}.{domain}"


def _give_up(why: Exception, *, is_unknown: bool, earlier: str = "") -> NoReturn:
    """Raise for the last attempt. If the deadline cut it short, the one before tells the cause."""
    told = f"{why}, after {earlier}" if earlier else str(why)
    if is_unknown:
        raise OutcomeUnknown(told) from None
    raise why if isinstance(why, Unavailable) else Unavailable(told) from None


def _decoded(content: bytes, what: str) -> dict[str, Any]:
    try:
        decoded = JSON.decode(content) if content else {}
    except msgspec.DecodeError:
        decoded = None
    if not isinstance(decoded, dict):
        raise _Failed(f"{what}: the response is not JSON", is_unknown=True)
    return decoded


def _named(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
