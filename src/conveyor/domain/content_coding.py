"""Content codings: streaming decoders that detect corrupt and truncated content.

HTTP bodies and uploaded lists use them. A few compressed bytes may hold gigabytes, so no decoder
returns more than `PIECE` bytes at a time; the caller counts them and stops.
"""

import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Protocol

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ACCEPTED = "gzip, deflate"  # for `Accept-Encoding`
PIECE = 64 * 1024
# Opening a gzip member copies the bytes after it. A body of nothing but empty members would
# therefore take time that grows with the square of its length.
MOST_MEMBERS = 1024
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_SKIPPABLE = tuple(bytes([low]) + b"\x2a\x4d\x18" for low in range(0x50, 0x60))
ZSTD_MAGIC = (b"\x28\xb5\x2f\xfd", *ZSTD_SKIPPABLE)
# 8 MiB, the largest window that RFC 9659 allows senders to require: levels up to 19 need no more.
ZSTD_OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}

GZIP, ZLIB, RAW = 31, 15, -15  # zlib's `wbits`


class CorruptContent(Exception):
    """The content is cut short, is not what it claims to be, or has an unknown coding."""


class Decoder(Protocol):
    def decode(self, content: bytes) -> Iterable[bytes]:
        """What these bytes decode to. Exhaust it before the next call; raises `CorruptContent`."""
        ...

    def finish(self) -> None:
        """Raises `CorruptContent` when the content ended too early."""
        ...


def decoder_for(encodings: Iterable[str]) -> Decoder:
    """The decoder for a body with these values of `Content-Encoding`, of which there may be none."""
    named = (name.strip().lower() for name in ",".join(encodings).split(","))
    match [name for name in named if name not in {"", "identity"}]:
        case []:
            return IdentityDecoder()
        case ["gzip" | "x-gzip"]:
            return GzipDecoder()
        case ["deflate"]:
            return DeflateDecoder()
        case _:
            raise CorruptContent


class IdentityDecoder:
    """Content that is not compressed."""

    def decode(self, content: bytes) -> Iterable[bytes]:
        return (content,)

    def finish(self) -> None:
        """Always complete: HTTP framing says where such a body ends."""


class GzipDecoder:
    """Gzip members, one after the other.

    Other bytes after the last member are ignored, as browsers do; with `strict` they are an error.
    """

    def __init__(self, *, most_members: int = MOST_MEMBERS, strict: bool = False) -> None:
        self._member = zlib.decompressobj(GZIP)
        self._members = 1
        self._most_members = most_members
        self._strict = strict
        self._between = b""  # half of a magic number, at the end of the last call
        self._is_over = False

    def decode(self, content: bytes) -> Iterator[bytes]:
        content, self._between = self._between + content, b""
        while content and self._is_open(content):
            yield from _inflated(self._member, content)
            content = self._member.unused_data

    def finish(self) -> None:
        _require_end(self._member)
        if self._between and self._strict:
            raise CorruptContent

    def _is_open(self, content: bytes) -> bool:
        """Whether these bytes belong to a member, the current one or a new one that they begin."""
        if not self._member.eof:
            return True
        if content == GZIP_MAGIC[:1]:
            self._between = content
            return False
        self._is_over = self._is_over or not content.startswith(GZIP_MAGIC)
        if self._is_over and self._strict:
            raise CorruptContent
        if not self._is_over:
            self._open()
        return not self._is_over

    def _open(self) -> None:
        self._members += 1
        if self._members > self._most_members:
            raise CorruptContent
        self._member = zlib.decompressobj(GZIP)


class DeflateDecoder:
    """`deflate` means the zlib format, but many servers send it without zlib's header."""

    def __init__(self) -> None:
        self._stream: zlib._Decompress | None = None

    def decode(self, content: bytes) -> Iterator[bytes]:
        if self._stream is None:
            # 8 is zlib's number for the method. A raw stream could begin with it only if it padded
            # its first block with bits other than zero.
            self._stream = zlib.decompressobj(ZLIB if content[0] & 0x0F == 8 else RAW)
        if not self._stream.eof:
            yield from _inflated(self._stream, content)

    def finish(self) -> None:
        _require_end(self._stream)


class ZstdDecoder:
    """Zstd frames, one after the other, and nothing else."""

    def __init__(self, *, most_frames: int) -> None:
        self._frame: zstd.ZstdDecompressor | None = None
        self._frames = 0
        self._most_frames = most_frames

    def decode(self, content: bytes) -> Iterator[bytes]:
        while content:
            frame = self._frame = self._frame or self._opened()
            try:
                yield from _unpacked(frame, content)
            except zstd.ZstdError as error:
                raise CorruptContent from error
            content = frame.unused_data
            if frame.eof:
                self._frame = None

    def finish(self) -> None:
        if self._frame or not self._frames:
            raise CorruptContent

    def _opened(self) -> zstd.ZstdDecompressor:
        self._frames += 1
        if self._frames > self._most_frames:
            raise CorruptContent
        return zstd.ZstdDecompressor(options=ZSTD_OPTIONS)


def _unpacked(frame: zstd.ZstdDecompressor, content: bytes) -> Iterator[bytes]:
    """What these bytes decode to, up to the end of the frame."""
    while content or not (frame.eof or frame.needs_input):
        piece = frame.decompress(content, PIECE)
        content = b""
        if piece:
            yield piece


def _inflated(stream: "zlib._Decompress", content: bytes) -> Iterator[bytes]:
    """What these bytes decode to, up to the end of the stream."""
    piece = b""
    # A full piece may have consumed all input and still hold back output for the next call.
    while not stream.eof and (content or len(piece) == PIECE):
        try:
            piece = stream.decompress(content, PIECE)
        except zlib.error as error:
            raise CorruptContent from error
        content = stream.unconsumed_tail
        if piece:
            yield piece


def _require_end(stream: "zlib._Decompress | None") -> None:
    if stream is None or not stream.eof:
        raise CorruptContent
