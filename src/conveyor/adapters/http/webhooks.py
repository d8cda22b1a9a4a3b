"""Deliveries to servers of callers' choosing: once each, within bounds, to public addresses alone."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from types import TracebackType
from typing import Self

from conveyor.adapters.http import page_wire
from conveyor.adapters.http.direct_wire import Denied
from conveyor.adapters.http.exchange import Connection, Cut, FellSilent, Lost
from conveyor.adapters.http.lookup import Lookup, Resolve, SystemResolver
from conveyor.adapters.http.origins import Origins
from conveyor.adapters.http.pool import Server
from conveyor.adapters.http.requests import fields
from conveyor.adapters.http.requests import request as request_of
from conveyor.domain.public_address import Reach
from conveyor.domain.webhook import FIELD, LONGEST_WAIT, Target, WebhookRules
from conveyor.errors import CallbackUrlUnresolvable, InvalidArgument, Overloaded
from conveyor.ports.webhooks import Reply

RESOLVING = 1.0  # seconds for a host to be found when its URL is handed in
LARGEST_ANSWER = 16 * 1024  # bytes that are read of one
CLEARING = 2.0  # seconds for that, once its head is there: the status says it all
MOST_AT_ONCE = 64

RETRY_AFTER = b"retry-after"
DATE = b"date"
WANTED = frozenset({RETRY_AFTER, DATE})


class HttpWebhooks:
    """Open it before use: `async with HttpWebhooks(rules) as webhooks`.

    Each delivery has a connection of its own, to an address that was checked a moment before. No
    proxy of the environment is used, and no redirect followed.
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
        # Whoever hands in names that take long to find must not hold up deliveries.
        self._resolvers = [SystemResolver(), SystemResolver()]
        self._resolve = resolve

    async def __aenter__(self) -> Self:
        checking, sending = (
            Lookup(self._reach, self._resolve or resolver) for resolver in self._resolvers
        )
        self._lookup = checking
        self._pool = Origins(sending, connections=MOST_AT_ONCE, wanted=WANTED)
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

    async def check(self, url: str) -> None:
        target = self._rules.target(url)
        names = self._resolvers[0]
        was_full = names.is_full
        try:
            async with asyncio.timeout(RESOLVING):
                await self._lookup.addresses(target.host)
        except (TimeoutError, Lost) as error:
            if isinstance(error, TimeoutError) and (was_full or names.is_full):
                # It may not even have been asked for: that is no fault of the URL.
                why = "Too many hosts are being looked up: try again later"
                raise Overloaded(why) from None
            why = "The host of `webhook.url` could not be found within a second"
            raise CallbackUrlUnresolvable(why, extras=FIELD) from None
        except Denied:
            why = "The host of `webhook.url` is not on public addresses alone"
            raise CallbackUrlUnresolvable(why, extras=FIELD) from None

    def host(self, url: str) -> str:
        try:
            return self._rules.target(url).host
        except InvalidArgument:
            return ""

    async def post(self, url: str, headers: Mapping[str, str], content: bytes) -> Reply:
        try:
            target = self._rules.target(url)
            written = self._written(target, headers, content)
        except (InvalidArgument, ValueError):
            return _failed("the URL is not allowed")
        try:
            return await self._exchanged(target, written)
        except TimeoutError:
            return Reply(error="timeout")
        except Denied:
            return _failed("the host is not on public addresses alone")
        except (Lost, Cut, FellSilent) as lost:
            return _failed(str(lost) or "no answer that can be read")

    def _written(self, target: Target, headers: Mapping[str, str], content: bytes) -> bytes:
        own = {
            "Host": target.named,
            "User-Agent": self._agent,
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "Connection": "close",
        }
        return request_of("POST", target.path, fields(own), headers, content)

    async def _exchanged(self, target: Target, written: bytes) -> Reply:
        server = Server(target.host, target.port, target.named, target.is_safe)
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self._timeout) as limit:
                connection = await self._pool.take(server)
                stack.callback(self._part, connection)
                connection.ask(written)
                await connection.head()
            await _read_on(connection, until=limit.when() or 0.0)
            return _reply(connection)

    def _part(self, connection: Connection) -> None:
        connection.abort()
        self._pool.give_back(connection)


async def _read_on(connection: Connection, until: float) -> None:
    """Read a little of the answer: a server that is cut off at once may take it for a failure.

    Whatever comes of that, the status has said it all.
    """
    left = LARGEST_ANSWER
    soon = asyncio.get_running_loop().time() + CLEARING
    with suppress(Cut, FellSilent, Lost, TimeoutError):
        async with asyncio.timeout_at(min(soon, until)):
            while left > 0 and (chunk := await connection.some(left, CLEARING)):
                left -= len(chunk)


def _reply(answer: Connection) -> Reply:
    asked = answer.header(RETRY_AFTER), answer.header(DATE)
    return Reply(
        status=answer.status,
        error=_error(answer.status),
        retry_after=page_wire.retry_after(*asked, longest=LONGEST_WAIT),
    )


def _error(status: int) -> str | None:
    return None if 200 <= status < 300 else f"http_{status // 100}xx:{status}"


def _failed(detail: str) -> Reply:
    return Reply(error=f"transport_error:{detail}")
