"""One caller's background work, however much there is of it, keeps no other caller waiting."""

import gzip
from pathlib import Path
from typing import Any

import apsw
import httpx

from tests.e2e.conftest import client_of
from tests.e2e.polling import ended, until
from tests.e2e.test_lists import TXT, sent, submit
from tests.harness.programs import Program, service

SLOW = "https://slow.example/?ms=60000"
LONG_LISTS = 6
ROWS = 300_000  # of each long list
FEW = 200
BLANKS = gzip.compress(b"\n" * (40 * 1024 * 1024))
PROMPT = 60.0  # seconds; the long lists take several times as long


ENVIRON = {
    "CONVEYOR_SYNC_TASKS": "100",
    "CONVEYOR_DURABILITY": "process",
    "CONVEYOR_GRACE": "200ms",
}


def _is_read(api: httpx.Client, job_id: str) -> dict[str, Any] | None:
    """The job's run once its list is read, or no longer is to be."""
    run: dict[str, Any] = api.get(f"/jobs/{job_id}").raise_for_status().json()["latest_run"]
    return None if run["ingest_status"] == "pending" else run


def _occupy(api: httpx.Client) -> list[str]:
    """Lists of blank lines and honest long ones, more than there are places."""
    long = gzip.compress(b"".join(b"%s&n=%d\n" % (SLOW.encode(), n) for n in range(ROWS)), 1)
    blank = [submit(api, sent(api, TXT, BLANKS), on_invalid="skip") for _ in range(4)]
    assert {answer.status_code for answer in blank} <= {202, 413}
    jobs = [
        submit(api, sent(api, TXT, long), on_invalid="skip", max_inflight=1)
        for _ in range(LONG_LISTS)
    ]
    assert {answer.status_code for answer in jobs} == {202}
    return [str(answer.json()["job_id"]) for answer in jobs]


def test_long_and_senseless_lists_of_one_caller_delay_no_other(
    gateway: Program, tmp_path: Path
) -> None:
    with (
        service(data=tmp_path, gateway=gateway.url, environ=ENVIRON) as program,
        client_of(program, key="greedy") as greedy,
        client_of(program, key="modest") as modest,
    ):
        long = _occupy(greedy)
        urls = "".join(f"https://ok.example/{n}\n" for n in range(FEW)).encode()

        job = submit(modest, sent(modest, TXT, urls), on_invalid="skip").json()
        job_id = job["job_id"]
        run = until(lambda: _is_read(modest, job_id), within=PROMPT)
        assert run["stats"]["total"] == FEW
        ended(modest, job_id, within=PROMPT)

        again = modest.post(f"/jobs/{job_id}/rerun").raise_for_status()
        assert again.status_code == 202
        until(lambda: _is_read(modest, job_id), within=PROMPT)
        assert ended(modest, job_id, within=PROMPT)["stats"]["successful"] == FEW

        run_path = f"/jobs/{job_id}/runs/{again.json()['latest_run']['run_id']}"
        export = modest.post(f"{run_path}/exports").raise_for_status().json()["export_id"]
        until(lambda: _is_done(modest, f"{run_path}/exports/{export}"), within=PROMPT)

        modest.delete(f"/jobs/{job_id}").raise_for_status()
        until(lambda: _is_purged(tmp_path, job_id), within=PROMPT)

        busy = [one for one in long if _is_read(greedy, one) is None]
        assert len(busy) > 2, "the long lists were read too soon to be in anyone's way"


def _is_done(api: httpx.Client, path: str) -> bool:
    return bool(api.get(path).raise_for_status().json()["status"] == "completed")


def _is_purged(data: Path, job_id: str) -> bool:
    """By the database itself: for its caller a job is gone from the delete on."""
    connection = apsw.Connection(str(data / "conveyor.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        query = "SELECT doc ->> 'done_at' IS NOT NULL FROM deletion WHERE id = ?"
        return bool(connection.execute(query, (job_id,)).get)
    finally:
        connection.close()
