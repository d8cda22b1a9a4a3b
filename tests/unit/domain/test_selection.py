"""Selections of tasks: what a caller may ask for, and what matches."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import FailureGroup
from conveyor.domain.ids import RunId, TaskId, task_ids
from conveyor.domain.params import load, merged
from conveyor.domain.problem import encoded
from conveyor.domain.problem import problem as problem_of
from conveyor.domain.selection import (
    ALL,
    FAILED,
    MOST_VALUES,
    RerunRequest,
    Selection,
    chosen_among,
    chosen_by_group,
    chosen_by_status,
    described,
    matcher,
    parse_filter,
    parse_rerun,
    with_params,
)
from conveyor.domain.submission import Limits
from conveyor.domain.task import FINAL, Task, TaskSpec, TaskStatus, failure_of
from conveyor.errors import InvalidArgument
from conveyor.testing.factories import a_task

LIMITS = Limits()
NOW = datetime(2026, 1, 31, tzinfo=UTC)
IDS = task_ids(RunId("R"))


def parsed(body: object = None, status: str | None = None) -> RerunRequest:
    return parse_rerun(b"" if body is None else msgspec.json.encode(body), status, LIMITS)


def test_without_a_body_every_task_is_selected() -> None:
    for raw in (b"", b" ", b"null", b"{}"):
        assert parse_rerun(raw, None, LIMITS) == RerunRequest()
    assert ALL.is_all
    assert not Selection(statuses=FAILED).is_all


def test_statuses_come_from_the_query_and_the_body() -> None:
    assert parsed(status="failed, pending").selection.statuses == ("failed", "pending")
    assert parsed({"status": ["pending", "failed", "failed"]}).selection.statuses == (
        "failed",
        "pending",
    )
    assert parsed({"status": ["failed"]}, "failed,pending").selection.statuses == FAILED
    assert parsed({"status": ["failed"]}, "pending").selection.statuses == ()


def test_conditions_imply_the_statuses_that_they_are_about() -> None:
    assert parsed({"reason": ["blocked"]}).selection.statuses == FAILED
    assert parsed({"code": ["RESP001"]}).selection.statuses == FAILED
    assert set(parsed({"scraped_before": NOW}).selection.statuses or ()) == FINAL
    assert parsed({"host": ["a.test"]}).selection.statuses is None
    assert parsed({"scraped_before": NOW, "status": ["successful"]}).selection.statuses == (
        "successful",
    )


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ({"host": "a.test,B.test:8080"}, {"host": ["a.test", "B.test:8080"]}),
        ({"reason": "blocked,timeout"}, {"reason": ["timeout", "blocked"]}),
        ({"code": "RESP001", "host": "a.test"}, {"code": ["RESP001"], "host": ["a.test"]}),
        ({"limit": "5", "cursor": ""}, {}),
    ],
)
def test_a_listing_takes_the_conditions_of_a_rerun(
    query: dict[str, str], body: dict[str, object]
) -> None:
    assert parse_filter(query, None) == parsed(body).selection
    for status in TaskStatus:
        assert parse_filter(query, frozenset({status})) == parsed(body, status).selection


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"reason": "bloked"}, "`reason` must be one or more of .* did you mean `blocked`"),
        ({"reason": ""}, "`reason` must be one or more of"),
        ({"host": "a.test,"}, "`host` must have values of 1 to 260 characters, got 0"),
        ({"code": "x" * 65}, "`code` must have values of 1 to 64 characters, got 65"),
        ({"code": ",".join(["x"] * (MOST_VALUES + 1))}, "`code` must have 1 to 1000 values"),
    ],
)
def test_a_listing_refuses_conditions_as_a_rerun_does(query: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        parse_filter(query, None)


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({"status": "failed"}, "status", "must be an array of values from pending, processing"),
        ({"reason": []}, "reason", "1 to 1000 values, got 0"),
        ({"reason": ["bloked"]}, "reason[0]", "did you mean `blocked`"),
        ({"scraped_before": "2026-01-31T00:00:00"}, "scraped_before", "must have a UTC offset"),
        ({"host": [""]}, "host", "1 to 260 characters, got 0"),
        ({"code": ["x" * 65]}, "code", "1 to 64 characters, got 65"),
        ({"task_ids": ["seven"]}, "task_ids", "must be ids of tasks, got 'seven'"),
        ({"task_ids": [IDS(0)] * (MOST_VALUES + 1)}, "task_ids", "got 1001"),
        ({"hosts": ["a.test"]}, "hosts", "did you mean `host`"),
        (
            {"zenrows_params": {"js_rendr": True}},
            "zenrows_params.js_rendr",
            "did you mean `js_render`",
        ),
        (
            {"zenrows_params": {"js_rendr": None}},
            "zenrows_params.js_rendr",
            "did you mean `js_render`",
        ),
        ({"zenrows_params": {"mode": "auto", "js_render": True}}, "zenrows_params.mode", "refused"),
    ],
)
def test_a_refusal_names_the_field_and_what_is_wrong(
    body: dict[str, Any], field: str, text: str
) -> None:
    with pytest.raises(InvalidArgument, match=text.replace("(", r"\(")) as refused:
        parsed(body)
    assert refused.value.extras == {"field": field}


def test_conditions_that_exclude_each_other_match_nothing() -> None:
    for body in (
        {"reason": ["blocked"], "status": ["successful"]},
        {"scraped_before": NOW, "status": ["pending"]},
    ):
        selection = parsed(body).selection
        assert selection.statuses == ()
        assert not any(matcher(selection)(a_task(status=status)) for status in TaskStatus)


def test_hosts_are_compared_in_lower_case_as_they_are_stored() -> None:
    [host] = parsed({"host": ["Example.COM:8080"]}).selection.hosts
    assert host == "example.com:8080"


def test_parameters_replace_those_of_the_same_name() -> None:
    spec = TaskSpec(url="https://a.test/", params='{"js_render":"false","wait":"5"}')
    assert with_params(spec, {}) is spec
    assert with_params(spec, {"js_render": "true"}).params == '{"js_render":"true","wait":"5"}'
    bare = TaskSpec(url="https://a.test/")
    assert with_params(bare, {"mode": "auto"}).params == '{"mode":"auto"}'


def test_null_removes_a_parameter_of_the_task_and_of_its_job() -> None:
    asked = parsed({"zenrows_params": {"mode": None, "wait": None, "js_render": True}})
    task = with_params(TaskSpec(url="https://a.test/", params='{"wait":"5"}'), asked.params)
    job = {"mode": "auto", "premium_proxy": "true", "wait": "9"}
    assert merged(job, load(task.params)) == {"js_render": "true", "premium_proxy": "true"}
    again = with_params(task, {"wait": "7"})
    assert merged(job, load(again.params))["wait"] == "7"


def test_a_message_names_the_conditions() -> None:
    selection = Selection(
        statuses=FAILED,
        reasons=(FailureReason.BLOCKED,),
        hosts=("a", "b", "c", "d"),
        scraped_before=NOW,
    )
    assert described(selection) == (
        " with status failed, reason blocked, host a or b or c …,"
        " a result from before 2026-01-31T00:00:00+00:00"
    )
    assert described(ALL) == ""
    contradictory = parsed({"reason": ["blocked"], "status": ["successful"]}).selection
    assert described(contradictory) == " with a status that all conditions allow, reason blocked"


ROWS = {
    "page": a_task(
        id=IDS(0),
        status=TaskStatus.SUCCESSFUL,
        spec=TaskSpec(url="https://a.test/0"),
        updated_at=NOW - timedelta(days=1),
    ),
    "blocked": a_task(
        id=IDS(1),
        status=TaskStatus.FAILED,
        spec=TaskSpec(url="https://a.test/1"),
        reason=FailureReason.BLOCKED,
        problem='{"code":"RESP001"}',
        updated_at=NOW,
    ),
    "late": a_task(
        id=IDS(2),
        status=TaskStatus.FAILED,
        spec=TaskSpec(url="https://b.test:8080/2"),
        reason=FailureReason.TIMEOUT,
        problem='{"code":"CTX0002"}',
        updated_at=NOW,
    ),
    "open": a_task(id=IDS(3), status=TaskStatus.PENDING, spec=TaskSpec(url="https://a.test/3")),
    "held": a_task(id=IDS(4), status=TaskStatus.PROCESSING, spec=TaskSpec(url="https://b.test/4")),
}


@pytest.mark.parametrize(
    ("body", "matching"),
    [
        ({}, {"page", "blocked", "late", "open", "held"}),
        ({"status": ["failed"]}, {"blocked", "late"}),
        ({"status": ["pending"]}, {"open", "held"}),
        ({"status": ["processing"]}, {"held"}),
        ({"host": ["a.test"]}, {"page", "blocked", "open"}),
        ({"host": ["b.test:8080"]}, {"late"}),
        ({"host": ["a.test"], "status": ["failed"]}, {"blocked"}),
        ({"reason": ["timeout"]}, {"late"}),
        ({"code": ["RESP001", "CTX0002"]}, {"blocked", "late"}),
        ({"reason": ["timeout"], "code": ["RESP001"]}, set()),
        ({"task_ids": [IDS(0), IDS(3)]}, {"page", "open"}),
        ({"scraped_before": NOW}, {"page"}),
    ],
)
def test_a_task_is_selected_if_it_meets_every_condition(
    body: dict[str, Any], matching: set[str]
) -> None:
    matches = matcher(parsed(body).selection)
    assert {name for name, row in ROWS.items() if matches(row)} == matching


def test_a_long_host_is_selected_by_the_beginning_that_its_failure_group_has() -> None:
    host = "a" * 2_000
    problem = encoded(problem_of(status=422, code="RESP001"))
    row = a_task(spec=TaskSpec(url=f"https://{host}/"), status=TaskStatus.FAILED, problem=problem)
    assert matcher(parsed({"host": [failure_of(row).host]}).selection)(row)


HOSTS, CODES = ("a.test", "b.test"), ("RESP001", "RESP002")


@st.composite
def tasks(draw: st.DrawFn) -> list[Task]:
    made = []
    for index in range(draw(st.integers(0, 12))):
        status = draw(st.sampled_from(TaskStatus))
        is_failed = status is TaskStatus.FAILED
        made.append(
            a_task(
                id=IDS(index),
                index=index,
                status=status,
                spec=TaskSpec(url=f"https://{draw(st.sampled_from(HOSTS))}/{index}"),
                reason=draw(st.sampled_from(FailureReason)) if is_failed else None,
                problem=f'{{"code":"{draw(st.sampled_from(CODES))}"}}' if is_failed else None,
                updated_at=NOW + timedelta(days=draw(st.integers(-1, 1))),
            )
        )
    return made


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    some = {
        "status": st.lists(st.sampled_from(TaskStatus), min_size=1),
        "reason": st.lists(st.sampled_from(FailureReason), min_size=1),
        "code": st.lists(st.sampled_from(CODES), min_size=1),
        "host": st.lists(st.sampled_from(HOSTS), min_size=1),
        "task_ids": st.lists(st.integers(0, 14).map(IDS), min_size=1),
        "scraped_before": st.just(NOW),
    }
    return draw(st.fixed_dictionaries({}, optional=some))


@given(tasks(), bodies())
def test_counts_and_groups_never_promise_too_few_tasks(
    rows: list[Task], body: dict[str, Any]
) -> None:
    try:
        selection = parsed(body).selection
    except InvalidArgument:
        return
    matching = list(filter(matcher(selection), rows))
    assert chosen_among(selection, rows).total == len(matching)

    whole = chosen_among(ALL, rows).counts
    tally = {
        status: sum(row.status is status for row in rows) for status in set(TaskStatus) - FINAL
    }
    bound = chosen_by_status(selection, whole, tally)
    assert bound.total >= len(matching)
    if not (selection.codes or selection.hosts or selection.task_ids or selection.scraped_before):
        assert bound == chosen_among(selection, rows)
    if selection.is_of_failures:
        assert chosen_by_group(selection, _groups(rows)) == chosen_among(selection, rows)


def test_failures_without_a_group_of_their_own_may_all_match() -> None:
    other = FailureGroup(
        host="", reason=FailureReason.BLOCKED, code="other", count=7, example=TaskId("")
    )
    selection = Selection(statuses=FAILED, hosts=("a.test",))
    assert chosen_by_group(selection, [other]).total == 7
    timeouts = Selection(statuses=FAILED, hosts=("a.test",), reasons=(FailureReason.TIMEOUT,))
    assert chosen_by_group(timeouts, [other]).total == 0


def _groups(rows: list[Task]) -> list[FailureGroup]:
    keys = [(failure_of(row), row.id) for row in rows if row.status is TaskStatus.FAILED]
    return [
        FailureGroup(host=key.host, reason=key.reason, code=key.code, count=1, example=task_id)
        for key, task_id in keys
    ]
