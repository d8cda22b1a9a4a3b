"""Unpacking bodies: however they are cut into chunks, whole or not at all, and never much at once."""

import gzip
import zlib

import pytest

from conveyor.domain.content_coding import MOST_MEMBERS, PIECE, CorruptContent, decoder_for

PAGE = b"".join(b"line %d\n" % number for number in range(20_000))
BARE = zlib.compress(PAGE)[2:-4]
WHOLE = [
    ("gzip", gzip.compress(PAGE, mtime=0)),
    (
        "gzip",
        gzip.compress(PAGE[:999], mtime=0)
        + gzip.compress(b"", mtime=0)
        + gzip.compress(PAGE[999:], mtime=0),
    ),
    ("gzip", gzip.compress(PAGE, mtime=0) + b"\0\0\x1f\x8b garbage"),
    ("gzip", gzip.compress(PAGE, mtime=0) + b"\x1f"),
    ("gzip", gzip.compress(PAGE, mtime=0) + b"\x1fgarbage"),
    ("deflate", zlib.compress(PAGE)),
    ("deflate", zlib.compress(PAGE) + b"garbage"),
    ("deflate", BARE),
    (" Identity", PAGE),
]


@pytest.mark.parametrize(("encoding", "packed"), WHOLE)
@pytest.mark.parametrize("step", [1, 7, 1000, 1_000_000])
def test_a_body_is_the_same_however_it_is_cut_into_chunks(
    encoding: str, packed: bytes, step: int
) -> None:
    assert b"".join(unpacked(encoding, packed, step)) == PAGE


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 7 * PIECE, 7 * PIECE + 258])
@pytest.mark.parametrize("step", [1, 1_000_000])
def test_a_piece_is_never_large_and_the_last_is_never_lost(size: int, step: int) -> None:
    pieces = unpacked("gzip", gzip.compress(bytes(size)), step)
    assert max(map(len, pieces)) <= PIECE
    assert sum(map(len, pieces)) == size


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", b""),
        ("gzip", b"no gzip at all"),
        ("gzip", gzip.compress(PAGE, mtime=0)[:-1]),
        ("gzip", gzip.compress(PAGE, mtime=0)[:-8] + bytes(8)),
        ("gzip", gzip.compress(PAGE, mtime=0) + gzip.compress(PAGE, mtime=0)[:-1]),
        ("gzip", gzip.compress(b"", mtime=0) * (MOST_MEMBERS + 1)),
        ("deflate", b""),
        ("deflate", zlib.compress(PAGE)[:-1]),
        ("deflate", BARE[:-1]),
        ("deflate", b"\xff\xff"),
        ("br", b"x"),
        ("gzip, gzip", gzip.compress(gzip.compress(PAGE, mtime=0))),
    ],
)
def test_what_is_not_whole_is_garbled(encoding: str, packed: bytes) -> None:
    with pytest.raises(CorruptContent):
        unpacked(encoding, packed, 1000)


def test_as_many_members_as_are_sane_are_taken() -> None:
    assert unpacked("gzip", gzip.compress(b"", mtime=0) * MOST_MEMBERS, 1000) == []


def unpacked(encoding: str, packed: bytes, step: int) -> list[bytes]:
    body, pieces = decoder_for([encoding]), list[bytes]()
    for at in range(0, len(packed), step):
        pieces.extend(body.decode(packed[at : at + step]))
    body.finish()
    return pieces
