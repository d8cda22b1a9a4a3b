"""Staged lists: every row becomes a task or an error under its ordinal, however the list comes."""

import json
import tracemalloc

import pytest

from conveyor.domain import submission, task_bodies
from conveyor.domain.json_bodies import finish
from conveyor.domain.submission import Limits
from conveyor.domain.task_list.reader import ListReader
from conveyor.domain.task_list.rows import LONGEST_SHOWN, ReaderLimits
from conveyor.domain.task_list.spec import ListFormat, ListSpec
from conveyor.errors import InvalidArgument
from tests.harness.task_lists import CSV, NAMED, NDJSON, TXT, Errors, errors, read, urls

A, B, C = "https://a.example/", "https://b.example/", "https://c.example/"
MEBIBYTE = 1024 * 1024

Urls = list[tuple[int, str]]


def csv_of(**fields: object) -> ListSpec:
    return ListSpec(format=ListFormat.CSV, **fields)  # type: ignore[arg-type]


GOOD: dict[str, tuple[ListSpec, bytes, Urls]] = {
    "empty": (TXT, b"", []),
    "empty ndjson": (NDJSON, b"", []),
    "empty csv": (CSV, b"", []),
    "only a mark": (TXT, b"\xef\xbb\xbf", []),
    "only a header": (NAMED, b"url,id\n", []),
    "only a header, unended": (NAMED, b"url,id", []),
    "blank lines before the header": (NAMED, b"\n \r\nurl,id\n" + A.encode() + b",1", [(0, A)]),
    "a line": (TXT, A.encode() + b"\n", [(0, A)]),
    "unended": (TXT, A.encode(), [(0, A)]),
    "CRLF": (TXT, f"{A}\r\n{B}\r\n".encode(), [(0, A), (1, B)]),
    "CRLF in ndjson": (NDJSON, f'{{"url":"{A}"}}\r\n\r\n{{"url":"{B}"}}'.encode(), [(0, A), (1, B)]),
    "CRLF in csv": (CSV, f"{A},1\r\n\r\n{B},2\r\n".encode(), [(0, A), (1, B)]),
    "a mark in txt": (TXT, b"\xef\xbb\xbf" + A.encode(), [(0, A)]),
    "a mark in ndjson": (NDJSON, b'\xef\xbb\xbf{"url":"%s"}' % A.encode(), [(0, A)]),
    "a mark in csv": (NAMED, b'\xef\xbb\xbf"url",id\n%s,1' % A.encode(), [(0, A)]),
    "comments and blanks": (TXT, f"# all\n\n {A} \n\t\n  # b\n{B}".encode(), [(0, A), (1, B)]),
    "quoted": (CSV, f'"{A}","1"\n"{B}",\n'.encode(), [(0, A), (1, B)]),
    "a quoted line end": (csv_of(url=1), f'"x\ny\r\n",{A}\n,{B}'.encode(), [(0, A), (1, B)]),
    "doubled quotes": (csv_of(url=1), f'"x""y,""",{A}'.encode(), [(0, A)]),
    "another delimiter": (csv_of(url=1, delimiter="\t"), f"1,2\t{A}".encode(), [(0, A)]),
    "another quote": (csv_of(url=1, quote="'"), f"'1,\n''',{A}".encode(), [(0, A)]),
    "a name in a header of blanks": (csv_of(header=True, url="url"), f"id, url\n1, {A}".encode(), [(0, A)]),
    "a place under a header": (csv_of(header=True, url=1), f"x,y\n1,{A}".encode(), [(0, A)]),
    "a quote inside a field": (csv_of(url=1), f'5" disk,{A}'.encode(), [(0, A)]),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "raw", "expected"), GOOD.values(), ids=GOOD)
@pytest.mark.parametrize("step", [1, 3, 1_000_000])
def test_a_good_list_is_read(spec: ListSpec, raw: bytes, expected: Urls, step: int) -> None:
    chunks = read([raw[at : at + step] for at in range(0, len(raw), step)], spec)
    assert (urls(chunks), errors(chunks)) == (expected, [])


LONG = b"x" * (10 * MEBIBYTE)
BAD: dict[str, tuple[ListSpec, bytes, Urls, Errors]] = {
    "a line of 10 MB": (TXT, b"%s\n%s" % (LONG, A.encode()), [(1, A)], [(1, 0, "line_too_long")]),
    "a task of 10 MB": (NDJSON, b'{"url":"%s"}\n' % LONG, [], [(1, 0, "line_too_long")]),
    "a row of 10 MB": (CSV, b"%s,1\n%s,2" % (LONG, A.encode()), [(1, A)], [(1, 0, "line_too_long")]),
    "NUL in txt": (TXT, f"{A}\0\n{B}".encode(), [(1, B)], [(1, 0, "nul_byte")]),
    "NUL in ndjson": (NDJSON, b'{"url":"\0"}', [], [(1, 0, "nul_byte")]),
    "NUL in csv": (CSV, f"{A},\0\n{B},2".encode(), [(1, B)], [(1, 0, "nul_byte")]),
    "UTF-16 without a mark": (TXT, A.encode("utf-16-le"), [], [(1, 0, "nul_byte")]),
    "invalid UTF-8 in txt": (TXT, b"\n%s\xff\n%s" % (A.encode(), B.encode()), [(1, B)], [(2, 0, "invalid_utf8")]),
    "invalid UTF-8 in ndjson": (NDJSON, b'{"url":"%s","method":"POST","body":"\xff"}' % A.encode(), [], [(1, 0, "invalid_utf8")]),
    "invalid UTF-8 in csv": (CSV, b"%s,\xff" % A.encode(), [], [(1, 0, "invalid_utf8")]),
    "invalid UTF-8 in quotes": (csv_of(url=1), b'"x\n\xff",%s\n1,%s' % (B.encode(), A.encode()), [(2, A)], [(1, 0, "unterminated_quote"), (2, 1, "invalid_utf8")]),
    "wrong delimiter": (CSV, f"{A};1\n{B};2".encode(), [], [(1, 0, "missing_column"), (2, 1, "missing_column")]),
    "column out of range": (csv_of(url=7), f"{A},1\n".encode(), [], [(1, 0, "missing_column")]),
    "a short row": (NAMED, f"url,id\n{A}\n{B},2".encode(), [(1, B)], [(2, 0, "missing_column")]),
    "line ends of old": (TXT, f"{A}\r{B}\r{C}".encode(), [], [(1, 0, "stray_return")]),
    "a return in a row": (CSV, f"{A},1\r{B},2\n{C},3".encode(), [(1, C)], [(1, 0, "stray_return")]),
    "no JSON": (NDJSON, f'{{"url":"{A}"\n{{"url":"{B}"}}'.encode(), [(1, B)], [(1, 0, "malformed_json")]),
    "two in a line": (NDJSON, f'{{"url":"{A}"}} {{"url":"{B}"}}'.encode(), [], [(1, 0, "malformed_json")]),
    "very deep": (NDJSON, b'{"url":"u","body":' + b"[" * 100_000, [], [(1, 0, "malformed_json")]),
    "a quote in the middle": (CSV, f'"{A}"x,1\n{B},2'.encode(), [(1, B)], [(1, 0, "stray_quote")]),
    "a field of many": (csv_of(url=1), b'"%s",u\n1,%s' % (LONG[:200_000], A.encode()), [(1, A)], [(1, 0, "field_too_long")]),
    "an empty URL": (CSV, b",1\n", [], [(1, 0, "malformed_url")]),
    "a bad id": (CSV, f"{A},a b".encode(), [], [(1, 0, "invalid_external_id")]),
    "no URL": (TXT, b"nowhere", [], [(1, 0, "malformed_url")]),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "raw", "good", "bad"), BAD.values(), ids=BAD)
def test_a_bad_row_is_told_and_the_others_are_read(
    spec: ListSpec, raw: bytes, good: Urls, bad: Errors
) -> None:
    chunks = read(raw, spec)
    assert (urls(chunks), errors(chunks)) == (good, bad)
    for chunk in chunks:
        assert all(len(error.value or "") <= LONGEST_SHOWN for error in chunk.errors)


WRONG: dict[str, tuple[ListSpec, bytes, str]] = {
    "empty, where a header should be": (NAMED, b"", "empty"),
    "nothing but blanks": (NAMED, b"\n\n", "empty"),
    "wrong delimiter": (NAMED, b"url;id\n1;2\n", "`url`: split at ',' it reads `url;id`"),
    "no such column": (NAMED, b"link,id\n", "no column `url`: split at ',' it reads `link`, `id`"),
    "two such columns": (NAMED, b"url,id,url\n", "more than one column `url`"),
    "out of range": (csv_of(header=True, url=2), b"a,b\n", "no column number 2"),
    "a wide header": (NAMED, b",".join([b"x" * 999] * 999), ", …"),
    "a header that does not end": (NAMED, b'"url,id\n1,2', "unterminated_quote"),
    "a header that is no text": (NAMED, b"url,\xff\n", "invalid_utf8"),
    "a header of 10 MB": (NAMED, LONG, "line_too_long"),
    "UTF-16": (TXT, A.encode("utf-16"), "UTF-16"),
    "an array": (NDJSON, b"\xef\xbb\xbf [\n{}]", "array"),
    "an array of 10 MB": (NDJSON, b"[" + LONG, "array"),
}


@pytest.mark.parametrize(("spec", "raw", "said"), WRONG.values(), ids=WRONG)
def test_a_list_that_is_wrong_as_a_whole_says_so_once(
    spec: ListSpec, raw: bytes, said: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read(raw, spec)
    assert said in refused.value.detail
    assert len(refused.value.detail) < 3_000


def test_lines_of_ndjson_are_whole_tasks() -> None:
    task = {
        "url": A,
        "external_id": "x",
        "metadata": {"k": "v"},
        "method": "POST",
        "body": {"a": ["é", 1]},
        "zenrows_params": {"premium_proxy": True},
    }
    [chunk] = read(json.dumps(task, ensure_ascii=False).encode(), NDJSON)
    raw = json.dumps({"tasks": [task]}, ensure_ascii=False).encode()
    [spec] = finish(task_bodies.read_addition(raw, {}, submission.Limits())).specs
    [(_, read_spec)] = chunk.tasks
    assert json.loads(read_spec.body or "") == json.loads(spec.body or "")
    assert read_spec.params == spec.params
    assert (read_spec.external_id, read_spec.metadata) == (spec.external_id, spec.metadata)


def test_tasks_are_judged_with_the_parameters_of_their_job() -> None:
    reader = ListReader(NDJSON, {"js_render": "true"})
    assert list(reader.feed(b'{"url":"%s","method":"POST"}' % A.encode())) == []
    [chunk] = reader.finish()
    assert errors([chunk]) == [(1, 0, "method_param_conflict")]


def test_a_quote_that_is_never_closed_costs_its_own_line_only() -> None:
    rows = [f'"{A}{number}","{number}"' for number in range(5_000)]
    rows[700] = f'"{A},700'
    chunks = read("\n".join(rows).encode(), CSV)
    assert errors(chunks) == [(701, 700, "unterminated_quote")]
    assert [ordinal for ordinal, _ in urls(chunks)] == [n for n in range(5_000) if n != 700]


def test_a_quote_that_is_never_closed_costs_its_own_line_only_where_no_other_is() -> None:
    rows = [f"{A}{number},{number}" for number in range(100_000)]
    rows[700] = f'"{A},700'
    chunks = read("\n".join(rows).encode(), CSV)
    assert errors(chunks) == [(701, 700, "unterminated_quote")]
    assert len(urls(chunks)) == 99_999


def test_a_row_of_many_lines_may_have_as_many_bytes_as_a_line() -> None:
    limits = ReaderLimits(line_bytes=100, chunk_lines=2)
    fits, over = b"\n" * (100 - len(A) - 4), b"\n" * (101 - len(A) - 3)
    spec = csv_of(url=1)
    assert urls(read(b'"%s",%s\n' % (fits, A.encode()), spec, limits=limits)) == [(0, A)]
    chunks = read(b'"%s",%s\n1,%s' % (over, A.encode(), B.encode()), spec, limits=limits)
    assert errors(chunks)[0] == (1, 0, "unterminated_quote")
    assert urls(chunks)[-1][1] == B


@pytest.mark.parametrize("chunk_lines", [1, 2, 2_000])
def test_what_a_bad_row_swallowed_is_read_line_by_line_in_later_pieces_too(
    chunk_lines: int,
) -> None:
    limits = ReaderLimits(line_bytes=20, chunk_lines=chunk_lines)
    chunks = read(b'"\n' + b'a",x,"\n' * 3 + b'a",y\n', CSV, limits=limits)
    swallowed = [(line, line - 1, "unterminated_quote") for line in (1, 2, 3, 4)]
    assert errors(chunks) == [*swallowed, (5, 4, "malformed_url")]


def test_every_line_leaving_a_quote_open_takes_no_longer_than_reading_does() -> None:
    """Each of these lines opens a quote as the first of a row, and keeps it open as another."""
    chunks = read(b'a",x,"\n' * 100_000, CSV)
    assert len(errors(chunks)) == 100_000


def test_a_line_without_end_is_not_held() -> None:
    peak = _peak(TXT, (bytes(64 * 1024) for _ in range(200)))
    assert peak < 8 * MEBIBYTE


@pytest.mark.parametrize(
    ("spec", "chunk"),
    [
        (TXT, b"https://a.example/some/where\n" * 4_000),
        (NDJSON, b'{"url":"https://a.example/some/where"}\n' * 4_000),
        (CSV, b'"https://a.example/some/where","1"\n' * 4_000),
        (CSV, b'"https://a.example/some/where\n' * 4_000),
        (TXT, b"\n" * 20_000),
        (TXT, b"x" * 900_000 + b"\n"),
        (NDJSON, b'{"url":"' + b"x" * 900_000 + b'"}\n'),
        (CSV, b'"' + b"xxxxxxx\n" * 8_000),
    ],
    ids=["txt", "ndjson", "csv", "open quotes", "blank", "long", "long json", "open rows"],
)
def test_memory_is_bounded_by_the_limits_not_by_the_list(spec: ListSpec, chunk: bytes) -> None:
    few, many = _peak(spec, [chunk] * 3), _peak(spec, [chunk] * 6)
    assert many < few + MEBIBYTE
    assert many < 64 * MEBIBYTE


def _peak(spec: ListSpec, chunks: object) -> int:
    reader = ListReader(spec, {})
    tracemalloc.start()
    try:
        for chunk in chunks:  # type: ignore[attr-defined]
            for _ in reader.feed(chunk):
                pass
        for _ in reader.finish():
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_task_that_is_too_large_is_a_bad_row() -> None:
    large = json.dumps({"url": A, "zenrows_params": {"wait_for": "x" * 60_000}})
    reader = ListReader(NDJSON, {}, task_limits=Limits(task_bytes=50_000))
    list(reader.feed(f'{{"url":"{A}"}}\n{large}\n'.encode()))
    [chunk] = reader.finish()
    assert errors([chunk]) == [(2, 1, "task_too_large")]
    assert urls([chunk]) == [(0, A)]
    assert errors(read(large.encode(), NDJSON)) == []
