"""The ZenRows gateway over HTTP: one request for one page, and every mishap a value."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import SplitResult, urlsplit

from msgspec.structs import replace

from conveyor.adapters.http import zenrows_wire as wire
from conveyor.adapters.http.exchange import Connection, Cut, FellSilent, Lost
from conveyor.adapters.http.pool import Pool, server
from conveyor.adapters.http.requests import fields
from conveyor.adapters.http.requests import request as request_of
from conveyor.domain.counts import NOTHING, Spend
from conveyor.domain.unpacking import ACCEPTED, Garbled, unpacking
from conveyor.ports.bodies import Spool
from conveyor.ports.gateway import Page, PageRequest, Refusal

DEADLINE = timedelta(seconds=190)  # the gateway itself gives up after some 181
SILENCE = timedelta(seconds=60)  # in the middle of an answer, once it has begun
LARGEST_BODY = 50 * 1024 * 1024
SMALL_BODY = 256 * 1024  # larger ones go through a spool
LARGEST_PROBLEM = 64 * 1024
WRAPPING = 64 * 1024  # what compressing may add to a body that does not compress
PORTION = 64 * 1024  # of a body that is not taken in one piece

CONTENT_ENCODING = b"content-encoding"
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
        self._silence = silence.total_seconds()
        self._largest = largest_body
        self._small = min(SMALL_BODY, largest_body)
        self._connections = connections

    async def __aenter__(self) -> Self:
        self._pool = Pool(self._server, connections=self._connections, wanted=WANTED)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._pool.close()

    async def fetch(self, request: PageRequest, spool: Callable[[], Spool]) -> Page | Refusal:
        told = NOTHING_TOLD
        limit = Deadline(self._deadline)
        try:
            asked = self._put(request)
            answer = await self._pool.take()
            try:
                answer.ask(asked)
                await answer.head()
                told = _told(request, answer)
                if 200 <= answer.status < 300:
                    return told.page(await self._content(answer, spool))
                return await self._judge(request, answer, told, spool)
            finally:
                self._pool.give_back(answer)
        except asyncio.CancelledError:
            if not limit.is_why():
                raise
            why = f"The gateway did not finish its answer within {self._deadline:g} seconds."
            return told.refusal("gateway_timeout", 504, why)
        except BodyTooLarge:
            why = f"The page is larger than {self._largest} bytes."
            return told.refusal("body_too_large", 413, why)
        except FellSilent:
            why = f"The gateway sent nothing for {self._silence:g} seconds, midway in its answer."
            return told.refusal("gateway_timeout", 504, why)
        except (Cut, Garbled):
            why = "The gateway's answer was cut short or cannot be read."
            return told.refusal("gateway_garbled", 502, why)
        except Unsendable:
            why = "The request cannot be put into HTTP: look at its URL, headers and body."
            return wire.synthesised("request_unsendable", 400, why)
        except Lost as lost:
            why = f"The gateway gave no answer: {lost}."
            return told.refusal("gateway_unreachable", 502, why)
        finally:
            limit.lift()

    def _put(self, request: PageRequest) -> bytes:
        try:
            return self._written(request)
        except (ValueError, LookupError) as odd:
            raise Unsendable from odd

    def _written(self, request: PageRequest) -> bytes:
        headers, content = wire.forwarded(request), None
        target = wire.address(self._question, request, headers)
        own = self._lines
        if self._authorization and not _has(headers, "authorization"):
            own += self._authorization
        if request.call_id and not headers and self._keeps_headers:
            headers = {"X-Request-ID": request.call_id}  # no target can see it
        if request.method == "POST" and request.body is not None:
            content, kind = wire.payload(request.body)
            if not _has(headers, "content-type"):
                headers = {**headers, "Content-Type": kind}
        return request_of(request.method, target, own, headers, content)

    async def _judge(
        self,
        request: PageRequest,
        answer: Connection,
        told: "Told",
        spool: Callable[[], Spool],
    ) -> Page | Refusal:
        """A status other than success: a refusal, unless the caller takes such pages."""
        allowed = wire.is_allowed(request.params, answer.status)
        if allowed:
            body = await self._content(answer, spool)
        else:
            body = await _beginning(self._inflow(answer))
        if not isinstance(body, bytes):
            return told.page(body)
        document = wire.gateway_problem(body[:LARGEST_PROBLEM])
        if document is not None:
            refusal = wire.refusal(document, answer.status, request.key, named=told.named)
        elif allowed:
            return told.page(body)
        else:
            refusal = wire.wordless(body, answer.status, request.key, named=told.named)
        wait = wire.retry_after(answer.header(RETRY_AFTER), answer.header(DATE))
        return replace(refusal, retry_after=wait, spend=told.charged)

    async def _content(self, answer: Connection, spool: Callable[[], Spool]) -> bytes | Spool:
        length = answer.length
        # A compressed answer's length says nothing about the size it unpacks to.
        if length == 0 or (length is not None and answer.header(CONTENT_ENCODING) is None):
            if length > self._largest:
                raise BodyTooLarge
            if length <= self._small:
                return await answer.some(length, self._silence)
        return await self._gather(self._inflow(answer), spool)

    def _inflow(self, answer: Connection) -> "Inflow":
        return Inflow(answer, most=self._largest + WRAPPING, silence=self._silence)

    async def _gather(self, inflow: "Inflow", spool: Callable[[], Spool]) -> bytes | Spool:
        pieces, size = [], 0
        while piece := await inflow.piece():
            pieces.append(piece)
            size += len(piece)
            if size > self._small:
                return await self._spooled(b"".join(pieces), inflow, spool)
        return b"".join(pieces)

    async def _spooled(self, piece: bytes, inflow: "Inflow", spool: Callable[[], Spool]) -> Spool:
        room, size = spool(), 0
        try:
            while piece:
                size += len(piece)
                if size > self._largest:
                    raise BodyTooLarge  # noqa: TRY301  # the spool is discarded for it as for all else
                await room.write(piece)
                piece = await inflow.piece()
        except BaseException:
            await room.discard()
            raise
        return room


class Told(NamedTuple):
    """What the head of an answer tells beside its status: it counts even if no body follows."""

    charged: Spend = NOTHING
    named: str | None = None
    limit: int | None = None

    def page(self, content: bytes | Spool) -> Page:
        return Page(
            content=content,
            spend=self.charged,
            gateway_request_id=self.named,
            limit=self.limit,
        )

    def refusal(self, code: str, status: int, why: str) -> Refusal:
        return wire.synthesised(code, status, why, charged=self.charged, named=self.named)


NOTHING_TOLD = Told()


def _told(request: PageRequest, answer: Connection) -> Told:
    charged = wire.spend(answer.header(CREDITS), answer.header(COST))
    named = wire.request_id(answer.header(REQUEST_ID), request.key)
    return Told(charged, named, wire.limit(answer.header(LIMIT)))


class Inflow:
    """A body as it comes in, unpacked, in pieces; an empty one is its end.

    Raises `FellSilent` when nothing comes for too long.
    """

    __slots__ = ("_answer", "_came", "_most", "_pieces", "_silence", "_unpacking")

    def __init__(self, answer: Connection, *, most: int, silence: float) -> None:
        self._answer = answer
        self._unpacking = unpacking([answer.header(CONTENT_ENCODING) or ""])
        self._most, self._silence = most, silence
        self._came = 0
        self._pieces: Iterator[bytes] = iter(())

    async def piece(self) -> bytes:
        while (piece := next(self._pieces, None)) is None:
            chunk = await self._chunk()
            if not chunk:
                self._unpacking.finish()
                return b""
            self._pieces = iter(self._unpacking.pieces(chunk))
        return piece

    async def _chunk(self) -> bytes:
        chunk = await self._answer.some(PORTION, self._silence)
        self._came += len(chunk)
        if self._came > self._most:
            raise BodyTooLarge  # however little it unpacks to
        return chunk


class Deadline:
    """Cancels the task that made it, once, when its time is up.

    What `asyncio.timeout` does, for a third of its cost: that was a twentieth of a page's.
    """

    __slots__ = ("_task", "_timer", "_was_cancelled")

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._was_cancelled = False
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def is_why(self) -> bool:
        """Whether a cancellation came from here, and from nobody else as well."""
        return self._was_cancelled and self._task.uncancel() == 0

    def lift(self) -> None:
        self._timer.cancel()

    def _expire(self) -> None:
        self._was_cancelled = True
        self._task.cancel()


class BodyTooLarge(Exception):
    """More came than may be kept."""


class Unsendable(Exception):
    """A request that cannot be put on the wire."""


def _has(headers: Mapping[str, str], lower: str) -> bool:
    return any(name.lower() == lower for name in headers)


async def _beginning(inflow: Inflow) -> bytes:
    pieces, size = [], 0
    while size < LARGEST_PROBLEM and (piece := await inflow.piece()):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)
