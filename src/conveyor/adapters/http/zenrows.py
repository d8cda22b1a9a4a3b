"""The ZenRows gateway over HTTP: one request for one page, and every mishap a value."""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import NamedTuple, Self

from aiohttp import (
    ClientConnectorDNSError,
    ClientError,
    ClientOSError,
    ClientPayloadError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DummyCookieJar,
    ServerDisconnectedError,
    StreamReader,
    TCPConnector,
)
from msgspec.structs import replace
from multidict import istr
from yarl import URL

from conveyor.adapters.http import zenrows_wire as wire
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
# Targets' headers come back too, and some are long.
LONGEST_HEADER = 64 * 1024
MOST_HEADERS = 1024

CONTENT_TYPE = istr("Content-Type")
CONTENT_ENCODING = istr("Content-Encoding")
CREDITS = istr("X-Request-Credits")
COST = istr("X-Request-Cost")
RETRY_AFTER = istr("Retry-After")
DATE = istr("Date")
REQUEST_ID = istr("X-Request-ID")
LIMIT = istr("Concurrency-Limit")


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
        self._question = wire.question(bare)
        self._keeps_headers = wire.keeps_headers(bare)
        self._headers = {"Accept-Encoding": ACCEPTED, **authorization}
        self._deadline = deadline.total_seconds()
        self._silence = silence.total_seconds()
        self._largest = largest_body
        self._small = min(SMALL_BODY, largest_body)
        self._connections = connections

    async def __aenter__(self) -> Self:
        self._session = ClientSession(
            connector=TCPConnector(limit=self._connections),
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(),
            trust_env=False,
            headers=self._headers,
            auto_decompress=False,  # aiohttp takes a stream that is cut short for a whole one
            # With custom headers on, all that is sent reaches the target.
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            max_line_size=LONGEST_HEADER,
            max_field_size=LONGEST_HEADER,
            max_headers=MOST_HEADERS,
        )
        # aiohttp sends a GET again by itself when its connection drops, with no public switch
        # (https://github.com/aio-libs/aiohttp/issues/10790). A page that is asked for twice may
        # be paid for twice, so each asking is to be seen.
        self._session._retry_connection = False  # noqa: SLF001
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def fetch(self, request: PageRequest, spool: Callable[[], Spool]) -> Page | Refusal:
        told = NOTHING_TOLD
        limit = Deadline(self._deadline)
        try:
            async with await self._ask(request) as answer:
                told = _told(request, answer)
                if 200 <= answer.status < 300:
                    return told.page(await self._content(answer, spool))
                return await self._judge(request, answer, told, spool)
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
        except (ClientPayloadError, Garbled):
            why = "The gateway's answer was cut short or cannot be read."
            return told.refusal("gateway_garbled", 502, why)
        except Unsendable:
            why = "The request cannot be put into HTTP: look at its URL, headers and body."
            return wire.synthesised("request_unsendable", 400, why)
        except ClientError as lost:
            why = f"The gateway gave no answer: {_what_happened(lost)}."
            return told.refusal("gateway_unreachable", 502, why)
        finally:
            limit.lift()

    async def _ask(self, request: PageRequest) -> ClientResponse:
        try:
            return await self._send(request)
        except ClientError:
            raise
        except OSError as lost:
            raise ClientOSError(*lost.args) from lost
        except (ValueError, LookupError) as odd:
            raise Unsendable from odd

    async def _send(self, request: PageRequest) -> ClientResponse:
        headers, content = wire.forwarded(request), None
        where = URL(wire.address(self._question, request, headers), encoded=True)
        if request.call_id and not headers and self._keeps_headers:
            headers = {REQUEST_ID: request.call_id}  # no target can see it
        if request.method == "POST" and request.body is not None:
            content, kind = wire.payload(request.body)
            if not any(name.lower() == "content-type" for name in headers):
                headers = {**headers, CONTENT_TYPE: kind}
        return await self._session.request(
            request.method, where, headers=headers, data=content, allow_redirects=False
        )

    async def _judge(
        self,
        request: PageRequest,
        answer: ClientResponse,
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
        wait = wire.retry_after(answer.headers.get(RETRY_AFTER), answer.headers.get(DATE))
        return replace(refusal, retry_after=wait, spend=told.charged)

    async def _content(self, answer: ClientResponse, spool: Callable[[], Spool]) -> bytes | Spool:
        length = answer.content_length
        # A compressed answer's length says nothing about the size it unpacks to.
        if length == 0 or (length is not None and CONTENT_ENCODING not in answer.headers):
            if length > self._largest:
                raise BodyTooLarge
            if length <= self._small and answer.content.is_eof():
                return await answer.read()  # all of it came with its headers, as it mostly does
        return await self._gather(self._inflow(answer), spool)

    def _inflow(self, answer: ClientResponse) -> "Inflow":
        encodings = answer.headers.getall(CONTENT_ENCODING, ())
        return Inflow(
            answer.content, encodings, most=self._largest + WRAPPING, silence=self._silence
        )

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


def _told(request: PageRequest, answer: ClientResponse) -> Told:
    headers = answer.headers
    charged = wire.spend(headers.get(CREDITS), headers.get(COST))
    named = wire.request_id(headers.get(REQUEST_ID), request.key)
    return Told(charged, named, wire.limit(headers.get(LIMIT)))


class Inflow:
    """A body as it comes in, unpacked, in pieces; an empty one is its end.

    Raises `FellSilent` when nothing comes for too long. aiohttp's `sock_read` does not: it says
    nothing when a chunk cannot be parsed, and counts from before the gateway has answered.
    """

    __slots__ = ("_came", "_loop", "_most", "_pieces", "_silence", "_stream", "_unpacking")

    def __init__(
        self, stream: StreamReader, encodings: Iterable[str], *, most: int, silence: float
    ) -> None:
        self._stream = stream
        self._unpacking = unpacking(encodings)
        self._most, self._silence = most, silence
        self._came = 0
        self._pieces: Iterator[bytes] = iter(())
        self._loop = asyncio.get_running_loop()

    async def piece(self) -> bytes:
        while (piece := next(self._pieces, None)) is None:
            chunk = await self._chunk()
            if not chunk:
                self._unpacking.finish()
                return b""
            self._pieces = iter(self._unpacking.pieces(chunk))
        return piece

    async def _chunk(self) -> bytes:
        timer = self._loop.call_later(self._silence, self._stream.set_exception, FellSilent())
        try:
            chunk = await self._stream.readany()
        finally:
            timer.cancel()
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


class FellSilent(Exception):
    """An answer has begun, and does not go on."""


class Unsendable(Exception):
    """A request that the driver cannot put on the wire."""


def _what_happened(lost: ClientError) -> str:
    """In words of our own: those of the driver may hold the address, and so the key."""
    match lost:
        case ServerDisconnectedError():
            return "the connection was closed first"
        case ClientResponseError():
            return "what came back is not HTTP"
        case ClientConnectorDNSError():
            return "its host has no address"
        case ClientSSLError():
            return "no safe connection could be made"
        case ClientOSError(errno=int(number)):
            return os.strerror(number)
        case _:
            return "the connection failed"


async def _beginning(inflow: Inflow) -> bytes:
    pieces, size = [], 0
    while size < LARGEST_PROBLEM and (piece := await inflow.piece()):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)
