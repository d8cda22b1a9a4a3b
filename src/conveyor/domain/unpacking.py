"""Compressed bodies unpacked as they come, a piece at a time, and known to be whole at their end."""

import zlib
from collections.abc import Iterable, Iterator
from typing import Protocol

ACCEPTED = "gzip, deflate"
PIECE = 64 * 1024  # as much is unpacked at once: what a small answer holds may be huge
# Each one copies what follows it, so an answer of nothing else would keep the processor busy.
MOST_MEMBERS = 1024
MEMBER = b"\x1f\x8b"

GZIP, ZLIB, RAW = 31, 15, -15  # what zlib calls window bits


class Garbled(Exception):
    """The body is cut short, is not what it says it is, or is in no coding known here."""


class Unpacking(Protocol):
    def pieces(self, packed: bytes) -> Iterable[bytes]:
        """What these bytes unpack to. Take all of it before giving more; raises `Garbled`."""
        ...

    def finish(self) -> None:
        """Raises `Garbled` when there should have been more."""
        ...


def unpacking(encodings: Iterable[str]) -> Unpacking:
    """For the values of an answer's `Content-Encoding`, of which there may be none."""
    named = (name.strip().lower() for name in ",".join(encodings).split(","))
    match [name for name in named if name not in {"", "identity"}]:
        case []:
            return Plain()
        case ["gzip" | "x-gzip"]:
            return Gunzip()
        case ["deflate"]:
            return Inflate()
        case _:
            raise Garbled


class Plain:
    """Nothing to unpack."""

    def pieces(self, packed: bytes) -> Iterable[bytes]:
        return (packed,)

    def finish(self) -> None:
        """There is no telling, and no need: HTTP itself tells where such a body ends."""


class Gunzip:
    """Members of gzip, one after the other.

    What follows the last and is none is let go, as browsers do, or refused when all counts.
    """

    def __init__(self, *, most_members: int = MOST_MEMBERS, all_counts: bool = False) -> None:
        self._member = zlib.decompressobj(GZIP)
        self._members = 1
        self._most_members = most_members
        self._all_counts = all_counts
        self._between = b""
        self._is_over = False

    def pieces(self, packed: bytes) -> Iterator[bytes]:
        packed, self._between = self._between + packed, b""
        while packed and self._is_open(packed):
            yield from _inflated(self._member, packed)
            packed = self._member.unused_data

    def finish(self) -> None:
        _require_end(self._member)
        if self._between and self._all_counts:
            raise Garbled

    def _is_open(self, packed: bytes) -> bool:
        """Whether a member is under way, if need be a new one that begins here."""
        if not self._member.eof:
            return True
        if packed == MEMBER[:1]:
            self._between = packed
            return False
        self._is_over = self._is_over or not packed.startswith(MEMBER)
        if self._is_over and self._all_counts:
            raise Garbled
        if not self._is_over:
            self._open()
        return not self._is_over

    def _open(self) -> None:
        self._members += 1
        if self._members > self._most_members:
            raise Garbled
        self._member = zlib.decompressobj(GZIP)


class Inflate:
    """`deflate` means the zlib format, but has long been sent without zlib's frame too."""

    def __init__(self) -> None:
        self._stream: zlib._Decompress | None = None

    def pieces(self, packed: bytes) -> Iterator[bytes]:
        if self._stream is None:
            # 8 is zlib's name for the method; a bare stream that began so would have to pad
            # its first block with other bits than zeros.
            self._stream = zlib.decompressobj(ZLIB if packed[0] & 0x0F == 8 else RAW)
        if not self._stream.eof:
            yield from _inflated(self._stream, packed)

    def finish(self) -> None:
        _require_end(self._stream)


def _inflated(stream: "zlib._Decompress", packed: bytes) -> Iterator[bytes]:
    """All that comes of these bytes, up to the end of the stream."""
    piece = b""
    # A full piece may have taken in all bytes, and left some of what they hold for the next.
    while not stream.eof and (packed or len(piece) == PIECE):
        try:
            piece = stream.decompress(packed, PIECE)
        except zlib.error as error:
            raise Garbled from error
        packed = stream.unconsumed_tail
        if piece:
            yield piece


def _require_end(stream: "zlib._Decompress | None") -> None:
    if stream is None or not stream.eof:
        raise Garbled
