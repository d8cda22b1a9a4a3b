"""The gateway dies in the middle of a run, and an account that cannot pay: real processes."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from conveyor.testing.local.ports import free_port
from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of, problem_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, mock_gateway, service
from tests.seed import sampled

TASKS = 3_000


def test_a_run_outlives_the_death_of_the_gateway(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "service.log"
    with (
        mock_gateway(port=port) as first,
        service(data=tmp_path / "data", gateway=first.url, environ=SHORT_GRACE, log=log) as running,
        client_of(running) as api,
    ):
        tasks = [{"url": f"https://slow.site{n % 20}.example/{n}?ms=100"} for n in range(TASKS)]
        job_id = api.post("/jobs", json={"tasks": tasks, "retries": 0}).json()["job_id"]
        until(lambda: _done(api, job_id) > 300)
        first.kill()

        waiting = until(lambda: _run(api, job_id).get("waiting"))
        assert waiting["reason"] == "gateway_unavailable"
        assert waiting["since"].endswith("Z")
        assert waiting["detail"]
        listed = api.get("/jobs").json()["jobs"][0]["latest_run"]
        assert listed["waiting"]["since"] == waiting["since"]
        event = _first_event(api, job_id)
        assert event["waiting"]["reason"] == "gateway_unavailable"
        metrics = api.get(running.url.removesuffix("/v1") + "/metrics").text
        assert "conveyor_gateway_available 0.0" in metrics
        time.sleep(4)  # an outage that lasts: this is no wait for anything
        assert _run(api, job_id)["stats"]["failed"] == 0

        with mock_gateway(port=port):
            run = ended(api, job_id)
            assert (run["status"], run["stats"]["successful"]) == ("completed", TASKS)
            assert run["stats"]["spend"]["credits"] == TASKS
            assert "waiting" not in run
            [history] = [
                api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/history").json()["events"]
                for row in every_row(api, job_id)[-1:]
            ]
            assert len(history) == 1
    lines = log.read_text().splitlines()
    assert sum('"gateway.unavailable"' in line for line in lines) == 1
    assert sum('"gateway.available"' in line for line in lines) == 1
    assert sum('"gateway.refused"' in line for line in lines) <= 10


def test_a_caller_whose_targets_all_break_delays_nobody_and_its_run_ends(tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    environ = FAST_RETRIES | SHORT_GRACE
    with (
        mock_gateway() as gateway,
        service(data=tmp_path / "data", gateway=gateway.url, environ=environ, log=log) as running,
        client_of(running, key="unlucky-key") as unlucky,
        client_of(running, key="good-key") as good,
    ):
        kinds = ("dropped", "rubbish")
        bad = [{"url": f"https://{kinds[n % 2]}.site{n}.example/"} for n in range(300)]
        broken = unlucky.post("/jobs", json={"tasks": bad, "retries": 1}).json()["job_id"]
        until(lambda: _calls(gateway) >= 20)  # it has the service to itself, and nothing succeeds
        began = time.monotonic()
        pages = [{"url": f"https://slow.good{n % 20}.example/{n}?ms=50"} for n in range(500)]
        job_id = good.post("/jobs", json={"tasks": pages, "retries": 0}).json()["job_id"]
        run = ended(good, job_id)
        assert time.monotonic() - began < 60
        assert (run["status"], run["stats"]["successful"]) == ("completed", len(pages))

        run = ended(unlucky, broken)
        assert (run["status"], run["stats"]["failed"]) == ("completed", len(bad))
        metrics = good.get(running.url.removesuffix("/v1") + "/metrics").text
        assert "conveyor_gateway_available 1.0" in metrics
    assert '"gateway.unavailable"' not in log.read_text()


@contextlib.contextmanager
def _two(tmp_path: Path) -> Iterator[tuple[Program, Program]]:
    with (
        mock_gateway() as gateway,
        service(
            data=tmp_path / "data", gateway=gateway.url, environ=FAST_RETRIES | SHORT_GRACE
        ) as running,
    ):
        yield gateway, running


@pytest.mark.parametrize(
    "refused_as",
    sampled(
        [
            ("nocredits", 402, "payment_required"),
            ("capped", 402, "api_key_cap_reached"),
            ("badkey", 401, "subscription_inactive"),
        ],
        1,
        of="accounts that cannot pay",
    ),
)
def test_an_account_that_cannot_pay_ends_all_its_runs_and_is_served_once_it_has_paid(
    tmp_path: Path, refused_as: tuple[str, int, str]
) -> None:
    kind, status, code = refused_as
    with _two(tmp_path) as (gateway, running), client_of(running, key="poor-key") as api:
        opened = api.post("/jobs", json={"status": "open"}).json()["job_id"]
        many = [{"url": f"https://slow.example/{n}?ms=300"} for n in range(500)]
        jobs = [api.post("/jobs", json={"tasks": many}).json()["job_id"] for _ in range(6)]
        assert api.post(f"/jobs/{jobs[0]}/pause").status_code == 200
        until(lambda: all(_done(api, job_id) for job_id in jobs[1:]))
        _control(gateway, f"refuse?key=poor-key&as={kind}")
        began = time.monotonic()
        ends = [ended(api, job_id) for job_id in [*jobs, opened]]
        assert time.monotonic() - began < 60
        assert {run["status"] for run in ends} == {"failed"}
        assert len({run["failure_reason"] for run in ends}) == 1

        calls = [
            ("/jobs", {"tasks": many[:1]}),
            (f"/jobs/{opened}/tasks", {"tasks": many[:1]}),
            (f"/jobs/{jobs[1]}/rerun", None),
            (f"/jobs/{jobs[0]}/resume", None),
        ]
        for path, body in calls:
            refused = api.post(path, json=body) if body else api.post(path)
            assert problem_of(refused, status, code)["detail"]
            assert int(refused.headers["retry-after"]) <= 3
        with client_of(running, key="another-key") as other:
            job_id = other.post("/jobs", json={"tasks": many[:1]}).json()["job_id"]
            assert ended(other, job_id)["status"] == "completed"
        time.sleep(4)  # the refusal is no longer fresh
        before = _calls(gateway)
        problem_of(api.post("/jobs", json={"tasks": many[:1]}), status, code)
        assert _calls(gateway) - before == 1

        _control(gateway, "accept?key=poor-key")
        paid = time.monotonic()
        accepted = until(lambda: _accepted(api))
        assert ended(api, accepted)["status"] == "completed"
        assert time.monotonic() - paid < 60


def test_a_scheduled_run_of_a_refused_key_shows_what_it_waits_for(tmp_path: Path) -> None:
    with _two(tmp_path) as (gateway, running), client_of(running, key="poor-key") as api:
        scheduled = {
            "type": "scheduled",
            "schedule": {"rate": {"every": 1, "unit": "day"}},
            "tasks": [{"url": "https://ok.example/"}],
        }
        job_id = api.post("/jobs", json=scheduled).json()["job_id"]
        _control(gateway, "refuse?key=poor-key&as=nocredits")
        refused = api.post("/jobs", json={"tasks": [{"url": "https://ok.example/"}]}).json()
        assert ended(api, refused["job_id"])["failure_reason"] == "insufficient_credits"
        at = {"at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 4))}
        replaced = api.put(f"/jobs/{job_id}/schedule", json={**at, "timezone": "UTC"})
        assert replaced.status_code == 200, replaced.text
        waiting = until(lambda: (_run(api, job_id) or {}).get("waiting"))
        assert waiting["reason"] == "api_key_refused"
        assert waiting["next_attempt_at"] > waiting["since"]
        _control(gateway, "accept?key=poor-key")
        assert _accepted(api, within=60)
        assert ended(api, job_id)["status"] == "completed"


def test_the_description_lists_402_where_work_is_taken_on(api: httpx.Client) -> None:
    paths = api.get(str(api.base_url).removesuffix("/v1/") + "/openapi.json").json()["paths"]
    listed = {
        (path, method)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if "402" in operation["responses"]
    }
    job = "/v1/jobs/{job}"
    assert listed == {
        ("/v1/jobs", "post"),
        (f"{job}/tasks", "post"),
        (f"{job}/rerun", "post"),
        (f"{job}/resume", "post"),
        ("/v1/operator/jobs/{job}/resume", "post"),
    }


def _accepted(api: httpx.Client, *, within: float = 0.1) -> str | None:
    deadline = time.monotonic() + within
    while True:
        answer = api.post("/jobs", json={"tasks": [{"url": "https://ok.example/"}]})
        if answer.status_code == 201:
            job_id: str = answer.json()["job_id"]
            return job_id
        if time.monotonic() > deadline:
            return None
        time.sleep(0.2)


def _run(api: httpx.Client, job_id: str) -> dict[str, Any]:
    run: dict[str, Any] = api.get(f"/jobs/{job_id}").raise_for_status().json().get("latest_run")
    return run


def _done(api: httpx.Client, job_id: str) -> int:
    done: int = _run(api, job_id)["stats"]["completed"]
    return done


def _first_event(api: httpx.Client, job_id: str) -> dict[str, Any]:
    with api.stream("GET", f"/jobs/{job_id}/events") as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                return msgspec.json.decode(line.removeprefix("data: "), type=dict[str, Any])
    raise AssertionError("the stream ended without an event")


def _control(gateway: Program, path: str) -> None:
    httpx.post(f"{_root(gateway)}/_mock/{path}").raise_for_status()


def _calls(gateway: Program) -> int:
    calls: int = httpx.get(f"{_root(gateway)}/_mock/stats").raise_for_status().json()["calls"]
    return calls


def _root(gateway: Program) -> str:
    return f"http://{urlsplit(gateway.url).netloc}"
