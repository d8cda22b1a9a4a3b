"""What the service does over HTTP: its headers, its pages for operators, bodies and extensions."""

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from conveyor.api.routes import ROUTES
from conveyor.domain.ids import is_ulid
from conveyor.telemetry.metrics import SWEEPER_ACTIONS
from tests.e2e.conftest import FAST_RETRIES, client_of, problem_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, mock_gateway, service

MB = 1024 * 1024
IDS = {
    "job": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "run": "01ARZ3NDEKTSV4RRFFQ69G5FAW",
    "task": f"00000000-{'0' * 24}",
    "export": "01ARZ3NDEKTSV4RRFFQ69G5FAX",
    "event": "01ARZ3NDEKTSV4RRFFQ69G5FAY",
    "caller": "nobody",
    "message": "01ARZ3NDEKTSV4RRFFQ69G5FAZ",
}


@pytest.mark.parametrize("sane", ["a", "my-trace.1_2", "x" * 128])
def test_a_sane_request_id_comes_back(api: httpx.Client, sane: str) -> None:
    assert api.get("/jobs", headers={"X-Request-ID": sane}).headers["x-request-id"] == sane
    refused = api.get("/jobs/nope", headers={"X-Request-ID": sane})
    assert refused.headers["x-request-id"] == sane


@pytest.mark.parametrize("odd", ["", "x" * 129, "a b", "a<b>", "ä", "%0d%0a", "a\tb"])
def test_any_other_request_id_is_replaced(api: httpx.Client, odd: str) -> None:
    answer = api.get("/jobs", headers=[(b"X-Request-ID", odd.encode("latin-1"))])
    assert is_ulid(answer.headers["x-request-id"])


def test_every_answer_has_a_request_id_of_its_own(running: Program, api: httpx.Client) -> None:
    root = _root(running)
    paths = ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/docs/assets/docs.js"]
    answers = [httpx.get(root + path) for path in paths]
    answers += [httpx.get(root + "/nowhere"), api.get("/jobs"), api.put("/jobs")]
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)


def test_head_answers_as_get_does_without_the_body(api: httpx.Client) -> None:
    job_id = _submit(api, "https://ok.example/")
    ended(api, job_id)
    [row] = every_row(api, job_id)
    content = f"/jobs/{job_id}/tasks/{row['task_id']}/content"
    for path in ("/jobs", f"/jobs/{job_id}", content, "/jobs/nope"):
        got, headed = api.get(path), api.head(path)
        assert headed.content == b""
        assert headed.status_code == got.status_code
        assert _lasting(headed) == _lasting(got)


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
def test_a_method_that_is_not_for_a_path_is_told_which_are(api: httpx.Client, path: str) -> None:
    taken = {route.method for route in ROUTES if route.path == path}
    expected = sorted(taken | ({"HEAD"} if "GET" in taken else set()))
    for method in {"GET", "PUT", "PATCH", "DELETE", "OPTIONS", "POST"} - taken:
        where = path.removeprefix("/v1").format(**IDS)
        answer = api.request(method, where)
        problem_of(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == ", ".join(expected)


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/job", "/v1/jobs/", "/v2/jobs", "/%00"])
def test_a_path_that_is_not_there_is_not_found(running: Program, path: str) -> None:
    root = running.url.removesuffix("/v1")
    problem_of(httpx.get(root + path, headers={"X-API-Key": "an-api-key"}), 404, "not_found")


@pytest.mark.parametrize("asset", ["docs/assets/docs.css", "assets/main.js"])
def test_files_beside_the_assets_are_not_served(running: Program, asset: str) -> None:
    root = f"{running.url.removesuffix('/v1')}/{asset.rpartition('/')[0]}/"
    pages = ("index.html", "docs.html", "dashboard.html", "..%2fdocs.html", "..%2fdashboard.html")
    for path in ("", "%2e%2e/app.py", "..%2fapp.py", "%00", "x" * 5_000, *pages):
        answer = httpx.get(root + path)
        problem_of(answer, 404, "not_found")
        assert answer.headers["cache-control"] == "no-store"
    answer = httpx.post(root + asset.rpartition("/")[2])
    problem_of(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"


def test_the_page_of_the_documentation_runs_no_script_but_its_own(running: Program) -> None:
    page = httpx.get(running.url.removesuffix("/v1") + "/docs")
    assert page.headers["content-security-policy"].split("; ") == [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]


@pytest.mark.parametrize(
    "request_line",
    [b"nonsense", b"GET /v1/jobs/\xff HTTP/1.1", b"GET /v1/jobs?\xff HTTP/1.1", b"\x00" * 64],
)
def test_bytes_that_are_no_http_do_not_disturb_the_service(
    running: Program, request_line: bytes
) -> None:
    address = urlsplit(running.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(request_line + b"\r\nHost: x\r\nX-API-Key: k\r\n\r\n")
        assert connection.recv(64).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("host", ["[", "a b", "x" * 5_000, "a:b:c", "\xff"])
def test_an_odd_host_header_is_the_callers_own_trouble(api: httpx.Client, host: str) -> None:
    headers = [(b"Host", host.encode("latin-1"))]
    job_id = _submit(api, "https://ok.example/host")
    ended(api, job_id)
    for path in ("/jobs", f"/jobs/{job_id}/results"):
        assert api.get(path, headers=headers).status_code < 500
    answer = api.request("DELETE", f"/jobs/{job_id}", headers=headers)
    assert answer.status_code in {400, 401}


def test_health_and_readiness_ask_for_no_key(running: Program) -> None:
    assert httpx.get(_root(running) + "/healthz").json() == {"status": "ok"}
    assert httpx.get(_root(running) + "/readyz").json() == {"status": "ready"}


def test_the_metrics_add_up_when_nothing_goes_wrong(gateway: Program, tmp_path: Path) -> None:
    count = 250
    with (
        service(data=tmp_path, gateway=gateway.url) as program,
        client_of(program) as api,
    ):
        urls = [f"https://ok.example/metrics/{number}" for number in range(count)]
        job_id = _submit(api, *urls)
        ended(api, job_id)
        assert len(every_row(api, job_id)) == count
        told = _metrics(program)
    assert told["conveyor_receives_total"] == count
    assert told["conveyor_ingested_total"] == count
    assert _happened(told, "conveyor_settled_total") == {'outcome="successful"': count}
    assert told["conveyor_inflight"] == 0
    assert told["conveyor_served_rows_total"] == count
    assert told["conveyor_read_rows_total"] / count <= 1.05
    assert told["conveyor_gateway_seconds_count"] == count
    actions = _by_label(told, "conveyor_sweeper_actions_total")
    assert len(actions) == len(SWEEPER_ACTIONS)
    assert set(actions.values()) == {0}


def test_retries_and_failures_are_counted_by_their_reason(gateway: Program, tmp_path: Path) -> None:
    with (
        service(data=tmp_path, gateway=gateway.url, environ=FAST_RETRIES) as program,
        client_of(program) as api,
    ):
        urls = ("https://flaky.example/counted", "https://permanent.example/counted")
        ended(api, _submit(api, *urls))
        told = _metrics(program)
    assert _happened(told, "conveyor_retries_total") == {'reason="blocked"': 1}
    settled = _happened(told, "conveyor_settled_total")
    assert settled == {
        'outcome="successful"': 1,
        'outcome="failed"': 1,
        'outcome="retried"': 1,
    }
    assert told["conveyor_receives_total"] == 3


FORMATS: list[tuple[dict[str, object], str, str]] = [
    ({}, "html", "text/html; charset=utf-8"),
    ({"response_type": "markdown"}, "markdown", "text/markdown; charset=utf-8"),
    ({"response_type": "plaintext"}, "plaintext", "text/plain; charset=utf-8"),
    ({"response_type": "pdf"}, "pdf", "application/pdf"),
    ({"autoparse": True}, "json", "application/json"),
    ({"json_response": True}, "json", "application/json"),
    ({"css_extractor": '{"a": "h1"}'}, "json", "application/json"),
]


@pytest.mark.parametrize(("params", "kind", "content_type"), FORMATS)
@pytest.mark.parametrize("of_the_task", [True, False])
def test_content_comes_with_the_type_of_its_format(
    api: httpx.Client, params: dict[str, object], kind: str, content_type: str, *, of_the_task: bool
) -> None:
    task: dict[str, object] = {"url": "https://ok.example/format?size=3000"}
    body: dict[str, object] = {"tasks": [task]}
    (task if of_the_task else body)["zenrows_params"] = params
    job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
    ended(api, job_id)
    [row] = every_row(api, job_id)
    assert row["type"] == kind
    answer = api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/content")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == content_type
    assert len(answer.content) == 3000
    assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    # A scraped page must not act as a page of ours when a browser opens it.
    assert answer.headers["content-security-policy"] == "sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_content_of_a_task_under_way_is_not_ready(api: httpx.Client) -> None:
    job_id = _submit(api, "https://slow.example/?ms=20000")
    [row] = every_row(api, job_id)
    for where in (f"/jobs/{job_id}", f"/jobs/{job_id}/runs/{row['run_id']}"):
        answer = api.get(f"{where}/tasks/{row['task_id']}/content")
        problem_of(answer, 409, "task_not_ready")
    api.post(f"/jobs/{job_id}/stop").raise_for_status()


def test_content_of_a_failed_task_is_its_own_problem(api: httpx.Client) -> None:
    job_id = _submit(api, "https://permanent.example/")
    ended(api, job_id)
    [row] = every_row(api, job_id)
    path = f"/jobs/{job_id}/tasks/{row['task_id']}/content"
    answer = api.get(path)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {**row["error"], "instance": f"/v1{path}"}
    assert answer.json()["code"] == "RESP002"
    assert row["result_url"] is None


def test_a_run_and_a_task_can_be_read_by_both_kinds_of_path(api: httpx.Client) -> None:
    job_id = _submit(api, "https://ok.example/both")
    ended(api, job_id)
    [row] = every_row(api, job_id)
    for kind in ("content", "history"):
        latest = api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/{kind}")
        named = api.get(f"/jobs/{job_id}/runs/{row['run_id']}/tasks/{row['task_id']}/{kind}")
        assert latest.content == named.content
    listed = api.get(f"/jobs/{job_id}/runs/{row['run_id']}/results").json()["results"]
    assert [one["task_id"] for one in listed] == [row["task_id"]]


def test_large_bodies_come_back_whole_without_being_held_in_memory(
    gateway: Program, tmp_path: Path
) -> None:
    count, size = 8, 20 * MB
    with (
        service(data=tmp_path, gateway=gateway.url) as program,
        client_of(program) as api,
    ):
        ended(api, _submit(api, "https://ok.example/warm"))
        before = program.peak_memory
        urls = [f"https://big.example/{number}?size={size}" for number in range(count)]
        job_id = _submit(api, *urls)
        assert ended(api, job_id)["stats"]["successful"] == count
        for row in every_row(api, job_id):
            length, digest, etag = _streamed(row["result_url"])
            assert length == size
            assert etag == f'"{digest}"'
        assert program.peak_memory - before < 2 * size / MB


def test_a_body_over_the_largest_fails_its_task(gateway: Program, tmp_path: Path) -> None:
    environ = {**FAST_RETRIES, "CONVEYOR_LARGEST_BODY": "100000"}
    with (
        service(data=tmp_path, gateway=gateway.url, environ=environ) as program,
        client_of(program) as api,
    ):
        fits, over, unpacked, untold = (
            "https://ok.example/?size=100000",
            "https://ok.example/?size=100001",
            "https://bomb.example/?size=50000000",
            "https://big.example/?size=100001",
        )
        job_id = _submit(api, fits, over, unpacked, untold)
        ended(api, job_id)
        rows = every_row(api, job_id)
        assert [row["status"] for row in rows] == ["successful", "failed", "failed", "failed"]
        assert {row["error"]["code"] for row in rows[1:]} == {"body_too_large"}
        for row in rows[1:]:
            assert len(_history(api, job_id, row)) == 1


@pytest.fixture
def own_gateway() -> Iterator[Program]:
    """A gateway whose figures are of one test alone."""
    with mock_gateway() as program:
        httpx.post(program.url + "_mock/reset").raise_for_status()
        yield program


@pytest.mark.parametrize("most", [1, 5])
def test_a_job_never_has_more_in_flight_than_it_says(
    own_gateway: Program, tmp_path: Path, most: int
) -> None:
    with (
        service(data=tmp_path, gateway=own_gateway.url) as program,
        client_of(program) as api,
    ):
        tasks = [{"url": f"https://slow.example/{number}?ms=20"} for number in range(6 * most)]
        answer = api.post("/jobs", json={"tasks": tasks, "max_inflight": most}).raise_for_status()
        ended(api, answer.json()["job_id"])
    stats = httpx.get(own_gateway.url + "_mock/stats").json()
    assert stats["calls"] == 6 * most
    assert stats["most_in_flight"] == most


@pytest.mark.parametrize(
    ("retries", "status", "attempts"), [(0, "failed", 1), (1, "successful", 2)]
)
def test_a_task_is_retried_as_often_as_the_job_says(
    api: httpx.Client, retries: int, status: str, attempts: int
) -> None:
    url = f"https://flaky.example/retries/{retries}?fails=1"
    body = {"tasks": [{"url": url}], "retries": retries}
    job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
    ended(api, job_id)
    [row] = every_row(api, job_id)
    assert row["status"] == status
    lines = _history(api, job_id, row)
    assert [line["attempt"] for line in lines] == list(range(1, attempts + 1))
    assert lines[0]["error"]["code"] == "RESP001"


def test_extensions_in_headers_do_what_they_do_in_the_body(api: httpx.Client) -> None:
    tasks = [{"url": "https://ok.example/extended"}]
    given = {"max_inflight": 7, "retries": 0, "result_ttl_days": 3, "async": True}
    headers = {
        "Conveyor-Max-Inflight": "7",
        "conveyor-retries": "0",
        "CONVEYOR-RESULT-TTL-DAYS": "3",
        "Conveyor-Async": "True",
    }
    answers = [
        api.post("/jobs", json={"tasks": tasks, **given}),
        api.post("/jobs", json={"tasks": tasks}, headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [202, 202]
    for answer in answers:
        job = api.get(f"/jobs/{answer.json()['job_id']}").json()
        assert (job["max_inflight"], job["retries"], job["result_ttl_days"]) == (7, 0, 3)


def test_a_header_wins_over_the_body(api: httpx.Client) -> None:
    body = {"tasks": [{"url": "https://ok.example/"}], "retries": 5}
    answer = api.post("/jobs", json=body, headers={"Conveyor-Retries": "1"}).raise_for_status()
    assert api.get(f"/jobs/{answer.json()['job_id']}").json()["retries"] == 1


def test_an_asynchronous_submit_is_answered_at_once_and_completes(api: httpx.Client) -> None:
    tasks = [{"url": f"https://ok.example/async/{number}"} for number in range(3)]
    answer = api.post("/jobs", json={"tasks": tasks, "async": True})
    assert answer.status_code == 202
    submitted = answer.json()
    assert submitted["accepted_tasks"] == 3
    assert submitted["latest_run"]["ingest_status"] == "pending"
    assert submitted["latest_run"]["stats"]["total"] == 3
    run = ended(api, submitted["job_id"])
    assert (run["status"], run["ingest_status"]) == ("completed", "done")
    assert run["stats"]["successful"] == 3
    assert [row["url"] for row in every_row(api, submitted["job_id"])] == [
        task["url"] for task in tasks
    ]


def test_a_plain_submit_has_no_ingest_status(api: httpx.Client) -> None:
    answer = api.post("/jobs", json={"tasks": [{"url": "https://ok.example/"}]})
    assert answer.status_code == 201
    assert "ingest_status" not in answer.json()["latest_run"]
    assert len(every_row(api, answer.json()["job_id"])) == 1


def test_an_open_job_that_was_submitted_asynchronously_takes_more_tasks(api: httpx.Client) -> None:
    body = {"status": "open", "async": True, "tasks": [{"url": "https://ok.example/first"}]}
    answer = api.post("/jobs", json=body)
    assert answer.status_code == 202
    job_id = answer.json()["job_id"]

    def added() -> dict[str, Any] | None:
        more = {"tasks": [{"url": "https://ok.example/second"}], "last_batch": True}
        answer = api.post(f"/jobs/{job_id}/tasks", json=more)
        if answer.status_code == 409:
            problem_of(answer, 409, "run_not_terminal")
            return None
        told: dict[str, Any] = answer.raise_for_status().json()
        return told

    told = until(added)
    assert (told["accepted_tasks"], told["job_status"]) == (1, "closed")
    assert told["latest_run"]["stats"]["total"] == 2
    assert ended(api, job_id)["stats"]["successful"] == 2
    late = api.post(f"/jobs/{job_id}/tasks", json={"tasks": [{"url": "https://ok.example/late"}]})
    problem_of(late, 409, "last_batch_received")


def test_an_open_job_idles_as_pending_until_it_is_closed(api: httpx.Client) -> None:
    body = {"status": "open", "tasks": [{"url": "https://ok.example/idle"}]}
    job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
    until(lambda: _latest(api, job_id)["status"] == "pending")
    closed = api.post(f"/jobs/{job_id}/close").raise_for_status().json()
    assert (closed["status"], closed["latest_run"]["status"]) == ("closed", "completed")
    assert api.post(f"/jobs/{job_id}/close").json()["latest_run"]["status"] == "completed"
    problem_of(api.post(f"/jobs/{job_id}/stop"), 409, "run_not_stoppable")
    more = api.post(f"/jobs/{job_id}/tasks", json={"tasks": [{"url": "https://ok.example/"}]})
    problem_of(more, 409, "job_not_open")


@pytest.mark.parametrize("word", ["stop", "cancel"])
def test_a_stopped_run_stays_stopped(api: httpx.Client, word: str) -> None:
    urls = [f"https://slow.example/stop/{number}?ms=5000" for number in range(3)]
    job_id = _submit(api, *urls)
    for _ in range(2):
        assert api.post(f"/jobs/{job_id}/{word}").raise_for_status().json()["status"] == "stopped"
    assert _latest(api, job_id)["status"] == "stopped"


def test_pages_are_full_under_a_filter_until_the_last(api: httpx.Client) -> None:
    kinds = ("ok", "permanent", "ok")
    urls = [f"https://{kinds[number % 3]}.example/dense/{number}" for number in range(60)]
    job_id = _submit(api, *urls)
    ended(api, job_id)
    lengths, cursor = [], None
    while True:
        asked = {"status": "failed", "limit": "7"} | ({"cursor": cursor} if cursor else {})
        page = api.get(f"/jobs/{job_id}/results", params=asked).raise_for_status().json()
        assert {row["status"] for row in page["results"]} == {"failed"}
        lengths.append(len(page["results"]))
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert lengths == [7, 7, 6]


def test_jobs_are_listed_newest_first_page_by_page_and_to_their_owner_only(
    running: Program,
) -> None:
    with client_of(running, key="lister") as api, client_of(running, key="another-lister") as other:
        _submit(other, "https://ok.example/")
        made = [_submit(api, "https://ok.example/") for _ in range(5)]
        listed, cursor = [], None
        while True:
            asked = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
            page = api.get("/jobs", params=asked).raise_for_status().json()
            listed += [job["job_id"] for job in page["jobs"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert listed == made[::-1]
        assert api.get("/jobs", params={"status": "open"}).json()["jobs"] == []
        assert len(api.get("/jobs", params={"status": "closed"}).json()["jobs"]) == 5
        assert api.get("/jobs", params={"name": "shop"}).json() == {"jobs": [], "next_cursor": None}
        for bad in ("", "x" * 101):
            problem_of(api.get("/jobs", params={"name": bad}), 400, "invalid_argument")


def _submit(api: httpx.Client, *urls: str) -> str:
    answer = api.post("/jobs", json={"tasks": [{"url": url} for url in urls]}).raise_for_status()
    return str(answer.json()["job_id"])


def _latest(api: httpx.Client, job_id: str) -> dict[str, Any]:
    run: dict[str, Any] = api.get(f"/jobs/{job_id}").raise_for_status().json()["latest_run"]
    return run


def _history(api: httpx.Client, job_id: str, row: dict[str, Any]) -> list[dict[str, Any]]:
    answer = api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/history").raise_for_status()
    events: list[dict[str, Any]] = answer.json()["events"]
    return events


def _streamed(url: str) -> tuple[int, str, str]:
    """Length, digest and ETag of a body, read without holding it."""
    digest, length = hashlib.sha256(), 0
    with httpx.stream("GET", url, timeout=200) as answer:
        for chunk in answer.iter_raw():
            digest.update(chunk)
            length += len(chunk)
    assert answer.headers["content-length"] == str(length)
    return length, digest.hexdigest(), answer.headers["etag"]


def _metrics(program: Program) -> dict[str, float]:
    answer = httpx.get(_root(program) + "/metrics").raise_for_status()
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        sample.name + _labels(sample.labels): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def _labels(labels: dict[str, str]) -> str:
    return "".join(f'{{{name}="{value}"}}' for name, value in labels.items())


def _by_label(told: dict[str, float], name: str) -> dict[str, float]:
    return {
        key.removeprefix(name).strip("{}"): value
        for key, value in told.items()
        if key.startswith(name + "{")
    }


def _happened(told: dict[str, float], name: str) -> dict[str, float]:
    return {label: value for label, value in _by_label(told, name).items() if value}


def _root(program: Program) -> str:
    return program.url.removesuffix("/v1")


def _lasting(answer: httpx.Response) -> dict[str, str]:
    own = {"x-request-id", "date"}
    return {name: value for name, value in answer.headers.items() if name not in own}
