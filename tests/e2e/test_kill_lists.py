"""kill -9 while a list streams in and is scraped: each URL once in the rows, exact counts."""

import random
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.polling import ended, every_row, until
from tests.e2e.test_kill import ENVIRON, check_bodies, check_database
from tests.e2e.test_lists import TXT, report, sent, submit
from tests.harness.programs import mock_gateway, service

BAD_EVERY = 1_000


@pytest.mark.parametrize(
    ("count", "kills", "scraped"),
    [
        pytest.param(40_000, 4, 5, id="small"),
        pytest.param(200_000, 10, 200, id="large", marks=pytest.mark.long),
    ],
)
def test_kills_while_a_list_comes_in_change_nothing(
    tmp_path: Path, count: int, kills: int, scraped: int
) -> None:
    data, dice = tmp_path / "data", random.Random(count)
    with mock_gateway() as gateway:

        def alive() -> Any:
            return service(data=data, gateway=gateway.url, environ=ENVIRON)

        with alive() as program, _client(program.url) as api:
            slot_id = sent(api, TXT, _list(count))
            job_id = submit(api, slot_id, max_inflight=scraped).json()["job_id"]
            program.kill()
        amid = 0
        for number in range(kills):
            with alive() as program, _client(program.url) as api:
                before = _run(api, job_id)
                if number % 2:  # an ingest that dies ten times without getting further is given up
                    _get_further(api, job_id, before)
                time.sleep(dice.uniform(0.0, 0.2))  # the moment of death must be any moment
                amid += before["ingest_status"] == "pending"
                program.kill()
            check_database(data)
        assert amid >= kills // 2, "the list was in before the kills"
        with alive() as program, _client(program.url) as api:
            _check(api, job_id, data, count, all_scraped=scraped > 100)


def _check(api: httpx.Client, job_id: str, data: Path, count: int, *, all_scraped: bool) -> None:
    until(lambda: _run(api, job_id)["ingest_status"] == "done")
    bad = range(0, count, BAD_EVERY)
    run = _run(api, job_id)
    assert (run["stats"]["total"], run["ingest_errors"]) == (count - len(bad), len(bad))
    assert [line["ordinal"] for line in report(api, job_id)] == list(bad)
    if all_scraped:
        run = ended(api, job_id, within=600)
        assert run["stats"]["successful"] == run["stats"]["total"] == count - len(bad)
    else:
        api.post(f"/jobs/{job_id}/stop").raise_for_status()
    rows = every_row(api, job_id, limit="1000")
    assert [row["url"] for row in rows] == [_url(n) for n in range(count) if n % BAD_EVERY]
    assert len({row["task_id"] for row in rows}) == len(rows)
    if all_scraped:
        check_bodies(api, rows, data)


def _get_further(api: httpx.Client, job_id: str, before: dict[str, Any]) -> None:
    def has_moved() -> bool:
        run = _run(api, job_id)
        is_done: bool = run["ingest_status"] == "done"
        return is_done or run["stats"]["total"] > before["stats"]["total"]

    until(has_moved)


def _url(number: int) -> str:
    return f"https://ok.example/{number}?size=64"


def _list(count: int) -> bytes:
    lines = (_url(n) if n % BAD_EVERY else f"ftp://{n}" for n in range(count))
    return "\n".join(lines).encode()


def _run(api: httpx.Client, job_id: str) -> dict[str, Any]:
    run: dict[str, Any] = api.get(f"/jobs/{job_id}").raise_for_status().json()["latest_run"]
    return run


def _client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"X-API-Key": "an-api-key"}, timeout=200)
