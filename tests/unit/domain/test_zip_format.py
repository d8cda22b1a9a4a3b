"""Zip files as other programs read them."""

import io
import struct
import zipfile
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.domain.zip_format import (
    BOUNDS,
    STORED,
    Bounds,
    Entry,
    Item,
    Stream,
    directory_line,
    ending,
    laid_out,
    local_header,
    packed,
)

NOON = datetime(2026, 3, 1, 12, 0, 1, tzinfo=UTC)
CONTENTS = st.binary(max_size=200) | st.binary(max_size=20).map(lambda piece: piece * 100)
# From none to all of the fields in their long form.
ALL_BOUNDS = st.builds(
    Bounds, st.sampled_from([0, 1, 100, 1_000, BOUNDS.size]), st.sampled_from([0, 3, BOUNDS.count])
)


@given(st.lists(st.tuples(CONTENTS, st.booleans(), st.booleans()), max_size=8), ALL_BOUNDS)
def test_pythons_own_reader_finds_all_that_was_packed(
    files: list[tuple[bytes, bool, bool]], bounds: Bounds
) -> None:
    whole = _zipped(files, bounds)

    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert archive.testzip() is None
        assert [archive.read(name) for name in archive.namelist()] == [one[0] for one in files]
        assert all(info.date_time == (2026, 3, 1, 12, 0, 0) for info in archive.infolist())


@given(st.lists(st.tuples(CONTENTS, st.booleans(), st.booleans()), max_size=8), ALL_BOUNDS)
def test_headers_alone_lead_from_one_file_to_the_next(
    files: list[tuple[bytes, bool, bool]], bounds: Bounds
) -> None:
    """As a reader of a stream goes, who has not seen the directory."""
    whole, at = _zipped(files, bounds), 0
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        for info in archive.infolist():
            fields = struct.unpack_from("<4sHHHHHLLLHH", whole, at)
            is_streamed, is_long = bool(fields[2] & 8), fields[9:][1] > 0
            sizes = fields[7:9]
            if is_long:
                assert sizes == (0xFFFFFFFF, 0xFFFFFFFF)
                sizes = struct.unpack_from("<HHQQ", whole, at + 30 + fields[9])[:1:-1]
            if not is_streamed:
                assert sizes == (info.compress_size, info.file_size)
            at += 30 + fields[9] + fields[10] + info.compress_size
            if is_streamed:
                form = "<4sLQQ" if is_long else "<4sLLL"
                told = struct.unpack_from(form, whole, at)
                assert told == (b"PK\x07\x08", info.CRC, info.compress_size, info.file_size)
                at += struct.calcsize(form)
        assert whole[at:].startswith(b"PK\x01\x02") or not files


def test_what_would_grow_is_kept_as_it_is() -> None:
    entry, content = packed(Item("a", NOON, b"abc"))
    assert (entry.method, content) == (STORED, b"abc")
    assert packed(Item("a", NOON, b"a" * 1000, shrinks=False))[0].method == STORED
    assert len(packed(Item("a", NOON, b"a" * 1000))[1]) < 100


@pytest.mark.parametrize("count", [0xFFFE, 0xFFFF, 0x1_0000])
def test_more_files_than_the_old_field_holds(count: int) -> None:
    entry, content = packed(Item("a", NOON, b"a"))
    parts = list(laid_out([(entry, content)] * count, 0))
    files, directory = (b"".join(column) for column in zip(*parts, strict=True))
    whole = files + directory + ending(count, len(files), len(directory))
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert len(archive.infolist()) == count
    assert (b"PK\x06\x06" in whole) == (count >= 0xFFFF)


@pytest.mark.parametrize("size", [2**32 - 2, 2**32 - 1, 2**32, 2**40])
def test_fields_of_large_files_are_read_back(size: int) -> None:
    """Without their content: the directory is read as if it were all there."""
    entry = Entry(name="large", modified=NOON, packed=size, length=size + 1)
    whole = directory_line(entry, size + 2)
    ends = ending(1, 0, len(whole))

    with zipfile.ZipFile(io.BytesIO(whole + ends)) as archive:
        [info] = archive.infolist()
    assert (info.compress_size, info.file_size, info.header_offset) == (size, size + 1, size + 2)
    assert (info.extract_version == 45) == (info.header_offset >= 2**32 - 1)


@pytest.mark.parametrize(
    ("expected", "is_long"), [(0, False), (4 * 10**9, False), (2**32 - 1, True)]
)
def test_a_stream_is_long_in_time(expected: int, is_long: bool) -> None:
    """The form of what follows its content is told before it: what deflate adds fits as well."""
    stream = Stream("a", NOON, expected)
    assert (b"\xff" * 8 in stream.head()) == is_long
    assert len(stream.end()[1]) == 2 + (24 if is_long else 16)


@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), (1980, 1, 1, 0, 0, 0)),
        (datetime(2150, 1, 1, tzinfo=UTC), (2107, 12, 31, 23, 59, 58)),
        (datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC), (2024, 2, 29, 23, 59, 58)),
        (
            datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))),
            (2023, 12, 31, 23, 0, 0),
        ),
    ],
)
def test_moments_are_told_in_utc_within_what_zip_can_say(
    moment: datetime, shown: tuple[int, ...]
) -> None:
    entry, content = packed(Item("a", moment, b"a"))
    head, line = local_header(entry), directory_line(entry, 0)
    whole = head + content + line + ending(1, len(head) + 1, len(line))
    assert zipfile.ZipFile(io.BytesIO(whole)).infolist()[0].date_time == shown


def _zipped(files: list[tuple[bytes, bool, bool]], bounds: Bounds) -> bytes:
    """Of each file its content, whether it is streamed, and whether it is to shrink."""
    whole, directory = b"", b""
    for number, (content, is_streamed, shrinks) in enumerate(files):
        if is_streamed:
            part, line = _streamed(f"{number}", content, len(whole), bounds)
        else:
            file = packed(Item(f"{number}", NOON, content, shrinks))
            [(part, line)] = laid_out([file], len(whole), bounds)
        whole, directory = whole + part, directory + line
    return whole + directory + ending(len(files), len(whole), len(directory), bounds)


def _streamed(name: str, content: bytes, offset: int, bounds: Bounds) -> tuple[bytes, bytes]:
    stream = Stream(name, NOON, len(content), bounds)
    parts = [
        stream.head(),
        *(stream.add(content[at : at + 50]) for at in range(0, len(content), 50)),
    ]
    entry, last = stream.end()
    return b"".join([*parts, last]), directory_line(entry, offset, bounds)
