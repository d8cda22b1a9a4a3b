"""Decompression of uploaded lists: detected by magic number, streamed, and bounded against bombs.

No list can begin with the magic numbers of gzip or zstd: they are not UTF-8, or contain a control
character. So a compressed list need not be declared as such. Neither format can be entered in the
middle: to resume, the list is decompressed from its start, and the part that was read before is
discarded. That costs CPU time, but no storage.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum

from conveyor.domain.content_coding import (
    GZIP_MAGIC,
    ZSTD_MAGIC,
    CorruptContent,
    Decoder,
    GzipDecoder,
    IdentityDecoder,
    ZstdDecoder,
)
from conveyor.errors import InvalidArgument, TooLarge

LARGEST_LIST = 20 * 1024**3  # bytes, decompressed
LARGEST_RATIO = 250  # of decompressed to compressed bytes
ANY_RATIO = 64 * 1024**2  # decompressed bytes up to which the ratio does not matter
MOST_PARTS = 1_000_000  # members of gzip, frames of zstd
# Bytes decompressed at once. Each member or frame copies all input that follows it, so that large
# steps would make a list of many small parts quadratic.
STEP = 16 * 1024

# Formats that are recognised in order to refuse them by name.
FOREIGN = {
    b"PK\x03\x04": "zip",
    b"BZh91AY&SY": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"7z\xbc\xaf\x27\x1c": "7z",
}
LONGEST_MAGIC = max(map(len, FOREIGN))


class Compression(StrEnum):
    NONE = "identity"
    GZIP = "gzip"
    ZSTD = "zstd"


_WHAT_TO_SEND = f"send it uncompressed, or compressed with {Compression.GZIP} or {Compression.ZSTD}"


def detect_compression(beginning: bytes) -> Compression:
    """How a list is compressed, by its first bytes."""
    if beginning.startswith(GZIP_MAGIC):
        return Compression.GZIP
    return Compression.ZSTD if beginning.startswith(ZSTD_MAGIC) else Compression.NONE


def declared_compression(encodings: Iterable[str]) -> str | None:
    """What the values of `Content-Encoding` declare; None when they declare nothing."""
    named = (name.strip().lower() for name in ",".join(encodings).split(","))
    names = [name.removeprefix("x-") for name in named if name not in {"", Compression.NONE}]
    if len(names) > 1 or any(name not in set(Compression) for name in names):
        raise InvalidArgument(
            f"`Content-Encoding: {', '.join(names)[:80]}` is not supported; {_WHAT_TO_SEND}"
        )
    return names[0] if names else None


class ListDecompressor:
    """Decompresses a list as it was uploaded, and returns its bytes from an offset on.

    Raises `InvalidArgument` for a list that is corrupt or not compressed as declared, and
    `TooLarge` for one that decompresses to too much. It holds only its input and one piece of
    output in memory.
    """

    def __init__(
        self,
        encodings: Iterable[str] = (),
        *,
        offset: int = 0,
        largest: int = LARGEST_LIST,
    ) -> None:
        self._declared = declared_compression(encodings)
        self._to_discard = offset
        self._largest = largest
        self._beginning: bytes | None = b""  # until it is long enough to detect the compression
        self._compression = Compression.NONE
        self._decoder: Decoder = IdentityDecoder()
        self._taken = self._given = 0  # bytes

    def decompress(self, content: bytes) -> Iterator[bytes]:
        """What these bytes decompress to. Exhaust it before the next call."""
        if self._beginning is not None:
            content, self._beginning = self._beginning + content, None
            if len(content) < LONGEST_MAGIC:
                self._beginning = content
                return
            self._open(content)
        yield from self._decoded(content)

    def finish(self) -> Iterator[bytes]:
        """What is left at the end; raises when the list was cut short."""
        if self._beginning is not None:
            content, self._beginning = self._beginning, None
            self._open(content)
            yield from self._decoded(content)
        try:
            self._decoder.finish()
        except CorruptContent:
            raise InvalidArgument(
                f"The list is compressed with {self._compression} and was cut short; send it again"
            ) from None

    def _open(self, content: bytes) -> None:
        for magic, name in FOREIGN.items():
            if content.startswith(magic):
                raise InvalidArgument(f"The list is compressed with {name}; {_WHAT_TO_SEND}")
        self._compression = detect_compression(content)
        if self._declared and self._declared != self._compression:
            raise InvalidArgument(
                f"`Content-Encoding` must match the list: it says {self._declared}, "
                f"the list is {self._compression}"
            )
        self._decoder = _decoder(self._compression)

    def _decoded(self, content: bytes) -> Iterator[bytes]:
        for at in range(0, len(content), STEP):
            step = content[at : at + STEP]
            self._taken += len(step)
            try:
                for piece in self._decoder.decode(step):
                    self._check_output(piece)
                    yield from self._from_offset(piece)
            except CorruptContent:
                raise InvalidArgument(
                    f"The list is not valid {self._compression}: it is damaged, in too many parts, "
                    "followed by something else, or needs a window over 8 MiB"
                ) from None

    def _check_output(self, piece: bytes) -> None:
        if not self._given and detect_compression(piece) is not Compression.NONE:
            raise InvalidArgument("The list must be compressed at most once, and is twice")
        self._given += len(piece)
        if self._given > self._largest:
            raise TooLarge(f"The list must have at most {self._largest} bytes decompressed")
        if self._given > max(ANY_RATIO, self._taken * LARGEST_RATIO):
            raise TooLarge(f"The list must decompress to at most {LARGEST_RATIO} times its size")

    def _from_offset(self, piece: bytes) -> Iterator[bytes]:
        discarded = min(self._to_discard, len(piece))
        self._to_discard -= discarded
        if discarded < len(piece):
            yield piece[discarded:] if discarded else piece


def _decoder(compression: Compression) -> Decoder:
    match compression:
        case Compression.NONE:
            return IdentityDecoder()
        case Compression.GZIP:
            return GzipDecoder(most_members=MOST_PARTS, strict=True)
        case Compression.ZSTD:
            return ZstdDecoder(most_frames=MOST_PARTS)
