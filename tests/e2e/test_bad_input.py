"""Whatever is sent, the answer is a problem that says what is wrong, and nothing is created."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.api.routes import ROUTES
from conveyor.domain.submission import TaskInput
from tests.e2e.conftest import client_of, problem_of
from tests.harness.programs import Program, service

URL = "https://ok.example/"
UNKNOWN_ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
UNKNOWN_TASK = f"00000000-{'0' * 24}"
READ_BY_ID = [route for route in ROUTES if route.method == "GET" and "{job}" in route.path]
LISTS = [
    "/jobs",
    "/jobs/{job}/runs",
    "/jobs/{job}/results",
    "/jobs/{job}/runs/{run}/results",
    "/jobs/{job}/webhook/deliveries",
]


@pytest.fixture(scope="module")
def lean(gateway: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service that takes little at once."""
    little = {
        "CONVEYOR_INLINE_BYTES": "4096",
        "CONVEYOR_INLINE_TASKS": "10",
        "CONVEYOR_OPEN_JOB_TASKS": "3",
    }
    data = tmp_path_factory.mktemp("lean")
    with (
        service(data=data, gateway=gateway.url, environ=little) as program,
        client_of(program) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def door(running: Program) -> Iterator[httpx.Client]:
    with client_of(running) as client:
        yield client


@pytest.fixture(scope="module")
def job(door: httpx.Client) -> dict[str, str]:
    """An open job: its id, its run's, its only task's and an export's."""
    body = {"status": "open", "tasks": [{"url": URL}]}
    job_id = door.post("/jobs", json=body).raise_for_status().json()["job_id"]
    [row] = door.get(f"/jobs/{job_id}/results").json()["results"]
    run_id = row["run_id"]
    export = door.post(f"/jobs/{job_id}/runs/{run_id}/exports").raise_for_status().json()
    return {"job": job_id, "run": run_id, "task": row["task_id"], "export": export["export_id"]}


@pytest.fixture
def nothing_created(door: httpx.Client) -> Iterator[None]:
    before = _everything(door)
    yield
    assert _everything(door) == before


TOO_LONG = "x" * 129
MANY = {str(number): "" for number in range(21)}
WRONG_FIELDS: dict[str, list[object]] = {
    "type": [1, "weekly", [], {}],
    "status": [1, "ajar", "deleted", []],
    "tasks": [None, 1, "x", {}, [], [1], [[]], [None], [{}]],
    "zenrows_params": [1, "x", [], {"wait": []}, {"js_render": "yes"}, {"wait": -1}],
    "external_id": [1, "", "a b", "ä", TOO_LONG, []],
    "name": [1, "x" * 101, []],
    "metadata": [1, [], {"a": 1}, {"a": None}, {"": "x"}, {TOO_LONG: ""}, {"a": "x" * 1025}, MANY],
    "max_inflight": [0, -1, 1.5, "5", True, 10**9, []],
    "retries": [-1, 1.5, "3", False, 10**9],
    "result_ttl_days": [0, -1, "1", 10**9],
    "async": [1, "true", [], {}],
}


@pytest.mark.usefixtures("nothing_created")
@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, many in WRONG_FIELDS.items() for value in many]
)
def test_a_field_of_the_wrong_kind_is_refused(
    door: httpx.Client, field: str, value: object
) -> None:
    answer = door.post("/jobs", json={"tasks": [{"url": URL}], field: value})
    problem = problem_of(answer, 400, "invalid_argument")
    assert field in problem["detail"]
    if "invalid_tasks" not in problem:
        assert problem["field"].split(".")[0] == field


DEEP_FIELDS: list[tuple[str, dict[str, object], str]] = [
    ("POST /jobs", {"metadata": {"a": 1}}, "metadata"),
    ("POST /jobs", {"webhook": {"url": 1}}, "webhook.url"),
    ("POST /jobs", {"webhook": {"ulr": URL}}, "webhook.ulr"),
    ("POST /jobs", {"webhook": {}}, "webhook.url"),
    ("POST /jobs", {"step_functions": {"task_token": 1}}, "step_functions.task_token"),
    ("POST /jobs", {"task": []}, "task"),
    ("POST /jobs/{job}/tasks", {"last_batch": 1}, "last_batch"),
    ("POST /jobs/{job}/tasks", {"lst_batch": True}, "lst_batch"),
    ("POST /jobs/{job}/rerun", {"status": "failed"}, "status"),
    ("PUT /jobs/{job}/webhook", {"url": URL, "signature": "yes"}, "webhook.signature"),
    ("PUT /jobs/{job}/webhook", {"url": URL}, "webhook.signature"),
    ("PUT /jobs/{job}/schedule", {"rate": {"every": "1"}}, "rate.every"),
    ("POST /jobs/{job}/schedule/state", {"schedule_state": 1}, "schedule_state"),
    ("POST /webhook/test", {"url": []}, "webhook.url"),
    ("POST /job_inputs", {"type": "csv", "csv": {"fields": {"url": []}}}, "csv.fields.url"),
]


@pytest.mark.usefixtures("nothing_created")
@pytest.mark.parametrize(("call", "body", "field"), DEEP_FIELDS)
def test_the_path_of_the_field_at_fault_is_named(
    door: httpx.Client, job: dict[str, str], call: str, body: dict[str, object], field: str
) -> None:
    method, path = call.split()
    tasks = {"tasks": [{"url": URL}]} if path in {"/jobs", "/jobs/{job}/tasks"} else {}
    answer = door.request(method, path.format(**job), json=tasks | body)
    problem = problem_of(answer, 400, "invalid_argument")
    assert problem["field"] == field


WRONG_TASKS: list[tuple[dict[str, object], str]] = [
    ({"url": 1}, "malformed_url"),
    ({"url": None}, "malformed_url"),
    ({}, "malformed_url"),
    ({"url": ""}, "malformed_url"),
    ({"url": "not a url"}, "malformed_url"),
    ({"url": "//ok.example"}, "malformed_url"),
    ({"url": "http://[::1"}, "malformed_url"),
    ({"url": "http://ok.example:99999/"}, "malformed_url"),
    ({"url": "http://o\x00k.example/"}, "malformed_url"),
    ({"url": "http://"}, "missing_host"),
    ({"url": "https://:80/"}, "missing_host"),
    # The official client cannot send these: it writes them as https://x first.
    ({"url": "https:///x"}, "missing_host"),
    ({"url": "https:x"}, "missing_host"),
    ({"url": "ftp://ok.example/"}, "unsupported_scheme"),
    ({"url": "file:///etc/passwd"}, "unsupported_scheme"),
    ({"url": "javascript:alert(1)"}, "unsupported_scheme"),
    ({"url": URL + "x" * 2048}, "url_too_long"),
    ({"url": URL + "ä" * 400}, "url_too_long"),
    ({"url": URL, "external_id": ""}, "invalid_external_id"),
    ({"url": URL, "external_id": "a b"}, "invalid_external_id"),
    ({"url": URL, "external_id": 1}, "invalid_external_id"),
    ({"url": URL, "metadata": []}, "metadata_key_invalid"),
    ({"url": URL, "metadata": {"": ""}}, "metadata_key_invalid"),
    ({"url": URL, "metadata": {"a": "x" * 1025}}, "metadata_too_large"),
    ({"url": URL, "metadata": MANY}, "metadata_too_large"),
    ({"url": URL, "method": "PUT"}, "unsupported_method"),
    ({"url": URL, "method": 1}, "unsupported_method"),
    ({"url": URL, "body": "x"}, "body_not_allowed"),
    ({"url": URL, "method": "POST", "body": "x" * 16_385}, "body_too_large"),
    ({"url": URL, "zenrows_params": []}, "invalid_param_value"),
    ({"url": URL, "zenrows_params": {"wiat": 1}}, "unknown_param"),
    ({"url": URL, "zenrows_params": {"apikey": "x"}}, "unknown_param"),
    ({"url": URL, "zenrows_params": {"wait": "²"}}, "invalid_param_value"),
    ({"url": URL, "zenrows_params": {"custom_headers": {"a": "b\r\nc: d"}}}, "invalid_param_value"),
    ({"url": URL, "zenrows_params": {"mode": "auto", "js_render": True}}, "invalid_param_value"),
    ({"url": URL, "method": "POST", "zenrows_params": {"js_render": 1}}, "invalid_param_value"),
    (
        {"url": URL, "method": "POST", "zenrows_params": {"js_render": True}},
        "method_param_conflict",
    ),
    ({"url": URL, "ulr": URL}, "unknown_field"),
]


@pytest.mark.usefixtures("nothing_created")
@pytest.mark.parametrize("where", ["/jobs", "/jobs/{job}/tasks"])
@pytest.mark.parametrize(("task", "reason"), WRONG_TASKS)
def test_one_bad_task_refuses_the_whole_call_and_is_named(
    door: httpx.Client, job: dict[str, str], where: str, task: dict[str, object], reason: str
) -> None:
    tasks = [{"url": URL}, task, {"url": URL}, task]
    answer = door.post(where.format(**job), json={"tasks": tasks})
    problem = problem_of(answer, 400, "invalid_argument")
    named = [(one["index"], one["reason"]) for one in problem["invalid_tasks"]]
    assert named == [(1, reason), (3, reason)]


NO_JSON = [
    b"",
    b" ",
    b"{",
    b"[]",
    b"1",
    b"null",
    b'"tasks"',
    b"tasks=1",
    b"\x00",
    b"\xff\xfe",
    b'{"tasks": [{"url": "https://ok.example/"}]}{}',
    b'{"tasks": [{"url": "https://ok.example/\xff"}]}',
    b'{"tasks": [{"url": "https://ok.example/\x00"}]}',
    b'{"tasks": [{"url": "https://ok.example/\\ud800"}]}',
    b'{"tasks": [{"url": "https://ok.example/", "method": "POST", "body": "\xff"}]}',
    b'{"tasks": [{"url": "https://ok.example/", "method": "POST", "body": "\\ud800"}]}',
    b'{"tasks": [{"url": "https://ok.example/"}], "name": "\xc3"}',
    b'{"tasks": [{"url": "https://ok.example/"}], "max_inflight": 1e400}',
    b'{"tasks": [{"url": "https://ok.example/"}], "max_inflight": NaN}',
    b'{"tasks": ' + b"[" * 100_000,
    b'{"tasks": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"zenrows_params": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    b'{"tasks": [{"url": "https://ok.example/", "method": "POST", "body": '
    + b"[" * 7_000
    + b"]" * 7_000
    + b"}]}",
]


@pytest.mark.usefixtures("nothing_created")
@pytest.mark.parametrize("where", ["/jobs", "/jobs/{job}/tasks"])
@pytest.mark.parametrize("content", NO_JSON, ids=range(len(NO_JSON)))
def test_bytes_that_are_no_submission_are_refused(
    door: httpx.Client, job: dict[str, str], where: str, content: bytes
) -> None:
    answer = door.post(where.format(**job), content=content)
    problem = problem_of(answer, 400, "invalid_argument")
    assert len(problem["detail"]) < 500


@pytest.mark.usefixtures("nothing_created")
@pytest.mark.parametrize(
    ("field", "nearest"), [("task", "tasks"), ("max_inflght", "max_inflight"), ("asinc", "async")]
)
def test_an_unknown_field_is_answered_with_the_nearest_known_one(
    door: httpx.Client, field: str, nearest: str
) -> None:
    answer = door.post("/jobs", json={"tasks": [{"url": URL}], field: 1})
    detail = problem_of(answer, 400, "invalid_argument")["detail"]
    assert f"`{field}`" in detail
    assert f"did you mean `{nearest}`?" in detail


@pytest.mark.usefixtures("nothing_created")
@pytest.mark.parametrize("params", [{"wiat": 1}, {"apikey": "x"}, {"url": URL}, {"js-render": 1}])
def test_an_unknown_parameter_of_the_job_is_named(
    door: httpx.Client, params: dict[str, object]
) -> None:
    answer = door.post("/jobs", json={"tasks": [{"url": URL}], "zenrows_params": params})
    problem = problem_of(answer, 400, "invalid_argument")
    [key] = params
    assert problem["field"] == f"zenrows_params.{key}"
    assert "unknown_param" in problem["detail"]


@pytest.mark.usefixtures("nothing_created")
def test_a_task_token_is_refused_by_a_service_that_could_tell_it_nothing(
    door: httpx.Client,
) -> None:
    field = {"step_functions": {"task_token": "a-token-of-mine"}}
    for answer in (
        door.post("/jobs", json={"tasks": [{"url": URL}], **field}),
        _submit(door, {"Conveyor-Step-Functions": "a-token-of-mine"}),
    ):
        problem = problem_of(answer, 400, "invalid_argument")
        assert problem["field"] == "step_functions"
        assert "setting `step_functions`" in problem["detail"]
        assert "a-token-of-mine" not in answer.text


BAD_HEADERS = [
    ("Conveyor-Max-Inflight", "abc"),
    ("Conveyor-Max-Inflight", ""),
    ("Conveyor-Max-Inflight", "0"),
    ("Conveyor-Max-Inflight", "-1"),
    ("Conveyor-Max-Inflight", "1.5"),
    ("Conveyor-Max-Inflight", "²"),
    ("Conveyor-Max-Inflight", "9" * 5_000),
    ("Conveyor-Retries", "1e3"),
    ("Conveyor-Retries", "999"),
    ("Conveyor-Result-Ttl-Days", "0"),
    ("Conveyor-Async", "yes"),
    ("Conveyor-Async", "1"),
    ("Conveyor-", "x"),
    ("Conveyor-Unheard-Of", "x"),
    ("Idempotency-Key", ""),
    ("Idempotency-Key", "x" * 129),
    ("Idempotency-Key", "a key"),
    ("Idempotency-Key", "schlüssel"),
    ("Idempotency-Key", "tab\tbed"),
]


@pytest.mark.usefixtures("nothing_created")
@pytest.mark.parametrize(("name", "value"), BAD_HEADERS, ids=range(len(BAD_HEADERS)))
def test_a_header_with_a_value_that_will_not_do_is_refused(
    door: httpx.Client, name: str, value: str
) -> None:
    answer = _submit(door, {name: value.encode("latin-1")})
    problem = problem_of(answer, 400, "invalid_argument")
    of_body = name.lower().removeprefix("conveyor-").replace("-", "_")
    assert problem["field"].lower() in {of_body, name.lower()}
    assert len(problem["detail"]) < 500


def test_an_unknown_extension_header_is_answered_with_the_nearest(door: httpx.Client) -> None:
    answer = _submit(door, {"Conveyor-Max-Infligth": "5"})
    detail = problem_of(answer, 400, "invalid_argument")["detail"]
    assert "did you mean Conveyor-max-inflight?" in detail


@pytest.mark.parametrize("length_told", [True, False])
@pytest.mark.parametrize("size", [4097, 300_000, 20_000_000])
def test_a_body_over_the_limit_is_refused_unread(
    lean: httpx.Client, size: int, *, length_told: bool
) -> None:
    content = b" " * size
    answer = lean.post("/jobs", content=content if length_told else iter([content]))
    problem = problem_of(answer, 413, "payload_too_large")
    assert "4096" in problem["detail"]
    assert lean.get("/jobs").json()["jobs"] == []


def test_a_service_that_refused_a_large_body_goes_on_serving(lean: httpx.Client) -> None:
    for _ in range(20):
        problem_of(lean.post("/jobs", content=b" " * 200_000), 413, "payload_too_large")
        assert lean.get("/jobs").status_code == 200


def test_more_tasks_than_one_call_takes_are_refused(lean: httpx.Client) -> None:
    answer = lean.post("/jobs", json={"tasks": [{"url": URL}] * 11})
    detail = problem_of(answer, 400, "invalid_argument")["detail"]
    assert "at most 10" in detail
    assert "got 11" in detail


def test_adding_takes_from_one_to_ten_thousand_tasks(
    door: httpx.Client, job: dict[str, str]
) -> None:
    where = f"/jobs/{job['job']}/tasks"
    problem_of(door.post(where, json={"tasks": []}), 400, "invalid_argument")
    problem_of(door.post(where, json={}), 400, "invalid_argument")
    answer = door.post(where, json={"tasks": [{"url": "x"}] * 10_001})
    assert "at most 10000" in problem_of(answer, 400, "invalid_argument")["detail"]


@pytest.mark.parametrize("last_batch", [1, "true", []])
def test_last_batch_is_true_or_false(
    door: httpx.Client, job: dict[str, str], last_batch: object
) -> None:
    body = {"tasks": [{"url": URL}], "last_batch": last_batch}
    answer = door.post(f"/jobs/{job['job']}/tasks", json=body)
    assert "last_batch" in problem_of(answer, 400, "invalid_argument")["detail"]


def test_an_open_job_takes_no_more_tasks_than_its_cap(lean: httpx.Client) -> None:
    body = {"status": "open", "tasks": [{"url": URL}] * 2}
    job_id = lean.post("/jobs", json=body).raise_for_status().json()["job_id"]
    answer = lean.post(f"/jobs/{job_id}/tasks", json={"tasks": [{"url": URL}] * 2})
    problem_of(answer, 429, "quota_exceeded")
    assert lean.get(f"/jobs/{job_id}").json()["latest_run"]["stats"]["total"] == 2


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    "limit", ["", "0", "-1", "1e9", "1001", "1000000000", "abc", "1.0", "٣", "²"]
)
def test_a_limit_out_of_bounds_is_refused(
    door: httpx.Client, job: dict[str, str], path: str, limit: str
) -> None:
    answer = door.get(path.format(**job), params={"limit": limit})
    assert problem_of(answer, 400, "invalid_argument")["field"] == "limit"


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("cursor", ["x", "0", "-1", "\x00", "ä", "x" * 5_000, "' OR 1=1 --"])
def test_a_cursor_that_was_never_given_out_is_refused(
    door: httpx.Client, job: dict[str, str], path: str, cursor: str
) -> None:
    answer = door.get(path.format(**job), params={"cursor": cursor})
    assert problem_of(answer, 400, "invalid_argument")["field"] == "cursor"


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/jobs", {"status": "ajar"}),
        ("/jobs", {"status": ""}),
        ("/jobs", {"type": "weekly"}),
        ("/jobs", {"type": ""}),
        ("/jobs/{job}/results", {"status": ""}),
        ("/jobs/{job}/results", {"status": "expired"}),
        ("/jobs/{job}/results", {"status": "failed,,successful"}),
        ("/jobs/{job}/results", {"status": ","}),
    ],
)
def test_a_filter_that_names_nothing_is_refused(
    door: httpx.Client, job: dict[str, str], path: str, query: dict[str, str]
) -> None:
    answer = door.get(path.format(**job), params=query)
    [name] = query
    assert problem_of(answer, 400, "invalid_argument")["field"] == name


@pytest.mark.parametrize(
    ("call", "nearest"),
    [
        ("GET /jobs?status=opne", "open"),
        ("GET /jobs?type=schedule", "scheduled"),
        ("GET /jobs/{job}/results?status=failed,sucessful", "successful"),
        ("POST /jobs/{job}/rerun?status=faild", "failed"),
    ],
)
def test_a_misspelt_filter_is_answered_with_the_nearest_known_one(
    door: httpx.Client, job: dict[str, str], call: str, nearest: str
) -> None:
    method, path = call.format(**job).split()
    problem = problem_of(door.request(method, path), 400, "invalid_argument")
    assert problem["field"] in {"status", "type"}
    assert problem["detail"].endswith(f"; did you mean `{nearest}`?")


ODD_IDS = [
    "nope",
    UNKNOWN_ULID.lower(),
    "%00",
    "..%2f..",
    "%F0%9F%98%80",
    "%FF",
    "x" * 4_000,
    "%20",
]


@pytest.mark.parametrize("odd", [UNKNOWN_ULID, UNKNOWN_TASK, *ODD_IDS], ids=range(10))
@pytest.mark.parametrize("route", READ_BY_ID, ids=lambda route: route.path)
def test_an_id_that_names_nothing_is_not_found(
    door: httpx.Client, job: dict[str, str], route: Any, odd: str
) -> None:
    known = {name: value for name, value in job.items() if f"{{{name}}}" in route.path}
    for name in known:
        path = route.path.removeprefix("/v1").format(**{**known, name: odd})
        problem_of(door.get(path), 404, "not_found")


@pytest.mark.parametrize("call", ["tasks", "close", "stop", "cancel"])
@pytest.mark.parametrize("odd", [UNKNOWN_ULID, *ODD_IDS], ids=range(9))
def test_changing_a_job_that_is_not_there_is_not_found(
    door: httpx.Client, call: str, odd: str
) -> None:
    answer = door.post(f"/jobs/{odd}/{call}", json={"tasks": [{"url": URL}]})
    problem_of(answer, 404, "not_found")


@pytest.mark.parametrize("route", READ_BY_ID, ids=lambda route: route.path)
def test_what_belongs_to_another_caller_is_not_told_from_what_is_not_there(
    stranger: httpx.Client, job: dict[str, str], route: Any
) -> None:
    path = route.path.removeprefix("/v1")
    theirs = stranger.get(path.format(**job))
    unknown = stranger.get(path.format(**{**job, "job": UNKNOWN_ULID}))
    _assert_alike(theirs, job["job"], unknown, UNKNOWN_ULID)


@pytest.mark.parametrize("call", ["tasks", "close", "stop", "cancel"])
def test_another_caller_can_change_nothing(
    door: httpx.Client, stranger: httpx.Client, job: dict[str, str], call: str
) -> None:
    before = door.get(f"/jobs/{job['job']}").json()["latest_run"]["last_batch_received"]
    body = {"tasks": [{"url": URL}], "last_batch": True}
    theirs = stranger.post(f"/jobs/{job['job']}/{call}", json=body)
    unknown = stranger.post(f"/jobs/{UNKNOWN_ULID}/{call}", json=body)
    _assert_alike(theirs, job["job"], unknown, UNKNOWN_ULID)
    after = door.get(f"/jobs/{job['job']}").json()
    assert (after["status"], after["latest_run"]["last_batch_received"]) == ("open", before)


def test_another_callers_run_or_task_under_ones_own_job_is_not_found(
    stranger: httpx.Client, job: dict[str, str]
) -> None:
    own = stranger.post("/jobs", json={"tasks": [{"url": URL}]}).json()["job_id"]
    problem_of(stranger.get(f"/jobs/{own}/runs/{job['run']}"), 404, "not_found")
    problem_of(stranger.get(f"/jobs/{own}/runs/{job['run']}/results"), 404, "not_found")
    problem_of(stranger.get(f"/jobs/{own}/tasks/{job['task']}/history"), 404, "not_found")
    for kind in ("content", "history"):
        path = f"/jobs/{own}/runs/{job['run']}/tasks/{job['task']}/{kind}"
        problem_of(stranger.get(path), 404, "not_found")


@pytest.mark.parametrize("key", [None, "", "x" * 513, "x" * 30_000, "a\tb", "\xa0"])
def test_without_a_key_that_can_be_one_there_is_no_entry(running: Program, key: str | None) -> None:
    headers = [] if key is None else [(b"X-API-Key", key.encode("latin-1"))]
    for method, path in (("GET", "/jobs"), ("POST", "/jobs"), ("GET", f"/jobs/{UNKNOWN_ULID}")):
        answer = httpx.request(method, running.url + path, headers=headers)
        problem_of(answer, 401, "unauthenticated")


@pytest.mark.parametrize("name", ["apikey", "api_key", "API-Key", "X-API-Key", "key"])
def test_a_key_in_the_query_is_refused_even_beside_one_in_the_header(
    door: httpx.Client, name: str
) -> None:
    for path in ("/jobs", f"/jobs/{UNKNOWN_ULID}/results"):
        problem = problem_of(door.get(path, params={name: "s3cret"}), 401, "unauthenticated")
        assert "s3cret" not in str(problem)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
task_like = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(TaskInput.__struct_fields__, anything),
)
submission_like = st.fixed_dictionaries(
    {"tasks": st.lists(task_like, min_size=1, max_size=3) | anything},
    optional={name: anything for name in WRONG_FIELDS if name != "tasks"},
)
hostile = settings(max_examples=100, deadline=None)


@hostile
@given(content=st.binary(max_size=200))
def test_random_bytes_never_upset_the_service(
    door: httpx.Client, job: dict[str, str], content: bytes
) -> None:
    for path in ("/jobs", f"/jobs/{job['job']}/tasks"):
        problem_of(door.post(path, content=content), 400, "invalid_argument")


@hostile
@given(body=anything | submission_like)
def test_random_json_never_upsets_the_service(
    door: httpx.Client, job: dict[str, str], body: object
) -> None:
    content = _lenient_json(body)
    for path in ("/jobs", f"/jobs/{job['job']}/tasks"):
        _assert_orderly(door.post(path, content=content))


@hostile
@given(
    path=st.sampled_from([*LISTS, "/jobs/{job}", "/jobs/{job}/tasks/{task}/content"]),
    query=st.dictionaries(
        st.sampled_from(["limit", "cursor", "status", "type"]) | st.text(max_size=5),
        st.text(max_size=30) | st.sampled_from([UNKNOWN_ULID, UNKNOWN_TASK, "all", "1", "closed"]),
        max_size=4,
    ),
    raw=st.text(alphabet="%&=;+?#abcdef0123456789", max_size=30),
)
def test_random_queries_never_upset_the_service(
    door: httpx.Client, job: dict[str, str], path: str, query: dict[str, str], raw: str
) -> None:
    pairs = "&".join(f"{quote(name)}={quote(value)}" for name, value in query.items())
    _assert_orderly(door.get(f"{path.format(**job)}?{pairs}&{raw}"))


@hostile
@given(part=st.text(min_size=1, max_size=40))
def test_random_ids_never_upset_the_service(
    door: httpx.Client, job: dict[str, str], part: str
) -> None:
    odd = quote(part, safe="")
    for path in (
        f"/jobs/{odd}",
        f"/jobs/{job['job']}/runs/{odd}",
        f"/jobs/{odd}/tasks/{odd}/content",
    ):
        _assert_orderly(door.get(path))


def test_the_log_of_the_service_blames_no_caller_on_itself(
    gateway: Program, tmp_path: Path, log: Path
) -> None:
    with (
        service(data=tmp_path / "data", gateway=gateway.url, log=log) as program,
        client_of(program) as client,
    ):
        for content in NO_JSON:
            client.post("/jobs", content=content)
        client.get("/jobs/%00", params={"cursor": "\x00"})
    assert "http.bug" not in log.read_text()


def _submit(client: httpx.Client, headers: dict[str, Any]) -> httpx.Response:
    return client.post("/jobs", json={"tasks": [{"url": URL}]}, headers=headers)


def _everything(client: httpx.Client) -> list[tuple[str, int]]:
    jobs = client.get("/jobs", params={"limit": "100"}).raise_for_status().json()["jobs"]
    return [(job["job_id"], job["latest_run"]["stats"]["total"]) for job in jobs]


def _assert_alike(one: httpx.Response, its: str, other: httpx.Response, others: str) -> None:
    problem_of(one, 404, "not_found")
    assert one.content.replace(its.encode(), b"-") == other.content.replace(others.encode(), b"-")
    assert _told(one) == _told(other)


def _told(answer: httpx.Response) -> dict[str, str]:
    own = {"x-request-id", "date"}
    return {name: value for name, value in answer.headers.items() if name not in own}


def _assert_orderly(answer: httpx.Response) -> None:
    if answer.status_code >= 400:
        assert answer.status_code < 500
        problem_of(answer, answer.status_code, answer.json()["code"])


def _lenient_json(value: object) -> bytes:
    """JSON as a sloppy client writes it: with NaN, and with halves of surrogate pairs."""
    return json.dumps(value).encode()


def test_members_of_a_newer_client_are_named_in_the_answer(door: httpx.Client) -> None:
    body = {"tasks": [{"url": URL}], "tags": ["a"], "x-priority": 3}
    answer = door.post("/jobs", json=body)
    assert answer.status_code == 201
    assert answer.headers["conveyor-ignored-fields"] == "tags, x-priority"
    assert (
        "conveyor-ignored-fields" not in door.post("/jobs", json={"tasks": [{"url": URL}]}).headers
    )


@pytest.mark.usefixtures("nothing_created")
def test_tasks_that_are_too_large_are_named_by_index(door: httpx.Client) -> None:
    large = {"url": URL, "zenrows_params": {"wait_for": "x" * 65_000, "outputs": "x" * 9_000}}
    answer = door.post("/jobs", json={"tasks": [{"url": URL}, large, large]})
    problem = problem_of(answer, 400, "invalid_argument")
    assert [(one["index"], one["reason"]) for one in problem["invalid_tasks"]] == [
        (1, "task_too_large"),
        (2, "task_too_large"),
    ]
