"""The zip format (APPNOTE 6.3), written front to back as a stream of any size.

    local header, content [, descriptor]    for each file
    directory line                          for each file
    ending                                  where the directory is, and how many lines it has

A sink that cannot seek has two consequences. The sizes of a file whose content arrives in pieces
are written after it, in a descriptor. And whether such a file needs zip64 must be decided before its
content is known: its header and its descriptor must agree. Sizes, offsets and counts that do not fit
the original fields of 32 and 16 bits are written in those of zip64.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

STORED, DEFLATED = 0, 8
LEVEL = 1  # the fastest: a page shrinks to a third or less, and other levels gain little
RAW = -zlib.MAX_WBITS
PLAIN, WITH_ZIP64 = 20, 45  # the version of the format that a reader must support
MADE_ON_UNIX = 3 << 8
REGULAR_FILE = 0o100644 << 16
SIZES_FOLLOW = 0x08
FULL_32, FULL_16 = 0xFFFF_FFFF, 0xFFFF
OLDEST, NEWEST = datetime(1980, 1, 1, tzinfo=UTC), datetime(2107, 12, 31, 23, 59, 58, tzinfo=UTC)

LOCAL = struct.Struct("<4sHHHHHLLLHH")
DESCRIPTOR, DESCRIPTOR_64 = struct.Struct("<4sLLL"), struct.Struct("<4sLQQ")
CENTRAL = struct.Struct("<4sHHHHHHLLLHHHHHLL")
END_64, LOCATOR_64 = struct.Struct("<4sQHHLLQQQQ"), struct.Struct("<4sLQL")
END = struct.Struct("<4sHHHHLLH")


class Bounds(msgspec.Struct, frozen=True):
    """From which size, offset and count on zip64 is needed. Tests lower them."""

    size: int = FULL_32
    count: int = FULL_16


BOUNDS = Bounds()


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One file of the archive. Its name is ASCII and not a path."""

    name: str
    modified: datetime
    method: int = DEFLATED
    crc: int = 0
    packed: int = 0
    length: int = 0
    is_streamed: bool = False  # its sizes follow its content, in a descriptor
    is_long: bool = False  # of a streamed file: its sizes may need zip64


class Item(msgspec.Struct, frozen=True, gc=False):
    """A file whose whole content is in memory."""

    name: str
    modified: datetime
    content: bytes
    shrinks: bool = True  # whether to try to compress it


def packed(item: Item) -> tuple[Entry, bytes]:
    """A file's entry and its content, compressed if that makes it smaller."""
    content, method = item.content, STORED
    if item.shrinks:
        smaller = zlib.compress(content, LEVEL, RAW)
        if len(smaller) < len(content):
            content, method = smaller, DEFLATED
    entry = Entry(
        name=item.name,
        modified=item.modified,
        method=method,
        crc=zlib.crc32(item.content),
        packed=len(content),
        length=len(item.content),
    )
    return entry, content


class Stream:
    """A file whose content arrives in pieces."""

    def __init__(
        self, name: str, modified: datetime, expected: int, bounds: Bounds = BOUNDS
    ) -> None:
        # Content that cannot be compressed grows, by less than a thousandth. `is_long` must cover
        # that: a descriptor with 32 bits could not hold the larger size.
        is_long = expected + expected // 1000 + 64 >= bounds.size
        self._entry = Entry(name=name, modified=modified, is_streamed=True, is_long=is_long)
        self._deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, RAW)
        self._crc = self._packed = self.length = 0

    def head(self) -> bytes:
        return local_header(self._entry)

    def add(self, piece: bytes) -> bytes:
        self._crc = zlib.crc32(piece, self._crc)
        self.length += len(piece)
        return self._grown(self._deflate.compress(piece))

    def end(self) -> tuple[Entry, bytes]:
        """The complete entry, and the bytes that follow the pieces."""
        last = self._grown(self._deflate.flush())
        entry = msgspec.structs.replace(
            self._entry, crc=self._crc, packed=self._packed, length=self.length
        )
        return entry, last + _descriptor(entry)

    def _grown(self, piece: bytes) -> bytes:
        self._packed += len(piece)
        return piece


def local_header(entry: Entry, bounds: Bounds = BOUNDS) -> bytes:
    """The bytes before a file's content."""
    # Of a streamed file crc and sizes are zero here, and follow in its descriptor.
    is_long = entry.is_long or max(entry.packed, entry.length) >= bounds.size
    sizes = (FULL_32, FULL_32) if is_long else (entry.packed, entry.length)
    extra = struct.pack("<HHQQ", 1, 16, entry.length, entry.packed) if is_long else b""
    name = entry.name.encode("ascii")
    return (
        LOCAL.pack(
            b"PK\x03\x04",
            WITH_ZIP64 if is_long else PLAIN,
            SIZES_FOLLOW if entry.is_streamed else 0,
            entry.method,
            *_dos_moment(entry.modified),
            entry.crc,
            *sizes,
            len(name),
            len(extra),
        )
        + name
        + extra
    )


def directory_line(entry: Entry, offset: int, bounds: Bounds = BOUNDS) -> bytes:
    """A file's line in the directory; `offset` is where its local header begins."""
    # The zip64 field holds exactly the values whose original field is full, in this order.
    fields = (entry.length, entry.packed, offset)
    long = [field for field in fields if field >= bounds.size]
    extra = struct.pack(f"<HH{len(long)}Q", 1, 8 * len(long), *long) if long else b""
    length, shrunk, place = (FULL_32 if field >= bounds.size else field for field in fields)
    version = WITH_ZIP64 if long or entry.is_long else PLAIN
    name = entry.name.encode("ascii")
    return (
        CENTRAL.pack(
            b"PK\x01\x02",
            MADE_ON_UNIX | version,
            version,
            SIZES_FOLLOW if entry.is_streamed else 0,
            entry.method,
            *_dos_moment(entry.modified),
            entry.crc,
            shrunk,
            length,
            len(name),
            len(extra),
            0,
            0,
            0,
            REGULAR_FILE,
            place,
        )
        + name
        + extra
    )


def ending(count: int, offset: int, length: int, bounds: Bounds = BOUNDS) -> bytes:
    """The bytes after the directory: the number of its lines, its offset and its length."""
    short = (
        FULL_16 if count >= bounds.count else count,
        FULL_32 if length >= bounds.size else length,
        FULL_32 if offset >= bounds.size else offset,
    )
    end = END.pack(b"PK\x05\x06", 0, 0, short[0], *short, 0)
    # A value that equals the full field must be in zip64 too: readers take it for the mark.
    if count < bounds.count and max(length, offset) < bounds.size:
        return end
    versions = (MADE_ON_UNIX | WITH_ZIP64, WITH_ZIP64)
    long = END_64.pack(b"PK\x06\x06", 44, *versions, 0, 0, count, count, length, offset)
    return long + LOCATOR_64.pack(b"PK\x06\x07", 0, offset + length, 1) + end


def laid_out(
    files: Sequence[tuple[Entry, bytes]], offset: int, bounds: Bounds = BOUNDS
) -> Iterator[tuple[bytes, bytes]]:
    """Each file's local header with its content, and its line in the directory."""
    for entry, content in files:
        line = directory_line(entry, offset, bounds)
        whole = local_header(entry, bounds) + content
        offset += len(whole)
        yield whole, line


def _descriptor(entry: Entry) -> bytes:
    form = DESCRIPTOR_64 if entry.is_long else DESCRIPTOR
    return form.pack(b"PK\x07\x08", entry.crc, entry.packed, entry.length)


def _dos_moment(moment: datetime) -> tuple[int, int]:
    """Time and date in the format of MS-DOS: steps of two seconds, from 1980 to 2107."""
    at = min(max(moment.astimezone(UTC), OLDEST), NEWEST)
    time = at.hour << 11 | at.minute << 5 | at.second // 2
    return time, (at.year - 1980) << 9 | at.month << 5 | at.day
