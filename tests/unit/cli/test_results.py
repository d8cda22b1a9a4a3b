"""What `conveyor results` saves, and from whom it takes it; runs over several pages."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier
from typing import ClassVar

import pytest

from conveyor.cli import jobs, results
from conveyor.cli.connect import Endpoint
from conveyor.cli.results import Listing, NotSaved
from conveyor.client import Conveyor, TaskResult, UnreachableError
from conveyor.errors import RefusedToStart
from tests.harness.scripted_server import Answer, Answers, served

PAGE = b"<html>a page</html>"
ROW = {"run_id": "r", "url": "https://a.example", "status": "successful", "result_url": "x"}
CLOSE = {"Connection": "close"}  # the server has one thread


@pytest.fixture
def answers() -> type[Answers]:
    class Fresh(Answers):
        table: ClassVar[dict[str, Answer | list[Answer]]] = {}
        seen: ClassVar[list[str]] = []
        hang_up = False

    return Fresh


@pytest.fixture
def service(answers: type[Answers]) -> Iterator[Endpoint]:
    with served(answers) as url:
        yield Endpoint(url, "a-key")


@pytest.fixture
def listing(service: Endpoint) -> Listing:
    return Listing(service, "j")


@pytest.mark.parametrize("tag", [None, hashlib.sha256(PAGE).hexdigest(), "weak"])
def test_saved_pages_are_left_alone_only_when_whole(
    listing: Listing, answers: type[Answers], tmp_path: Path, tag: str | None
) -> None:
    _listing(answers, {**ROW, "task_id": "t-1", "type": "markdown"})
    headers = CLOSE | ({"ETag": f'"{tag}"'} if tag else {})
    answers.table["/v1/jobs/j/runs/r/tasks/t-1/content"] = 200, headers, PAGE
    file = tmp_path / "t-1.md"
    assert listing.save(tmp_path).saved == 1
    assert listing.save(tmp_path).already_there == 1
    file.write_bytes(PAGE[:5])
    assert listing.save(tmp_path).saved == 1
    file.write_bytes(PAGE[::-1])
    assert listing.save(tmp_path).saved == (1 if tag and tag != "weak" else 0)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"t-1.md", "results.ndjson", ".conveyor-job"}


def test_pages_are_downloaded_in_parallel_and_their_rows_stay_in_order(
    listing: Listing, answers: type[Answers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t-{number}" for number in range(results.AT_ONCE * 2)]
    _listing(answers, *({**ROW, "task_id": name} for name in names))
    together = Barrier(results.AT_ONCE)  # passed when so many downloads are under way

    def save(_: Conveyor, result: TaskResult, file: Path) -> int:
        together.wait(timeout=200)
        return file.write_bytes(result.task_id.encode())

    monkeypatch.setattr(Conveyor, "save", save)
    assert results.AT_ONCE > 1
    assert listing.save(tmp_path).saved == len(names)
    rows = [json.loads(line) for line in (tmp_path / "results.ndjson").read_text().splitlines()]
    assert [(row["task_id"], (tmp_path / row["file"]).read_text()) for row in rows] == [
        (name, name) for name in names
    ]


def test_a_folder_is_for_the_results_of_one_run(
    listing: Listing, service: Endpoint, answers: type[Answers], tmp_path: Path
) -> None:
    for run in ("r", "r2"):
        shown = {"run_id": run, "job_id": "j", "status": "completed"}
        answers.table[f"/v1/jobs/j/runs/{run}"] = 200, CLOSE, json.dumps(shown).encode()
        rows = json.dumps({"results": [], "next_cursor": None}).encode()
        answers.table[f"/v1/jobs/j/runs/{run}/results?limit=1000"] = 200, CLOSE, rows
    earlier = Listing(service, "j", run="r")
    earlier.save(tmp_path)
    earlier.save(tmp_path)
    _listing(answers, {**ROW, "task_id": "t"})
    for other in (listing, Listing(service, "j", run="r2")):
        with pytest.raises(RefusedToStart, match="holds the results of job j, run r:"):
            other.save(tmp_path)


@pytest.mark.parametrize(
    "name", ["../evil", "/evil", "..", ".hidden", "", "a/b", "a\x00", "a" * 200]
)
def test_a_task_cannot_be_saved_outside_of_the_folder(
    listing: Listing, answers: type[Answers], tmp_path: Path, name: str
) -> None:
    _listing(answers, {**ROW, "task_id": name})
    with pytest.raises(UnreachableError, match="cannot be used as a file name"):
        listing.save(tmp_path / "out")
    names = {path.name for path in tmp_path.rglob("*")}
    assert names == {"out", "results.ndjson", ".conveyor-job"}


def test_a_full_disk_is_not_taken_for_an_absent_service(
    listing: Listing, answers: type[Answers], tmp_path: Path
) -> None:
    _listing(answers, {**ROW, "task_id": "t"})
    answers.table["/v1/jobs/j/runs/r/tasks/t/content"] = 200, CLOSE, PAGE
    (tmp_path / "t.bin.part").symlink_to("/dev/full")
    with pytest.raises(NotSaved, match="No space left"):
        listing.save(tmp_path)


def test_more_runs_than_a_page_are_listed_page_by_page(
    service: Endpoint, answers: type[Answers]
) -> None:
    for path, numbers, cursor in (
        ("/v1/jobs/j/runs?limit=100", range(100), "c"),
        ("/v1/jobs/j/runs?limit=50&cursor=c", range(100, 150), "d"),
    ):
        listing = {"runs": list(numbers), "next_cursor": cursor}
        answers.table[path] = 200, CLOSE, json.dumps(listing).encode()
    with service.client() as client:
        found = jobs.list_rows(client, "runs", "jobs", "j", "runs", limit=150)
    assert [int(bytes(row)) for row in found["runs"]] == list(range(150))
    assert found["next_cursor"] == "d"


def _listing(answers: type[Answers], *rows: dict[str, str]) -> None:
    job = {"job_id": "j", "status": "closed", "latest_run": None}
    answers.table["/v1/jobs/j"] = 200, CLOSE, json.dumps(job).encode()
    listing = json.dumps({"results": rows, "next_cursor": None}).encode()
    answers.table["/v1/jobs/j/results?limit=1000"] = 200, CLOSE, listing
