"""Lists on their way to a service: what is told of them, and what a broken upload says."""

import gzip
import inspect
import io
import sys
from pathlib import Path
from typing import Any

import pytest

from conveyor.cli import submit, task_files
from conveyor.cli.connect import Endpoint
from conveyor.cli.submit import ListOptions, upload_options
from conveyor.cli.task_files import ListFile
from conveyor.client import Conveyor, UnreachableError
from conveyor.domain.submission import Submission
from conveyor.errors import RefusedToStart

# Options of `conveyor submit` that are fields of a submission under another name.
RENAMED = {"param": "zenrows_params", "open_": "status", "file": "tasks"}
# Options that are no fields of a submission: the service, the list's format, and the output.
NO_FIELDS = {
    *("service", "idempotency_key", "max_failed", "follow", "as_json"),
    "form",
}
# Fields of a submission that are no options, each with the reason.
LEFT_OUT = {
    "type": "a job with a schedule is a scheduled one",
    "file_input_id": "the command uploads the list and sets it",
    "async": "decides when the service answers; the command waits for any answer",
    "step_functions": "only a state machine of Step Functions has the token",
}


def test_every_field_of_a_submission_is_an_option_or_left_out_for_a_reason() -> None:
    given = inspect.signature(inspect.unwrap(submit.submit)).parameters
    options = {RENAMED.get(name, name) for name in given if name not in NO_FIELDS}
    assert not options & LEFT_OUT.keys()
    assert options | LEFT_OUT.keys() == set(Submission.__struct_encode_fields__)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            UnreachableError("cannot reach it"),
            UnreachableError,
            r"broke off: cannot.*\n.*nothing was submitted",
        ),
        (OSError(5, "Input/output error"), RefusedToStart, "Input/output.*nothing was submitted"),
        (
            ValueError("the list must not change while it is sent"),
            RefusedToStart,
            "must not change",
        ),
    ],
)
def test_an_upload_that_fails_says_that_nothing_was_submitted(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: Exception,
    kind: type[Exception],
    words: str,
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(Conveyor, "upload", fail)
    (tmp_path / "urls").write_text("https://a.example")
    source = ListFile(str(tmp_path / "urls"))
    with pytest.raises(kind, match=words):
        submit.upload(Endpoint("http://a.example/v1", None), source, ListOptions(), quiet=True)


@pytest.mark.parametrize(
    ("name", "content", "kind", "packed"),
    [
        ("a.csv", b"", "csv", False),
        ("a.CSV.GZ", b"", "csv", True),
        ("a.jsonl.zst", b"", "ndjson", True),
        ("a.ndjson.zstd", b"", "ndjson", True),
        ("a.txt", b"https://a.example", "txt", False),
        ("a.gz", b"", "txt", True),
        ("list", gzip.compress(b"https://a.example", mtime=0), "txt", True),
        ("list", gzip.compress(b"\xef\xbb\xbf {}", mtime=0), "ndjson", True),
        ("list", b"{}", "ndjson", False),
        ("list", b"\x1f\x8bnonsense", "txt", True),
    ],
)
def test_kind_and_packing_are_told_by_name_and_beginning(
    tmp_path: Path, name: str, content: bytes, kind: str, packed: bool
) -> None:
    (tmp_path / name).write_bytes(content)
    source = ListFile(str(tmp_path / name))
    assert (source.kind, source.is_compressed) == (kind, packed)


def test_a_list_fits_a_call_by_its_lines_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_files, "MOST_LINES", 3)
    monkeypatch.setattr(task_files, "MOST_BYTES", 10)
    file = tmp_path / "a.txt"
    for content, fits in (b"a\nb\nc\n", True), (b"a\nb\nc\nd\n", False), (b"a" * 11, False):
        file.write_bytes(content)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert ListFile(str(file)).fits_a_call() is fits
        stream = ListFile("-")
        assert stream.fits_a_call() is fits
        assert b"".join(iter(stream.stream().read, b"")) == content


@pytest.mark.parametrize(
    ("content", "form", "options"),
    [
        (b"url,x\n", ListOptions(), {"url_column": "url"}),
        (
            b'\xef\xbb\xbf external_id ,"url"\r\n',
            ListOptions(),
            {"url_column": "url", "id_column": "external_id"},
        ),
        (
            b"a\tb\n",
            ListOptions(delimiter="tab", url_column="b", id_column="a"),
            {"delimiter": "\t", "url_column": "b", "id_column": "a"},
        ),
        (
            b"a;b\n",
            ListOptions(delimiter=";", no_header=True),
            {"header": False, "delimiter": ";", "url_column": 0},
        ),
        (b'"ur\nl",x\n', ListOptions(), {"url_column": "url"}),
    ],
)
def test_columns_of_csv_are_told_by_its_first_line(
    tmp_path: Path, content: bytes, form: ListOptions, options: dict[str, object]
) -> None:
    expected = {"type": "csv", "delimiter": ",", "id_column": None} | options
    for name, raw in ("a.csv", content), ("a.csv.gz", gzip.compress(content)):
        (tmp_path / name).write_bytes(raw)
        found = upload_options(ListFile(str(tmp_path / name)), form)
        assert found == expected
