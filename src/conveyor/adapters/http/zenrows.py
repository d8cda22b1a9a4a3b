"""The ZenRows gateway over HTTP: one request for one page, and every fault a value."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import SplitResult, urlsplit

from msgspec.structs import replace

from conveyor.adapters.http import page_wire
from conveyor.adapters.http import zenrows_wire as wire
from conveyor.adapters.http.client.body import (
    CONTENT_ENCODING,
    LARGEST_BODY,
    SILENCE,
    BodyReader,
    BodyTooLarge,
)
from conveyor.adapters.http.client.connection import (
    Connection,
    IncompleteResponse,
    NoResponse,
    NotConnected,
    ResponseStalled,
)
from conveyor.adapters.http.client.deadline import Deadlines
from conveyor.adapters.http.client.pool import ServerPool, server
from conveyor.adapters.http.client.request import fields
from conveyor.adapters.http.client.request import request as request_of
from conveyor.adapters.http.page_wire import Unsendable
from conveyor.domain.breaker import HealthSignal
from conveyor.domain.content_coding import ACCEPTED, CorruptContent
from conveyor.domain.counts import NOTHING, Spend
from conveyor.errors import Unavailable
from conveyor.ports.bodies import Spool
from conveyor.ports.gateway import Page, PageRequest, Refusal

DEADLINE = timedelta(seconds=190)  # the gateway itself gives up after some 181
LARGEST_PROBLEM = 64 * 1024
CHECK = 5.0  # seconds for a gateway to show that it answers

CREDITS = b"x-request-credits"
COST = b"x-request-cost"
RETRY_AFTER = b"retry-after"
DATE = b"date"
REQUEST_ID = b"x-request-id"
LIMIT = b"concurrency-limit"
WANTED = frozenset({CONTENT_ENCODING, CREDITS, COST, RETRY_AFTER, DATE, REQUEST_ID, LIMIT})


class ZenrowsGateway:
    """Open it before use: `async with ZenrowsGateway(url, connections=200) as gateway`."""

    def __init__(
        self,
        url: str,
        *,
        deadline: timedelta = DEADLINE,
        silence: timedelta = SILENCE,
        largest_body: int = LARGEST_BODY,
        connections: int,
    ) -> None:
        bare, authorization = wire.separated(url)
        parts = urlsplit(bare)
        self._server = server(parts)
        target = SplitResult("", "", parts.path or "/", parts.query, "").geturl()
        self._question = wire.question(target)
        self._keeps_headers = wire.keeps_headers(bare)
        # Nothing else is sent: with custom headers on, all of it reaches the target.
        self._lines = fields({"Host": self._server.named, "Accept-Encoding": ACCEPTED})
        self._authorization = fields(authorization)
        self._deadline = deadline.total_seconds()
        self._deadlines = Deadlines(self._deadline)
        self._silence = silence.total_seconds()
        self._largest = largest_body
        self._reading = BodyReader(largest=largest_body, silence=self._silence)
        self._connections = connections

    async def __aenter__(self) -> Self:
        self._pool = ServerPool(self._server, connections=self._connections, wanted=WANTED)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._pool.close()

    async def fetch(self, request: PageRequest, spool: Callable[[], Spool]) -> Page | Refusal:
        head = NO_HEAD
        limit = self._deadlines.begin()
        try:
            asked = self._put(request)
            answer = await self._pool.acquire()
            try:
                answer.send(asked)
                await answer.head()
                head = _head_of(request, answer)
                if 200 <= answer.status < 300:
                    return head.page(await self._reading.content(answer, spool))
                return await self._judge(request, answer, head, spool)
            finally:
                self._pool.release(answer)
        except asyncio.CancelledError:
            if not limit.is_why():
                raise
            why = f"The gateway did not finish its answer within {self._deadline:g} seconds."
            return head.refusal("gateway_timeout", 504, why, HealthSignal.BROKEN)
        except Unavailable:  # the spool has no room; what the page cost is spent all the same
            return replace(head.refusal(*page_wire.NO_ROOM), storage_full=True)
        except BodyTooLarge:
            why = f"The page is larger than {self._largest} bytes."
            return head.refusal("body_too_large", 413, why)
        except ResponseStalled:
            why = f"The gateway sent nothing for {self._silence:g} seconds, midway in its answer."
            return head.refusal("gateway_timeout", 504, why, HealthSignal.BROKEN)
        except (IncompleteResponse, CorruptContent):
            why = "The gateway's answer was cut short or cannot be read."
            return head.refusal("gateway_garbled", 502, why, HealthSignal.BROKEN)
        except Unsendable:
            why = "The request cannot be put into HTTP: look at its URL, headers and body."
            return page_wire.synthesised("request_unsendable", 400, why, signal=HealthSignal.NONE)
        except NoResponse as lost:
            why = f"The gateway gave no answer: {lost}."
            signal = (
                HealthSignal.UNREACHABLE if isinstance(lost, NotConnected) else HealthSignal.BROKEN
            )
            return head.refusal("gateway_unreachable", 502, why, signal)
        finally:
            limit.lift()

    async def check(self) -> bool:
        """Without a key a gateway refuses at once, and charges nobody."""
        try:
            async with asyncio.timeout(CHECK):
                answer = await self._pool.acquire()
                try:
                    answer.send(request_of("GET", self._question, self._lines, {}, None))
                    await answer.head()
                    await self._reading.beginning(answer, LARGEST_PROBLEM)
                    return answer.status < 500
                finally:
                    self._pool.release(answer)
        except (
            TimeoutError,
            NoResponse,
            IncompleteResponse,
            ResponseStalled,
            CorruptContent,
            BodyTooLarge,
        ):
            return False

    def _put(self, request: PageRequest) -> bytes:
        try:
            return self._written(request)
        except (ValueError, LookupError) as odd:
            raise Unsendable from odd

    def _written(self, request: PageRequest) -> bytes:
        headers, content = page_wire.forwarded(request), None
        target = wire.address(self._question, request, headers)
        own = self._lines
        if self._authorization and not page_wire.has(headers, "authorization"):
            own += self._authorization
        if request.call_id and not headers and self._keeps_headers:
            headers = {"X-Request-ID": request.call_id}  # no target can see it
        if request.method == "POST" and request.body is not None:
            content, kind = page_wire.payload(request.body)
            if not page_wire.has(headers, "content-type"):
                headers = {**headers, "Content-Type": kind}
        return request_of(request.method, target, own, headers, content)

    async def _judge(
        self,
        request: PageRequest,
        answer: Connection,
        head: "ResponseHead",
        spool: Callable[[], Spool],
    ) -> Page | Refusal:
        """A status other than success: a refusal, unless the caller takes such pages."""
        allowed = page_wire.is_allowed(request.params, answer.status)
        if allowed:
            body = await self._reading.content(answer, spool)
        else:
            body = await self._reading.beginning(answer, LARGEST_PROBLEM)
        if not isinstance(body, bytes):
            return head.page(body, answer.status)
        document = wire.gateway_problem(body[:LARGEST_PROBLEM])
        if document is not None:
            refusal = wire.refusal(document, answer.status, request.key, named=head.named)
            signal = HealthSignal.BROKEN
        elif allowed:
            return head.page(body, answer.status)
        else:
            refusal = wire.wordless(body, answer.status, request.key, named=head.named)
            signal = HealthSignal.UNEXPLAINED
        signal = signal if answer.status >= 500 else HealthSignal.ALIVE
        wait = page_wire.retry_after(answer.header(RETRY_AFTER), answer.header(DATE))
        return replace(refusal, retry_after=wait, spend=head.charged, signal=signal)


class ResponseHead(NamedTuple):
    """What the head of a response says besides its status: valid even if no body follows."""

    charged: Spend = NOTHING
    named: str | None = None
    limit: int | None = None

    def page(self, content: bytes | Spool, status: int = 200) -> Page:
        return Page(
            signal=HealthSignal.NONE if status >= 500 else HealthSignal.ALIVE,
            content=content,
            spend=self.charged,
            gateway_request_id=self.named,
            limit=self.limit,
        )

    def refusal(
        self, code: str, status: int, why: str, signal: HealthSignal = HealthSignal.ALIVE
    ) -> Refusal:
        return page_wire.synthesised(
            code, status, why, charged=self.charged, named=self.named, signal=signal
        )


NO_HEAD = ResponseHead()


def _head_of(request: PageRequest, answer: Connection) -> ResponseHead:
    charged = wire.spend(answer.header(CREDITS), answer.header(COST))
    named = wire.request_id(answer.header(REQUEST_ID), request.key)
    return ResponseHead(charged, named, wire.limit(answer.header(LIMIT)))
