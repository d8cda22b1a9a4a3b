"""Zip files, front to back: every part of one as bytes, so that a file of any size can be written
without going back in it. What outgrows the old fields is told in those of zip64.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

STORED, DEFLATED = 0, 8
LEVEL = 1  # the least work: a page shrinks to a third or less, and little more at any other
RAW = -zlib.MAX_WBITS
PLAIN, WITH_ZIP64 = 20, 45  # the version of zip that a reader must know
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
    """From where on the old fields are too small: of a size or an offset, and of a number."""

    size: int = FULL_32
    count: int = FULL_16


BOUNDS = Bounds()


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One file of the archive. The name is ASCII, and no path."""

    name: str
    modified: datetime
    method: int = DEFLATED
    crc: int = 0
    packed: int = 0
    length: int = 0
    is_streamed: bool = False  # its sizes are told after its content
    is_long: bool = False  # of a streamed one: they may need zip64


class Item(msgspec.Struct, frozen=True, gc=False):
    """A file that is at hand as a whole."""

    name: str
    modified: datetime
    content: bytes
    shrinks: bool = True  # whether it is worth trying to make it smaller


def packed(item: Item) -> tuple[Entry, bytes]:
    """A file's entry with its content, smaller if it can be made so."""
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
    """A file whose content comes piece by piece."""

    def __init__(
        self, name: str, modified: datetime, expected: int, bounds: Bounds = BOUNDS
    ) -> None:
        # What cannot be made smaller grows a little, by less than a thousandth.
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
        """What follows the pieces, and the entry as it came to be."""
        last = self._grown(self._deflate.flush())
        entry = msgspec.structs.replace(
            self._entry, crc=self._crc, packed=self._packed, length=self.length
        )
        return entry, last + _descriptor(entry)

    def _grown(self, piece: bytes) -> bytes:
        self._packed += len(piece)
        return piece


def local_header(entry: Entry, bounds: Bounds = BOUNDS) -> bytes:
    """What stands before a file's content."""
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
    """A file's line in the directory; `offset` is where its header stands."""
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
    """What stands after the directory: how many lines it has, where it is, and how long."""
    short = (
        FULL_16 if count >= bounds.count else count,
        FULL_32 if length >= bounds.size else length,
        FULL_32 if offset >= bounds.size else offset,
    )
    end = END.pack(b"PK\x05\x06", 0, 0, short[0], *short, 0)
    # A field that happens to hold just the mark has to be told at length too.
    if count < bounds.count and max(length, offset) < bounds.size:
        return end
    versions = (MADE_ON_UNIX | WITH_ZIP64, WITH_ZIP64)
    long = END_64.pack(b"PK\x06\x06", 44, *versions, 0, 0, count, count, length, offset)
    return long + LOCATOR_64.pack(b"PK\x06\x07", 0, offset + length, 1) + end


def laid_out(
    files: Sequence[tuple[Entry, bytes]], offset: int, bounds: Bounds = BOUNDS
) -> Iterator[tuple[bytes, bytes]]:
    """Of each file its header with its content, and its line in the directory."""
    for entry, content in files:
        line = directory_line(entry, offset, bounds)
        whole = local_header(entry, bounds) + content
        offset += len(whole)
        yield whole, line


def _descriptor(entry: Entry) -> bytes:
    form = DESCRIPTOR_64 if entry.is_long else DESCRIPTOR
    return form.pack(b"PK\x07\x08", entry.crc, entry.packed, entry.length)


def _dos_moment(moment: datetime) -> tuple[int, int]:
    """Time and date as zip has them: in steps of two seconds, from 1980 to 2107."""
    at = min(max(moment.astimezone(UTC), OLDEST), NEWEST)
    time = at.hour << 11 | at.minute << 5 | at.second // 2
    return time, (at.year - 1980) << 9 | at.month << 5 | at.day
