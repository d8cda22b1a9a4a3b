"""Lists in slots over HTTP: sent by a signed PUT, read as a stream, hostile ones answered clearly."""

import gzip
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.conftest import client_of, problem_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, service
from tests.seed import sampled

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MANY = 30_000
CSV = {"type": "csv", "csv": {"header": True, "fields": {"url": "url", "external_id": "id"}}}
TXT = {"type": "txt"}
NDJSON = {"type": "ndjson"}


def create_file_input(api: httpx.Client, spec: dict[str, Any]) -> dict[str, Any]:
    answer = api.post("/job_inputs", json=spec)
    assert answer.status_code == 201, answer.text
    file_input: dict[str, Any] = answer.json()
    return file_input


def put(
    file_input: dict[str, Any], content: bytes | Iterator[bytes], **headers: str
) -> httpx.Response:
    upload = file_input["upload"]
    return httpx.request(
        upload["method"],
        upload["url"],
        content=content,
        headers={**upload["headers"], **headers},
        timeout=200,
    )


def sent(api: httpx.Client, spec: dict[str, Any], content: bytes, **headers: str) -> str:
    file_input = create_file_input(api, spec)
    answer = put(file_input, content, **headers)
    assert answer.status_code == 200, answer.text
    return str(file_input["file_input_id"])


def submit(api: httpx.Client, file_input_id: str, **given: Any) -> httpx.Response:
    return api.post("/jobs", json={"file_input_id": file_input_id, **given})


def report(api: httpx.Client, job_id: str) -> list[dict[str, Any]]:
    answer = api.get(f"/jobs/{job_id}/ingest_errors").raise_for_status()
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def urls(count: int) -> bytes:
    return b"".join(b"https://ok.example/%d\n" % n for n in range(count))


def zipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def zstandard(content: bytes) -> bytes:
    return zstd.compress(content)


def test_a_small_list_is_a_job_with_all_its_rows(api: httpx.Client) -> None:
    content = b"id,url\na-1,https://ok.example/1\na-2,https://ok.example/2\n"
    answer = submit(api, sent(api, CSV, content), name="two pages")
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert job["accepted_tasks"] == 2
    run = ended(api, job["job_id"])
    assert (run["status"], run["stats"]["successful"]) == ("completed", 2)
    rows = every_row(api, job["job_id"])
    assert [(row["external_id"], row["url"]) for row in rows] == [
        ("a-1", "https://ok.example/1"),
        ("a-2", "https://ok.example/2"),
    ]


def test_lines_of_ndjson_are_whole_tasks(api: httpx.Client) -> None:
    task = {
        "url": "https://ok.example/form",
        "external_id": "form-7",
        "metadata": {"team": "red"},
        "method": "POST",
        "body": {"q": "shoes"},
    }
    job_id = submit(api, sent(api, NDJSON, json.dumps(task).encode())).json()["job_id"]
    ended(api, job_id)
    [row] = every_row(api, job_id)
    assert (row["external_id"], row["metadata"], row["method"]) == (
        "form-7",
        {"team": "red"},
        "POST",
    )


@pytest.mark.parametrize("pack", sampled([bytes, zipped, zstandard], 1, of="packed lists"))
def test_a_large_list_is_answered_at_once_and_scraped_to_its_end(
    api: httpx.Client, pack: Any
) -> None:
    lines = urls(MANY).splitlines()
    lines[7], lines[20_000] = b"ftp://seven.example/", b"https://"
    answer = submit(api, sent(api, TXT, pack(b"\n".join(lines))), max_inflight=500)
    assert answer.status_code == 202
    submitted = answer.json()
    assert (submitted["accepted_tasks"], submitted["latest_run"]["ingest_status"]) == (0, "pending")
    job_id = submitted["job_id"]
    api.post(f"/jobs/{job_id}/pause").raise_for_status()

    def taken_in() -> dict[str, Any] | None:
        run: dict[str, Any] = api.get(f"/jobs/{job_id}").json()["latest_run"]
        assert run["stats"]["total"] > run["stats"]["completed"]
        return run if run["ingest_status"] == "done" else None

    run = until(taken_in)
    assert (run["stats"]["total"], run["ingest_errors"]) == (MANY - 2, 2)
    assert report(api, job_id) == [
        {"line": 8, "ordinal": 7, "reason": "unsupported_scheme", "value": "ftp://seven.example/"},
        {"line": 20_001, "ordinal": 20_000, "reason": "missing_host", "value": "https://"},
    ]
    page = api.get(f"/jobs/{job_id}/results", params={"limit": 10}).json()["results"]
    assert [row["url"] for row in page][:8] == [
        f"https://ok.example/{n}" for n in (0, 1, 2, 3, 4, 5, 6, 8)
    ]
    assert api.delete(f"/jobs/{job_id}").status_code == 202
    problem_of(api.get(f"/jobs/{job_id}/ingest_errors"), 404, "not_found")


def test_the_link_is_bound_to_its_slot_its_content_type_and_one_list(api: httpx.Client) -> None:
    file_input, other = create_file_input(api, TXT), create_file_input(api, TXT)
    assert file_input["upload"]["headers"] == {"Content-Type": "text/plain"}
    wrong = put(file_input, b"x", **{"Content-Type": "text/html"})
    detail = problem_of(wrong, 404, "not_found")["detail"]
    assert "`Content-Type` is `text/html` and must be `text/plain`" in detail
    crossed = file_input["upload"]["url"].replace(
        file_input["file_input_id"], other["file_input_id"]
    )
    problem_of(put({"upload": {**file_input["upload"], "url": crossed}}, b"x"), 404, "not_found")
    assert put(file_input, b"https://ok.example/1\n").status_code == 200
    problem_of(put(file_input, b"https://ok.example/2\n"), 409, "file_input_already_uploaded")
    problem_of(api.put(file_input["upload"]["url"].split("?")[0], content=b"x"), 404, "not_found")


@pytest.mark.parametrize("length", [0, 20, 3_000_000])
def test_an_upload_that_its_client_cuts_short_is_refused_and_not_stored(
    gateway: Program, tmp_path: Path, length: int
) -> None:
    with service(data=tmp_path, gateway=gateway.url) as program, client_of(program) as api:
        file_input = create_file_input(api, TXT)
        file_input_id = file_input["file_input_id"]
        link = urlsplit(file_input["upload"]["url"])
        head = f"PUT {link.path}?{link.query} HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n"
        with socket.create_connection((link.hostname, link.port), timeout=200) as connection:
            connection.sendall(f"{head}Content-Length: {length + 1}\r\n\r\n".encode())
            connection.sendall(b"x" * length)
            connection.shutdown(socket.SHUT_WR)
            told = b"".join(iter(lambda: connection.recv(65_536), b""))
        assert told.startswith(b"HTTP/1.1 400 ")
        assert b"content-type: application/problem+json" in told
        assert f"{length + 1} bytes that `Content-Length` says, got {length}".encode() in told

        problem_of(submit(api, file_input_id), 409, "file_input_not_uploaded")
        until(lambda: not files_of(tmp_path, file_input_id))
        assert put(file_input, urls(1)).status_code == 200
        assert files_of(tmp_path, file_input_id)


def files_of(folder: Path, file_input_id: str) -> list[str]:
    """Files and folders; not by `rglob`, which fails for a folder that is removed meanwhile."""
    found = [name for _, folders, files in os.walk(folder) for name in (*folders, *files)]
    return [name for name in found if file_input_id in name]


def test_a_slot_is_its_callers_alone_and_has_to_be_filled(
    api: httpx.Client, stranger: httpx.Client
) -> None:
    file_input_id = sent(api, TXT, urls(1))
    problem_of(submit(stranger, file_input_id), 404, "file_input_not_found")
    problem_of(submit(api, "01AAAAAAAAAAAAAAAAAAAAAAAA"), 404, "file_input_not_found")
    empty = create_file_input(api, TXT)["file_input_id"]
    problem_of(submit(api, empty), 409, "file_input_not_uploaded")
    problem_of(
        submit(api, file_input_id, status="open"), 409, "file_input_unsupported_for_job_type"
    )


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"type": "xlsx"}, "type"),
        ({"type": "csv"}, "csv"),
        ({"type": "csv", "csv": {"fields": {"url": "link"}}}, "csv.fields.url"),
        ({"type": "csv", "csv": {"fields": {"url": 0}, "delimiter": ";;"}}, "csv.delimiter"),
        ({"type": "txt", "colour": "red"}, "colour"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(
    api: httpx.Client, spec: dict[str, Any], field: str
) -> None:
    problem = problem_of(api.post("/job_inputs", json=spec), 400, "invalid_argument")
    assert field in problem["detail"]


HOSTILE: dict[str, tuple[dict[str, Any], bytes, int, str]] = {
    "empty": (TXT, b"", 400, "at least one row"),
    "empty csv": (CSV, b"", 400, "begin with its header"),
    "only a header": (CSV, b"id,url\n", 400, "at least one row"),
    "wrong delimiter": (CSV, b"id;url\n1;https://ok.example/\n", 400, "split at ','"),
    "no such column": (CSV, b"id,link\n1,https://ok.example/\n", 400, "no column `url`"),
    "column out of range": (
        {"type": "csv", "csv": {"fields": {"url": 7}}},
        b"a,b\n",
        400,
        "missing_column",
    ),
    "a long line": (TXT, b"https://ok.example/" + b"a" * 2_000_000, 400, "line_too_long"),
    "nul bytes": (TXT, b"https://ok.example/\0\n", 400, "nul_byte"),
    "not utf-8": (TXT, b"https://ok.example/\xff\n", 400, "invalid_utf8"),
    "utf-16": (TXT, "https://ok.example/\n".encode("utf-16"), 400, "UTF-16"),
    "a json array": (NDJSON, b'[{"url": "https://ok.example/"}]', 400, "JSON array"),
    "a zip": (TXT, b"PK\x03\x04" + bytes(100), 400, "compressed with zip"),
    "gzip cut short": (TXT, zipped(urls(9))[:-9], 400, "cut short"),
    "a quote never closed": (CSV, b'id,url\n1,"https://ok.example/\n', 400, "unterminated_quote"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_list_gets_a_clear_answer_and_makes_nothing(api: httpx.Client, name: str) -> None:
    spec, content, status, words = HOSTILE[name]
    problem = problem_of(submit(api, sent(api, spec, content)), status, "invalid_argument")
    assert words in problem["detail"]


def test_a_bomb_ends_in_a_clear_answer(api: httpx.Client) -> None:
    parts = zipped(bytes(50_000_000)) * 20  # a gigabyte of zeros in a megabyte
    assert len(parts) < 1_100_000
    problem = problem_of(submit(api, sent(api, TXT, parts)), 413, "payload_too_large")
    assert "250 times" in problem["detail"]


def test_a_byte_order_mark_and_crlf_are_no_part_of_a_row(api: httpx.Client) -> None:
    answer = submit(api, sent(api, CSV, b"\xef\xbb\xbfid,url\r\n1,https://ok.example/1\r\n"))
    assert answer.status_code == 201
    rows = every_row(api, answer.json()["job_id"])
    assert [row["url"] for row in rows] == ["https://ok.example/1"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b'"a\nb","https://ok.example/2"\n', "invalid_external_id"),
        (b'7,"https://ok.example/a\nb"\n', "malformed_url"),
    ],
)
def test_a_line_end_within_a_cell_is_part_of_its_value(
    api: httpx.Client, row: bytes, reason: str
) -> None:
    answer = submit(api, sent(api, CSV, b"id,url\n" + row))
    problem = problem_of(answer, 400, "invalid_argument")
    [bad] = problem["invalid_tasks"]
    assert bad["reason"] == reason


def test_on_invalid_fail_stops_a_large_list_before_anything_is_scraped(api: httpx.Client) -> None:
    lines = urls(MANY).splitlines()
    lines[-1] = b"nonsense"
    file_input_id = sent(api, TXT, b"\n".join(lines))
    job_id = submit(api, file_input_id, on_invalid="fail").json()["job_id"]
    run = ended(api, job_id)
    assert (run["status"], run["stats"]["total"], run["ingest_errors"]) == ("stopped", 0, 1)
    assert run["ingest_error"].startswith("1 of the 30000 rows")
    assert every_row(api, job_id) == []
    assert [line["line"] for line in report(api, job_id)] == [MANY]


def test_a_list_of_bad_rows_only_completes_and_says_why(api: httpx.Client) -> None:
    file_input_id = sent(api, TXT, b"nonsense\n" * MANY)
    run = ended(api, submit(api, file_input_id).json()["job_id"])
    assert (run["status"], run["stats"]["total"], run["ingest_errors"]) == ("completed", 0, MANY)
    assert "None of the 30000 rows" in run["ingest_error"]


def test_a_line_of_ten_megabytes_is_told_and_the_others_are_scraped(api: httpx.Client) -> None:
    content = urls(3) + b"https://ok.example/" + b"a" * 10_000_000 + b"\n" + urls(2)
    job_id = submit(api, sent(api, TXT, content)).json()["job_id"]
    run = ended(api, job_id)
    assert (run["status"], run["stats"]["successful"], run["ingest_errors"]) == ("completed", 5, 1)
    [line] = report(api, job_id)
    assert (line["line"], line["reason"], len(line["value"])) == (4, "line_too_long", 200)


def test_a_list_that_is_too_large_is_refused_with_its_bound(
    gateway: Program, tmp_path: Any
) -> None:
    environ = {"CONVEYOR_LIST_BYTES": "1000"}
    with (
        service(data=tmp_path / "data", gateway=gateway.url, environ=environ) as program,
        client_of(program) as api,
    ):
        file_input = create_file_input(api, TXT)
        problem = problem_of(put(file_input, b"x" * 1001), 413, "payload_too_large")
        assert "1000 bytes" in problem["detail"]
        problem_of(put(file_input, iter([b"x" * 900, b"x" * 900])), 413, "payload_too_large")
        assert put(file_input, b"https://ok.example/1\n").status_code == 200
        assert not list((tmp_path / "data" / "blobs").rglob(".draft-*"))
