"""Limits: bytes and time of one request, memory of all bodies, connections and rate of a caller.

`protocol.py` limits what happens before a head is parsed.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from conveyor.api.auth import caller_of
from conveyor.domain.concurrency import Allowance
from conveyor.domain.ids import CallerId
from conveyor.errors import (
    HeadTooLarge,
    NotFound,
    Overloaded,
    RateLimited,
    RequestTimeout,
    Unavailable,
    UriTooLong,
)
from conveyor.ports.coordination import Coordination
from conveyor.steps.shared.quotas import check_quota, count_down

LONGEST_TARGET = 8 * 1024  # bytes of path and query
LARGEST_HEAD = 32 * 1024  # bytes of all headers
MOST_HEADERS = 100
BODY_IDLE = 20.0  # seconds that a body may be behind the slowest rate
SLOWEST_BODY = 500  # bytes a second
LARGE_BODY = 1024 * 1024  # bytes in memory from which a body must come faster
SLOWEST_LARGE_BODY = 64 * 1024  # bytes a second
SHARES = 2  # one caller's bodies may have a half of the memory
WAIT_AT_MOST = 10.0  # seconds for memory; then the request is refused
UNCOUNTED_BYTES = 64 * 1024  # bytes of a body that every connection buffers anyway

# Keys of an ASGI scope.
CONNECTION = "conveyor.connection"  # the connection that the request came on
EXTRA_HEADERS = "conveyor.extra_headers"  # headers of the response, also if it is an error


def check_head(scope: Scope) -> None:
    """Raise if the target or the headers of a request are too large, or the path is ambiguous."""
    path = scope.get("raw_path") or scope["path"].encode()
    # The router sees decoded paths, and would take `JOB%2Fwebhook` for another route than `JOB`.
    if b"%2f" in path.lower():
        raise NotFound("No such path")
    target = len(path) + len(scope["query_string"])
    if target > LONGEST_TARGET:
        raise UriTooLong(f"Path and query must have at most {LONGEST_TARGET} bytes, got {target}")
    headers = scope["headers"]
    if len(headers) > MOST_HEADERS:
        raise HeadTooLarge(
            f"A request must have at most {MOST_HEADERS} headers, got {len(headers)}"
        )
    length = sum(len(name) + len(value) for name, value in headers)
    if length > LARGEST_HEAD:
        raise HeadTooLarge(f"The headers must have at most {LARGEST_HEAD} bytes, got {length}")


class TimedBody:
    """The messages of a request, with a time limit on its body against slow clients (slowloris).

    Time counts only while the service waits for the client, and only until the response begins.
    What comes early gains no time for later: a client that sends nearly all of a large body at once
    must not hold its memory while the rest drips in.
    """

    def __init__(self, receive: Receive, holding: "HeldMemory | None" = None) -> None:
        self._receive = receive
        self._holding = holding
        self._is_timed = True
        self._left = BODY_IDLE  # seconds
        self._length = 0

    def stop_timing(self) -> None:
        """End the time limit: the response has begun."""
        self._is_timed = False

    async def receive(self) -> Message:
        if not self._is_timed:
            return await self._receive()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._left):
                message = await self._receive()
        except TimeoutError:
            raise RequestTimeout(
                f"The body stopped after {self._length} bytes, or comes too slowly"
            ) from None
        length = len(message.get("body", b""))
        self._length += length
        # A body that holds much memory must come faster: others wait for that memory.
        holds_much = self._holding is not None and self._holding.held > LARGE_BODY
        slowest = SLOWEST_LARGE_BODY if holds_much else SLOWEST_BODY
        left = self._left - (loop.time() - began) + length / slowest
        self._left = max(min(left, BODY_IDLE), 0.0)
        self._is_timed = message.get("more_body", False)
        return message


@dataclass(frozen=True, eq=False, slots=True)
class _Waiting:
    wanted: int
    held: int
    turn: "asyncio.Future[None]"


class BodyMemory:
    """The memory for request bodies, which all requests share.

    A request that finds no free memory waits, at most `wait_at_most` seconds. Of the waiting
    requests, the one that holds most is served first: it is the closest to being finished. If every
    request that holds memory waits for more, none can continue (a deadlock). Then the one that holds
    least is refused at once.

    The bodies of one caller have a share of the memory. A body larger than the share gets all of it,
    so it waits until its caller has no other.
    """

    def __init__(self, most: int, *, wait_at_most: float = WAIT_AT_MOST) -> None:
        self._most = most
        self._free = most
        self._turn_within = wait_at_most
        self._waiting: list[_Waiting] = []
        # A share exists while a request of its caller has a body in memory.
        self._shares = WeakValueDictionary[str, BodyMemory]()

    def share_of(self, caller: str) -> "BodyMemory":
        share = self._shares.get(caller)
        if share is None:
            most = self._most // SHARES
            share = self._shares[caller] = BodyMemory(most, wait_at_most=self._turn_within)
        return share

    async def take(self, length: int, held: int = 0) -> int:
        """Take memory and return how much; raise `Overloaded` if none becomes free in time.

        `held` is what the request holds already.
        """
        length = min(length, self._most - held)  # a body larger than the memory gets all of it
        # Do not overtake a waiting request that holds as much or more.
        if length <= self._free and not any(one.held >= held for one in self._waiting):
            self._free -= length
            return length
        await self._turn(length, held)
        return length

    def give_back(self, length: int) -> None:
        self._free += length
        while self._waiting:
            first = max(self._waiting, key=lambda one: one.held)
            if first.wanted > self._free:
                return
            self._waiting.remove(first)
            if not first.turn.done():
                self._free -= first.wanted
                first.turn.set_result(None)

    async def _turn(self, length: int, held: int) -> None:
        one = _Waiting(length, held, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        self._break_deadlock()
        try:
            async with asyncio.timeout(self._turn_within):
                await one.turn
        except (TimeoutError, Overloaded):  # `_break_deadlock` raises the second
            self._leave(one)
            raise Overloaded("Too many large requests are under way: try again later") from None
        except asyncio.CancelledError:
            self._leave(one)
            raise

    def _break_deadlock(self) -> None:
        holders = [one for one in self._waiting if one.held and not one.turn.done()]
        if len(holders) > 1 and sum(one.held for one in holders) == self._most - self._free:
            min(holders, key=lambda one: one.held).turn.set_exception(Overloaded)

    def _leave(self, one: _Waiting) -> None:
        """Stop waiting. If memory was granted at the same moment, give it to the next request."""
        if one in self._waiting:
            self._waiting.remove(one)
            self.give_back(0)
        elif not one.turn.cancelled() and one.turn.exception() is None:
            self.give_back(one.wanted)


class HeldMemory:
    """What one request holds of the memory for bodies."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._share: BodyMemory | None = None
        self._of_share = 0
        self.held = 0

    async def reserve(self, length: int, caller: str) -> None:
        """Hold memory for a body of `length` bytes."""
        if length <= max(self.held, UNCOUNTED_BYTES):
            return
        self._share = self._share or self._memory.share_of(caller)
        self._of_share += await self._share.take(length - self._of_share, self._of_share)
        self.held += await self._memory.take(length - self.held, self.held)

    def release(self) -> None:
        held, self.held = self.held, 0
        if held:
            self._memory.give_back(held)
        share, self._share = self._share, None
        if share:
            share.give_back(self._of_share)
            self._of_share = 0


@dataclass(slots=True, eq=False)
class OpenConnection:
    """One connection, and the caller whose limit it counts against.

    That is the caller who last authenticated a request on it. Until then it counts only against the
    limit of the service: the caller is not known before a head is read.
    """

    caller: CallerId | None = None
    counts: Counter[CallerId] = field(default_factory=Counter)  # those that include it

    def assign(self, caller: CallerId, counts: Counter[CallerId]) -> None:
        self.release()
        self.caller, self.counts = caller, counts
        counts[caller] += 1

    def release(self) -> None:
        if self.caller is not None:
            count_down(self.counts, self.caller)
            self.caller = None


@dataclass(frozen=True, slots=True)
class Connections:
    """A limit on the open connections of each caller."""

    most: int = 0  # of one caller; 0 is any number
    counts: Counter[CallerId] = field(default_factory=Counter)

    def count(self, request: Request) -> None:
        """Count the connection of an authenticated request, or raise `QuotaExceeded`.

        The refusal closes the connection: a client that kept it would be refused again.
        """
        connection: OpenConnection | None = request.scope.get(CONNECTION)
        caller = caller_of(request)
        if not self.most or connection is None or connection.caller == caller:
            return
        check_quota(
            "caller_connections", self.counts[caller], 1, self.most, {"Connection": "close"}
        )
        connection.assign(caller, self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A limit on the requests of each caller, reported in the RateLimit headers of the IETF draft."""

    coordination: Coordination
    rate: float = 0.0  # requests a second; 0 is no limit
    burst: int = 0  # requests at once; 0: as many as in a second
    count_skipped: Callable[[], None] = lambda: None

    async def count(self, request: Request) -> None:
        """Count a request of an authenticated caller, or raise `RateLimited`."""
        if not self.rate:
            return
        try:
            allowance = await self.coordination.take(
                f"requests:{caller_of(request)}", rate=self.rate, burst=self._burst
            )
        except Unavailable:
            # While the counter is unavailable, too many requests are better than none.
            self.count_skipped()
            return
        request.scope[EXTRA_HEADERS] += self._headers(allowance)
        if not allowance.granted:
            wait = max(math.ceil(allowance.next_in), 1)
            raise RateLimited(
                f"A caller may make {self.rate:g} requests a second, and made more: wait {wait} s",
                headers={"Retry-After": str(wait)},
            )

    @property
    def _burst(self) -> int:
        return self.burst or max(math.ceil(self.rate), 1)

    def _headers(self, allowance: Allowance) -> list[tuple[bytes, bytes]]:
        window = max(math.ceil(self._burst / self.rate), 1)
        policy = f'"requests";q={self._burst};w={window}'
        left = f'"requests";r={allowance.left};t={math.ceil(allowance.full_in)}'
        return [(b"ratelimit-policy", policy.encode()), (b"ratelimit", left.encode())]
