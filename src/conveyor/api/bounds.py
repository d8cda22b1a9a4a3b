"""Bounds on what one request, and all of them together, may take: of bytes and of time."""

import asyncio
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope

from conveyor.errors import HeadTooLarge, Overloaded, RequestTimeout, UriTooLong

LONGEST_TARGET = 8 * 1024  # bytes of path and query
LARGEST_HEAD = 32 * 1024  # bytes of all headers
MOST_HEADERS = 100
BODY_IDLE = 20.0  # seconds between two pieces of a body
SLOWEST_BODY = 500  # bytes a second, once BODY_IDLE is over
MUCH_ROOM = 1024 * 1024  # bytes in memory for one body
SLOWEST_LARGE = 64 * 1024  # bytes a second of one that holds so much
TURN_WITHIN = 10.0  # seconds in which a body comes to its turn, or is refused
UNCOUNTED = 64 * 1024  # bytes of a body that any connection may have read anyway


def check_head(scope: Scope) -> None:
    """Refuse a request whose first lines are out of all proportion."""
    target = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
    if target > LONGEST_TARGET:
        raise UriTooLong(f"Path and query have {target} bytes; at most {LONGEST_TARGET} are taken")
    headers = scope["headers"]
    if len(headers) > MOST_HEADERS:
        raise HeadTooLarge(f"There are {len(headers)} headers; at most {MOST_HEADERS} are taken")
    length = sum(len(name) + len(value) for name, value in headers)
    if length > LARGEST_HEAD:
        raise HeadTooLarge(f"The headers have {length} bytes; at most {LARGEST_HEAD} are taken")


class TimedBody:
    """A request's messages, as long as its body keeps coming.

    Time counts only while the service waits for the caller, and only until an answer begins.
    """

    def __init__(self, receive: Receive, holding: "Holding | None" = None) -> None:
        self._receive = receive
        self._holding = holding
        self._comes = True
        self._waited = 0.0
        self._length = 0

    def let_be(self) -> None:
        """Stop counting: the answer has begun."""
        self._comes = False

    async def receive(self) -> Message:
        if not self._comes:
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
        self._comes = message.get("more_body", False)
        return message

    @property
    def _patience(self) -> float:
        holds_much = self._holding is not None and self._holding.held > MUCH_ROOM
        slowest = SLOWEST_LARGE if holds_much else SLOWEST_BODY
        left = BODY_IDLE + self._length / slowest - self._waited
        return max(min(left, BODY_IDLE), 0.0)


@dataclass(frozen=True, eq=False, slots=True)
class _Waiting:
    wanted: int
    held: int
    turn: "asyncio.Future[None]"


class BodyRoom:
    """Room in memory for the bodies of requests; who finds none waits in line, but not for long.

    Who holds most comes first. When all that hold some wait for more, nobody would ever go on:
    then the one with least is refused at once.
    """

    def __init__(self, most: int, *, turn_within: float = TURN_WITHIN) -> None:
        self._most = most
        self._free = most
        self._turn_within = turn_within
        self._waiting: list[_Waiting] = []

    async def take(self, length: int, held: int = 0) -> int:
        """Take more room than is held, and say how much; `Overloaded` when none is free in time."""
        length = min(length, self._most - held)  # a body larger than all has all to itself
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
        self._keep_going()
        try:
            async with asyncio.timeout(self._turn_within):
                await one.turn
        except (TimeoutError, Overloaded):
            self._leave(one)
            raise Overloaded("Too many large requests are under way: try again later") from None
        except asyncio.CancelledError:
            self._leave(one)
            raise

    def _keep_going(self) -> None:
        holders = [one for one in self._waiting if one.held and not one.turn.done()]
        if len(holders) > 1 and sum(one.held for one in holders) == self._most - self._free:
            min(holders, key=lambda one: one.held).turn.set_exception(Overloaded)

    def _leave(self, one: _Waiting) -> None:
        """Go out of the line; room that was given just then goes to the next."""
        if one in self._waiting:
            self._waiting.remove(one)
            self.give_back(0)
        elif not one.turn.cancelled() and one.turn.exception() is None:
            self.give_back(one.wanted)


class Holding:
    """What one request holds of the room for bodies."""

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self.held = 0

    async def reach(self, length: int) -> None:
        """Hold enough for a body of `length` bytes."""
        if length > max(self.held, UNCOUNTED):
            self.held += await self._room.take(length - self.held, self.held)

    def let_go(self) -> None:
        held, self.held = self.held, 0
        if held:
            self._room.give_back(held)
