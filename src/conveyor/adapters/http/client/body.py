"""Reads whole bodies within bounds: small ones into memory, large ones into a spool."""

from collections.abc import Callable, Iterator
from datetime import timedelta

from conveyor.adapters.http.client.transport import HttpResponse
from conveyor.domain.content_coding import decoder_for
from conveyor.ports.bodies import Spool

SILENCE = timedelta(seconds=60)  # the longest pause in the middle of a response
LARGEST_BODY = 50 * 1024 * 1024
SMALL_BODY = 256 * 1024  # larger ones go to a spool
WRAPPING = 64 * 1024  # bytes that compression may add to an incompressible body
PORTION = 64 * 1024  # bytes per read of a body that is not read at once

CONTENT_ENCODING = b"content-encoding"


class BodyTooLarge(Exception):
    """The body is larger than allowed."""


class BodyReader:
    """Reads bodies up to `largest` bytes, without a pause longer than `silence` seconds.

    Raises `BodyTooLarge` and what `BodyStream` raises. It discards the spool of a body that it
    does not return.
    """

    __slots__ = ("_largest", "_silence", "_small")

    def __init__(self, *, largest: int, silence: float) -> None:
        self._largest, self._silence = largest, silence
        self._small = min(SMALL_BODY, largest)

    async def content(self, answer: HttpResponse, spool: Callable[[], Spool]) -> bytes | Spool:
        """The whole body, decompressed: in memory if it is small, else in a spool."""
        length = answer.length
        # The length of a compressed body says nothing about its decompressed size.
        if length == 0 or (length is not None and answer.header(CONTENT_ENCODING) is None):
            if length > self._largest:
                raise BodyTooLarge
            if length <= self._small:
                return await answer.read(length, self._silence)
        return await self._gather(self.inflow(answer), spool)

    def inflow(self, answer: HttpResponse) -> "BodyStream":
        return BodyStream(answer, most=self._largest + WRAPPING, silence=self._silence)

    async def _gather(self, inflow: "BodyStream", spool: Callable[[], Spool]) -> bytes | Spool:
        pieces, size = [], 0
        while piece := await inflow.chunk():
            pieces.append(piece)
            size += len(piece)
            if size > self._small:
                return await self._spooled(b"".join(pieces), inflow, spool)
        return b"".join(pieces)

    async def _spooled(
        self, piece: bytes, inflow: "BodyStream", spool: Callable[[], Spool]
    ) -> Spool:
        room, size = spool(), 0
        try:
            while piece:
                size += len(piece)
                if size > self._largest:
                    raise BodyTooLarge  # noqa: TRY301  # the spool is discarded for it as for all else
                await room.write(piece)
                piece = await inflow.chunk()
        except BaseException:
            await room.discard()
            raise
        return room

    async def beginning(self, answer: HttpResponse, most: int) -> bytes:
        """At least `most` bytes of a body, or all of it."""
        inflow, pieces, size = self.inflow(answer), [], 0
        while size < most and (piece := await inflow.chunk()):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)


class BodyStream:
    """A body as it arrives, decompressed, in pieces; an empty piece is its end.

    Raises `ResponseStalled` if nothing arrives for too long.
    """

    __slots__ = ("_answer", "_came", "_decoder", "_most", "_pieces", "_silence")

    def __init__(self, answer: HttpResponse, *, most: int, silence: float) -> None:
        self._answer = answer
        self._decoder = decoder_for([answer.header(CONTENT_ENCODING) or ""])
        self._most, self._silence = most, silence
        self._came = 0
        self._pieces: Iterator[bytes] = iter(())

    async def chunk(self) -> bytes:
        while (piece := next(self._pieces, None)) is None:
            chunk = await self._chunk()
            if not chunk:
                self._decoder.finish()
                return b""
            self._pieces = iter(self._decoder.decode(chunk))
        return piece

    async def _chunk(self) -> bytes:
        chunk = await self._answer.read(PORTION, self._silence)
        self._came += len(chunk)
        if self._came > self._most:
            raise BodyTooLarge  # more on the wire than any allowed body takes, compressed or not
        return chunk
