"""Keys of the service's own, with real processes: made, used, revoked; the encryption key changed."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from zenrows.batch import BatchAPIError, ZenRowsBatchClient

from conveyor.client import AuthenticationError, Conveyor
from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of, problem_of
from tests.e2e.polling import ended, until
from tests.harness.programs import Program, service

OWN = "canary-of-the-service-3d7f6c"
ANNS = "canary-of-ann-4e8a7d"
KEYS = {"CONVEYOR_AUTH": "keys", "CONVEYOR_GATEWAY_KEY": OWN} | FAST_RETRIES | SHORT_GRACE
TASKS = {"tasks": [{"url": f"https://ok.example/{n}"} for n in range(3)]}


class Gateway(ThreadingHTTPServer):
    """Gives a page for any key, and remembers which keys it was asked with."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.keys: set[str] = set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"


class _Page(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, Gateway)
        self.server.keys.update(parse_qs(urlsplit(self.path).query)["apikey"])
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"page")

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def a_gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def conveyor(
    *arguments: str, given: str = "", environ: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "conveyor", *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, **(environ or {})},
    )


def create(data: Path, *flags: str, given: str = "", **environ: str) -> dict[str, Any]:
    told = conveyor(
        "keys", "create", "--data", str(data), "--json", *flags, given=given, environ=environ
    )
    assert told.returncode == 0, told.stderr
    made: dict[str, Any] = json.loads(told.stdout)
    return made


def listed(data: Path) -> list[dict[str, Any]]:
    told = conveyor("keys", "list", "--data", str(data), "--json")
    assert told.returncode == 0, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]


def submit(api: httpx.Client) -> str:
    job_id: str = api.post("/jobs", json=TASKS).raise_for_status().json()["job_id"]
    return job_id


def test_a_key_from_its_making_to_its_end(tmp_path: Path, log: Path) -> None:
    data = tmp_path / "data"
    debug = ("--log-level", "debug")
    with (
        a_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=KEYS, log=log, flags=debug) as program,
    ):
        plain = create(data, "--caller", "ann", "--name", "nightly", "--expires", "90d")
        rich = create(data, "--caller", "ann", "--gateway-key", given=f"{ANNS}\n")
        from_env = create(data, "--gateway-key-from-env", "MY_KEY", MY_KEY=ANNS)
        reader = create(data, "--caller", "ann", "--read-only")
        for made, used in ((plain, OWN), (rich, ANNS), (from_env, ANNS)):
            gateway.keys.clear()
            with client_of(program, key=made["key"]) as api:
                assert ended(api, submit(api))["stats"]["successful"] == 3
            assert gateway.keys == {used}
        with client_of(program, key=reader["key"]) as api:
            assert len(api.get("/jobs").raise_for_status().json()["jobs"]) == 2
            problem_of(api.post("/jobs", json=TASKS), 403, "permission_denied")
        with client_of(program, key=from_env["key"]) as api:
            assert len(api.get("/jobs").raise_for_status().json()["jobs"]) == 1
        until(lambda: all(key["last_used_at"] for key in listed(data)))
        _revoke(data, program, rich)
        assert [key["status"] for key in listed(data)] == ["active", "revoked", "active", "active"]
        examined = conveyor("doctor", "--data", str(data), "--json", environ=KEYS).stdout
    seen = log.read_bytes() + examined.encode()
    assert b"key.created" in seen
    assert b"gateway_key" in seen, "the doctor tells that there is one"
    seen += b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())
    secrets = [OWN, ANNS, *(one["key"].rpartition("_")[2] for one in (plain, rich, reader))]
    assert [secret for secret in secrets if secret.encode() in seen] == []


def test_a_live_stream_ends_when_its_key_is_revoked(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (
        a_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=KEYS) as program,
    ):
        made, other = (create(data, "--caller", "ann") for _ in range(2))
        with client_of(program, key=made["key"]) as api, client_of(program, key=other["key"]) as o:
            job_id = api.post("/jobs", json={"status": "open"}).raise_for_status().json()["job_id"]
            with (
                api.stream("GET", f"/jobs/{job_id}/events") as revoked,
                o.stream("GET", f"/jobs/{job_id}/events") as kept,
            ):
                lines, others = revoked.iter_lines(), kept.iter_lines()
                assert [next(lines), next(others)][0].startswith("id: ")
                told = conveyor("keys", "revoke", "--data", str(data), made["about"]["id"])
                assert told.returncode == 0
                assert "event: end" not in list(lines)  # it ends, and says nothing of the run
                o.post(f"/jobs/{job_id}/close").raise_for_status()
                assert "event: end" in list(others)
            problem_of(api.get(f"/jobs/{job_id}/events"), 401, "unauthenticated")


def test_a_schedule_pauses_with_its_key_and_says_why(tmp_path: Path) -> None:
    data = tmp_path / "data"
    body = {**TASKS, "type": "scheduled", "schedule": {"rate": {"every": 1, "unit": "day"}}}
    with (
        a_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=KEYS) as program,
    ):
        made, other = (create(data, "--caller", "ann") for _ in range(2))
        with client_of(program, key=made["key"]) as api, client_of(program, key=other["key"]) as o:
            job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
            assert o.get(f"/jobs/{job_id}").json()["schedule_state"] == "active"
            conveyor("keys", "revoke", "--data", str(data), made["about"]["id"])

            job = o.get(f"/jobs/{job_id}").json()
            assert (job["schedule_state"], job["schedule_pause_reason"]) == (
                "paused",
                "api_key_revoked",
            )
            environ = {"CONVEYOR_KEY": other["key"]}
            told = conveyor("status", job_id, "--url", program.url, environ=environ)
            assert "api_key_revoked" in told.stdout, told.stderr

            turn = {"schedule_state": "active"}
            job = o.post(f"/jobs/{job_id}/schedule/state", json=turn).raise_for_status().json()
            assert job["schedule_state"] == "active"
            assert "schedule_pause_reason" not in job


def _revoke(data: Path, program: Program, made: dict[str, Any]) -> None:
    with client_of(program, key=made["key"]) as api:
        assert api.get("/jobs").status_code == 200
        told = conveyor("keys", "revoke", "--data", str(data), made["about"]["id"])
        assert (told.returncode, told.stdout) == (0, f"revoked\t{made['about']['id']}\tann\n")
        refused = api.get("/jobs")
        problem_of(refused, 401, "unauthenticated")
    with client_of(program, key="cvk_unknown") as api:
        assert api.get("/jobs").content == refused.content


def test_keys_are_made_at_rest_and_work_with_every_client(gateway: Program, tmp_path: Path) -> None:
    data = tmp_path / "data"
    refused = conveyor("keys", "create", "--data", str(data))
    assert refused.returncode == 2
    assert "start the service once" in refused.stderr
    with service(data=data, gateway=gateway.url, environ=KEYS):
        pass
    key = create(data, "--caller", "ann")["key"]
    other = create(data)["key"]
    revoked = create(data)
    told = conveyor("keys", "revoke", "--data", str(data), revoked["key"], "nothing")
    assert told.returncode == 2
    assert told.stdout.startswith("revoked\t")
    assert "nothing; `conveyor keys list`" in told.stderr
    with service(data=data, gateway=gateway.url, environ=KEYS) as program:
        with ZenRowsBatchClient(key, base_url=program.url, retries=0) as official:
            job = official.submit_regular(["https://ok.example/official"])
            assert job.run.wait(timeout=200, poll_interval=0.05).data.stats.successful == 1
        with (
            ZenRowsBatchClient(other, base_url=program.url, retries=0) as stranger,
            pytest.raises(BatchAPIError) as caught,
        ):
            stranger.get_job(job.job_id)
        assert (caught.value.status_code, caught.value.code) == (404, "not_found")
        with Conveyor(program.url, key) as client:
            ours = client.submit(["https://ok.example/ours"])
            assert client.wait(ours.job_id).stats.successful == 1
        with Conveyor(program.url, revoked["key"]) as client, pytest.raises(AuthenticationError):
            client.job(ours.job_id)
        reach = {"CONVEYOR_URL": program.url, "CONVEYOR_KEY": key}
        told = conveyor("jobs", environ=reach)
        assert len(told.stdout.splitlines()) == 2
        told = conveyor("jobs", environ=reach | {"CONVEYOR_KEY": revoked["key"]})
        assert told.returncode == 1
        assert "not valid here" in told.stderr
        assert revoked["key"] not in told.stderr + told.stdout


def test_what_cannot_be_made_is_refused_with_the_way_out(tmp_path: Path) -> None:
    for flags, words in (
        (["--expires", "soon"], "90d"),
        (["--expires", "2001-01-01"], "must be in the future"),
        (["--caller", "a b"], "64 letters"),
        (["--gateway-key-from-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
        (["--gateway-key"], "1 to 512"),
    ):
        told = conveyor("keys", "create", "--data", str(tmp_path), *flags)
        assert (told.returncode, told.stdout) == (2, "")
        assert words in told.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_a_gateway_key_a_submit_says_what_is_missing(
    gateway: Program, tmp_path: Path
) -> None:
    environ = {"CONVEYOR_AUTH": "keys"} | SHORT_GRACE
    with service(data=tmp_path, gateway=gateway.url, environ=environ) as program:
        key = create(tmp_path)["key"]
        reach = {"CONVEYOR_URL": program.url, "CONVEYOR_KEY": key}
        told = conveyor("submit", "-", given="https://ok.example/1\n", environ=reach)
        assert told.returncode == 1
        assert "`gateway_key`" in told.stderr
        assert "conveyor keys create" in told.stderr


def test_the_encryption_key_is_changed_while_jobs_come_in(gateway: Program, tmp_path: Path) -> None:
    """And the service dies right after: what comes up has one key, and all runs end."""
    with service(data=tmp_path, gateway=gateway.url, environ=KEYS) as program:
        key = create(tmp_path, "--gateway-key", given="of-this-key")["key"]
        first = (tmp_path / "encryption.key").read_bytes()
        stop, jobs = threading.Event(), list[str]()

        def keep_submitting() -> None:
            with client_of(program, key=key) as api:
                while not stop.is_set():
                    jobs.append(submit(api))

        thread = threading.Thread(target=keep_submitting)
        thread.start()
        try:
            for _ in range(3):
                told = conveyor("keys", "rotate-encryption", "--data", str(tmp_path), "--json")
                assert told.returncode == 0, told.stderr
                last = json.loads(told.stdout.splitlines()[-1])
                assert (last["event"], last["old_key_removed"]) == ("rotated", True)
        finally:
            stop.set()
            thread.join()
        program.kill()
    assert (tmp_path / "encryption.key").read_bytes() != first
    assert not (tmp_path / "encryption.old.key").exists()
    assert len(jobs) > 3
    with (
        service(data=tmp_path, gateway=gateway.url, environ=KEYS) as program,
        client_of(program, key=key) as api,
    ):
        for job_id in jobs:
            assert ended(api, job_id)["stats"]["successful"] == 3
        assert ended(api, submit(api))["stats"]["successful"] == 3


def test_a_change_that_was_cut_off_goes_on_at_rest(gateway: Program, tmp_path: Path) -> None:
    slow = {"tasks": [{"url": f"https://slow.example/{n}?seconds=30"} for n in range(2)]}
    with service(data=tmp_path, gateway=gateway.url, environ=KEYS) as program:
        key = create(tmp_path, "--gateway-key", given="of-this-key")["key"]
        with client_of(program, key=key) as api:
            for _ in range(3):
                api.post("/jobs", json=slow).raise_for_status()
        program.kill()
    # As a death right after the new key was there leaves it.
    old = (tmp_path / "encryption.key").read_bytes()
    (tmp_path / "encryption.old.key").write_bytes(old)
    (tmp_path / "encryption.key").write_bytes(os.urandom(32))
    new = (tmp_path / "encryption.key").read_bytes()
    with (
        service(data=tmp_path, gateway=gateway.url, environ=KEYS) as program,
        client_of(program, key=key) as api,
    ):
        assert ended(api, submit(api))["stats"]["successful"] == 3, "both keys open"
        program.kill()
    told = conveyor("keys", "rotate-encryption", "--data", str(tmp_path))
    assert told.returncode == 0, told.stderr
    assert "re-encrypted\t4" in told.stdout
    assert (tmp_path / "encryption.key").read_bytes() == new
    assert not (tmp_path / "encryption.old.key").exists()
    with (
        service(data=tmp_path, gateway=gateway.url, environ=KEYS) as program,
        client_of(program, key=key) as api,
    ):
        assert ended(api, submit(api))["stats"]["successful"] == 3
