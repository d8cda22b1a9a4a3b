"""Lists of tasks: each form of file, and what is said of one that is none."""

import io
import sys
from pathlib import Path

import pytest

from conveyor.cli import add, task_files
from conveyor.cli.task_files import MOST_BYTES, MOST_TASKS, ListedTask, UnusableList, open_list
from conveyor.domain.submission import TASKS_PER_ADD, Limits
from conveyor.errors import RefusedToStart


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_limits_of_a_call_are_the_services_own() -> None:
    assert (Limits().inline_tasks, TASKS_PER_ADD) == (MOST_TASKS, add.MOST_ADDED)
    assert Limits().inline_bytes - 8 * 1024 * 1024 == MOST_BYTES


def test_lines_are_urls_but_for_blank_ones_and_comments(folder: Path) -> None:
    text = "# news\nhttps://a.example/#top\n\n   https://b.example  \r\n  # no\nhttps://c.example"
    assert _tasks(folder / "urls.txt", text) == [
        ListedTask(2, {"url": "https://a.example/#top"}),
        ListedTask(4, {"url": "https://b.example"}),
        ListedTask(6, {"url": "https://c.example"}),
    ]


@pytest.mark.parametrize("ending", ["ndjson", "jsonl", "JSONL"])
def test_ndjson_lines_are_tasks_with_all_they_bear(folder: Path, ending: str) -> None:
    text = (
        '{"url": "https://a.example", "body": {"x": [1.5, null]}}\n\n{"url": "https://b.example"}'
    )
    assert _tasks(folder / f"tasks.{ending}", text) == [
        ListedTask(1, {"url": "https://a.example", "body": {"x": [1.5, None]}}),
        ListedTask(3, {"url": "https://b.example"}),
    ]


def test_csv_has_a_header_and_may_bear_ids_of_ones_own(folder: Path) -> None:
    text = '\ufeffexternal_id,url,note\nA-1,"https://a.example/?q=1,2",x\n\n,https://b.example,\n'
    assert _tasks(folder / "tasks.csv", text) == [
        ListedTask(2, {"url": "https://a.example/?q=1,2", "external_id": "A-1"}),
        ListedTask(4, {"url": "https://b.example"}),
    ]


def test_columns_are_found_as_the_service_finds_them(folder: Path) -> None:
    text = '\n url , external_id\nhttps://a.example,"x"\n"https://b.example","y\nz"\n\nhttps://c.example'
    assert _tasks(folder / "tasks.csv", text) == [
        ListedTask(3, {"url": "https://a.example", "external_id": "x"}),
        ListedTask(4, {"url": "https://b.example", "external_id": "y\nz"}, 2),
        ListedTask(7, {"url": "https://c.example"}),
    ]


@pytest.mark.parametrize(
    ("given", "task"),
    [
        (b"https://a.example\n", {"url": "https://a.example"}),
        (b'{"url": "https://a.example", "method": "POST"}\n', {"method": "POST"}),
        (b"\xef\xbb\xbfhttps://a.example", {"url": "https://a.example"}),
    ],
)
def test_standard_input_is_lines_or_ndjson(
    monkeypatch: pytest.MonkeyPatch, given: bytes, task: dict[str, object]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    with open_list("-") as source:
        [listed] = source
    assert listed.task == {"url": "https://a.example"} | task


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a.ndjson",
            b'{"url": "https://a.example"}\n{"url"',
            ["a.ndjson, line 2", "must be a task"],
        ),
        ("a.ndjson", b'["https://a.example"]', ["line 1", "must be a task"]),
        ("a.ndjson", b'{"link": "https://a.example"}', ["line 1", "must have a `url`"]),
        ("a.ndjson", b'{"url": ""}', ["line 1", "must have a `url`"]),
        ("a.csv", b"", ["a.csv", "is empty"]),
        ("a.csv", b"link,id\nx,1\n", ["no column is named `url`", "link, id"]),
        ("a.csv", b"url,id\nhttps://a.example,1\n,2\n", ["line 3", "`url` must not be empty"]),
        ("a.csv", b"url\n" + b"a" * 200_000, ["line 2", "limit"]),
        ("a.csv", b"url,url\nx,y\n", ["more than one column is named `url`"]),
        ("a.csv", b'url,note\na,x\nb,"y\nc,z\nd,z\n', ["line 3", "a quote is never closed"]),
        ("a.csv", b'url,note\nb,"y\nc,z\nd,"z"\n', ["line 2", "expected after"]),
        ("a.csv", b'"url\nb\n', ["line 1", "a quote is never closed"]),
        ("a.txt", b"\xff\xfe\x00h", ["a.txt", "UTF-8"]),
        ("a.ndjson", b'{"url": "\xff"}', ["a.ndjson", "UTF-8"]),
        ("folder/a.txt", None, ["folder/a.txt", "No such file"]),
    ],
)
def test_what_is_no_list_is_refused_with_its_place(
    folder: Path, name: str, content: bytes | None, words: list[str]
) -> None:
    file = folder / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RefusedToStart) as refusal, open_list(str(file)) as source:
        list(source)
    for word in words:
        assert word in str(refusal.value)


def test_all_bad_lines_are_named_up_to_a_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_files, "MOST_NAMED", 2)
    for count, end in (2, "line 2: must have a `url`"), (4, "and 2 more"):
        with pytest.raises(UnusableList) as refusal:
            _tasks(folder / "a.ndjson", "{}\n" * count + '{"url": "https://a.example"}\n')
        assert f"{count} bad lines" in str(refusal.value)
        assert str(refusal.value).endswith(end)
        assert "--on-invalid skip" in refusal.value.advice


@pytest.mark.parametrize(
    ("text", "advice"),
    [('"url\nhttps://a.example\n', "--url-column"), ('url\n"https://a.example\n', "--on-invalid")],
)
def test_a_quote_that_is_never_closed_gets_advice_that_helps(
    folder: Path, text: str, advice: str
) -> None:
    with pytest.raises(UnusableList) as refusal:
        _tasks(folder / "a.csv", text)
    assert advice in refusal.value.advice


def _tasks(file: Path, text: str) -> list[ListedTask]:
    file.write_bytes(text.encode())
    with open_list(str(file)) as source:
        return list(source)
