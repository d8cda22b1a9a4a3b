"""What callers hand in: good bodies are read, bad ones named in full, hostile ones outlived."""

import json
import time
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zenrows.batch.models import InvalidTask as ClientInvalidTask
from zenrows.batch.models import Reason as ClientReason

from conveyor.api.render import job_shown
from conveyor.domain import submission, task_bodies
from conveyor.domain.job import Job, JobType
from conveyor.domain.json_bodies import finish
from conveyor.domain.submission import (
    BOUNDS,
    CONVERTED,
    LARGEST_TASK_BODY,
    LONGEST_URL,
    TASKS_PER_ADD,
    Limits,
    NewJobStatus,
    Reason,
    Submission,
    TaskInput,
    copied_fields,
)
from conveyor.domain.task import TaskSpec
from conveyor.errors import CallerFault, InvalidArgument, TooLarge
from conveyor.steps.read import JobView
from conveyor.testing.factories import a_job
from conveyor.wire import WireJob
from tests.seed import examples

LIMITS = Limits()
URL = "https://a.example/"


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def parsed(body: object, **extensions: object) -> Submission:
    return finish(task_bodies.read_submission(as_json(body), extensions, LIMITS)).body


def with_one_task(**fields: object) -> dict[str, object]:
    return {"tasks": [{"url": URL}], **fields}


def accepted(raw: bytes, limits: Limits = LIMITS) -> list[TaskSpec]:
    """The whole way of a submit body."""
    return finish(task_bodies.read_submission(raw, {}, limits)).specs


def add(raw: bytes) -> list[TaskSpec]:
    """The whole way of an add-tasks body."""
    return finish(task_bodies.read_addition(raw, {}, LIMITS)).specs


def addition(body: object, limits: Limits = LIMITS) -> submission.Addition:
    return finish(task_bodies.read_addition(as_json(body), {}, limits)).body


def spec(**fields: object) -> TaskSpec:
    return accepted(as_json({"tasks": [{"url": URL, **fields}]}))[0]


def refusal(body: object) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as refused:
        accepted(body if isinstance(body, bytes) else as_json(body))
    return refused.value


def named(error: InvalidArgument) -> list[tuple[int, str]]:
    found = error.extras["invalid_tasks"]
    assert isinstance(found, list)
    return [(one.index, one.reason) for one in found]


def reason(**fields: object) -> str:
    [(index, why)] = named(refusal({"tasks": [{"url": URL, **fields}]}))
    assert index == 0
    return why


# Submit bodies.


def test_a_submit_needs_no_more_than_a_list_of_urls() -> None:
    body = parsed({"tasks": [{"url": URL}]})
    assert (body.type, body.status, body.max_inflight, body.async_) == (None, None, None, None)
    assert accepted(as_json({"tasks": [{"url": URL}]})) == [TaskSpec(url=URL)]


def test_every_field_of_a_submit_is_read() -> None:
    body = parsed(
        with_one_task(
            type="regular",
            status="open",
            zenrows_params={"js_render": True},
            external_id="order-1.a_b",
            name="a" * 100,
            metadata={"team": "prices"},
            max_inflight=5,
            retries=0,
            result_ttl_days=30,
            **{"async": True},
        )
    )
    assert (body.type, body.status) == (JobType.REGULAR, NewJobStatus.OPEN)
    assert (body.max_inflight, body.retries, body.result_ttl_days) == (5, 0, 30)
    assert body.async_ is True
    assert submission.checked_params(body.zenrows_params, LIMITS) == {"js_render": "true"}


def test_null_means_absent() -> None:
    nulls = dict.fromkeys(Submission.__struct_encode_fields__)
    tasks = [dict.fromkeys(TaskInput.__struct_fields__) | {"url": URL}]
    assert accepted(as_json({**nulls, "tasks": tasks})) == [TaskSpec(url=URL)]


def test_an_open_job_may_start_without_tasks() -> None:
    assert parsed({"status": "open"}).tasks is None
    assert parsed({"status": "open", "tasks": []}).tasks == []


@pytest.mark.parametrize("body", [{}, {"tasks": []}, {"tasks": None}, {"status": "closed"}])
def test_a_closed_job_needs_a_task(body: dict[str, object]) -> None:
    error = refusal(body)
    assert error.extras == {"field": "tasks"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "deleted"),
        ("external_id", ""),
        ("external_id", "a b"),
        ("external_id", "a" * 129),
        ("external_id", "a\n"),
        ("name", "a" * 101),
        ("metadata", {f"k{n}": "v" for n in range(21)}),
        ("metadata", {"k": "v" * 1025}),
        ("metadata", {"": "v"}),
        ("max_inflight", 0),
        ("max_inflight", 10_001),
        ("retries", -1),
        ("retries", 101),
        ("result_ttl_days", 0),
        ("result_ttl_days", 3651),
    ],
)
def test_a_field_out_of_bounds_is_named(field: str, value: object) -> None:
    error = refusal(with_one_task(**{field: value}))
    assert error.extras == {"field": field}
    assert f"`{field}`" in error.detail


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "hourly"),
        ("status", "ajar"),
        ("tasks", {}),
        ("tasks", "all"),
        ("zenrows_params", []),
        ("external_id", 5),
        ("name", ["a"]),
        ("metadata", {"k": 1}),
        ("metadata", []),
        ("max_inflight", "5"),
        ("max_inflight", True),
        ("max_inflight", 1.5),
        ("async", 1),
    ],
)
def test_a_field_of_the_wrong_type_is_named(field: str, value: object) -> None:
    error = refusal(with_one_task(**{field: value}))
    assert f"`{field}" in error.detail


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"waitt": 1}, "zenrows_params.waitt"),
        ({"wait": "soon"}, "zenrows_params.wait"),
        ({"mode": "auto", "js_render": True}, "zenrows_params.mode"),
    ],
)
def test_bad_parameters_of_the_job_are_its_own_fault(params: dict[str, object], field: str) -> None:
    assert refusal(with_one_task(zenrows_params=params)).extras == {"field": field}


def test_extensions_from_outside_the_body_win_and_are_held_to_the_same_bounds() -> None:
    body = parsed(with_one_task(retries=1, max_inflight=7), retries=9, **{"async": True})
    assert (body.retries, body.max_inflight, body.async_) == (9, 7, True)
    with pytest.raises(InvalidArgument):
        parsed(with_one_task(), retries=101)


def test_a_scheduled_job_needs_a_schedule_and_is_never_open() -> None:
    hourly = {"rate": {"every": 1, "unit": "hour"}}
    parsed(with_one_task(type="scheduled", schedule=hourly))
    for wrong, field in ({"schedule": None}, "schedule"), ({"status": "open"}, "status"):
        body = {"type": "scheduled", "schedule": hourly, **wrong}
        with pytest.raises(InvalidArgument) as refused:
            parsed(with_one_task(**body))
        assert refused.value.extras == {"field": field}


@pytest.mark.parametrize(
    ("ignored", "with_it"),
    [
        ("schedule", {"schedule": {"rate": {"every": 1, "unit": "hour"}}}),
        ("schedule", {"schedule": {"rate": {"every": 1, "unit": "hour"}}, "type": "regular"}),
        ("schedule", {"schedule": {}, "status": "open"}),
        ("schedule", {"schedule": 5}),
        ("on_invalid", {"on_invalid": "skip"}),
        (
            "async",
            {
                "async": True,
                "type": "scheduled",
                "schedule": {"rate": {"every": 1, "unit": "hour"}},
            },
        ),
    ],
)
def test_a_field_that_would_be_ignored_is_refused(ignored: str, with_it: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parsed(with_one_task(**with_it))
    assert refused.value.extras == {"field": ignored}


def test_null_and_false_are_no_wish_that_could_be_ignored() -> None:
    hourly = {"rate": {"every": 1, "unit": "hour"}}
    parsed(with_one_task(schedule=None, on_invalid=None))
    parsed(with_one_task(type="scheduled", schedule=hourly, **{"async": False}))


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("task", "tasks"),
        ("max_inflght", "max_inflight"),
        ("externalId", "external_id"),
        ("params", "zenrows_params"),
        ("asyncc", "async"),
    ],
)
def test_a_misspelt_field_is_answered_with_the_one_that_was_meant(field: str, meant: str) -> None:
    error = refusal(with_one_task(**{field: 1}))
    assert f"`{field}` is an unknown field" in error.detail
    assert error.extras == {"field": field}
    assert f"did you mean `{meant}`?" in error.detail


def test_fields_like_no_other_are_let_pass_and_told() -> None:
    raw = as_json(with_one_task(tags=["a"], priority={"x": [1]}, name="n"))
    read = finish(task_bodies.read_submission(raw, {}, LIMITS))
    assert read.ignored == ("tags", "priority")
    assert (read.body.name, read.specs) == ("n", [TaskSpec(url=URL)])


@pytest.mark.parametrize("name", ["", "a b", "ü", "x" * 65, "x\r\nSet-Cookie: a", "1"])
def test_a_field_whose_name_makes_no_header_is_refused(name: str) -> None:
    error = refusal(with_one_task(**{name: 1}))
    assert "unknown field" in error.detail
    assert "did you mean" not in error.detail


def test_more_unknown_fields_than_a_header_names_are_refused() -> None:
    many = {f"q{number}zzz{number}": 1 for number in range(21)}
    assert "at most 20 unknown fields, got 21" in refusal(with_one_task(**many)).detail


# Numbers of tasks.

FEW = Limits(inline_tasks=3)


@pytest.mark.parametrize("fourth", [{"url": URL}, {"url": "nonsense"}, {"url": 4}, None])
def test_more_tasks_than_one_call_carries_are_refused_whatever_they_are(fourth: object) -> None:
    tasks = [{"url": URL}] * 3
    assert len(accepted(as_json({"tasks": tasks}), FEW)) == 3
    with pytest.raises(InvalidArgument, match="at most 3") as refused:
        accepted(as_json({"tasks": [*tasks, fourth]}), FEW)
    assert refused.value.extras == {"field": "tasks"}


def test_an_addition_carries_at_least_one_task_and_may_be_the_last() -> None:
    body = {"tasks": [{"url": URL}]}
    assert addition(body).last_batch is None
    assert addition({**body, "last_batch": True}).last_batch is True


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tasks": None},
        {"tasks": []},
        {"tasks": [{"url": URL}] * (TASKS_PER_ADD + 1)},
        {"tasks": [{"url": URL}], "last_batch": "yes"},
        {"tasks": [{"url": URL}], "name": "x"},
        [],
    ],
)
def test_any_other_addition_is_refused(body: object) -> None:
    with pytest.raises(InvalidArgument):
        addition(body)


def test_a_misspelt_field_of_an_addition_gets_a_hint_too() -> None:
    with pytest.raises(InvalidArgument, match="did you mean `last_batch`"):
        addition({"tasks": [{"url": URL}], "lastBatch": True})


# URLs.


@pytest.mark.parametrize(
    ("given_url", "stored"),
    [
        ("https://a.example", "https://a.example/"),
        ("http://a.example:80/x", "http://a.example/x"),
        ("http://a.example:8080/", "http://a.example:8080/"),
        ("HTTPS://A.Example/B", "https://a.example/B"),
        ("  https://a.example/  ", "https://a.example/"),
        ("\thttps://a.example/\r\n", "https://a.example/"),
        ("https://a.example/?q=a b#c", "https://a.example/?q=a%20b#c"),
        ("https://bücher.example/ü", "https://xn--bcher-kva.example/%C3%BC"),
        ("https://a.example/../b", "https://a.example/b"),
        ("https://user:pw@a.example/", "https://user:pw@a.example/"),
        ("http://[::1]/", "http://[::1]/"),
        ("http://127.1/", "http://127.0.0.1/"),
        ("https://a.example/\x00", "https://a.example/"),
        ("https://a.example/\x00b", "https://a.example/%00b"),
    ],
)
def test_a_good_url_is_stored_in_its_one_form(given_url: str, stored: str) -> None:
    assert spec(url=given_url).url == stored
    assert spec(url=stored).url == stored


NO_STRINGS: list[object] = [5, None, True, ["https://a.example/"], {}]
BAD_URLS: dict[str, list[str]] = {
    "malformed_url": [
        "",
        "a.example",
        "//a.example",
        "ht tp://a",
        "http://a b/",
        "http://a\x00b/",
        "http://[::1",
        "http://a:99999/",
        "http://256.1.1.1/",
        "http://%00/",
        "https://a.example/1\tname",
        "https://a.example/1\nhttps://a.example/2",
        "https://a.example/1\rhttps://a.example/2",
        "https:\t//a.example/",
    ],
    "unsupported_scheme": [
        "ftp://a.example/",
        "file:///etc/passwd",
        "javascript:1",
        "data:,x",
        "mailto:a@b",
        "localhost:80",
        "ws://a.example/",
    ],
    "missing_host": [
        "http://",
        "https:",
        "http:///",
        " HTTP:// ",
        "http:\\\\",
        "https://?q=1",
        "https://#x",
        "http://:80",
        "http://:80/x",
        "http://user:pw@/x",
        "https:///x",
        "https:///x.example/page",
        "https:x",
        "https:/x.example",
        "HTTPS:////x.example",
        "http:\\\\\\x.example",
        " http:x.example ",
    ],
}


@pytest.mark.parametrize(
    ("why", "url"),
    [(why, url) for why, urls in BAD_URLS.items() for url in urls]
    + [("malformed_url", value) for value in NO_STRINGS],
)
def test_a_bad_url_is_refused_for_its_reason(why: str, url: object) -> None:
    assert reason(url=url) == why


def test_a_url_is_at_most_2048_characters_as_given_and_as_stored() -> None:
    longest = URL + "a" * (LONGEST_URL - len(URL))
    assert spec(url=longest).url == longest
    assert reason(url=longest + "a") == "url_too_long"
    assert reason(url=URL + "é" * 400) == "url_too_long"


def test_a_task_without_a_url_is_refused() -> None:
    assert named(refusal({"tasks": [{}]})) == [(0, "malformed_url")]


@pytest.mark.parametrize(
    "url", ["ftp://a.example/{}?token=secret", "https://a.example:x/{}?token=secret"]
)
def test_a_refused_url_is_echoed_short_and_without_its_query(url: str) -> None:
    for path in ("", "x" * 200):
        error = refusal({"tasks": [{"url": url.format(path)}]})
        assert isinstance(error.extras["invalid_tasks"], list)
        [bad] = error.extras["invalid_tasks"]
        assert bad.value == url.format(path).partition("?")[0][:80]
    assert "secret" not in str(refusal({"tasks": [{"url": URL + "?secret" * 400}]}).extras)


# The other fields of a task.


def test_every_field_of_a_task_is_stored() -> None:
    stored = spec(
        external_id="row-7",
        metadata={"a": "1"},
        method="post",
        body={"q": ["x"]},
        zenrows_params={"wait": 5},
    )
    assert stored == TaskSpec(
        url=URL,
        method="POST",
        external_id="row-7",
        metadata='{"a":"1"}',
        params='{"wait":"5"}',
        body='{"q": ["x"]}',
    )


@pytest.mark.parametrize("method", ["get", "Get", "GET", None])
def test_a_method_is_read_in_any_case(method: str | None) -> None:
    assert spec(method=method).method == "GET"


def test_empty_metadata_and_parameters_are_stored_as_nothing() -> None:
    assert spec(metadata={}, zenrows_params={}) == TaskSpec(url=URL)


def test_metadata_at_its_bounds_is_kept_in_order() -> None:
    metadata = {f"{n:02}" + "k" * 126: "é" * 1024 for n in range(20)}
    assert list(json.loads(spec(metadata=metadata).metadata or "").items()) == list(
        metadata.items()
    )


@pytest.mark.parametrize(
    ("why", "fields"),
    [
        ("unknown_field", {"headers": {}}),
        ("unknown_field", {"zenrows_param": {}}),
        ("metadata_too_large", {"metadata": {f"k{n}": "v" for n in range(21)}}),
        ("metadata_too_large", {"metadata": {"k": "v" * 1025}}),
        ("metadata_key_invalid", {"metadata": {"": "v"}}),
        ("metadata_key_invalid", {"metadata": {"k" * 129: "v"}}),
        ("metadata_key_invalid", {"metadata": {"k": 1}}),
        ("metadata_key_invalid", {"metadata": []}),
        ("invalid_external_id", {"external_id": ""}),
        ("invalid_external_id", {"external_id": "a/b"}),
        ("invalid_external_id", {"external_id": "a" * 129}),
        ("invalid_external_id", {"external_id": "a\n"}),
        ("invalid_external_id", {"external_id": 7}),
        ("unknown_param", {"zenrows_params": {"screenshot": True}}),
        ("invalid_param_value", {"zenrows_params": {"wait": "x"}}),
        ("invalid_param_value", {"zenrows_params": []}),
        ("invalid_param_value", {"zenrows_params": {"mode": "auto", "premium_proxy": True}}),
        ("unsupported_method", {"method": "PUT"}),
        ("unsupported_method", {"method": ""}),
        ("unsupported_method", {"method": "GET "}),
        ("unsupported_method", {"method": 1}),
        ("body_not_allowed", {"body": "x"}),
        ("body_not_allowed", {"body": False, "method": "GET"}),
        ("body_too_large", {"body": "x" * (LARGEST_TASK_BODY + 1), "method": "POST"}),
        ("body_too_large", {"body": {"a": "x" * LARGEST_TASK_BODY}, "method": "POST"}),
        ("method_param_conflict", {"method": "POST", "zenrows_params": {"js_render": True}}),
        ("method_param_conflict", {"method": "POST", "zenrows_params": {"json_response": "true"}}),
    ],
)
def test_each_fault_of_a_task_has_its_reason(why: str, fields: dict[str, object]) -> None:
    assert reason(**fields) == why


@pytest.mark.parametrize(
    ("why", "task"),
    [
        ("malformed_task", b"null"),
        ("malformed_task", b'"https://a.example/"'),
        ("malformed_task", b"[]"),
        ("malformed_task", b"7"),
        ("body_malformed", b'{"url":"https://a.example/","method":"POST","body":"\xff"}'),
    ],
)
def test_a_task_that_is_no_task_has_its_reason_too(why: str, task: bytes) -> None:
    assert named(refusal(b'{"tasks":[' + task + b"]}")) == [(0, why)]


@pytest.mark.parametrize("body", [{"tasks": [URL]}, {"tasks": []}, {"urls": [URL]}])
def test_a_submit_without_tasks_says_what_a_task_is(body: dict[str, object]) -> None:
    assert "object with a `url`" in refusal(body).detail


def test_the_reasons_hold_all_the_client_knows() -> None:
    known = {one.value for one in ClientReason if one.name != "UNKNOWN"}
    assert known <= set(Reason)


def test_the_client_reads_every_reason() -> None:
    for why in Reason:
        ClientInvalidTask.model_validate({"index": 0, "reason": why.value, "value": "x"})


# Bodies of tasks.


@pytest.mark.parametrize(
    "body", [{"a": 1}, [1, 2], 5, 1.5, True, False, "a=1&b=2", "", {}, [], "x" * LARGEST_TASK_BODY]
)
def test_a_post_carries_any_json_as_it_was_given(body: object) -> None:
    assert spec(method="POST", body=body).body == json.dumps(body)


def test_a_null_body_is_no_body() -> None:
    assert spec(method="POST", body=None).body is None
    assert spec(method="GET", body=None).body is None


def test_a_string_is_measured_as_it_is_sent_and_not_as_it_was_escaped() -> None:
    fits = "é" * (LARGEST_TASK_BODY // 2)
    assert len(as_json(fits)) > LARGEST_TASK_BODY
    assert json.loads(spec(method="POST", body=fits).body or "") == fits
    assert reason(method="POST", body=fits + "a") == "body_too_large"


# Job and task together.


def test_a_task_is_judged_with_its_jobs_parameters() -> None:
    error = refusal(
        {
            "zenrows_params": {"js_render": True},
            "tasks": [
                {"url": URL},
                {"url": URL, "method": "POST"},
                {"url": URL, "method": "POST", "zenrows_params": {"js_render": False}},
                {"url": URL, "zenrows_params": {"mode": "auto"}},
            ],
        }
    )
    assert named(error) == [(1, "method_param_conflict"), (3, "invalid_param_value")]


# All the bad ones, and nothing but them.

GOOD_TASKS: list[object] = [
    {"url": URL},
    {"url": URL, "method": "POST", "body": "x"},
    {"url": URL, "zenrows_params": {"wait": 1}, "metadata": {"a": "b"}},
]
BAD_TASKS: list[object] = [
    {"url": "nonsense"},
    {"url": 5},
    {"url": URL, "typo": 1},
    {"url": URL, "body": "x"},
    {"url": URL, "method": "POST", "zenrows_params": {"js_render": True}},
    {"url": URL, "zenrows_params": {"proxy_country": None}},
    None,
]
marked = st.sampled_from(
    [(task, True) for task in GOOD_TASKS] + [(task, False) for task in BAD_TASKS]
)


@settings(deadline=None)
@given(tasks=st.lists(marked, min_size=1, max_size=12))
def test_one_bad_task_refuses_all_and_every_bad_one_is_named(
    tasks: list[tuple[object, bool]],
) -> None:
    raw = as_json({"tasks": [task for task, _ in tasks]})
    bad = [index for index, (_, good) in enumerate(tasks) if not good]
    if bad:
        error = refusal(raw)
        assert [index for index, _ in named(error)] == bad
        assert f"{len(bad)} of the tasks" in error.detail
        assert f"tasks[{bad[0]}]" in error.detail
    else:
        assert len(accepted(raw)) == len(tasks)


def test_thousands_of_bad_tasks_are_all_named() -> None:
    error = refusal({"tasks": [{"url": "nonsense"}] * 5000})
    assert [index for index, _ in named(error)] == list(range(5000))


@pytest.mark.parametrize(
    ("params", "bad"),
    [
        ({"js_render": True}, [0, 1]),
        ({"js_render": "maybe"}, [0]),
        ({"mode": "auto", "js_render": True}, [0]),
        ([], [0]),
        (None, [0]),
    ],
)
def test_a_task_that_does_not_decode_hides_none_that_conflicts_with_the_job(
    params: object, bad: list[int]
) -> None:
    error = refusal(
        {"zenrows_params": params, "tasks": [{"url": 5}, {"url": URL, "method": "POST"}]}
    )
    assert [index for index, _ in named(error)] == bad


# Hostile bodies.

DEEP = 100_000
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "blank": b" \n\t ",
    "no JSON": b"url=https://a.example/",
    "HTML": b"<html></html>",
    "half a body": b'{"tasks":[{"url":"https://a.exa',
    "two bodies": b'{"status":"open"}{"status":"open"}',
    "a byte order mark": b'\xef\xbb\xbf{"status":"open"}',
    "UTF-16": '{"status":"open"}'.encode("utf-16"),
    "invalid UTF-8 in a name": b'{"name":"\xff","tasks":[{"url":"https://a.example/"}]}',
    "invalid UTF-8 in a key": b'{"\xff":1,"tasks":[{"url":"https://a.example/"}]}',
    "invalid UTF-8 in a url": b'{"tasks":[{"url":"https://a.example/\xff"}]}',
    "invalid UTF-8 after a fault": b'{"tasks":[{"url":1},{"url":"\xff"}]}',
    "invalid UTF-8 in params after a fault": b'{"zenrows_params":{"wait":"\xff"},"tasks":[1]}',
    "invalid UTF-8 in a task's key after a fault": b'{"tasks":[1,{"\xff":1}]}',
    "a lone surrogate": b'{"tasks":[{"url":"https://a.example/\\ud800"}]}',
    "a lone surrogate after a fault": b'{"tasks":[{"url":1},{"url":"\\ud800"}]}',
    "a raw NUL": b'{"tasks":[{"url":"https://a\x00.example/"}]}',
    "an escaped NUL": b'{"tasks":[{"url":"https://a\\u0000.example/"}]}',
    "a NUL after all": b'{"status":"open"}\x00',
    "deep arrays": b"[" * DEEP,
    "deep objects": b'{"a":' * DEEP,
    "deep tasks": b'{"tasks":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep task": b'{"tasks":[{"url":' + b"[" * DEEP + b"]" * DEEP + b"}]}",
    "deep body": b'{"tasks":[{"url":"https://a.example/","method":"POST","body":'
    + b"[" * DEEP
    + b"]" * DEEP
    + b"}]}",
    "deep params": b'{"tasks":[1],"zenrows_params":{"wait":' + b"[" * DEEP + b"]" * DEEP + b"}}",
    "deep unknown field": b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "a huge whole number": b'{"retries":' + b"9" * 5000 + b',"tasks":[{"url":"https://a.b/"}]}',
    "a large whole number": b'{"retries":' + b"9" * 25 + b',"tasks":[{"url":"https://a.b/"}]}',
    "a huge number": b'{"retries":1e999,"tasks":[{"url":"https://a.b/"}]}',
    "a huge parameter": b'{"tasks":[{"url":"https://a.b/","zenrows_params":{"wait":'
    + b"9" * 5000
    + b"}}]}",
    "not a number": b'{"retries":NaN,"tasks":[{"url":"https://a.b/"}]}',
    "the last of two keys": b'{"tasks":[{"url":"https://a.b/"}],"tasks":[]}',
    "the last of two urls": b'{"tasks":[{"url":"https://a.b/","url":"nonsense"}]}',
    "null": b"null",
    "an array": b'[{"url":"https://a.b/"}]',
    "a string": b'"https://a.b/"',
    "a number": b"1",
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_submit_is_refused_and_nothing_worse(raw: bytes) -> None:
    error = refusal(raw)
    assert 0 < len(error.detail) < 1000


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_addition_is_refused_and_nothing_worse(raw: bytes) -> None:
    with pytest.raises(InvalidArgument):
        add(raw)


@pytest.mark.parametrize(
    "body",
    [
        {"x" * 100_000: 1},
        {"type": "x" * 100_000},
        {"tasks": [{"url": URL}], "zenrows_params": {"x" * 100_000: 1}},
        {"tasks": [{"url": "x" * 100_000}]},
        {"tasks": [{"url": URL, "x" * 100_000: 1}]},
        {"tasks": [{"url": URL, "zenrows_params": {"x" * 100_000: 1}}]},
        {"tasks": [{"url": URL, "metadata": {"x" * 100_000: "1"}}]},
        {"tasks": [{"url": URL, "method": "x" * 100_000}]},
    ],
)
def test_a_long_fault_is_not_echoed_at_length(body: object) -> None:
    error = refusal(body)
    assert len(error.detail) + len(str(error.extras)) < 1000


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([URL, "open", "POST", "regular", "auto", "true"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    *Submission.__struct_encode_fields__,
                    *TaskInput.__struct_fields__,
                    "last_batch",
                    "x",
                ]
            )
            | st.text(max_size=3),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)
task_like = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(TaskInput.__struct_fields__, json_values)
)
body_like = st.fixed_dictionaries(
    {"tasks": st.lists(task_like | json_values, max_size=3)},
    optional={name: json_values for name in Submission.__struct_encode_fields__ if name != "tasks"},
)


def outcome(call: Callable[[bytes], list[TaskSpec]], raw: bytes) -> CallerFault | None:
    """The refusal a call ends in, if it does; any other exception is a bug and passes through."""
    try:
        call(raw)
    except (InvalidArgument, TooLarge) as error:
        return error
    return None


def check_answerable(error: CallerFault | None) -> None:
    if error is not None:
        msgspec.json.encode(error.extras)


@settings(deadline=None, max_examples=examples(300))
@given(value=json_values | body_like)
def test_any_json_is_taken_or_refused_as_the_callers_fault(value: object) -> None:
    check_answerable(outcome(accepted, as_json(value)))
    check_answerable(outcome(add, as_json(value)))


@settings(deadline=None, max_examples=examples(300))
@given(value=body_like, cut=st.integers(0, 400), junk=st.binary(max_size=6))
def test_any_bytes_are_taken_or_refused_as_the_callers_fault(
    value: object, cut: int, junk: bytes
) -> None:
    raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    for broken in (junk, raw[:cut] + junk + raw[cut:], raw[:cut] + junk):
        check_answerable(outcome(accepted, broken))
        check_answerable(outcome(add, broken))


# Sizes of whole tasks.

FULL = {
    "url": ("https://a.example/" + "x" * LONGEST_URL)[:LONGEST_URL],
    "external_id": "x" * submission.LONGEST_EXTERNAL_ID,
    "metadata": {
        f"{number:0128}": "😀" * submission.LONGEST_METADATA_VALUE
        for number in range(submission.MOST_METADATA)
    },
    "method": "POST",
    "body": "x" * LARGEST_TASK_BODY,
    "zenrows_params": {"custom_headers": {"A": '"' * ((8 * 1024 - 8) // 2)}},
}


def test_a_task_at_every_limit_of_the_contract_is_taken_by_the_least_setting() -> None:
    least = Limits(task_bytes=submission.LEAST_TASK_BYTES)
    [task] = accepted(as_json({"tasks": [FULL]}), least)
    assert len(task.metadata or "") > 20 * 1_024
    assert task.body == f'"{FULL["body"]}"'


def test_larger_tasks_are_refused_with_their_indexes() -> None:
    large = {"url": URL, "zenrows_params": {"js_instructions": "ü" * 40_000}}
    fits = {"url": URL, "zenrows_params": {"js_instructions": "ü" * 32_000}}
    error = refusal({"tasks": [large, fits, {"url": 1}, large]})
    assert named(error) == [(0, "task_too_large"), (2, "malformed_url"), (3, "task_too_large")]
    assert len(accepted(as_json({"tasks": [large]}), Limits(task_bytes=100_000))) == 1


def test_parameters_of_a_job_are_bounded_together() -> None:
    heavy = {"js_instructions": "x" * 40_000, "css_extractor": "x" * 40_000}
    error = refusal(with_one_task(zenrows_params=heavy))
    assert error.extras == {"field": "zenrows_params"}
    assert "at most 65536 bytes together, got 80028" in error.detail


# Long names.


@pytest.mark.parametrize(
    "body",
    [
        b'{"tasks":[],"%b":1}',
        b'{"tasks":[{"url":"https://a.example/","%b":1}]}',
        b'{"tasks":[{"url":"https://a.example/","metadata":{"%b":"x"}}]}',
        b'{"tasks":[{"url":"https://a.example/","zenrows_params":{"%b":"x"}}]}',
        b'{"tasks":[{"url":"https://a.example/"}],"zenrows_params":{"%b":"x"}}',
        b'{"tasks":[{"url":"%b"}]}',
        b'{"tasks":[{"url":"https://a.example/","external_id":"%b"}]}',
        b'{"tasks":[{"url":"https://a.example/"}],"webhook":{"%b":1}}',
        b'{"tasks":[{"url":"https://a.example/"}],"type":"%b"}',
    ],
)
def test_what_is_refused_is_told_short_however_long_it_is(body: bytes) -> None:
    began = time.process_time()
    error = refusal(body % (b"tas" * 300_000))
    assert time.process_time() - began < 1.0
    assert len(error.detail) < 500
    assert len(msgspec.json.encode(error.extras)) < 500


def test_a_hint_is_a_field_of_the_object_at_fault() -> None:
    error = refusal(with_one_task(webhook={"ulr": "https://a.example/"}))
    assert "did you mean `url`?" in error.detail
    assert "did you mean" not in refusal(with_one_task(webhook={"tasks": 1})).detail


def test_every_field_of_a_submission_is_stored_shown_and_bounded() -> None:
    """A field that is added to the submission alone fails here, and in the table of SPEC 6.1."""
    fields, stored = set(Submission.__struct_fields__), set(Job.__struct_fields__)
    copied = fields - CONVERTED.keys()
    assert fields >= CONVERTED.keys()
    assert copied <= stored
    assert {name for into in CONVERTED.values() for name in into} <= stored
    hints = get_type_hints(Submission)
    assert {name for name in fields if hints[name] == int | None} == BOUNDS.keys()

    kept = {name for name in CONVERTED if name in stored} | {"zenrows_params"}
    assert copied | kept <= set(WireJob.__struct_fields__)


@pytest.mark.parametrize("name", sorted(set(Submission.__struct_fields__) - CONVERTED.keys()))
def test_a_field_that_is_copied_reaches_the_job_and_its_caller(name: str) -> None:
    value: Any = 7 if name in BOUNDS else "seven"
    given = copied_fields(Submission(**{name: value}))
    assert given == {name: value}
    shown = job_shown(JobView(a_job(**given), None))
    assert getattr(shown, name) == value
