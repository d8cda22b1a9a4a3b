"""Staged lists that come packed: known by what they begin with, unpacked as a stream, bounded.

No list begins with the marks of gzip or zstd, which are not UTF-8 or hold a control character; so
nothing has to be said about a list for it to be unpacked. Neither format can be entered midway:
to go on after a crash a list is unpacked from its start again, and the part that was read before
is left out. That costs computing only.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum

from conveyor.domain.unpacking import MEMBER, Garbled, Gunzip, Plain, Unpacking
from conveyor.domain.zstd import FRAMES, Unzstd
from conveyor.errors import InvalidArgument, TooLarge

LARGEST_UNPACKED = 20 * 1024**3  # bytes of a list
LARGEST_RATIO = 250  # of unpacked bytes to packed ones, past the first
ANY_RATIO = 64 * 1024**2  # unpacked bytes for which no ratio is asked
MOST_PARTS = 1_000_000  # members of gzip, frames of zstd
BITE = 16 * 1024  # as much is unpacked at once: each part copies what follows it

# What no list begins with, and what it is.
FOREIGN = {
    b"PK\x03\x04": "zip",
    b"BZh91AY&SY": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"7z\xbc\xaf\x27\x1c": "7z",
}
LONGEST_MARK = max(map(len, FOREIGN))


class Packing(StrEnum):
    NONE = "identity"
    GZIP = "gzip"
    ZSTD = "zstd"


def packing_of(beginning: bytes) -> Packing:
    """How a list is packed, by its first bytes."""
    if beginning.startswith(MEMBER):
        return Packing.GZIP
    return Packing.ZSTD if beginning.startswith(FRAMES) else Packing.NONE


class ListUnpacking:
    """Takes a list's bytes as they were sent, and gives them unpacked from an offset on.

    Raises `InvalidArgument` for a list that is broken or not packed as said, and `TooLarge` for
    one that unpacks to too much. It never holds more than it was given and a piece.
    """

    def __init__(
        self,
        encodings: Iterable[str] = (),
        *,
        offset: int = 0,
        largest: int = LARGEST_UNPACKED,
    ) -> None:
        self._said = said_packing(encodings)
        self._left_out = offset
        self._largest = largest
        self._beginning: bytes | None = b""  # until it is long enough to tell
        self._packing = Packing.NONE
        self._stream: Unpacking = Plain()
        self._packed = self._unpacked = 0

    def pieces(self, packed: bytes) -> Iterator[bytes]:
        """What these bytes unpack to. Take all of it before giving more."""
        if self._beginning is not None:
            packed, self._beginning = self._beginning + packed, None
            if len(packed) < LONGEST_MARK:
                self._beginning = packed
                return
            self._open(packed)
        yield from self._all_of(packed)

    def finish(self) -> Iterator[bytes]:
        """What is left at the end; raises when there should have been more."""
        if self._beginning is not None:
            packed, self._beginning = self._beginning, None
            self._open(packed)
            yield from self._all_of(packed)
        try:
            self._stream.finish()
        except Garbled:
            raise InvalidArgument(
                f"The list is packed by {self._packing}, and cut short; send it again"
            ) from None

    def _open(self, packed: bytes) -> None:
        for mark, name in FOREIGN.items():
            if packed.startswith(mark):
                raise InvalidArgument(f"The list is packed by {name}; {_WHAT_IS_TAKEN}")
        self._packing = packing_of(packed)
        if self._said and self._said != self._packing:
            raise InvalidArgument(f"`Content-Encoding` says {self._said}, but the list is not")
        self._stream = _stream(self._packing)

    def _all_of(self, packed: bytes) -> Iterator[bytes]:
        for at in range(0, len(packed), BITE):
            bite = packed[at : at + BITE]
            self._packed += len(bite)
            try:
                for piece in self._stream.pieces(bite):
                    self._count(piece)
                    yield from self._from_offset(piece)
            except Garbled:
                raise InvalidArgument(
                    f"The list is not sound {self._packing}: it is damaged, in too many parts, "
                    "followed by something else, or needs a window over 8 MiB"
                ) from None

    def _count(self, piece: bytes) -> None:
        if not self._unpacked and packing_of(piece) is not Packing.NONE:
            raise InvalidArgument("The list is packed twice; once is enough")
        self._unpacked += len(piece)
        if self._unpacked > self._largest:
            raise TooLarge(f"The list has more than {self._largest} bytes unpacked")
        if self._unpacked > max(ANY_RATIO, self._packed * LARGEST_RATIO):
            raise TooLarge(f"The list unpacks to more than {LARGEST_RATIO} times its size")

    def _from_offset(self, piece: bytes) -> Iterator[bytes]:
        left_out = min(self._left_out, len(piece))
        self._left_out -= left_out
        if left_out < len(piece):
            yield piece[left_out:] if left_out else piece


_WHAT_IS_TAKEN = f"send it as it is, or packed by {Packing.GZIP} or {Packing.ZSTD}"


def said_packing(encodings: Iterable[str]) -> str | None:
    """What the values of `Content-Encoding` say; nothing when they leave it to the content."""
    named = (name.strip().lower() for name in ",".join(encodings).split(","))
    names = [name.removeprefix("x-") for name in named if name not in {"", Packing.NONE}]
    if len(names) > 1 or any(name not in set(Packing) for name in names):
        raise InvalidArgument(
            f"`Content-Encoding: {', '.join(names)[:80]}` is not known here; {_WHAT_IS_TAKEN}"
        )
    return names[0] if names else None


def _stream(packing: Packing) -> Unpacking:
    match packing:
        case Packing.NONE:
            return Plain()
        case Packing.GZIP:
            return Gunzip(most_members=MOST_PARTS, all_counts=True)
        case Packing.ZSTD:
            return Unzstd(most_frames=MOST_PARTS)
