"""Rerun and delete over HTTP, with a look at what is left in the data folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of, problem_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, service
from tests.kept import every_body

TABLES = ("task", "attempt", "counter", "run_no", "batch", "run")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def own(gateway: Program, data: Path) -> Iterator[httpx.Client]:
    """A service of this test's own."""
    with (
        service(data=data, gateway=gateway.url, environ=FAST_RETRIES | SHORT_GRACE) as program,
        client_of(program) as client,
    ):
        yield client


def test_a_rerun_answers_what_it_does(api: httpx.Client) -> None:
    job_id = _submit(api, "https://ok.example/1", "https://permanent.example/2")
    first = ended(api, job_id)

    answer = api.post(f"/jobs/{job_id}/rerun", params={"status": "failed"})

    assert answer.status_code == 201
    told = answer.json()
    assert told["job_id"] == job_id
    assert told["status"] == "closed"
    assert told["rerun_of"] == first["run_id"]
    assert (told["retried_tasks"], told["inherited_tasks"]) == (1, 1)
    assert told["latest_run"]["run_sequence"] == 2
    assert told["latest_run"]["stats"]["completed"] == 1
    assert told["latest_run"]["inherited_tasks"] == 1
    assert "inherited_tasks" not in first
    assert told["latest_run"]["stats"]["spend"] == {"credits": 0, "cost": 0.0}
    ended(api, job_id)
    kept, retried = every_row(api, job_id)
    assert kept["source_run_id"] == first["run_id"]
    assert "source_run_id" not in retried
    assert kept["created_at"] <= kept["scraped_at"] <= first["updated_at"] < kept["updated_at"]
    assert "scraped_at" not in retried
    body = api.get(f"/jobs/{job_id}/tasks/{kept['task_id']}/content")
    assert body.status_code == 200
    assert httpx.get(kept["result_url"]).content == body.content


@pytest.mark.parametrize("status", ["", ",", "done", "failed,unknown"])
def test_a_bad_status_list_is_refused(api: httpx.Client, status: str) -> None:
    job_id = _submit(api, "https://ok.example/1")
    ended(api, job_id)

    problem = problem_of(
        api.post(f"/jobs/{job_id}/rerun", params={"status": status}), 400, "invalid_argument"
    )

    assert problem["field"] == "status"
    assert len(api.get(f"/jobs/{job_id}/runs").json()["runs"]) == 1


@pytest.mark.parametrize(
    ("query", "body", "field"),
    [("", b'{"status": "failed"}', "status"), ("", b"[", None), ("?stats=failed", b"", "stats")],
)
def test_a_rerun_whose_statuses_would_be_ignored_is_refused(
    api: httpx.Client, query: str, body: bytes, field: str | None
) -> None:
    job_id = _submit(api, "https://ok.example/1")
    ended(api, job_id)

    answer = api.post(f"/jobs/{job_id}/rerun{query}", content=body)

    assert problem_of(answer, 400, "invalid_argument").get("field") == field
    assert len(api.get(f"/jobs/{job_id}/runs").json()["runs"]) == 1
    assert api.post(f"/jobs/{job_id}/rerun", content=b"{}").status_code == 201


def test_a_repeated_rerun_is_answered_to_the_byte(api: httpx.Client) -> None:
    job_id = _submit(api, "https://ok.example/1")
    ended(api, job_id)
    key = {"Idempotency-Key": f"rerun-{job_id}"}

    answers = [api.post(f"/jobs/{job_id}/rerun", headers=key) for _ in range(3)]

    assert {(answer.status_code, answer.content) for answer in answers} == {
        (201, answers[0].content)
    }
    assert len(api.get(f"/jobs/{job_id}/runs").json()["runs"]) == 2


def test_nothing_of_a_deleted_job_is_left_in_the_folder(own: httpx.Client, data: Path) -> None:
    job_id = _submit(own, *[f"https://ok.example/{n}" for n in range(50)])
    ended(own, job_id)
    own.post(f"/jobs/{job_id}/rerun").raise_for_status()
    slow = _submit(own, *[f"https://slow.example/{n}?ms=200" for n in range(500)])
    until(lambda: own.get(f"/jobs/{slow}").json()["latest_run"]["stats"]["completed"])
    kept = _submit(own, "https://ok.example/kept")
    ended(own, kept)

    for doomed in (job_id, slow):
        answer = own.delete(f"/jobs/{doomed}")
        assert (answer.status_code, answer.content) == (202, b"")
        problem_of(own.get(f"/jobs/{doomed}"), 404, "not_found")

    until(lambda: _bodies(data) == 1 and _rows(data) == _of_one_task())
    assert [job["job_id"] for job in own.get("/jobs").json()["jobs"]] == [kept]
    assert own.delete(f"/jobs/{job_id}").status_code == 202


def test_a_delete_outlives_a_kill(gateway: Program, data: Path) -> None:
    environ = FAST_RETRIES | SHORT_GRACE
    with (
        service(data=data, gateway=gateway.url, environ=environ) as program,
        client_of(program) as api,
    ):
        job_id = _submit(api, *[f"https://ok.example/{n}" for n in range(3000)])
        ended(api, job_id)
        api.delete(f"/jobs/{job_id}").raise_for_status()
        program.kill()
    with service(data=data, gateway=gateway.url, environ=environ):
        until(lambda: _bodies(data) == 0 and not any(_rows(data).values()))


def _of_one_task() -> dict[str, int]:
    return dict.fromkeys(TABLES, 1) | {"batch": 0}


def _rows(data: Path) -> dict[str, int]:
    connection = apsw.Connection(str(data / "conveyor.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        counted = {}
        for table in TABLES:
            [(counted[table],)] = connection.execute(f"SELECT count(*) FROM {table}")
        return counted
    finally:
        connection.close()


def _bodies(data: Path) -> int:
    return len(every_body(data))


def _submit(api: httpx.Client, *urls: str) -> str:
    body: dict[str, Any] = {"tasks": [{"url": url} for url in urls]}
    return str(api.post("/jobs", json=body).raise_for_status().json()["job_id"])
