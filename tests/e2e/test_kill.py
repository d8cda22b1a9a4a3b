"""kill -9 at any moment: no URL lost, none counted twice, no run that hangs."""

import hashlib
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import httpx

from conveyor.testing.local.ports import free_port
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, mock_gateway, service
from tests.kept import every_body

KILLS = 20
COUNT = 6_000
ENVIRON = {"CONVEYOR_RETRY_FIRST_DELAY": "50ms", "CONVEYOR_LOG_LEVEL": "warning"}


def test_twenty_kills_change_nothing_in_the_outcome(tmp_path: Path) -> None:
    data, dice = tmp_path / "data", random.Random(7)
    with mock_gateway() as gateway:
        job_id = submit_and_kill(data, gateway, COUNT)
        for _ in range(KILLS):
            with _service(data, gateway) as program:
                wait_for_progress(program, job_id, COUNT)
                time.sleep(dice.uniform(0.0, 0.15))  # the moment of death must be any moment
                program.kill()
            check_database(data)
        with _service(data, gateway) as program, _client(program) as api:
            run = ended(api, job_id)
            rows = every_row(api, job_id, limit="1000")
            check_outcome(run, rows, COUNT)
            check_bodies(api, rows, data)
            _check_histories(api, job_id, rows)


def test_a_submit_that_was_answered_survives_and_one_that_was_not_leaves_nothing(
    tmp_path: Path,
) -> None:
    data, dice = tmp_path / "data", random.Random(11)
    promised: list[str] = []
    with mock_gateway() as gateway:
        for _ in range(5):
            with _service(data, gateway) as program, _client(program) as api:
                promised += _submit_until_killed(api, program, dice)
        with _service(data, gateway) as program, _client(program) as api:
            for job_id in promised:
                run = ended(api, job_id)
                assert run["stats"]["total"] == run["stats"]["successful"] == 3
            listed = [job["job_id"] for job in _every_job(api)]
            assert set(promised) <= set(listed)
            for job_id in listed:
                assert len(every_row(api, job_id)) == 3


def test_an_ingest_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    data, dice = tmp_path / "data", random.Random(3)
    count = 40_000
    with mock_gateway() as gateway:
        with _service(data, gateway) as program, _client(program) as api:
            tasks = [{"url": f"https://ok.example/{number}?size=64"} for number in range(count)]
            answer = api.post("/jobs", json={"tasks": tasks, "max_inflight": 20})
            assert answer.status_code == 202
            job_id = answer.json()["job_id"]
            program.kill()
        for _ in range(6):
            with _service(data, gateway) as program:
                time.sleep(dice.uniform(0.0, 0.4))  # the moment of death must be any moment
                program.kill()
        with _service(data, gateway) as program, _client(program) as api:
            until(lambda: _latest(api, job_id)["ingest_status"] == "done")
            assert _latest(api, job_id)["stats"]["total"] == count
            urls = [row["url"] for row in every_row(api, job_id, limit="1000")]
            assert urls == [task["url"] for task in tasks]


def submit_and_kill(data: Path, gateway: Program, count: int) -> str:
    with _service(data, gateway) as program, _client(program) as api:
        answer = api.post("/jobs", json={"tasks": [{"url": url} for url in urls_of(count)]})
        assert answer.status_code in {201, 202}
        program.kill()
        return str(answer.json()["job_id"])


def urls_of(count: int) -> list[str]:
    kinds = ["ok", "ok", "ok", "flaky", "ok", "permanent", "ok", "slow"]
    options = {"flaky": "fails=1", "slow": "ms=40"}
    return [
        f"https://{kind}.example/{number}?{options.get(kind, 'size=4096')}"
        for number in range(count)
        for kind in [kinds[number % len(kinds)]]
    ]


def wait_for_progress(program: Program, job_id: str, count: int) -> None:
    """Until this life of the process has settled something, or there is nothing left."""
    with _client(program) as api:
        before = _latest(api, job_id)["stats"]["completed"]
        until(lambda: before == count or _latest(api, job_id)["stats"]["completed"] > before)


def check_database(data: Path) -> None:
    connection = apsw.Connection(str(data / "conveyor.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


def check_outcome(run: dict[str, Any], rows: list[dict[str, Any]], count: int) -> None:
    assert run["status"] == "completed"
    assert [row["url"] for row in rows] == urls_of(count)
    assert len({row["task_id"] for row in rows}) == count
    failed = count // 8
    statuses = Counter(row["status"] for row in rows)
    assert statuses == {"successful": count - failed, "failed": failed}
    stats = run["stats"]
    assert stats["total"] == stats["completed"] == count
    assert stats["successful"] == count - failed
    assert stats["failed"] == failed
    assert stats["failure_reasons"] == {"bad_target": failed}


def check_bodies(api: httpx.Client, rows: list[dict[str, Any]], data: Path) -> None:
    """Each body is whole, and there is one for each successful task: dead claims left none."""
    good = [row for row in rows if row["status"] == "successful"]
    for row in good[:: max(len(good) // 500, 1)]:
        page = api.get(str(row["result_url"])).raise_for_status()
        assert page.headers["etag"] == f'"{hashlib.sha256(page.content).hexdigest()}"'
        assert str(row["url"]).split("?")[0].encode() in page.content
    assert len(every_body(data)) == len(good)


def _check_histories(api: httpx.Client, job_id: str, rows: list[dict[str, object]]) -> None:
    for row in rows[:: len(rows) // 200]:
        lines = api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/history").json()["events"]
        assert lines[-1].get("error", {}).get("code") in {None, "RESP002"}
        tried = [line for line in lines if line.get("error", {}).get("code") != "worker_lost"]
        assert [line["attempt"] for line in tried] == list(range(1, len(tried) + 1))


def _submit_until_killed(api: httpx.Client, program: Program, dice: random.Random) -> Iterator[str]:
    promised = []
    for _ in range(dice.randrange(5, 40)):
        tasks = [{"url": f"https://ok.example/{number}"} for number in range(3)]
        promised.append(
            api.post("/jobs", json={"tasks": tasks}).raise_for_status().json()["job_id"]
        )
    program.kill()
    return iter(promised)


def _every_job(api: httpx.Client) -> Iterator[dict[str, str]]:
    cursor = None
    while True:
        page = api.get("/jobs", params={"cursor": cursor} if cursor else {}).json()
        yield from page["jobs"]
        cursor = page["next_cursor"]
        if cursor is None:
            return


def _latest(api: httpx.Client, job_id: str) -> dict[str, Any]:
    run: dict[str, dict[str, int]] = (
        api.get(f"/jobs/{job_id}").raise_for_status().json()["latest_run"]
    )
    return run


@contextmanager
def _service(data: Path, gateway: Program) -> Iterator[Program]:
    with service(data=data, gateway=gateway.url, port=free_port(), environ=ENVIRON) as program:
        yield program


def _client(program: Program) -> httpx.Client:
    return httpx.Client(base_url=program.url, headers={"X-API-Key": "an-api-key"}, timeout=200)
