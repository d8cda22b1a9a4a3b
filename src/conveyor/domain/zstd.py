"""Frames of zstd, unpacked a piece at a time."""

import sys
from collections.abc import Iterator

from conveyor.domain.unpacking import PIECE, Garbled

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SKIPPED = tuple(bytes([low]) + b"\x2a\x4d\x18" for low in range(0x50, 0x60))
FRAMES = (b"\x28\xb5\x2f\xfd", *SKIPPED)
# 8 MiB, as much as RFC 9659 lets a sender ask for: up to level 19 no more is needed.
OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}


class Unzstd:
    """Frames one after the other, and nothing else."""

    def __init__(self, *, most_frames: int) -> None:
        self._frame: zstd.ZstdDecompressor | None = None
        self._frames = 0
        self._most_frames = most_frames

    def pieces(self, packed: bytes) -> Iterator[bytes]:
        while packed:
            frame = self._frame = self._frame or self._opened()
            try:
                yield from _unpacked(frame, packed)
            except zstd.ZstdError as error:
                raise Garbled from error
            packed = frame.unused_data
            if frame.eof:
                self._frame = None

    def finish(self) -> None:
        if self._frame or not self._frames:
            raise Garbled

    def _opened(self) -> zstd.ZstdDecompressor:
        self._frames += 1
        if self._frames > self._most_frames:
            raise Garbled
        return zstd.ZstdDecompressor(options=OPTIONS)


def _unpacked(frame: zstd.ZstdDecompressor, packed: bytes) -> Iterator[bytes]:
    """All that comes of these bytes, up to the end of the frame."""
    while packed or not (frame.eof or frame.needs_input):
        piece = frame.decompress(packed, PIECE)
        packed = b""
        if piece:
            yield piece
