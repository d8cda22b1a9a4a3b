"""What an operator can see of a service from outside: its metrics and its log."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from conveyor import __version__
from conveyor.api.routes import ROUTES
from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, service

DEBUG = ("--log-level", "debug")
ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}|\d{8}-[0-9a-f]{24}")


@pytest.fixture(scope="module")
def observed(gateway: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A service of which every call to an engine is a slow one."""
    data = tmp_path_factory.mktemp("observed")
    environ = FAST_RETRIES | SHORT_GRACE | {"CONVEYOR_SLOW_CALL": "1ms"}
    with service(data=data, gateway=gateway.url, environ=environ) as program:
        yield program


@pytest.fixture
def api(observed: Program) -> Iterator[httpx.Client]:
    with client_of(observed) as client:
        yield client


def samples(program: Program) -> list[Sample]:
    text = httpx.get(program.url.removesuffix("/v1") + "/metrics").text
    return [one for family in text_string_to_metric_families(text) for one in family.samples]


def figure(program: Program, name: str, **labels: str) -> float:
    return sum(
        one.value
        for one in samples(program)
        if one.name == name and labels.items() <= one.labels.items()
    )


def a_job(api: httpx.Client, *urls: str) -> str:
    body = {"tasks": [{"url": url} for url in urls]}
    job_id: str = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
    ended(api, job_id)
    return job_id


def test_requests_are_counted_by_the_route_that_serves_them(
    observed: Program, api: httpx.Client
) -> None:
    content = "/v1/jobs/{job}/tasks/{task}/content"
    expected = [
        ("/v1/jobs", "POST", "201"),
        (content, "GET", "200"),
        ("/v1/jobs/{job}", "GET", "404"),
        ("/v1/jobs/{job}", "PUT", "405"),
        ("none", "GET", "404"),
        ("/v1/jobs", "other", "405"),
    ]

    def counted() -> list[float]:
        name = "conveyor_requests_total"
        return [
            figure(observed, name, route=route, method=method, status=status)
            for route, method, status in expected
        ]

    before = counted()
    timed = figure(observed, "conveyor_request_seconds_count", route=content, method="GET")
    job_id = a_job(api, "https://ok.example/route")
    [row] = every_row(api, job_id)
    api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/content").raise_for_status()
    api.get("/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV")
    api.put(f"/jobs/{job_id}")
    api.get("/nowhere/at/all")
    api.request("PROPFIND", "/jobs")

    assert counted() == [times + 1 for times in before]
    now_timed = figure(observed, "conveyor_request_seconds_count", route=content, method="GET")
    assert now_timed == timed + 1


def test_no_label_holds_an_id_or_a_path(observed: Program, api: httpx.Client) -> None:
    a_job(api, "https://ok.example/label", "https://permanent.example/label")
    api.get("/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV/runs/01ARZ3NDEKTSV4RRFFQ69G5FAW")
    values = {value for one in samples(observed) for value in one.labels.values()}
    assert not [value for value in values if ID.search(value) or "example" in value]
    routes = {one.labels["route"] for one in samples(observed) if "route" in one.labels}
    operators = {"/metrics", "/healthz", "none"}
    assert routes <= {route.path for route in ROUTES} | operators


def test_calls_to_engines_are_timed_and_slow_ones_counted(
    observed: Program, api: httpx.Client
) -> None:
    a_job(api, "https://ok.example/timed")
    for port, method in (
        ("metadata", "commit"),
        ("tasks", "add"),
        ("work", "claim"),
        ("work", "settle"),
        ("bodies", "put_many"),
        ("coordination", "reserve"),
        ("control_queue", "receive"),
    ):
        calls = figure(observed, "conveyor_port_seconds_count", port=port, method=method)
        assert calls >= 1, (port, method)
    # A commit waits for the disk, or at least for another thread.
    assert figure(observed, "conveyor_port_slow_total") >= 1


def test_what_the_gateway_says_and_charges_is_counted(observed: Program, api: httpx.Client) -> None:
    names = ("conveyor_gateway_credits_total", "conveyor_gateway_dollars_total")
    before = [figure(observed, name) for name in names]
    pages = figure(observed, "conveyor_gateway_answers_total", answer="page")
    a_job(api, "https://ok.example/paid", "https://permanent.example/paid")
    after = [figure(observed, name) for name in names]
    assert after == [before[0] + 1, pytest.approx(before[1] + 0.0001)]
    assert figure(observed, "conveyor_gateway_answers_total", answer="page") == pages + 1
    assert figure(observed, "conveyor_gateway_answers_total", answer="RESP002") >= 1


def test_a_process_tells_of_itself(observed: Program) -> None:
    build = {"version": __version__, "engine": "sqlite", "durability": "power"}
    assert figure(observed, "conveyor_build_info", **build) == 1
    until(lambda: figure(observed, "conveyor_sampled_timestamp_seconds"))
    free = figure(observed, "conveyor_disk_free_bytes")
    assert 0 < free < figure(observed, "conveyor_disk_size_bytes")
    assert figure(observed, "conveyor_database_bytes", part="rows") > 0
    assert figure(observed, "conveyor_dead_letters") == 0
    until(lambda: figure(observed, "conveyor_loop_lag_seconds_count") >= 2)
    assert figure(observed, "process_resident_memory_bytes") > 0


def test_live_runs_are_those_that_are_not_over(observed: Program, api: httpx.Client) -> None:
    body = {"status": "open", "tasks": [{"url": "https://ok.example/live"}]}
    job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
    until(lambda: figure(observed, "conveyor_live_runs") == 1)
    api.post(f"/jobs/{job_id}/close").raise_for_status()
    ended(api, job_id)
    until(lambda: figure(observed, "conveyor_live_runs") == 0)


def test_a_request_is_followed_through_the_log_to_the_gateway_and_back(
    gateway: Program, tmp_path: Path, log: Path
) -> None:
    """From the caller's own id to the run, from the run to calls, from calls to the gateway's."""
    urls = ("https://ok.example/followed", "https://permanent.example/followed")
    with (
        service(data=tmp_path / "data", gateway=gateway.url, flags=DEBUG, log=log) as program,
        client_of(program) as api,
    ):
        body = {"status": "open", "tasks": [{"url": url} for url in urls]}
        made = {"X-Request-ID": "made-it"}
        job_id = api.post("/jobs", json=body, headers=made).raise_for_status().json()["job_id"]
        more = {"tasks": [{"url": "https://ok.example/added"}], "last_batch": True}
        added = {"X-Request-ID": "added-to-it"}
        api.post(f"/jobs/{job_id}/tasks", json=more, headers=added).raise_for_status()
        ended(api, job_id)
        rows = every_row(api, job_id)
        failed = rows[1]
        history = api.get(f"/jobs/{job_id}/tasks/{failed['task_id']}/history").json()
        content = api.get(f"/jobs/{job_id}/tasks/{rows[0]['task_id']}/content").text

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    [accepted] = of(lines, "job.accepted")
    [more_of_it] = of(lines, "tasks.added")
    assert (accepted["request_id"], accepted["job_id"]) == ("made-it", job_id)
    assert (more_of_it["request_id"], more_of_it["job_id"]) == ("added-to-it", job_id)
    assert more_of_it["tasks"] == 1
    assert {line["request_id"] for line in of(lines, "http.request")} >= {"made-it", "added-to-it"}

    calls = of(lines, "gateway.answered") + of(lines, "gateway.refused")
    assert {line["run_id"] for line in calls} == {accepted["run_id"]}
    assert {line["call_id"] for line in calls} == {_call_of(row) for row in rows}
    assert not [line for line in calls if "request_id" in line], "calls belong to no request"
    # The gateway was told our id, and what it called the call is where a person looks.
    assert f'"request_id":"{_call_of(rows[0])}"' in content
    [refused] = of(lines, "gateway.refused")
    theirs = refused["gateway_request_id"]
    assert theirs.startswith("mock-")
    assert failed["error"]["gateway_request_id"] == theirs
    assert history["events"][-1]["error"]["gateway_request_id"] == theirs
    [completed] = of(lines, "run.completed")
    assert (completed["job_id"], completed["run_id"]) == (job_id, accepted["run_id"])


def of(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event]


def _call_of(row: dict[str, Any]) -> str:
    """The id of the first call for a task."""
    return f"{row['run_id']}.{row['task_id']}.1"
