"""Problem documents are whole enough for the strictest client, wherever they come from."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zenrows.batch.models import Problem

from conveyor.domain.problem import completed, encoded, phrase, problem
from conveyor.domain.task import WORKER_LOST


def test_a_problem_has_what_every_reader_needs() -> None:
    assert problem(status=404, code="not_found") == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "code": "not_found",
    }


def test_members_without_a_value_are_left_out() -> None:
    document = problem(status=400, code="x", title="T", detail="d", instance=None, field="name")
    assert list(document) == ["type", "title", "status", "code", "detail", "field"]


@pytest.mark.parametrize(("status", "words"), [(503, "Service Unavailable"), (599, "Error")])
def test_every_status_has_a_phrase(status: int, words: str) -> None:
    assert phrase(status) == words


def test_a_whole_problem_is_kept_to_the_letter() -> None:
    given_problem: dict[str, object] = {
        "type": "https://docs.example/errors#1",
        "title": "Nope",
        "status": 422,
        "code": "RESP001",
        "detail": "d",
        "instance": "/v1",
        "hint": {"try": ["js_render"]},
    }
    assert completed(given_problem, 500, "other") == given_problem


@pytest.mark.parametrize(
    ("partial", "member", "value"),
    [
        ({}, "type", "about:blank"),
        ({"type": 5}, "type", "about:blank"),
        ({"type": ""}, "type", "about:blank"),
        ({"type": "errors/1"}, "type", "about:blank"),
        ({"type": "http://"}, "type", "about:blank"),
        ({"type": "https://not a host/"}, "type", "about:blank"),
        ({"type": "urn:problem:1"}, "type", "urn:problem:1"),
        ({}, "title", "Unprocessable Entity"),
        ({"title": None}, "title", "Unprocessable Entity"),
        ({}, "status", 422),
        ({"status": "422"}, "status", 422),
        ({"status": True}, "status", 422),
        ({"status": 404}, "status", 404),
        ({}, "code", "fallback"),
        ({"code": 7}, "code", "fallback"),
    ],
)
def test_what_is_missing_or_of_the_wrong_type_is_filled_in(
    partial: dict[str, object], member: str, value: object
) -> None:
    assert completed(partial, 422, "fallback")[member] == value


def test_optional_members_of_the_wrong_type_are_dropped() -> None:
    whole = completed({"detail": 1, "instance": [], "invalid_tasks": "all"}, 500, "x")
    assert whole.keys().isdisjoint({"detail", "instance", "invalid_tasks"})


def test_completing_leaves_the_given_document_alone() -> None:
    partial: dict[str, object] = {"invalid_tasks": []}
    completed(partial, 500, "x")
    assert partial == {"invalid_tasks": []}


MEMBERS = ["type", "title", "status", "code", "detail", "instance", "invalid_tasks", "extra"]
uris = st.one_of(
    st.from_regex(r"(https?|urn|about|HTTP|ftp|file):/{0,3}[ -~]{0,12}", fullmatch=True), st.text()
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | uris,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(partial=st.dictionaries(st.sampled_from(MEMBERS), values), status=st.integers(100, 999))
def test_the_official_client_reads_any_completed_problem(
    partial: dict[str, object], status: int
) -> None:
    read = Problem.model_validate_json(encoded(completed(partial, status, "some_code")))
    assert read.title is not None


@given(kind=uris)
def test_the_official_client_reads_any_type_that_is_kept(kind: str) -> None:
    Problem.model_validate_json(encoded(completed({"type": kind}, 500, "some_code")))


def test_the_problem_of_a_lost_worker_is_whole() -> None:
    document = msgspec.json.decode(WORKER_LOST, type=dict[str, object])
    assert completed(document, 0, "") == document
    assert Problem.model_validate_json(WORKER_LOST).code == "worker_lost"
