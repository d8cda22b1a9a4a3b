"""The ZenRows gateway over HTTP: one request for one page. Every fault is a value."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import SplitResult, urlsplit

from msgspec.structs import replace

from conveyor.adapters.http import page_wire, zenrows_wire
from conveyor.adapters.http.client.body import (
    CONTENT_ENCODING,
    LARGEST_BODY,
    SILENCE,
    BodyReader,
    BodyTooLarge,
)
from conveyor.adapters.http.client.deadline import Deadlines
from conveyor.adapters.http.client.pool import ConnectionPool
from conveyor.adapters.http.client.resolver import CheckedResolver, Resolve, SystemResolver
from conveyor.adapters.http.client.transport import (
    HttpRequest,
    HttpResponse,
    IncompleteResponse,
    NoResponse,
    NotConnected,
    ResponseStalled,
    TransportFactory,
    fixed_headers,
    http_request,
    server_of,
)
from conveyor.adapters.http.page_wire import Unsendable
from conveyor.adapters.http.retry_after import retry_after
from conveyor.adapters.http.zenrows_errors import TARGET_STATUS, rule_for
from conveyor.domain.breaker import HealthSignal
from conveyor.domain.content_coding import ACCEPTED, CorruptContent
from conveyor.domain.counts import NOTHING, Spend
from conveyor.domain.page_facts import NO_FACTS, PageFacts
from conveyor.errors import Unavailable
from conveyor.ports.bodies import Spool
from conveyor.ports.gateway import GatewayRefusal, Page, PageRequest

DEADLINE = timedelta(seconds=190)  # the gateway itself gives up after some 181
LARGEST_PROBLEM = 64 * 1024
CHECK = 5.0  # seconds for `check_health`

CREDITS = b"x-request-credits"
COST = b"x-request-cost"
RETRY_AFTER = b"retry-after"
DATE = b"date"
REQUEST_ID = b"x-request-id"
LIMIT = b"concurrency-limit"
FINAL_URL = b"zr-final-url"
WANTED = frozenset(
    {CONTENT_ENCODING, CREDITS, COST, RETRY_AFTER, DATE, REQUEST_ID, LIMIT, FINAL_URL}
)


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
        transport: TransportFactory = ConnectionPool,
        resolve: Resolve | None = None,
    ) -> None:
        bare, authorization = zenrows_wire.split_credentials(url)
        parts = urlsplit(bare)
        self._server = server_of(parts)
        target = SplitResult("", "", parts.path or "/", parts.query, "").geturl()
        self._base_query = zenrows_wire.base_query(target)
        self._keeps_headers = zenrows_wire.keeps_headers(bare)
        # No other header is sent by default: with `custom_headers` all of them reach the target.
        fixed = {"Host": self._server.host_header, "Accept-Encoding": ACCEPTED}
        self._fixed_headers = fixed_headers(fixed)
        self._with_authorization = fixed_headers(fixed | authorization) if authorization else None
        self._deadline = deadline.total_seconds()
        self._deadlines = Deadlines(self._deadline)
        self._silence = silence.total_seconds()
        self._largest = largest_body
        self._reading = BodyReader(largest=largest_body, silence=self._silence)
        self._connections = connections
        self._opens = transport
        self._system = SystemResolver()
        self._resolve = resolve or self._system

    async def __aenter__(self) -> Self:
        # The operator chose the gateway: unlike a site, it may have any address.
        lookup = CheckedResolver(None, self._resolve)
        self._transport = self._opens(lookup, connections=self._connections, wanted=WANTED)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._transport.close()
        self._system.close()

    async def fetch(
        self, request: PageRequest, spool: Callable[[], Spool]
    ) -> Page | GatewayRefusal:
        head = NO_HEAD
        deadline = self._deadlines.begin()
        try:
            answer = await self._transport.send(self._server, self._http_request(request))
            try:
                head = _head_of(request, answer)
                if 200 <= answer.status < 300:
                    return head.page(await self._reading.content(answer, spool))
                return await self._judge(request, answer, head, spool)
            finally:
                answer.release()
        except asyncio.CancelledError:
            if not deadline.take_cancellation():
                raise
            why = f"The gateway did not finish its answer within {self._deadline:g} seconds."
            return head.refusal("gateway_timeout", 504, why, HealthSignal.BROKEN)
        except Unavailable:  # the spool has no room; the gateway has charged for the page
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
            why = "The request cannot be sent as HTTP: look at its URL, headers and body."
            return page_wire.synthesised("request_unsendable", 400, why, signal=HealthSignal.NONE)
        except NoResponse as lost:
            why = f"The gateway gave no answer: {lost}."
            signal = (
                HealthSignal.UNREACHABLE if isinstance(lost, NotConnected) else HealthSignal.BROKEN
            )
            return head.refusal("gateway_unreachable", 502, why, signal)
        finally:
            deadline.lift()

    async def check_health(self) -> bool:
        """Send a request without a key: a working gateway refuses it at once, free of charge."""
        try:
            async with asyncio.timeout(CHECK):
                keyless = http_request("GET", self._base_query, self._fixed_headers, {}, None)
                answer = await self._transport.send(self._server, keyless)
                try:
                    await self._reading.beginning(answer, LARGEST_PROBLEM)
                    return answer.status < 500
                finally:
                    answer.release()
        except (
            TimeoutError,
            NoResponse,
            IncompleteResponse,
            ResponseStalled,
            CorruptContent,
            BodyTooLarge,
        ):
            return False

    def _http_request(self, request: PageRequest) -> HttpRequest:
        try:
            return self._built(request)
        except (ValueError, LookupError) as odd:
            raise Unsendable from odd

    def _built(self, request: PageRequest) -> HttpRequest:
        headers, content = page_wire.forwarded(request), None
        target = zenrows_wire.address(self._base_query, request, headers)
        fixed = self._fixed_headers
        if self._with_authorization and not page_wire.has(headers, "authorization"):
            fixed = self._with_authorization
        if request.call_id and not headers and self._keeps_headers:
            headers = {
                "X-Request-ID": request.call_id
            }  # with no custom headers, the target does not see it
        if request.method == "POST" and request.body is not None:
            content, kind = page_wire.payload(request.body)
            if not page_wire.has(headers, "content-type"):
                headers = {**headers, "Content-Type": kind}
        return http_request(request.method, target, fixed, headers, content)

    async def _judge(
        self,
        request: PageRequest,
        answer: HttpResponse,
        head: "ResponseHead",
        spool: Callable[[], Spool],
    ) -> Page | GatewayRefusal:
        """Read a status other than success: a refusal, unless the caller accepts it as a page."""
        allowed = page_wire.is_allowed(request.params, answer.status)
        if allowed:
            body = await self._reading.content(answer, spool)
        else:
            body = await self._reading.beginning(answer, LARGEST_PROBLEM)
        if not isinstance(body, bytes):
            return head.page(body, answer.status)
        document = zenrows_wire.gateway_problem(body[:LARGEST_PROBLEM])
        if document is not None:
            refusal = zenrows_wire.refusal(
                document,
                answer.status,
                request.gateway_key,
                gateway_request_id=head.gateway_request_id,
            )
            signal = HealthSignal.BROKEN
        elif allowed:
            return head.page(body, answer.status)
        else:
            refusal = page_wire.without_problem(
                body,
                answer.status,
                request.gateway_key,
                gateway_request_id=head.gateway_request_id,
                rule=rule_for(answer.status, ""),
            )
            signal = HealthSignal.UNEXPLAINED
        signal = signal if answer.status >= 500 else HealthSignal.ALIVE
        wait = retry_after(answer.header(RETRY_AFTER), answer.header(DATE))
        # The status of a refusal is the gateway's own, unless its code says what the target's was.
        facts = replace(head.facts, http_status=TARGET_STATUS.get(refusal.code))
        return replace(refusal, retry_after=wait, spend=head.charged, signal=signal, facts=facts)


class ResponseHead(NamedTuple):
    """What the head of a response says besides its status; it counts even if the body fails."""

    charged: Spend = NOTHING
    gateway_request_id: str | None = None
    limit: int | None = None
    facts: PageFacts = NO_FACTS

    def page(self, content: bytes | Spool, status: int = 200) -> Page:
        return Page(
            signal=HealthSignal.NONE if status >= 500 else HealthSignal.ALIVE,
            content=content,
            spend=self.charged,
            gateway_request_id=self.gateway_request_id,
            limit=self.limit,
            facts=self.facts,
        )

    def refusal(
        self, code: str, status: int, why: str, signal: HealthSignal = HealthSignal.ALIVE
    ) -> GatewayRefusal:
        return page_wire.synthesised(
            code,
            status,
            why,
            charged=self.charged,
            gateway_request_id=self.gateway_request_id,
            signal=signal,
            facts=self.facts,
        )


NO_HEAD = ResponseHead()


def _head_of(request: PageRequest, answer: HttpResponse) -> ResponseHead:
    charged = zenrows_wire.spend(answer.header(CREDITS), answer.header(COST))
    request_id = page_wire.request_id(answer.header(REQUEST_ID), request.gateway_key)
    return ResponseHead(
        charged,
        request_id,
        zenrows_wire.limit(answer.header(LIMIT)),
        zenrows_wire.facts(request, answer.status, answer.header(FINAL_URL)),
    )
