"""Limits on the bytes and the time of one request, and on the memory of all requests together."""

import asyncio
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope

from conveyor.errors import HeadTooLarge, Overloaded, RequestTimeout, UriTooLong

LONGEST_TARGET = 8 * 1024  # bytes of path and query
LARGEST_HEAD = 32 * 1024  # bytes of all headers
MOST_HEADERS = 100
BODY_IDLE = 20.0  # seconds between two parts of a body
SLOWEST_BODY = 500  # bytes a second, once BODY_IDLE is over
LARGE_BODY = 1024 * 1024  # bytes in memory from which a body must come faster
SLOWEST_LARGE_BODY = 64 * 1024  # bytes a second
WAIT_AT_MOST = 10.0  # seconds for memory; then the request is refused
UNCOUNTED_BYTES = 64 * 1024  # bytes of a body that every connection buffers anyway


def check_head(scope: Scope) -> None:
    """Refuse a request whose target or headers are too large."""
    target = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
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
    """The messages of a request, with a time limit on its body.

    Time counts only while the service waits for the client, and only until the response begins.
    """

    def __init__(self, receive: Receive, holding: "HeldMemory | None" = None) -> None:
        self._receive = receive
        self._holding = holding
        self._is_timed = True
        self._waited = 0.0
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
            async with asyncio.timeout(self._patience):
                message = await self._receive()
        except TimeoutError:
            raise RequestTimeout(
                f"The body stopped after {self._length} bytes, or comes too slowly"
            ) from None
        self._waited += loop.time() - began
        self._length += len(message.get("body", b""))
        self._is_timed = message.get("more_body", False)
        return message

    @property
    def _patience(self) -> float:
        holds_much = self._holding is not None and self._holding.held > LARGE_BODY
        slowest = SLOWEST_LARGE_BODY if holds_much else SLOWEST_BODY
        left = BODY_IDLE + self._length / slowest - self._waited
        return max(min(left, BODY_IDLE), 0.0)


@dataclass(frozen=True, eq=False, slots=True)
class _Waiting:
    wanted: int
    held: int
    turn: "asyncio.Future[None]"


class BodyMemory:
    """Memory for request bodies. A request that finds none free waits, but not for long.

    The request that holds most is served first. When every request that holds some waits for more,
    none could go on (a deadlock): then the one that holds least is refused at once.
    """

    def __init__(self, most: int, *, wait_at_most: float = WAIT_AT_MOST) -> None:
        self._most = most
        self._free = most
        self._turn_within = wait_at_most
        self._waiting: list[_Waiting] = []

    async def take(self, length: int, held: int = 0) -> int:
        """Take memory and return how much; `Overloaded` when none is free in time.

        `held` is what the request holds already.
        """
        length = min(length, self._most - held)  # a larger body gets all of it
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
        except (TimeoutError, Overloaded):
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
        """Stop waiting; memory that was given at the same moment goes to the next."""
        if one in self._waiting:
            self._waiting.remove(one)
            self.give_back(0)
        elif not one.turn.cancelled() and one.turn.exception() is None:
            self.give_back(one.wanted)


class HeldMemory:
    """What one request holds of the memory for bodies."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.held = 0

    async def reserve(self, length: int) -> None:
        """Hold memory for a body of `length` bytes."""
        if length > max(self.held, UNCOUNTED_BYTES):
            self.held += await self._memory.take(length - self.held, self.held)

    def release(self) -> None:
        held, self.held = self.held, 0
        if held:
            self._memory.give_back(held)
