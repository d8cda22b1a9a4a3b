"""Requests to webhooks: sent once, within a time-out, to public addresses only."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from types import TracebackType
from typing import Self

from conveyor.adapters.http.client.connection import Connection
from conveyor.adapters.http.client.pool import ConnectionPool
from conveyor.adapters.http.client.resolver import CheckedResolver, Resolve, SystemResolver
from conveyor.adapters.http.client.transport import (
    Denied,
    HttpRequest,
    IncompleteResponse,
    NoResponse,
    ResponseStalled,
    Server,
    fixed_headers,
    http_request,
)
from conveyor.adapters.http.retry_after import retry_after
from conveyor.domain.outbox import DeliveryResult
from conveyor.domain.public_address import Reach
from conveyor.domain.webhook import FIELD, LONGEST_WAIT, Target, WebhookRules
from conveyor.errors import CallbackUrlUnresolvable, InvalidArgument, Overloaded

RESOLVING = 1.0  # seconds to look a host up when its URL is checked
LARGEST_ANSWER = 16 * 1024  # bytes that are read of a response body
CLEARING = 2.0  # seconds for that: the status alone decides
GONE = 410
MOST_AT_ONCE = 64

RETRY_AFTER = b"retry-after"
DATE = b"date"
WANTED = frozenset({RETRY_AFTER, DATE})


class HttpWebhooks:
    """Open it before use: `async with HttpWebhooks(rules) as webhooks`.

    Each delivery has its own connection, to an address that was checked just before. Proxies of
    the environment are not used, and redirects are not followed.
    """

    def __init__(
        self,
        rules: WebhookRules,
        *,
        timeout: timedelta,
        reach: Reach = Reach(),  # noqa: B008 - it is frozen
        agent: str = "Conveyor",
        resolve: Resolve | None = None,
    ) -> None:
        self._rules, self._timeout = rules, timeout.total_seconds()
        self._reach, self._agent = reach, agent
        # One for checks and one for deliveries: a caller that submits URLs whose hosts are slow to
        # look up must not delay the deliveries of others.
        self._resolvers = [SystemResolver(), SystemResolver()]
        self._resolve = resolve

    async def __aenter__(self) -> Self:
        checking, sending = (
            CheckedResolver(self._reach, self._resolve or resolver) for resolver in self._resolvers
        )
        self._lookup = checking
        self._pool = ConnectionPool(sending, connections=MOST_AT_ONCE, wanted=WANTED)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._pool.close()
        for resolver in self._resolvers:
            resolver.close()

    async def check_url(self, url: str) -> None:
        target = self._rules.target(url)
        names = self._resolvers[0]
        was_full = names.is_full
        try:
            async with asyncio.timeout(RESOLVING):
                await self._lookup.addresses(target.host)
        except (TimeoutError, NoResponse) as error:
            if isinstance(error, TimeoutError) and (was_full or names.is_full):
                # The lookup may not even have begun: the URL is not at fault.
                why = "Too many hosts are being looked up: try again later"
                raise Overloaded(why) from None
            why = "The host of `webhook.url` must have an address; none was found within a second"
            raise CallbackUrlUnresolvable(why, extras=FIELD) from None
        except Denied:
            why = "The host of `webhook.url` must have public addresses only"
            raise CallbackUrlUnresolvable(why, extras=FIELD) from None

    def origin(self, url: str) -> str:
        try:
            return self._rules.target(url).origin
        except InvalidArgument:
            return ""

    async def post(self, url: str, headers: Mapping[str, str], content: bytes) -> DeliveryResult:
        try:
            target = self._rules.target(url)
            request = self._request(target, headers, content)
        except (InvalidArgument, ValueError):
            return _failed("the URL is not allowed")
        try:
            return await self._exchanged(target, request)
        except TimeoutError:
            return DeliveryResult(error="timeout")
        except Denied:
            return _failed("the host is not on public addresses alone")
        except (NoResponse, IncompleteResponse, ResponseStalled) as lost:
            return _failed(str(lost) or "no answer that can be read")

    def _request(self, target: Target, headers: Mapping[str, str], content: bytes) -> HttpRequest:
        fixed = {
            "Host": target.named,
            "User-Agent": self._agent,
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "Connection": "close",
        }
        return http_request("POST", target.path, fixed_headers(fixed), headers, content)

    async def _exchanged(self, target: Target, request: HttpRequest) -> DeliveryResult:
        server = Server(target.host, target.port, target.named, target.is_safe)
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self._timeout) as limit:
                connection = await self._pool.send(server, request)
                stack.callback(_part, connection)
            await _read_on(connection, until=limit.when() or 0.0)
            return _result(connection)


def _part(connection: Connection) -> None:
    connection.abort()
    connection.release()


async def _read_on(connection: Connection, until: float) -> None:
    """Read a little of the body, because some servers log an error if they are cut off at once.

    The status alone decides the result, so a failure here is ignored.
    """
    left = LARGEST_ANSWER
    soon = asyncio.get_running_loop().time() + CLEARING
    with suppress(IncompleteResponse, ResponseStalled, NoResponse, TimeoutError):
        async with asyncio.timeout_at(min(soon, until)):
            while left > 0 and (chunk := await connection.read(left, CLEARING)):
                left -= len(chunk)


def _result(answer: Connection) -> DeliveryResult:
    asked = answer.header(RETRY_AFTER), answer.header(DATE)
    return DeliveryResult(
        status_code=answer.status,
        error=_error(answer.status),
        retry_after=retry_after(*asked, longest=LONGEST_WAIT),
        is_closed=answer.status == GONE,
    )


def _error(status: int) -> str | None:
    return None if 200 <= status < 300 else f"http_{status // 100}xx:{status}"


def _failed(detail: str) -> DeliveryResult:
    return DeliveryResult(error=f"transport_error:{detail}")
