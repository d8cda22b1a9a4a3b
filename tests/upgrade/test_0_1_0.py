"""A data folder written by 0.1.0 opens, answers as before, and its live work goes on.

`v0_1_0` was written by a service of 0.1.0 that was killed while a run was live: conveyor.sql is
a dump of its database, files.tar.xz the other files of its folder, answers.json what it had
answered to its caller. Moments in it are moved to the present, because results, runs, exports and
idempotency records expire.
"""

import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest
from zenrows.batch import verify_webhook_signature

from conveyor.adapters.sqlite.engine import open_engine
from conveyor.adapters.system.clock import SystemClock
from conveyor.domain.counts import NOTHING
from conveyor.domain.task import TaskStatus, failure_of
from conveyor.testing.clock import FakeIds
from conveyor.testing.factories import RUN, add_rows, new_tasks
from tests.certificates import Authority
from tests.e2e.polling import until
from tests.e2e.receiver import Receiver, receiving
from tests.harness.programs import Program, mock_gateway, service

RECORDED = Path(__file__).parent / "v0_1_0"
WRITTEN = datetime(2026, 11, 17, 5, 32, 50, tzinfo=UTC)
PASSED = datetime.now(UTC) - WRITTEN
MOMENT = re.compile(r"\b(?:1\d{15}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)")
SETTINGS = {
    "CONVEYOR_AUTH": "keys",
    "CONVEYOR_GATEWAY_KEY": "gateway-key-of-the-operator",
    "CONVEYOR_GRACE": "200ms",
}
# Links are signed for each answer.
ANOTHER_EACH_TIME = {"result_url", "download_url"}


def moved_to_the_present(text: str) -> str:
    """Move every moment by as much as has passed since the folder was written."""

    def moved(match: re.Match[str]) -> str:
        if match[0].isdecimal():  # microseconds since the epoch
            return str(int(match[0]) + PASSED // timedelta(microseconds=1))
        then = datetime.fromisoformat(match[0]) + PASSED
        return then.isoformat().replace("+00:00", "Z")

    return MOMENT.sub(moved, text)


def folder_of_0_1_0(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with tarfile.open(RECORDED / "files.tar.xz") as files:
        files.extractall(folder, filter="data")
    database = apsw.Connection(str(folder / "conveyor.db"))
    database.execute(moved_to_the_present((RECORDED / "conveyor.sql").read_text()))
    database.execute("PRAGMA journal_mode = wal")
    database.close()


@pytest.fixture(scope="module")
def before() -> Any:
    return json.loads(moved_to_the_present((RECORDED / "answers.json").read_text()))


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    with receiving(Authority(tmp_path_factory.mktemp("authority"))) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("upgrade") / "data"
    folder_of_0_1_0(folder)
    with (
        mock_gateway() as gateway,
        service(data=folder, gateway=gateway.url, environ=SETTINGS | receiver.environ) as program,
    ):
        yield program


@pytest.fixture
def api(upgraded: Program, before: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=upgraded.url, headers={"X-API-Key": before["key"]}) as api:
        yield api


def lacks(new: Any, old: Any, path: str = "") -> list[str]:
    """What the old answer has and the new one does not say; new fields may come."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            lack
            for name, value in old.items()
            if name not in ANOTHER_EACH_TIME
            for lack in lacks(new.get(name), value, f"{path}.{name}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(new) == len(old):
        return [
            lack
            for index, (one, other) in enumerate(zip(new, old, strict=True))
            for lack in lacks(one, other, f"{path}[{index}]")
        ]
    return [] if new == old else [f"{path}: {old!r} became {new!r}"]


def test_everything_is_answered_as_before(api: httpx.Client, before: Any) -> None:
    differences = []
    for path, (status, old) in before["answers"].items():
        answer = api.get(path)
        if answer.status_code != status:
            differences.append(f"{path}: {status} became {answer.status_code}")
        elif isinstance(old, str):
            differences += lacks(answer.text, old, path)
        else:
            differences += lacks(answer.json(), old, path)
    assert differences == []


def test_pages_and_exports_are_still_there(api: httpx.Client, before: Any) -> None:
    for path, page in before["pages"].items():
        assert api.get(path).text == page
    job_id, run_id, export_id = before["export"]
    export = api.get(f"/jobs/{job_id}/runs/{run_id}/exports/{export_id}").json()
    assert httpx.get(export["download_url"]).content.startswith(b"PK")


def test_a_live_run_goes_on_to_its_end_and_its_webhook_is_signed_as_before(
    api: httpx.Client, before: Any, receiver: Receiver
) -> None:
    live = before["jobs"]["live"]
    put = api.put(f"/jobs/{live}/webhook", json={"url": receiver.url("/live"), "signature": True})
    assert put.status_code == 200, put.text

    run = until(lambda: _ended(api, live))

    assert (run["status"], run["stats"]["successful"]) == ("completed", 16)
    rows = api.get(f"/jobs/{live}/results?limit=100").json()["results"]
    assert len({row["url"] for row in rows}) == len(rows) == 16
    [told] = until(lambda: receiver.told_of("/live"))
    active, _ = before["signing"]
    secrets = {active["kid"]: active["secret"]}
    assert verify_webhook_signature(told.body, told.headers["x-signature"], secrets)


def test_what_was_paused_open_or_scheduled_can_go_on(api: httpx.Client, before: Any) -> None:
    jobs = before["jobs"]
    assert api.post(f"/jobs/{jobs['paused']}/resume").status_code == 200
    more = {"tasks": [{"url": "https://ok.example/more"}], "last_batch": True}
    assert api.post(f"/jobs/{jobs['open']}/tasks", json=more).status_code == 200
    assert until(lambda: _ended(api, jobs["open"]))["stats"]["successful"] == 2
    assert until(lambda: _ended(api, jobs["paused"]))["stats"]["successful"] == 8
    assert api.post(f"/jobs/{jobs['stopped']}/rerun").status_code == 201
    state = {"schedule_state": "paused"}
    assert api.post(f"/jobs/{jobs['scheduled']}/schedule/state", json=state).status_code == 200


def test_keys_and_idempotency_records_are_still_known(
    api: httpx.Client, upgraded: Program, before: Any
) -> None:
    again = api.post(
        "/jobs", json=before["repeat"]["body"], headers={"Idempotency-Key": "the-same"}
    )
    assert again.json()["job_id"] == before["repeat"]["answer"]["job_id"]
    revoked = httpx.get(f"{upgraded.url}/jobs", headers={"X-API-Key": before["revoked"]})
    assert revoked.status_code == 401
    assert api.post("/hmac/keys/rotate/finalize").status_code == 200


def test_an_unused_file_input_can_still_be_filled(api: httpx.Client, before: Any) -> None:
    assert api.get(f"/jobs/{before['jobs']['deleted']}").status_code == 404
    missing = api.post("/jobs", json={"file_input_id": before["unused"]})
    assert missing.json()["code"] == "file_input_not_uploaded"


async def test_the_failures_of_its_runs_are_counted_by_group(tmp_path: Path) -> None:
    folder_of_0_1_0(tmp_path / "data")
    opened = open_engine(
        tmp_path / "data", clock=SystemClock(), ids=FakeIds(), lease=timedelta(seconds=30)
    )
    async with opened as engine:
        runs = await engine.tasks.runs_held(limit=1000)
        failed = 0
        for run_id in runs:
            page = await engine.tasks.page(
                run_id, limit=1000, statuses=frozenset({TaskStatus.FAILED})
            )
            groups = await engine.tasks.failure_groups(run_id)
            assert {group.key: group.count for group in groups} == Counter(
                map(failure_of, page.tasks)
            )
            failed += len(page.tasks)
    assert failed


async def test_what_its_tasks_cost_is_unknown_but_what_new_ones_cost_is_not(tmp_path: Path) -> None:
    folder_of_0_1_0(tmp_path / "data")
    opened = open_engine(
        tmp_path / "data", clock=SystemClock(), ids=FakeIds(), lease=timedelta(seconds=30)
    )
    async with opened as engine:
        [run_id, *_] = await engine.tasks.runs_held(limit=1)
        page = await engine.tasks.page(run_id, limit=1000)
        assert {task.spend for task in page.tasks} == {None}
        [new] = new_tasks(RUN, 1)
        await add_rows(engine.tasks, RUN, [new])
        added = await engine.tasks.get(RUN, new.id)
        assert added
        assert added.spend == NOTHING


def _ended(api: httpx.Client, job_id: str) -> Any:
    run = api.get(f"/jobs/{job_id}").raise_for_status().json()["latest_run"]
    return run if run["status"] in ("completed", "stopped", "failed") else None
