"""`conveyor doctor` against folders that were tampered with, and against a service at work."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, mock_gateway, service

Told = subprocess.CompletedProcess[str]
SECRET = "known-only-here"


# Each body is a file that a test can lay hands on.
SINGLY = SHORT_GRACE | {"CONVEYOR_BODIES": "files:"}


class Folder:
    """A data folder at rest, with the names of what is in it."""

    def __init__(self, path: Path, job: str, run: str, rerun: str) -> None:
        self.path, self.job, self.run, self.rerun = path, job, run, rerun

    def execute(self, statement: str, *values: object) -> list[Any]:
        connection = apsw.Connection(str(self.path / "conveyor.db"))
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()

    @property
    def bodies(self) -> list[Path]:
        """Of the first run, in order."""
        found = (self.path / "bodies" / "jobs" / self.job / "runs" / self.run).rglob("*.*")
        return sorted(found)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A job of which some failed and were run again, so that one run inherits from the other."""
    data = tmp_path_factory.mktemp("doctor") / "data"
    with (
        mock_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=FAST_RETRIES | SINGLY) as program,
        client_of(program) as api,
    ):
        urls = [f"https://ok.example/{n}" for n in range(6)]
        urls += ["https://flaky.example/doctor", "https://permanent.example/doctor"]
        submitted = api.post("/jobs", json={"tasks": [{"url": url} for url in urls]}).json()
        job, run = submitted["job_id"], submitted["latest_run"]["run_id"]
        ended(api, job)
        rerun = api.post(f"/jobs/{job}/rerun", params={"status": "failed"}).raise_for_status()
        ended(api, job)
        return Folder(data, job, run, rerun.json()["latest_run"]["run_id"])


@pytest.fixture
def folder(made: Folder, tmp_path: Path) -> Folder:
    shutil.copytree(made.path, tmp_path / "data")
    return Folder(tmp_path / "data", made.job, made.run, made.rerun)


def test_bodies_in_packs_are_checked_without_touching_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (
        mock_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=SHORT_GRACE) as program,
        client_of(program) as api,
    ):
        job = _submit(api, *[f"https://ok.example/{number}?size=4096" for number in range(5)])
        ended(api, job)
        program.kill()
    folder = Folder(data, job, "", "")
    [segment] = (data / "bodies" / "packs").glob("*.warc")
    content, before = segment.read_bytes(), _state(folder)
    told = doctor(folder, code=0)
    assert told[-1]["bodies"] == 5
    assert findings(told) == []
    assert _state(folder) == before

    place = content.rindex(b"https://ok.example/") + 8
    segment.write_bytes(content[:place] + b"X" + content[place + 1 :])
    assert len(_codes(doctor(folder, code=1))) == 1
    segment.write_bytes(content[: len(content) // 2])
    assert len(findings(doctor(folder, code=1))) >= 2
    segment.unlink()
    assert len(findings(doctor(folder, code=1))) >= 5


def test_a_folder_in_order_is_well_and_stays_as_it_is(folder: Folder) -> None:
    before = _state(folder)

    told = doctor(folder, code=0)

    assert told[-1] == {
        "event": "summary",
        "jobs": 1,
        "runs": 2,
        "rows": 16,
        "bodies": 14,
        "wrong": 0,
        "repairs": 0,
        "notes": 0,
        "gateway_responds": None,
    }
    assert told[0]["running"] is False
    assert _state(folder) == before


def _state(folder: Folder) -> object:
    """All that matters of a folder: every file of ours, and every row of the database."""
    files = {
        path: path.read_bytes()
        for path in folder.path.rglob("*")
        if path.is_file() and not path.name.startswith("conveyor.")
    }
    tables = [
        name for (name,) in folder.execute("SELECT name FROM sqlite_master WHERE type='table'")
    ]
    return files, {name: folder.execute(f"SELECT * FROM {name}") for name in tables}


def test_a_killed_service_leaves_what_the_next_start_repairs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with mock_gateway() as gateway:
        with (
            service(data=data, gateway=gateway.url, environ=SHORT_GRACE) as program,
            client_of(program) as api,
        ):
            job = _submit(api, "https://slow.example/doctor?ms=2000")
            until(lambda: every_row(api, job)[0]["status"] == "processing")
            program.kill()
        folder = Folder(data, job, "", "")
        assert (data / "operator.json").exists()  # the lock tells that it is a dead one's
        before = _state(folder)
        found = findings(doctor(folder, code=0))
        assert [(one["severity"], one["code"]) for one in found] == [("repair", "lapsed_lease")]
        assert "at the next start" in found[0]["advice"]
        assert _state(folder) == before
        with (
            service(data=data, gateway=gateway.url, environ=SHORT_GRACE) as program,
            client_of(program) as api,
        ):
            assert ended(api, job)["stats"]["successful"] == 1
            assert findings(doctor(folder, code=0)) == []


def delete_body(folder: Folder) -> None:
    folder.bodies[0].unlink()


def flip_byte(folder: Folder) -> None:
    content = bytearray(folder.bodies[0].read_bytes())
    content[0] ^= 1
    folder.bodies[0].write_bytes(content)


def cut_body(folder: Folder) -> None:
    folder.bodies[0].write_bytes(folder.bodies[0].read_bytes()[:-1])


def leave_body(folder: Folder) -> None:
    body = folder.bodies[0]
    task_id, _, nonce = body.name.split(".")
    body.with_name(f"{task_id}.9.{nonce}").write_bytes(b"nobody's")


def change_counter(folder: Folder) -> None:
    folder.execute("UPDATE counter SET successful = successful + 1 WHERE run_no = 1")


def remove_row(folder: Folder) -> None:
    folder.execute("DELETE FROM task WHERE run_no = 1 AND idx = 0")
    delete_body(folder)


def change_status(folder: Folder) -> None:
    folder.execute("UPDATE task SET status = 0, phase = 0 WHERE run_no = 1 AND idx = 0")


def hold_row(folder: Folder) -> None:
    folder.execute("UPDATE task SET status = 1, phase = 0, due_at = 1 WHERE run_no = 1 AND idx = 0")


def change_reason(folder: Folder) -> None:
    folder.execute("UPDATE task SET reason = 'timeout' WHERE run_no = 1 AND status = 3")


def change_group(folder: Folder) -> None:
    folder.execute("UPDATE failure_group SET host = 'elsewhere.example' WHERE run_no = 1")


def forget_problem(folder: Folder) -> None:
    folder.execute("UPDATE task SET problem = NULL WHERE run_no = 1 AND status = 3")


def forget_result(folder: Folder) -> None:
    folder.execute("UPDATE task SET locator = NULL WHERE run_no = 1 AND idx = 0")


def forget_history(folder: Folder) -> None:
    folder.execute("DELETE FROM attempt WHERE run_no = 1 AND idx = 0")


def rename_row(folder: Folder) -> None:
    folder.execute(
        "UPDATE task SET id = '00000000-' || substr(id, 10, 20) || 'abcd' WHERE run_no = 1 AND idx = 0"
    )


def point_elsewhere(folder: Folder) -> None:
    folder.execute(
        "UPDATE job SET run_id = ?1, doc = json_set(doc, '$.latest_run_id', ?1)", folder.run
    )


def thaw_figures(folder: Folder) -> None:
    folder.execute(
        "UPDATE run SET doc = json_set(doc, '$.frozen.successful', 9) WHERE id = ?", folder.run
    )


def change_total(folder: Folder) -> None:
    folder.execute("UPDATE run SET doc = json_set(doc, '$.total', 9) WHERE id = ?", folder.run)


def lose_source(folder: Folder) -> None:
    folder.execute("DELETE FROM run WHERE id = ?", folder.run)


TAMPERINGS: dict[Callable[[Folder], None], set[str]] = {
    delete_body: {"body_missing"},
    flip_byte: {"body_damaged"},
    cut_body: {"body_damaged"},
    leave_body: {"body_orphaned"},
    change_counter: {"frozen_differs"},
    remove_row: {"rows_missing", "counter_differs", "body_missing"},
    change_status: {
        "unfinished_row",
        "counter_differs",
        "wrong_status",
        "never_due",
        "body_orphaned",
    },
    hold_row: {"unfinished_row", "counter_differs", "wrong_status", "lapsed_lease"},
    change_reason: {"counter_differs", "failure_group_differs"},
    change_group: {"failure_group_differs"},
    forget_problem: {"problem_missing", "failure_group_differs"},
    forget_result: {"result_missing"},
    forget_history: {"history_differs"},
    rename_row: {"wrong_id", "body_orphaned"},
    point_elsewhere: {"wrong_latest_run"},
    thaw_figures: {"counter_differs", "frozen_differs"},
    change_total: {"rows_missing"},
    lose_source: {"source_missing", "orphan_rows", "orphan_body"},
}


@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda tamper: tamper.__name__)
def test_whatever_is_tampered_with_is_seen(
    tamper: Callable[[Folder], None], folder: Folder
) -> None:
    tamper(folder)

    found = findings(doctor(folder, code=1))

    assert {one["code"] for one in found} == TAMPERINGS[tamper]
    for one in found:
        assert one["what"]
        assert one["advice"]
        assert one["severity"] == "repair" or one["job_id"] == folder.job
    wrong = [one for one in found if one["severity"] == "wrong"]
    assert {one["run_id"] for one in wrong} <= {folder.run, folder.rerun}


def test_the_text_names_job_run_task_and_what_to_do(folder: Folder) -> None:
    task = folder.bodies[0].name.partition(".")[0]
    delete_body(folder)

    told = _conveyor("doctor", "--data", str(folder.path), code=1).stdout
    *_, result = told.splitlines()
    assert result == (
        "result\t2 things are wrong, listed above with what to do; the gateway was not tried."
    )
    said = _conveyor("doctor", "--data", str(folder.path), "--json", code=1).stderr
    assert said.strip() == result.partition("\t")[2]

    lines = [line.split("\t") for line in told.splitlines() if line.startswith("wrong\tbody")]
    assert {tuple(line[:5]) for line in lines} == {
        ("wrong", "body_missing", folder.job, folder.run, task),
        ("wrong", "body_missing", folder.job, folder.rerun, task),
    }
    assert all(f"/v1/jobs/{folder.job}/rerun" in line[6] for line in lines)


def test_one_run_can_be_looked_at_and_bodies_left_out(folder: Folder) -> None:
    delete_body(folder)
    change_total(folder)
    assert _codes(doctor(folder, "--job", folder.job, code=1)) == {"body_missing", "rows_missing"}
    assert _codes(doctor(folder, "--run", folder.rerun, code=1)) == {"body_missing"}
    assert _codes(doctor(folder, "--no-bodies", code=1)) == {"rows_missing"}
    assert _codes(doctor(folder, "--run", folder.rerun, "--no-bodies", code=0)) == set()
    assert _codes(doctor(folder, "--job", folder.run, code=1)) == {"unknown"}


def test_a_running_service_is_asked_and_tells_the_same(folder: Folder) -> None:
    flip_byte(folder)
    at_rest = findings(doctor(folder, code=1))
    keys = {"CONVEYOR_API_KEYS": f"an-api-key {SECRET}"}
    with (
        mock_gateway() as gateway,
        service(data=folder.path, gateway=gateway.url + "?apikey=hush", environ=keys) as program,
    ):
        notice = folder.path / "operator.json"
        assert stat.S_IMODE(notice.stat().st_mode) == 0o600
        told = doctor(folder, code=1)
        assert told[0]["running"] is True
        assert findings(told) == at_rest
        assert told[-1]["gateway_responds"] is True
        gateway.process.kill()
        gateway.process.wait()
        [note] = [one for one in findings(doctor(folder, code=1)) if one not in at_rest]
        assert (note["severity"], note["code"]) == ("wrong", "gateway_silent")
        said = _conveyor("doctor", "--data", str(folder.path), "--job", "@last", code=1)
        assert "The gateway does not respond" in said.stdout.splitlines()[-1]
        for secret in (SECRET, "hush", json.loads(notice.read_text())["token"]):
            assert secret not in json.dumps(told)
        assert str(program.process.pid) == (folder.path / "conveyor.lock").read_text().strip()
    assert not notice.exists()


def test_a_service_at_work_is_well_however_often_it_is_asked(tmp_path: Path) -> None:
    with (
        mock_gateway() as gateway,
        service(data=tmp_path, gateway=gateway.url, environ=FAST_RETRIES) as program,
        client_of(program) as api,
    ):
        urls = [f"https://flaky.example/work/{n}" for n in range(0, 3000, 3)]
        urls += [f"https://ok.example/work/{n}" for n in range(2000)]
        job = _submit(api, *urls)
        folder = Folder(tmp_path, job, "", "")
        asked = 0
        while api.get(f"/jobs/{job}").json()["latest_run"]["status"] == "running":
            assert _wrong(doctor(folder, code=0)) == []
            asked += 1
        assert asked
        assert _wrong(doctor(folder, code=0)) == []


def test_operators_need_the_token(running: Program, api: httpx.Client) -> None:
    base = running.url.removesuffix("/v1")
    for path in ("doctor", "dlq", "dlq/x", "dlq/x/retry", "nowhere", ""):
        for method in ("GET", "POST", "DELETE"):
            for given in ({}, {"Authorization": "Bearer"}, {"Authorization": "Bearer x"}):
                answer = api.request(method, f"{base}/operator/{path}", headers=given)
                assert answer.status_code == 404
                assert "allow" not in answer.headers
    paths = api.get(f"{base}/openapi.json").json()["paths"]
    assert not [path for path in paths if path.startswith("/operator")]


def test_a_notice_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    with (
        mock_gateway() as gateway,
        service(data=tmp_path, gateway=gateway.url) as program,
    ):
        notice = tmp_path / "operator.json"
        kept = json.loads(notice.read_text())
        pid = str(program.process.pid)
        for changed in ({"url": "http://127.0.0.1:1"}, {"token": "another"}):
            notice.write_text(json.dumps(kept | changed))
            told = _conveyor("doctor", "--data", str(tmp_path), code=1)
            assert f"process {pid} holds" in told.stderr
            assert "try again" in told.stderr
        notice.unlink()
        assert "has no operator API" in _conveyor("doctor", "--data", str(tmp_path), code=1).stderr


def test_a_folder_without_data_is_refused_and_stays_empty(tmp_path: Path) -> None:
    told = _conveyor("doctor", "--data", str(tmp_path), code=2)
    assert str(tmp_path) in told.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_an_older_version_is_not_brought_up_to_date(folder: Folder) -> None:
    folder.execute("PRAGMA user_version = 0")
    assert "older" in _conveyor("doctor", "--data", str(folder.path), code=2).stderr
    assert folder.execute("PRAGMA user_version") == [(0,)]


# What was given up.


def test_a_list_that_was_lost_is_given_up_shown_and_dropped(tmp_path: Path) -> None:
    with mock_gateway() as gateway:
        with (
            service(data=tmp_path, gateway=gateway.url) as program,
            client_of(program) as api,
        ):
            job = _given_up_list(api, program, tmp_path, gateway)
        folder = Folder(tmp_path, job, "", "")
        with service(data=tmp_path, gateway=gateway.url), client_of(program):
            pass
        [message] = until(lambda: dlq(folder, "list"))
        assert message["kind"] == "ingest"
        assert "not_found" in message["reason"]
        assert _codes(doctor(folder, code=1)) == {"dead_letter"}
        assert dlq(folder, "show", message["id"]) == [message]
        told = _conveyor("dlq", "drop", "--data", str(tmp_path), message["id"], given="n\n", code=1)
        assert "Delete 1" in told.stderr
        assert dlq(folder, "list") == [message]
        assert dlq(folder, "drop", message["id"], "--yes") == [
            {"id": message["id"], "dropped": True}
        ]
        assert dlq(folder, "list") == []
        assert (
            "no such dead letter"
            in _conveyor(
                "dlq", "drop", "--yes", "--data", str(tmp_path), message["id"], code=2
            ).stderr
        )
        assert doctor(folder, code=0)


def _given_up_list(api: httpx.Client, program: Program, data: Path, gateway: Program) -> str:
    """A list that vanishes between its submit and its ingest, by a kill between the two."""
    body = {"tasks": [{"url": "https://ok.example/"}], "async": True}
    job = str(api.post("/jobs", json=body).raise_for_status().json()["job_id"])
    ended(api, job)
    program.kill()
    # As the process would have left it, had it died just after its answer.
    folder = Folder(data, job, "", "")
    [(run,)] = folder.execute("SELECT id FROM run")
    folder.execute("DELETE FROM task")
    folder.execute("DELETE FROM attempt")
    folder.execute("DELETE FROM counter")
    shutil.rmtree(data / "bodies")
    folder.execute(
        "UPDATE run SET live = 1, doc = json_set(json_remove(doc, '$.frozen'), '$.status', "
        "'running', '$.ingest_status', 'pending', '$.last_batch_received', json('false'))"
    )
    batch = {
        "run_id": run, "job_id": job, "first": 0, "count": 1, "version": 1,
        "created_at": "2026-01-01T00:00:00Z", "blob": f"lists/{job}/{run}/0.ndjson",
    }  # fmt: skip
    folder.execute("INSERT INTO batch VALUES (?, 0, 1, ?)", run, json.dumps(batch))
    assert gateway.url
    return job


def test_a_message_that_was_given_up_is_done_once_the_cause_is_mended(tmp_path: Path) -> None:
    """A delete that cannot clear a folder for a day is dead-lettered, and redriven."""
    data = tmp_path / "data"
    with mock_gateway() as gateway:
        with (
            service(data=data, gateway=gateway.url, environ=SINGLY) as program,
            client_of(program) as api,
        ):
            job = _submit(api, "https://ok.example/")
            ended(api, job)
            folder = Folder(data, job, _runs(api, job)[0], "")
            obstacle = folder.bodies[0].parent / "a folder where none belongs"
            obstacle.mkdir()
            api.delete(f"/jobs/{job}").raise_for_status()
            until(lambda: api.get(f"/jobs/{job}").status_code == 404)
        # As if it had been tried for a day: the last try is enough to see.
        folder.execute(
            "UPDATE control_message SET deliveries = 9, due_at = 1,"
            " payload = json_set(payload, '$.unavailable_since', '2000-01-01T00:00:00+00:00')"
        )
        with service(data=data, gateway=gateway.url) as program:
            [message] = until(lambda: dlq(folder, "list"))
            assert message["kind"] == "purge"
            assert "unavailable" in message["reason"]
            assert "dead_letter" in _codes(doctor(folder, "--job", job, code=1))
            obstacle.rmdir()
            assert dlq(folder, "redrive", "--all") == [{"id": message["id"], "redriven": True}]
            until(lambda: not list((data / "bodies" / "jobs").glob("*")))
            assert dlq(folder, "list") == []
            until(lambda: not findings(doctor(folder)))
            told = _conveyor("dlq", "redrive", "--data", str(data), message["id"], code=2)
            assert message["id"] in told.stderr
            assert program.process.poll() is None


def test_a_message_redriven_at_rest_is_done_at_the_next_start(folder: Folder) -> None:
    folder.execute(
        "INSERT INTO control_message (id, kind, subject, payload, deliveries, reason, dead_lettered_at)"
        " VALUES ('01M7GNPVD0697FEM6F7VYWRK5F', 'purge', 'a job', ?, 10, 'why', 1)",
        json.dumps({"id": folder.job}),
    )
    assert _codes(doctor(folder, code=1)) == {"dead_letter"}
    dlq(folder, "redrive", "01M7GNPVD0697FEM6F7VYWRK5F")
    assert doctor(folder, code=0)
    [(deliveries, dead_lettered_at)] = folder.execute(
        "SELECT deliveries, dead_lettered_at FROM control_message"
    )
    assert (deliveries, dead_lettered_at) == (0, None)
    with mock_gateway() as gateway, service(data=folder.path, gateway=gateway.url):
        until(lambda: not folder.execute("SELECT 1 FROM control_message"))


def test_dlq_wants_names_or_all(folder: Folder) -> None:
    for verb in ("redrive", "drop"):
        for given in ([], ["an-id", "--all"]):
            told = _conveyor("dlq", verb, "--data", str(folder.path), *given, code=2)
            assert "--all" in told.stderr
    assert (
        "no such dead letter: nobody"
        in _conveyor("dlq", "show", "--data", str(folder.path), "nobody", code=2).stderr
    )


def doctor(folder: Folder, *flags: str, code: int | None = None) -> list[dict[str, Any]]:
    told = _conveyor("doctor", "--json", "--data", str(folder.path), *flags, code=code)
    return [json.loads(line) for line in told.stdout.splitlines()]


def dlq(folder: Folder, verb: str, *arguments: str) -> list[dict[str, Any]]:
    told = _conveyor("dlq", verb, "--json", "--data", str(folder.path), *arguments, code=0)
    return [json.loads(line) for line in told.stdout.splitlines()]


def findings(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in told if event["event"] == "finding"]


def _codes(told: list[dict[str, Any]]) -> set[str]:
    return {one["code"] for one in findings(told)}


def _wrong(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in findings(told) if one["severity"] == "wrong"]


def _conveyor(*arguments: str, code: int | None, given: str = "") -> Told:
    own = {name: value for name, value in os.environ.items() if not name.startswith("CONVEYOR_")}
    told = subprocess.run(
        [sys.executable, "-m", "conveyor", *arguments],
        input=given,
        capture_output=True,
        check=False,
        text=True,
        timeout=200,
        env=own,
    )
    assert code is None or told.returncode == code, told.stdout + told.stderr
    assert "Traceback" not in told.stderr
    return told


def _submit(api: httpx.Client, *urls: str) -> str:
    tasks = [{"url": url} for url in urls]
    return str(api.post("/jobs", json={"tasks": tasks}).raise_for_status().json()["job_id"])


def _runs(api: httpx.Client, job: str) -> list[str]:
    return [run["run_id"] for run in api.get(f"/jobs/{job}/runs").json()["runs"]]
