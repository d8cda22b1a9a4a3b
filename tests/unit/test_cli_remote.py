"""The commands' HTTP client against servers that misbehave, and what is saved from them."""

import hashlib
import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from conveyor.cli import people, results
from conveyor.cli.remote import Problem, Refused, Remote, Unreachable, read
from conveyor.cli.shapes import Job
from conveyor.errors import CallerFault, ConveyorError, Unavailable
from tests.unit.answers_kit import Answer, Answers, served


def _on_the_wire(root: type[ConveyorError]) -> Iterator[type[ConveyorError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _on_the_wire(kind)


PAGE = b"<html>a page</html>"
ROW = {"run_id": "r", "url": "https://a.example", "status": "successful", "result_url": "x"}


@pytest.fixture
def answers() -> type[Answers]:
    class Fresh(Answers):
        table: ClassVar[dict[str, Answer | list[Answer]]] = {}
        seen: ClassVar[list[str]] = []
        hang_up = False

    return Fresh


@pytest.fixture
def remote(answers: type[Answers]) -> Iterator[Remote]:
    with served(answers) as url:
        remote = Remote(url, "a-key")
        yield remote
        remote._connection.close()


def test_a_refusal_carries_what_the_problem_says(remote: Remote, answers: type[Answers]) -> None:
    problem = {"status": 404, "code": "not_found", "detail": "No\x1b[31m such job", "more": 1}
    answers.table["/v1/jobs/x"] = 404, {}, json.dumps(problem).encode()
    with pytest.raises(Refused) as refusal:
        remote.get("jobs", "x")
    assert (refusal.value.problem.status, refusal.value.problem.code) == (404, "not_found")
    assert "such job (404 not_found)" in str(refusal.value)
    assert "conveyor jobs" in str(refusal.value)
    assert "\x1b" not in str(refusal.value)


@pytest.mark.parametrize("status", [302, 404, 502])
def test_an_answer_of_something_else_is_a_refusal_too(
    remote: Remote, answers: type[Answers], status: int
) -> None:
    answers.table["/v1/jobs"] = status, {"Location": "https://a.example"}, b"<html>\xff"
    with pytest.raises(Refused, match=f"--url its base URL.*{status}"):
        remote.get("jobs")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"job_id": "\xff"}', b""])
def test_a_good_answer_that_makes_no_sense_is_told(
    remote: Remote, answers: type[Answers], body: bytes
) -> None:
    answers.table["/v1/jobs/x"] = 200, {}, body
    with pytest.raises(Unreachable, match="--url"):
        read(remote.get("jobs", "x"), Job)


def test_ids_cannot_reach_beyond_their_place_in_the_path(
    remote: Remote, answers: type[Answers]
) -> None:
    answers.table["/v1/jobs/..%2Fx%3Fa%20b?limit=1"] = 200, {}, b"{}"
    assert remote.get("jobs", "../x?a b", limit=1, cursor=None) == b"{}"


def test_a_kept_connection_that_was_closed_is_opened_anew(
    remote: Remote, answers: type[Answers]
) -> None:
    answers.table["/v1/jobs"] = 200, {}, b"{}"
    answers.hang_up = True
    assert [remote.get("jobs"), remote.post("jobs", body={}), remote.get("jobs")] == [b"{}"] * 3
    assert len(answers.seen) == 3


def test_nobody_there_says_how_to_start_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    with pytest.raises(Unreachable, match="is it running"):
        Remote(f"http://127.0.0.1:{port}/v1", None).get("jobs")


@pytest.mark.parametrize(
    "headers", [{"Content-Length": str(len(PAGE) + 1)}, {"ETag": f'"{"0" * 64}"'}]
)
def test_a_page_that_is_cut_or_altered_is_not_taken(
    remote: Remote, answers: type[Answers], headers: dict[str, str]
) -> None:
    answers.table["/v1/page"] = 200, headers, PAGE
    with pytest.raises(Unreachable, match=r"whole|cannot reach"):
        remote.save("page", into=io.BytesIO())


def test_lines_come_one_by_one_and_a_cut_is_told(remote: Remote, answers: type[Answers]) -> None:
    chunked = {"Transfer-Encoding": "chunked", "Connection": "close"}
    answers.table["/v1/lines"] = 200, chunked, b"5\r\na\nbb\n\r\n0\r\n\r\n"
    assert list(remote.lines("lines")) == [b"a\n", b"bb\n"]
    answers.table["/v1/lines"] = 200, chunked, b"5\r\na\nbb\n\r\n9\r\nc\n"
    with pytest.raises(Unreachable):
        list(remote.lines("lines"))


@pytest.mark.parametrize("tag", [None, hashlib.sha256(PAGE).hexdigest(), "weak"])
def test_saved_pages_are_left_alone_only_when_whole(
    remote: Remote, answers: type[Answers], tmp_path: Path, tag: str | None
) -> None:
    _listing(answers, {**ROW, "task_id": "t-1", "type": "markdown"})
    headers = {"ETag": f'"{tag}"'} if tag else {}
    answers.table["/v1/jobs/j/runs/r/tasks/t-1/content"] = 200, headers, PAGE
    file = tmp_path / "t-1.md"
    assert results.save(remote, "j", None, tmp_path).saved == 1
    assert results.save(remote, "j", None, tmp_path).already_there == 1
    file.write_bytes(PAGE[:5])
    assert results.save(remote, "j", None, tmp_path).saved == 1
    file.write_bytes(PAGE[::-1])
    assert results.save(remote, "j", None, tmp_path).saved == (1 if tag and tag != "weak" else 0)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"t-1.md", "results.ndjson", ".conveyor-job"}


@pytest.mark.parametrize(
    "name", ["../evil", "/evil", "..", ".hidden", "", "a/b", "a\x00", "a" * 200]
)
def test_a_task_cannot_be_saved_outside_of_the_folder(
    remote: Remote, answers: type[Answers], tmp_path: Path, name: str
) -> None:
    _listing(answers, {**ROW, "task_id": name})
    with pytest.raises(Unreachable, match="no file name"):
        results.save(remote, "j", None, tmp_path / "out")
    names = {path.name for path in tmp_path.rglob("*")}
    assert names == {"out", "results.ndjson", ".conveyor-job"}


def test_a_full_disk_is_not_taken_for_an_absent_service(
    remote: Remote, answers: type[Answers], tmp_path: Path
) -> None:
    _listing(answers, {**ROW, "task_id": "t"})
    answers.table["/v1/jobs/j/runs/r/tasks/t/content"] = 200, {}, PAGE
    (tmp_path / "t.bin.part").symlink_to("/dev/full")
    with pytest.raises(results.Unsaved, match="No space left"):
        results.save(remote, "j", None, tmp_path)


def test_a_rerun_between_two_pages_does_not_get_into_the_listing(
    remote: Remote, answers: type[Answers]
) -> None:
    def page(*names: str, run: str, cursor: str | None) -> Answer:
        rows = [{**ROW, "task_id": name, "run_id": run} for name in names]
        return 200, {}, json.dumps({"results": rows, "next_cursor": cursor}).encode()

    answers.table |= {
        "/v1/jobs/j/results?limit=1000": page("a", "b", run="r", cursor="b"),
        "/v1/jobs/j/results?limit=1000&cursor=b": page("c", run="r2", cursor=None),
        "/v1/jobs/j/runs/r/results?limit=1000&cursor=b": page("c", run="r", cursor="c"),
        "/v1/jobs/j/runs/r/results?limit=1000&cursor=c": page("d", run="r", cursor=None),
    }
    rows = [json.loads(bytes(row)) for row in results.rows_of(remote, "j", None)]
    assert [(row["run_id"], row["task_id"]) for row in rows] == [("r", name) for name in "abcd"]


@pytest.mark.parametrize("kind", list(_on_the_wire(CallerFault)) + list(_on_the_wire(Unavailable)))
def test_every_refusal_says_what_to_do(kind: type[CallerFault | Unavailable]) -> None:
    status = getattr(kind, "status", 503)
    said, *advice = str(Refused(Problem(status=status, code=kind.code, detail="So"))).splitlines()
    assert said == f"So ({status} {kind.code})"
    assert len(advice) == 1
    assert len(advice[0].strip()) > 10


def test_more_runs_than_a_page_are_listed_page_by_page(
    remote: Remote, answers: type[Answers]
) -> None:
    for path, numbers, cursor in (
        ("/v1/jobs/j/runs?limit=100", range(100), "c"),
        ("/v1/jobs/j/runs?limit=50&cursor=c", range(100, 150), "d"),
    ):
        listing = {"runs": list(numbers), "next_cursor": cursor}
        answers.table[path] = 200, {}, json.dumps(listing).encode()
    found = people._runs(remote, "j", 150)
    assert [int(bytes(row)) for row in found.runs] == list(range(150))
    assert found.next_cursor == "d"


def test_a_refusal_without_words_of_the_commands_has_those_of_the_error() -> None:
    told = str(Refused(Problem(status=410, code="result_expired")))
    assert "run the job again; a longer `result_ttl_days`" in told
    assert str(Refused(Problem(status=418, code="teapot", detail="So"))) == "So (418 teapot)"


def test_a_fault_of_the_service_is_told_with_its_request_id(
    remote: Remote, answers: type[Answers]
) -> None:
    problem = json.dumps({"code": "internal", "detail": "It broke"}).encode()
    answers.table["/v1/jobs"] = 500, {"X-Request-ID": "abc"}, problem
    with pytest.raises(Refused, match=r"It broke \(500 internal, request id abc\)\n  repeat"):
        remote.get("jobs")


def _listing(answers: type[Answers], row: dict[str, str]) -> None:
    job = {"job_id": "j", "status": "closed", "created_at": "", "latest_run": None}
    answers.table["/v1/jobs/j"] = 200, {}, json.dumps(job).encode()
    listing = json.dumps({"results": [row], "next_cursor": None}).encode()
    answers.table["/v1/jobs/j/results?limit=1000"] = 200, {}, listing
