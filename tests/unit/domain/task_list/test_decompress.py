"""Packed lists: known by their content, whole or refused, and never more than is sane."""

import bz2
import gzip
import lzma
import sys
import tracemalloc
import zlib
from collections.abc import Iterable

import pytest

from conveyor.domain.task_list.decompress import (
    ANY_RATIO,
    LARGEST_RATIO,
    MOST_PARTS,
    STEP,
    Compression,
    ListDecompressor,
    detect_compression,
)
from conveyor.domain.task_list.reader import ListReader
from conveyor.errors import InvalidArgument, TooLarge
from tests.harness.task_lists import TXT

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIST = b"".join(b"https://a.example/%d\n" % number for number in range(20_000))
GZIP = gzip.compress(LIST, mtime=0)
IN_PARTS = b"".join(gzip.compress(LIST[at : at + 999], mtime=0) for at in range(0, len(LIST), 999))
ZSTD = zstd.compress(LIST)
FRAMES = b"".join(zstd.compress(LIST[at : at + 999]) for at in range(0, len(LIST), 999))
SKIPPED = b"\x5a\x2a\x4d\x18\x04\0\0\0abcd"
MEBIBYTE = 1024 * 1024


def unpacked(
    packed: bytes, step: int = 1_000_000, *, said: Iterable[str] = (), offset: int = 0
) -> bytes:
    stream, pieces = ListDecompressor(said, offset=offset), list[bytes]()
    for at in range(0, len(packed), step):
        pieces.extend(stream.decompress(packed[at : at + step]))
    return b"".join([*pieces, *stream.finish()])


def take_all(pieces: Iterable[object]) -> None:
    for _ in pieces:
        pass


@pytest.mark.parametrize("packed", [LIST, GZIP, IN_PARTS, ZSTD, FRAMES, SKIPPED + ZSTD + SKIPPED])
@pytest.mark.parametrize("step", [1, 7, STEP, 10_000_000])
def test_a_list_is_unpacked_however_it_is_cut(packed: bytes, step: int) -> None:
    assert unpacked(packed, step) == LIST


@pytest.mark.parametrize("raw", [b"", b"a", b"ab", b"\x1f", LIST[:9]])
def test_a_list_too_short_to_tell_is_as_it_is(raw: bytes) -> None:
    assert unpacked(raw, 1) == raw


@pytest.mark.parametrize("packed", [LIST, GZIP, ZSTD])
@pytest.mark.parametrize("offset", [0, 1, 65_536, 100_001, len(LIST)])
def test_what_was_read_before_is_left_out(packed: bytes, offset: int) -> None:
    assert unpacked(packed, 1000, offset=offset) == LIST[offset:]


@pytest.mark.parametrize(
    ("packed", "said"), [(GZIP, "gzip"), (GZIP, "X-GZIP"), (GZIP, "identity"), (LIST, "identity")]
)
def test_what_is_said_may_be_said(packed: bytes, said: str) -> None:
    assert unpacked(packed, said=[said]) == LIST


@pytest.mark.parametrize(
    ("packed", "said", "told"),
    [
        (LIST, "gzip", "says gzip"),
        (LIST, "br", "not supported"),
        (GZIP, "gzip, gzip", "not supported"),
        (GZIP[:-1], "", "cut short"),
        (GZIP[:9], "", "cut short"),
        (GZIP[:-8] + bytes(8), "", "damaged"),
        (GZIP + LIST, "", "followed by something else"),
        (IN_PARTS[:-1], "", "cut short"),
        (GZIP + b"\x1f", "", "cut short"),
        (gzip.compress(GZIP), "", "is twice"),
        (ZSTD, "gzip", "says gzip"),
        (ZSTD[:-1], "", "zstd and was cut short"),
        (FRAMES[:-1], "", "cut short"),
        (ZSTD[:-9] + bytes(9), "", "damaged"),
        (ZSTD + LIST, "", "followed by something else"),
        (GZIP + ZSTD, "", "followed by something else"),
        (gzip.compress(ZSTD), "", "is twice"),
        (lzma.compress(LIST), "", "xz"),
        (bz2.compress(LIST), "", "bzip2"),
        (b"PK\x03\x04" + LIST, "", "zip"),
    ],
)
def test_what_cannot_be_unpacked_is_refused_as_a_whole(packed: bytes, said: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        unpacked(packed, said=[said])


def gigabyte(packer: "zlib._Compress | zstd.ZstdCompressor") -> bytes:
    zeros = bytes(MEBIBYTE)
    return b"".join([*(packer.compress(zeros) for _ in range(1024)), packer.flush()])


@pytest.mark.parametrize("packing", [Compression.GZIP, Compression.ZSTD])
def test_a_gigabyte_of_zeros_in_a_megabyte_ends_soon_and_in_little_memory(
    packing: Compression,
) -> None:
    is_zstd = packing is Compression.ZSTD
    packed = gigabyte(zstd.ZstdCompressor() if is_zstd else zlib.compressobj(9, wbits=31))
    assert len(packed) < 1.1 * MEBIBYTE
    stream, reader = ListDecompressor(), ListReader(TXT, {})
    tracemalloc.start()
    with pytest.raises(TooLarge, match=f"{LARGEST_RATIO} times its size"):
        take_all(piece for part in stream.decompress(packed) for piece in reader.feed(part))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MEBIBYTE


def test_a_list_that_repeats_itself_is_taken_while_it_is_not_large() -> None:
    raw = b"https://a.example/\n" * (ANY_RATIO // 19)
    packed = gzip.compress(raw)
    assert len(packed) * LARGEST_RATIO < len(raw)
    assert sum(map(len, ListDecompressor().decompress(packed))) == len(raw)


def test_a_frame_that_needs_much_memory_is_refused() -> None:
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
    wide = packer.compress(LIST) + packer.flush()
    with pytest.raises(InvalidArgument, match="window over 8 MiB"):
        unpacked(wide)


def test_a_list_larger_than_allowed_is_refused() -> None:
    stream = ListDecompressor(largest=len(LIST) - 1)
    with pytest.raises(TooLarge):
        list(stream.decompress(GZIP))


def test_as_many_parts_as_are_sane_are_taken() -> None:
    stream = ListDecompressor()
    empty = gzip.compress(b"", mtime=0)
    with pytest.raises(InvalidArgument, match="too many parts"):
        take_all(
            piece
            for _ in range(MOST_PARTS // 1000 + 1)
            for piece in stream.decompress(empty * 1000)
        )


@pytest.mark.parametrize("packed", [GZIP, ZSTD, SKIPPED])
def test_what_a_packed_list_begins_with_is_no_text(packed: bytes) -> None:
    assert detect_compression(packed) is not Compression.NONE
    assert not packed[:4].decode(errors="replace").replace("\ufffd", "\0").isprintable()
