"""Lists of any content: cuts change nothing, and the csv and json modules read the same rows."""

import csv
import io
import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.domain import submission, task_bodies
from conveyor.domain.json_bodies import finish
from conveyor.domain.task_list.reader import ListChunk
from conveyor.domain.task_list.rows import Position, ReaderLimits
from conveyor.domain.task_list.spec import ListFormat, ListSpec
from conveyor.errors import InvalidArgument
from tests.harness.task_lists import CSV, NAMED, NDJSON, TXT, read, urls
from tests.seed import examples

WORDS = [
    b"https://a.example/", b"http://b", b",", b'"', b'""', b"\n", b"\r\n", b"\r", b"#", b" ", b"x", b"{", b"}",
    b'{"url":"https://a.example/"}', b'{"url":1}', b"\0", b"\xff", b"\xc3", b"\xa9", b"0123456789" * 3, b"url,id\n",
    b'"a\nb",c\n', b"\xef\xbb\xbf",
]  # fmt: skip
CONTENT = st.lists(st.sampled_from(WORDS), max_size=60).map(b"".join)
TABLES = st.lists(
    st.sampled_from([b",", b'"', b'""', b'","', b"\n", b"x", b'"\n', b'\n"', b"x,y\n"]), max_size=80
).map(b"".join)
SPECS = st.sampled_from([TXT, NDJSON, CSV, NAMED, ListSpec(format=ListFormat.CSV, url=0)])
SMALL = st.builds(
    ReaderLimits,
    line_bytes=st.integers(4, 60),
    chunk_bytes=st.integers(1, 80),
    chunk_lines=st.integers(1, 6),
)
CUTS = st.lists(st.integers(0, 400), max_size=12)


def outcome(chunks: list[bytes], spec: ListSpec, limits: ReaderLimits) -> list[ListChunk] | str:
    try:
        return read(chunks, spec, limits=limits)
    except InvalidArgument as error:
        return error.detail


def cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({*(at for at in cuts if at < len(raw)), len(raw)})
    return [raw[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@settings(max_examples=examples(400))
@given(st.one_of(CONTENT, TABLES), SPECS, SMALL, CUTS)
def test_however_a_list_is_cut_into_chunks_its_pieces_are_the_same(
    raw: bytes, spec: ListSpec, limits: ReaderLimits, cuts: list[int]
) -> None:
    whole = outcome([raw], spec, limits)
    assert outcome(cut(raw, cuts), spec, limits) == whole
    assert outcome([raw[at : at + 1] for at in range(len(raw))], spec, limits) == whole


@settings(max_examples=examples(400))
@given(st.one_of(CONTENT, TABLES), SPECS, SMALL)
def test_whoever_has_a_position_goes_on_with_the_next_piece(
    raw: bytes, spec: ListSpec, limits: ReaderLimits
) -> None:
    whole = outcome([raw], spec, limits)
    if isinstance(whole, str):
        return
    for number, chunk in enumerate(whole, 1):
        stored = msgspec.json.encode(chunk.position)
        position = msgspec.json.decode(stored, type=Position)
        assert len(stored) < 200
        rest = read(raw[position.offset :], spec, position, limits)
        assert rest == whole[number:]
    assert not whole or whole[-1].position.offset == len(raw)


@settings(max_examples=examples(200))
@given(st.one_of(CONTENT, TABLES), SPECS, SMALL)
def test_every_ordinal_is_a_task_or_an_error(
    raw: bytes, spec: ListSpec, limits: ReaderLimits
) -> None:
    whole = outcome([raw], spec, limits)
    if isinstance(whole, str):
        return
    told = [ordinal for chunk in whole for ordinal, _ in chunk.tasks]
    told += [error.ordinal for chunk in whole for error in chunk.errors]
    assert sorted(told) == list(range(len(told)))
    lines = [error.line for chunk in whole for error in chunk.errors]
    assert lines == sorted(set(lines))
    assert all(1 <= line <= raw.count(b"\n") + 1 for line in lines)


# The csv module of Python 3.11 writes a return without quotes, and does not read it then.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=12)
FIELDS = st.lists(st.tuples(TEXT, st.integers(0, 99), TEXT), max_size=20)


@settings(max_examples=examples(200))
@given(
    FIELDS,
    st.tuples(st.sampled_from(",;\t|é"), st.sampled_from("\"'"), st.sampled_from(["\n", "\r\n"])),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.integers(1, 7),
)
def test_what_the_csv_module_writes_is_read(
    rows: list[tuple[str, int, str]], marks: tuple[str, str, str], style: int, lines: int
) -> None:
    delimiter, quote, end = marks
    out = io.StringIO(newline="")
    writer = csv.writer(
        out,
        delimiter=delimiter,
        quotechar=quote,
        lineterminator=end,
        quoting=style,  # type: ignore[arg-type]
    )
    writer.writerow(["note", "url", "rest"])
    writer.writerows((note, f"https://a.example/{number}", rest) for note, number, rest in rows)
    spec = ListSpec(format=ListFormat.CSV, delimiter=delimiter, quote=quote, header=True, url="url")
    chunks = read(out.getvalue().encode(), spec, limits=ReaderLimits(chunk_lines=lines))
    assert [error for chunk in chunks for error in chunk.errors] == []
    assert [url for _, url in urls(chunks)] == [
        f"https://a.example/{number}" for _, number, _ in rows
    ]


@settings(max_examples=examples(400))
@given(TABLES, st.integers(1, 7))
def test_what_the_csv_module_reads_is_read_the_same(raw: bytes, lines: int) -> None:
    try:
        rows = [
            row for row in csv.reader(io.StringIO(raw.decode(), newline=""), strict=True) if row
        ]
    except csv.Error:
        return
    chunks = read(
        raw, ListSpec(format=ListFormat.CSV, url=1), limits=ReaderLimits(chunk_lines=lines)
    )
    told = [(error.ordinal, error.reason) for chunk in chunks for error in chunk.errors]
    assert told == [
        (number, "malformed_url" if len(row) > 1 else "missing_column")
        for number, row in enumerate(rows)
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
TASKS = st.lists(
    st.fixed_dictionaries(
        {"url": st.sampled_from(["https://a.example/é", "ftp://a", "x", "http://"])},
        optional={
            "external_id": st.sampled_from(["x", "a b", "", None]),
            "metadata": st.dictionaries(TEXT, TEXT, max_size=2) | JSON,
            "method": st.sampled_from(["GET", "post", "PUT"]),
            "body": JSON,
            "zenrows_params": st.sampled_from(
                [{}, {"js_render": True}, {"nope": 1}, {"wait": "x"}]
            ),
            "other": JSON,
        },
    )
    | JSON,
    max_size=12,
)


@settings(max_examples=examples(300))
@given(TASKS, st.booleans())
def test_lines_of_ndjson_are_judged_as_the_tasks_of_a_submit(
    tasks: list[object], is_ascii: bool
) -> None:
    lines = [json.dumps(task, ensure_ascii=is_ascii, separators=(",", ":")) for task in tasks]
    if lines and lines[0].startswith("["):
        return
    chunks = read("\n".join(lines).encode(), NDJSON)
    got = {ordinal: spec for chunk in chunks for ordinal, spec in chunk.tasks}
    got |= {error.ordinal: error.reason for chunk in chunks for error in chunk.errors}  # type: ignore[misc]
    assert list(map(got.get, range(len(lines)))) == [_inline(line) for line in lines]


def _inline(line: str) -> object:
    raw = f'{{"tasks":[{line}]}}'.encode()
    try:
        return finish(task_bodies.read_addition(raw, {}, submission.Limits())).specs[0]
    except InvalidArgument as error:
        [bad] = error.extras["invalid_tasks"]  # type: ignore[misc]
        return bad.reason  # type: ignore[has-type]
