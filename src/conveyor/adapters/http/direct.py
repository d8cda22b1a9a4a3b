"""The direct gateway: fetches pages from their own sites. Every fault is a value."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from conveyor.adapters.http import direct_wire, page_wire
from conveyor.adapters.http.client.body import (
    CONTENT_ENCODING,
    LARGEST_BODY,
    PORTION,
    SILENCE,
    BodyReader,
    BodyTooLarge,
)
from conveyor.adapters.http.client.deadline import Deadlines
from conveyor.adapters.http.client.pool import ConnectionPool
from conveyor.adapters.http.client.resolver import CheckedResolver, Resolve, SystemResolver
from conveyor.adapters.http.client.transport import (
    PORTS,
    Denied,
    HttpResponse,
    IncompleteResponse,
    NoResponse,
    NotConnected,
    ResponseStalled,
    Server,
    TransportFactory,
)
from conveyor.adapters.http.direct_wire import Visit
from conveyor.adapters.http.page_wire import Unsendable
from conveyor.adapters.http.retry_after import retry_after
from conveyor.adapters.http.robots_txt import Robots
from conveyor.adapters.http.spacing import Spacing
from conveyor.domain import media
from conveyor.domain.breaker import HealthSignal
from conveyor.domain.content_coding import CorruptContent
from conveyor.domain.public_address import Reach
from conveyor.domain.robots import LARGEST as LARGEST_ROBOTS
from conveyor.errors import Unavailable
from conveyor.ports.bodies import Spool
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Coordination
from conveyor.ports.gateway import GatewayRefusal, Page, PageRequest

DEADLINE = timedelta(seconds=190)
MOST_REDIRECTS = 10
LARGEST_LEFTOVER = 64 * 1024  # bytes of an unused body that are read to keep its connection
CLEARING = 2.0  # seconds for that
MOST_REACHED = 3  # latest sites that answered, for `check_health`
CHECK = 3.0  # seconds to connect to one of them
SHORT_HOLD = 1.0  # seconds without calls to a site that returns 429 without `Retry-After`

RETRY_AFTER = b"retry-after"
DATE = b"date"
CONTENT_TYPE = b"content-type"
LOCATION = b"location"
WANTED = frozenset({CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, DATE, LOCATION})


class DirectGateway:
    """Open it before use: `async with DirectGateway(connections=200) as gateway`.

    It connects only to public addresses and to those in `reach`, whatever a URL, a name server or a
    redirect says. It sends the gateway key nowhere. With `coordination`, `delay` and holds of
    hosts are those of all processes that share it.
    """

    def __init__(
        self,
        *,
        deadline: timedelta = DEADLINE,
        silence: timedelta = SILENCE,
        largest_body: int = LARGEST_BODY,
        connections: int,
        reach: Reach = Reach(),  # noqa: B008 - it is frozen
        ports: Collection[int] = frozenset(PORTS.values()),
        agent: str = "Conveyor",
        heeds_robots: bool = True,
        delay: timedelta = timedelta(),
        coordination: Coordination | None = None,
        clock: Clock | None = None,
        transport: TransportFactory = ConnectionPool,
        resolve: Resolve | None = None,
    ) -> None:
        self._deadline = deadline.total_seconds()
        self._deadlines = Deadlines(self._deadline)
        self._silence = silence.total_seconds()
        self._largest = largest_body
        self._reading = BodyReader(largest=largest_body, silence=self._silence)
        self._connections = connections
        self._reach, self._ports = reach, frozenset(ports)
        self._agent, self._heeds_robots = agent, heeds_robots
        self._delay = delay.total_seconds()
        self._coordination, self._clock = coordination, clock
        self._opens = transport
        self._system = SystemResolver()
        self._resolve = resolve or self._system

    async def __aenter__(self) -> Self:
        lookup = CheckedResolver(self._reach, self._resolve)
        self._transport = self._opens(lookup, connections=self._connections, wanted=WANTED)
        self._spacing = Spacing(self._delay, self._coordination, self._clock)
        self._reached: deque[Server] = deque(maxlen=MOST_REACHED)
        self._robots = Robots(self._agent, self._rules) if self._heeds_robots else None
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
        deadline = self._deadlines.begin()
        try:
            direct_wire.check_params(request.params)
            return await self._fetched(request, spool)
        except asyncio.CancelledError:
            if not deadline.take_cancellation():
                raise
            why = f"The site did not finish its answer within {self._deadline:g} seconds."
            return page_wire.synthesised("gateway_timeout", 504, why, signal=HealthSignal.NONE)
        except Unavailable:  # the spool has no room
            return replace(page_wire.synthesised(*page_wire.NO_ROOM), storage_full=True)
        except Denied as denied:
            refusal = page_wire.synthesised(
                denied.code,
                denied.status,
                str(denied),
                signal=HealthSignal.NONE,
                rule=direct_wire.BY_CODE[denied.code],
            )
            return page_wire.later(refusal, denied.wait)
        except (
            BodyTooLarge,
            ResponseStalled,
            IncompleteResponse,
            CorruptContent,
            Unsendable,
            NoResponse,
        ) as fault:
            return page_wire.synthesised(*self._explained(fault), signal=_signal(fault))
        finally:
            deadline.lift()

    async def check_health(self) -> bool:
        """Whether a site that answered before can still be connected to."""
        for server in reversed(self._reached):
            with suppress(NoResponse, Denied, TimeoutError):
                async with asyncio.timeout(CHECK):
                    await self._transport.connect(server)
                return True
        return False

    def _explained(self, fault: Exception) -> tuple[str, int, str]:
        match fault:
            case BodyTooLarge():
                return "body_too_large", 413, f"The page is larger than {self._largest} bytes."
            case ResponseStalled():
                why = f"The site sent nothing for {self._silence:g} seconds, midway in its answer."
                return "gateway_timeout", 504, why
            case IncompleteResponse() | CorruptContent():
                why = "The site's answer was cut short or cannot be read."
                return "gateway_garbled", 502, why
            case Unsendable():
                why = "The request cannot be sent as HTTP: look at its URL, headers and body."
                return "request_unsendable", 400, why
            case _:
                return "gateway_unreachable", 502, f"The site gave no answer: {fault}."

    async def _fetched(
        self, request: PageRequest, spool: Callable[[], Spool]
    ) -> Page | GatewayRefusal:
        visit = direct_wire.first(request, self._ports)
        await self._spacing.begin(visit.server.host_header)
        for hop in range(MOST_REDIRECTS + 1):
            was_known = not self._robots or await self._robots.check_visit(visit)
            # Postpone a page only before its first request, and only if the rules were cached: if
            # they were fetched for this page, they may have expired again when it comes back.
            if not hop and was_known:
                self._spacing.admit(visit.server.host_header)
            async with self._asked(visit) as answer:
                if 200 <= answer.status < 300 or _is_allowed(request, answer):
                    content_type = media.label(answer.header(CONTENT_TYPE))
                    content = await self._reading.content(answer, spool)
                    facts = direct_wire.facts(request, visit, answer.status)
                    return Page(content=content, content_type=content_type, facts=facts)
                await _clear(answer)
                location = answer.header(LOCATION)
                if answer.status not in direct_wire.REDIRECTS or location is None:
                    facts = direct_wire.facts(request, visit, answer.status)
                    return replace(await self._refused(visit, answer), facts=facts)
                visit = direct_wire.redirected(visit, answer.status, location, self._ports)
        raise _too_many()

    @asynccontextmanager
    async def _asked(self, visit: Visit) -> AsyncIterator[HttpResponse]:
        """The response to one request. The connection is released at the end."""
        request = visit.request(self._agent)
        await self._spacing.turn(visit.server.host_header)
        answer = await self._transport.send(visit.server, request)
        try:
            if visit.server not in self._reached:
                self._reached.append(visit.server)
            yield answer
        finally:
            answer.release()

    async def _refused(self, visit: Visit, answer: HttpResponse) -> GatewayRefusal:
        wait = retry_after(answer.header(RETRY_AFTER), answer.header(DATE))
        refusal = direct_wire.refusal(answer.status, wait)
        if refusal.code == "target_throttled":
            await self._spacing.hold(
                visit.server.host_header, wait.total_seconds() if wait else SHORT_HOLD
            )
        return refusal

    async def _rules(self, url: str) -> tuple[int, bytes]:
        """The status and the text of a robots.txt."""
        visit = direct_wire.plain(url, self._ports)
        for _ in range(MOST_REDIRECTS + 1):
            async with self._asked(visit) as answer:
                if 200 <= answer.status < 300:
                    return answer.status, await self._reading.beginning(answer, LARGEST_ROBOTS)
                await _clear(answer)
                location = answer.header(LOCATION)
                if answer.status not in direct_wire.REDIRECTS or location is None:
                    return answer.status, b""
                visit = direct_wire.redirected(visit, answer.status, location, self._ports)
        raise _too_many()


def _signal(fault: Exception) -> HealthSignal:
    """What a fault says about our own network: it may be down only if no connection was made."""
    match fault:
        case NotConnected():
            return HealthSignal.UNCONNECTED
        case Unsendable():
            return HealthSignal.NONE
        case _:
            return HealthSignal.ALIVE


def _is_allowed(request: PageRequest, answer: HttpResponse) -> bool:
    return bool(request.params) and page_wire.is_allowed(request.params, answer.status)


def _too_many() -> Denied:
    why = f"The page redirects more than {MOST_REDIRECTS} times."
    return Denied("too_many_redirects", 502, why)


async def _clear(answer: HttpResponse) -> None:
    """Read a short rest of a body, so that the connection can be used again."""
    left = LARGEST_LEFTOVER
    with suppress(IncompleteResponse, ResponseStalled, TimeoutError):
        async with asyncio.timeout(CLEARING):
            while left > 0 and (chunk := await answer.read(PORTION, CLEARING)):
                left -= len(chunk)
