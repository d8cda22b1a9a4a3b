"""Bounds on what one request, and all of them together, may take: of bytes and of time."""

import asyncio
from collections import deque

from starlette.types import Message, Receive, Scope

from conveyor.errors import HeadTooLarge, Overloaded, RequestTimeout, UriTooLong

LONGEST_TARGET = 8 * 1024  # bytes of path and query
LARGEST_HEAD = 32 * 1024  # bytes of all headers
MOST_HEADERS = 100
BODY_IDLE = 20.0  # seconds between two pieces of a body
SLOWEST_BODY = 500  # bytes a second, once BODY_IDLE is over
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

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
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
        left = BODY_IDLE + self._length / SLOWEST_BODY - self._waited
        return max(min(left, BODY_IDLE), 0.0)


class BodyRoom:
    """Room in memory for the bodies of requests; who finds none waits in line, but not for long."""

    def __init__(self, most: int, *, turn_within: float = TURN_WITHIN) -> None:
        self._most = most
        self._free = most
        self._turn_within = turn_within
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, length: int) -> int:
        """Take room, and say how much; `Overloaded` when none comes free in time."""
        length = min(length, self._most)  # a body larger than the room has all of it to itself
        if not self._waiting and length <= self._free:
            self._free -= length
            return length
        await self._turn(length)
        return length

    def give_back(self, length: int) -> None:
        self._free += length
        while self._waiting and self._waiting[0][0] <= self._free:
            wanted, turn = self._waiting.popleft()
            if not turn.done():
                self._free -= wanted
                turn.set_result(None)

    async def _turn(self, length: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((length, turn))
        try:
            async with asyncio.timeout(self._turn_within):
                await turn
        except TimeoutError:
            self._leave(length, turn)
            raise Overloaded("Too many large requests are under way: try again later") from None
        except asyncio.CancelledError:
            self._leave(length, turn)
            raise

    def _leave(self, length: int, turn: "asyncio.Future[None]") -> None:
        """Go out of the line; room that was given just then goes to the next."""
        if turn.done() and not turn.cancelled():
            self.give_back(length)
            return
        turn.cancel()
        self._waiting = deque(one for one in self._waiting if one[1] is not turn)
        self.give_back(0)


class Holding:
    """What one request holds of the room for bodies."""

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._held = 0

    async def reach(self, length: int) -> None:
        """Hold enough for a body of `length` bytes."""
        if length > max(self._held, UNCOUNTED):
            self._held += await self._room.take(length - self._held)

    def let_go(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._room.give_back(held)
