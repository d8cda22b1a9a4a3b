"""How often a caller may ask, and how much it may have under way."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from conveyor.app.roles import open_service
from conveyor.settings import Settings
from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of, problem_of
from tests.e2e.polling import ended, until
from tests.harness.programs import Program, service

SLOW = "https://slow.example/?ms=60000"
OK = "https://ok.example/"


@pytest.fixture(scope="module")
def limited(gateway: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    limits = {"ACTIVE_JOBS": "2", "OPEN_TASKS": "10"}
    given = {f"CONVEYOR_{name}": value for name, value in limits.items()}
    environ = FAST_RETRIES | SHORT_GRACE | given
    data = tmp_path_factory.mktemp("data")
    with service(data=data, gateway=gateway.url, environ=environ) as program:
        yield program


@pytest.fixture(scope="module")
def paced(gateway: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    environ = {"CONVEYOR_REQUESTS_PER_SECOND": "0.5", "CONVEYOR_REQUESTS_BURST": "5"}
    data = tmp_path_factory.mktemp("data")
    with service(data=data, gateway=gateway.url, environ=environ) as program:
        yield program


def test_who_asks_too_often_is_told_when_to_come_again(paced: Program) -> None:
    with client_of(paced, key="too-often") as api:
        answers = [api.get("/jobs") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    for left, answer in zip((4, 3, 2, 1, 0, 0), answers, strict=True):
        assert answer.headers["ratelimit-policy"] == '"requests";q=5;w=10'
        assert answer.headers["ratelimit"].startswith(f'"requests";r={left};t=')
    problem_of(answers[-1], 429, "rate_limited")
    assert answers[-1].headers["retry-after"] in {"1", "2"}


def test_every_answer_to_a_known_caller_tells_what_is_left(paced: Program) -> None:
    with client_of(paced, key="told") as api:
        for answer in (api.get("/jobs"), api.get("/jobs/nope"), api.post("/jobs", content=b"?")):
            assert "ratelimit" in answer.headers
    assert "ratelimit" not in httpx.get(paced.url + "/jobs").headers
    assert "ratelimit" not in httpx.get(paced.url.removesuffix("/v1") + "/healthz").headers


def test_of_many_at_once_no_more_pass_than_the_burst(paced: Program) -> None:
    with client_of(paced, key="many") as api, ThreadPoolExecutor(20) as pool:
        answers = [one.result() for one in [pool.submit(api.get, "/jobs") for _ in range(20)]]
    passed = [answer for answer in answers if answer.status_code == 200]
    assert len(passed) in {5, 6}  # one may have come back meanwhile
    assert {answer.status_code for answer in answers} == {200, 429}


def test_one_callers_haste_is_not_anothers(paced: Program) -> None:
    with client_of(paced, key="hasty") as hasty, client_of(paced, key="calm") as calm:
        while hasty.get("/jobs").status_code == 200:
            pass
        assert calm.get("/jobs").status_code == 200


def test_without_limits_nothing_is_told_of_them(api: httpx.Client) -> None:
    answer = api.get("/jobs")
    assert not [name for name in answer.headers if name.startswith("ratelimit")]


def test_a_caller_has_so_many_jobs_under_way_and_no_more(limited: Program) -> None:
    with client_of(limited, key="jobs") as api, client_of(limited, key="other") as other:
        first, second = [_submit(api, SLOW).json()["job_id"] for _ in range(2)]
        answer = _submit(api, OK)
        problem = problem_of(answer, 429, "quota_exceeded")
        assert (problem["quota"], problem["limit"], problem["used"]) == ("active_jobs", 2, 2)
        assert answer.headers["retry-after"] == "10"
        assert answer.headers["ratelimit"] == '"active_jobs";r=0'
        assert len(api.get("/jobs").json()["jobs"]) == 2
        assert _submit(other, OK).status_code == 201
        api.post(f"/jobs/{first}/stop").raise_for_status()
        third = _submit(api, SLOW)
        assert third.status_code == 201
        problem_of(api.post(f"/jobs/{first}/rerun"), 429, "quota_exceeded")
        for job_id in (second, third.json()["job_id"]):
            api.post(f"/jobs/{job_id}/stop").raise_for_status()
        again = api.post(f"/jobs/{first}/rerun")
        assert again.status_code == 201
        api.post(f"/jobs/{first}/stop").raise_for_status()


def test_a_caller_has_so_many_tasks_to_be_done_and_no_more(limited: Program) -> None:
    with client_of(limited, key="tasks") as api:
        body = {"status": "open", "tasks": [{"url": SLOW}] * 3 + [{"url": OK}] * 6}
        job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
        _until_done(api, job_id, 6)
        problem = problem_of(_add(api, job_id, 8), 429, "quota_exceeded")
        assert (problem["quota"], problem["used"]) == ("open_tasks", 3)
        assert _add(api, job_id, 7).status_code == 200
        _until_done(api, job_id, 13)
        problem_of(_submit(api, *[OK] * 8), 429, "quota_exceeded")
        assert _submit(api, *[OK] * 7).status_code == 201
        api.post(f"/jobs/{job_id}/stop").raise_for_status()


def test_a_repeated_call_is_answered_over_the_quota_too(limited: Program) -> None:
    key = {"Idempotency-Key": "first"}
    with client_of(limited, key="repeats") as api:
        body = {"tasks": [{"url": SLOW}]}
        first = api.post("/jobs", json=body, headers=key)
        second = _submit(api, SLOW)
        problem_of(_submit(api, SLOW), 429, "quota_exceeded")
        again = api.post("/jobs", json=body, headers=key)
        assert (again.status_code, again.content) == (201, first.content)
        for answer in (first, second):
            api.post(f"/jobs/{answer.json()['job_id']}/stop").raise_for_status()


def test_a_job_that_is_over_makes_room(limited: Program) -> None:
    with client_of(limited, key="over") as api:
        for _ in range(5):
            ended(api, _submit(api, OK).raise_for_status().json()["job_id"])


def test_limits_survive_a_restart(gateway: Program, tmp_path: Path) -> None:
    environ = {"CONVEYOR_ACTIVE_JOBS": "1"}
    for expected in (201, 429):
        with (
            service(data=tmp_path, gateway=gateway.url, environ=environ) as program,
            client_of(program) as api,
        ):
            assert _submit(api, SLOW).status_code == expected
            program.kill()


def _submit(api: httpx.Client, *urls: str) -> httpx.Response:
    return api.post("/jobs", json={"tasks": [{"url": url} for url in urls]})


def _add(api: httpx.Client, job_id: str, count: int) -> httpx.Response:
    return api.post(f"/jobs/{job_id}/tasks", json={"tasks": [{"url": OK}] * count})


def _until_done(api: httpx.Client, job_id: str, count: int) -> None:
    def done() -> bool:
        stats = api.get(f"/jobs/{job_id}").raise_for_status().json()["latest_run"]["stats"]
        return bool(stats["completed"] == count)

    until(done)


@pytest.fixture(scope="module")
def crowded(gateway: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    limits = {"CONVEYOR_EVENT_LISTENERS": "2", "CONVEYOR_CALLER_CONNECTIONS": "4"}
    environ = SHORT_GRACE | limits
    data = tmp_path_factory.mktemp("data")
    with service(data=data, gateway=gateway.url, environ=environ) as program:
        yield program


def test_a_caller_has_only_so_many_event_streams(crowded: Program) -> None:
    with client_of(crowded, key="listens") as api, client_of(crowded, key="else") as other:
        job_id = _open_job(api)
        path = f"/jobs/{job_id}/events"
        with api.stream("GET", path) as first, api.stream("GET", path) as second:
            # Kept: an iterator that is dropped closes its connection.
            lines = [stream.iter_lines() for stream in (first, second)]
            for one in lines:
                next(one)
            problem = problem_of(api.get(path), 429, "quota_exceeded")
            assert (problem["quota"], problem["limit"], problem["used"]) == (
                "event_listeners",
                2,
                2,
            )
            with other.stream("GET", f"/jobs/{_open_job(other)}/events") as theirs:
                assert theirs.status_code == 200
        until(lambda: _has_room(api, path))


def test_a_caller_has_only_so_many_connections(crowded: Program) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(client_of(crowded, key="connects")) for _ in range(5)]
        answers = [client.get("/jobs") for client in clients]
        assert [answer.status_code for answer in answers] == [200] * 4 + [429]
        problem = problem_of(answers[4], 429, "quota_exceeded")
        assert (problem["quota"], problem["limit"], problem["used"]) == ("caller_connections", 4, 4)
        assert answers[4].headers["connection"] == "close"
        assert answers[4].headers["retry-after"] == "10"
        other = stack.enter_context(client_of(crowded, key="another"))
        assert other.get("/jobs").status_code == 200

        clients[0].close()
        until(lambda: clients[4].get("/jobs").status_code == 200)


def test_a_connection_belongs_to_whom_it_last_served(crowded: Program) -> None:
    """As those of a proxy, which carry the requests of many."""
    with httpx.Client(base_url=crowded.url, timeout=200) as shared:
        for name in ("a", "b", "a"):
            assert shared.get("/jobs", headers={"X-API-Key": f"shared-{name}"}).status_code == 200
        with ExitStack() as stack:
            others = [stack.enter_context(client_of(crowded, key="shared-b")) for _ in range(4)]
            assert {client.get("/jobs").status_code for client in others} == {200}


def _open_job(api: httpx.Client) -> str:
    answer = api.post("/jobs", json={"status": "open"}).raise_for_status()
    return str(answer.json()["job_id"])


def _has_room(api: httpx.Client, path: str) -> bool:
    with api.stream("GET", path) as stream:
        return stream.status_code == 200


def test_upload_slots_that_no_job_uses_are_limited(gateway: Program, tmp_path: Path) -> None:
    with (
        service(
            data=tmp_path, gateway=gateway.url, environ={"CONVEYOR_UNUSED_FILE_INPUTS": "2"}
        ) as program,
        client_of(program) as api,
        client_of(program, key="another") as other,
    ):
        first, second = [api.post("/job_inputs", json={"type": "txt"}).json() for _ in range(2)]
        refused = api.post("/job_inputs", json={"type": "txt"})
        problem = problem_of(refused, 429, "quota_exceeded")
        assert (problem["quota"], problem["limit"], problem["used"]) == ("unused_file_inputs", 2, 2)
        assert refused.headers["retry-after"] == "10"
        assert other.post("/job_inputs", json={"type": "txt"}).status_code == 201
        # A file input that a job uses does not count any more.
        httpx.put(first["upload"]["url"], headers=first["upload"]["headers"], content=OK)
        used = api.post(
            "/jobs", json={"file_input_id": first["file_input_id"], "on_invalid": "skip"}
        )
        assert used.status_code in {201, 202}
        assert api.post("/job_inputs", json={"type": "txt"}).status_code == 201
        assert second["file_input_id"]


async def test_exports_under_way_are_limited(tmp_path: Path) -> None:
    """Without its loops, so that no export ends while the test looks."""
    settings = Settings(data=str(tmp_path), durability="process", active_exports=2)
    async with (
        open_service(settings) as program,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=program.app),
            base_url="http://localhost/v1",
            headers={"X-API-Key": "a-key"},
        ) as api,
    ):
        runs = []
        for _ in range(3):
            job = (await api.post("/jobs", json={"tasks": [{"url": OK}]})).json()
            runs.append(f"/jobs/{job['job_id']}/runs/{job['latest_run']['run_id']}")
        started = [await api.post(f"{run}/exports") for run in runs[:2]]
        assert [answer.status_code for answer in started] == [202, 202]

        problem = problem_of(await api.post(f"{runs[2]}/exports"), 429, "quota_exceeded")
        assert (problem["quota"], problem["limit"], problem["used"]) == ("active_exports", 2, 2)
        again = await api.post(f"{runs[0]}/exports")  # the one that is under way
        assert again.json()["export_id"] == started[0].json()["export_id"]

        assert await program.steps.control_worker.step() == 1
        assert (await api.post(f"{runs[2]}/exports")).status_code == 202
