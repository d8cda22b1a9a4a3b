"""A call repeated with its key does nothing again, and is answered as the first time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from uuid import uuid4

import httpx
import pytest

from tests.e2e.conftest import client_of, problem_of
from tests.e2e.polling import ended, every_row
from tests.harness.programs import Program, service

BODY = {"tasks": [{"url": "https://ok.example/once"}]}


@pytest.fixture
def key() -> str:
    return uuid4().hex


@pytest.mark.parametrize(("extra", "status"), [({}, 201), ({"async": True}, 202)])
def test_a_repeated_submit_gets_the_first_answer_to_the_byte(
    running: Program, key: str, extra: dict[str, object], status: int
) -> None:
    with client_of(running, key=f"caller-{key}") as api:
        first = _submit(api, key, {**BODY, **extra})
        ended(api, first.json()["job_id"])
        for _ in range(3):
            again = _submit(api, key, {**BODY, **extra})
            assert (again.status_code, again.content) == (status, first.content)
            assert again.headers["content-type"] == first.headers["content-type"]
        [job] = api.get("/jobs").json()["jobs"]
        assert job["job_id"] == first.json()["job_id"]


def test_without_a_key_every_call_counts(api: httpx.Client) -> None:
    [one, two] = [api.post("/jobs", json=BODY).raise_for_status().json() for _ in range(2)]
    assert one["job_id"] != two["job_id"]


@pytest.mark.parametrize("length", [1, 128])
def test_a_key_may_be_of_any_printable_characters(api: httpx.Client, length: int) -> None:
    key = (uuid4().hex + "!~/\\\"'{}" * 20)[-length:]
    first = _submit(api, key, BODY)
    assert _submit(api, key, BODY).content == first.content


@pytest.mark.parametrize(
    "changed",
    [
        b'{"tasks": [{"url": "https://ok.example/other"}]}',
        b'{"tasks":  [{"url": "https://ok.example/once"}]}',
        b"no json",
        b"",
    ],
)
def test_a_key_used_with_another_body_is_a_conflict(
    api: httpx.Client, key: str, changed: bytes
) -> None:
    first = _submit(api, key, BODY)
    answer = api.post("/jobs", content=changed, headers={"Idempotency-Key": key})
    problem_of(answer, 409, "idempotency_key_conflict")
    assert _submit(api, key, BODY).content == first.content


@pytest.mark.parametrize(
    "changed",
    [{}, {"Conveyor-Retries": "2"}, {"Conveyor-Retries": "1", "Conveyor-Max-Inflight": "9"}],
)
def test_a_key_used_with_other_extensions_is_a_conflict(
    api: httpx.Client, key: str, changed: dict[str, str]
) -> None:
    first = _submit(api, key, BODY, {"Conveyor-Retries": "1"})
    problem_of(_submit(api, key, BODY, changed), 409, "idempotency_key_conflict")
    assert _submit(api, key, BODY, {"Conveyor-Retries": "1"}).content == first.content


def test_headers_that_are_no_part_of_the_request_change_nothing(
    api: httpx.Client, key: str
) -> None:
    first = _submit(api, key, BODY)
    again = _submit(api, key, BODY, {"X-Request-ID": "another", "User-Agent": "another"})
    assert again.content == first.content
    assert again.headers["x-request-id"] == "another"


def test_callers_do_not_share_keys(api: httpx.Client, stranger: httpx.Client, key: str) -> None:
    ours, theirs = _submit(api, key, BODY), _submit(stranger, key, BODY)
    assert (ours.status_code, theirs.status_code) == (201, 201)
    assert ours.json()["job_id"] != theirs.json()["job_id"]
    assert _submit(api, key, BODY).content == ours.content
    other = _submit(stranger, key, {"tasks": [{"url": "https://ok.example/other"}]})
    problem_of(other, 409, "idempotency_key_conflict")


def test_a_refused_call_leaves_its_key_free(api: httpx.Client, key: str) -> None:
    problem_of(_submit(api, key, {"tasks": [{"url": "x"}]}), 400, "invalid_argument")
    assert _submit(api, key, BODY).status_code == 201


@pytest.mark.parametrize("extra", [{}, {"async": True}])
def test_twenty_first_calls_at_once_make_one_job(
    running: Program, key: str, extra: dict[str, object]
) -> None:
    with client_of(running, key=f"caller-{key}") as api:
        body = {**BODY, **extra}
        answers = _at_once(20, lambda: _submit(api, key, body))
        good = [answer for answer in answers if answer.is_success]
        assert good
        assert len({(answer.status_code, answer.content) for answer in good}) == 1
        for answer in answers:
            if not answer.is_success:
                problem_of(answer, 409, "idempotency_key_conflict")
        [job] = api.get("/jobs").json()["jobs"]
        assert job["job_id"] == good[0].json()["job_id"]
        assert _submit(api, key, body).content == good[0].content


def test_a_repeated_addition_adds_once(api: httpx.Client, key: str) -> None:
    job_id = _open_job(api)
    first = _add(api, job_id, key)
    assert (first.status_code, first.json()["accepted_tasks"]) == (200, 2)
    _add(api, job_id, uuid4().hex)
    again = _add(api, job_id, key)
    assert (again.status_code, again.content) == (200, first.content)
    assert len(every_row(api, job_id)) == 5
    problem_of(_add(api, job_id, key, number=3), 409, "idempotency_key_conflict")


def test_the_addition_that_closed_a_job_is_still_replayed(api: httpx.Client, key: str) -> None:
    job_id = _open_job(api)
    first = _add(api, job_id, key, last_batch=True)
    assert first.json()["job_status"] == "closed"
    assert ended(api, job_id)["stats"]["total"] == 3
    assert _add(api, job_id, key, last_batch=True).content == first.content
    late = _add(api, job_id, uuid4().hex)
    problem_of(late, 409, "last_batch_received")


def test_a_key_belongs_to_one_path(api: httpx.Client, key: str) -> None:
    first, second = _open_job(api), _open_job(api)
    assert _add(api, first, key).status_code == 200
    problem_of(_add(api, second, key), 409, "idempotency_key_conflict")
    problem_of(_submit(api, key, BODY), 409, "idempotency_key_conflict")
    assert len(every_row(api, second)) == 1


def test_twenty_additions_at_once_add_once(api: httpx.Client, key: str) -> None:
    job_id = _open_job(api)
    answers = _at_once(20, lambda: _add(api, job_id, key))
    good = {answer.content for answer in answers if answer.is_success}
    assert len(good) == 1
    for answer in answers:
        if not answer.is_success:
            problem_of(answer, 409, "idempotency_key_conflict")
    assert api.get(f"/jobs/{job_id}").json()["latest_run"]["stats"]["total"] == 3


def test_answers_are_remembered_through_a_kill(gateway: Program, tmp_path: Path, key: str) -> None:
    later, added = uuid4().hex, uuid4().hex
    with (
        service(data=tmp_path, gateway=gateway.url) as program,
        client_of(program) as api,
    ):
        job_id = _open_job(api)
        first = [
            _submit(api, key, BODY),
            _submit(api, later, {**BODY, "async": True}),
            _add(api, job_id, added),
        ]
        assert [answer.status_code for answer in first] == [201, 202, 200]
        program.kill()
    with (
        service(data=tmp_path, gateway=gateway.url) as program,
        client_of(program) as api,
    ):
        again = [
            _submit(api, key, BODY),
            _submit(api, later, {**BODY, "async": True}),
            _add(api, job_id, added),
        ]
        assert [one.status_code for one in again] == [201, 202, 200]
        assert [one.content for one in again] == [one.content for one in first]
        assert len(api.get("/jobs").json()["jobs"]) == 3
        other = _submit(api, key, {**BODY, "name": "another"})
        problem_of(other, 409, "idempotency_key_conflict")


def _submit(
    api: httpx.Client, key: str, body: object, headers: dict[str, str] | None = None
) -> httpx.Response:
    return api.post("/jobs", json=body, headers={"Idempotency-Key": key, **(headers or {})})


def _open_job(api: httpx.Client) -> str:
    return str(
        api.post("/jobs", json={**BODY, "status": "open"}).raise_for_status().json()["job_id"]
    )


def _add(
    api: httpx.Client, job_id: str, key: str, *, number: int = 2, last_batch: bool = False
) -> httpx.Response:
    tasks = [{"url": f"https://ok.example/added/{index}"} for index in range(number)]
    body = {"tasks": tasks, "last_batch": last_batch}
    return api.post(f"/jobs/{job_id}/tasks", json=body, headers={"Idempotency-Key": key})


def _at_once(times: int, call: Callable[[], httpx.Response]) -> list[httpx.Response]:
    start = Barrier(times)

    def released() -> httpx.Response:
        start.wait()
        return call()

    with ThreadPoolExecutor(times) as pool:
        return [one.result() for one in [pool.submit(released) for _ in range(times)]]
