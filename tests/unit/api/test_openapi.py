"""The OpenAPI document: whole, sound in itself, and true to the contract."""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from conveyor.api import descriptions
from conveyor.api.handlers.files import FileHandlers
from conveyor.api.handlers.jobs import JobHandlers
from conveyor.api.handlers.operators import OperatorHandlers
from conveyor.api.handlers.webhooks import WebhookHandlers
from conveyor.api.openapi import document
from conveyor.api.routes import ROUTES
from conveyor.api.schemas import EXAMPLES
from conveyor.app.engines import SCHEMES
from conveyor.app.roles import Role
from conveyor.cli import main
from conveyor.domain.job import JobStatus
from conveyor.domain.params import HEADERS, KNOWN, TEXTS
from conveyor.domain.submission import BOUNDS
from conveyor.errors import CallerFault, ConveyorError, Unavailable

JOB, RUN = "/v1/jobs/{job}", "/v1/jobs/{job}/runs/{run}"
CONTRACT = {
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs"),
    ("GET", JOB),
    ("DELETE", JOB),
    ("POST", f"{JOB}/tasks"),
    ("POST", f"{JOB}/close"),
    ("POST", f"{JOB}/stop"),
    ("POST", f"{JOB}/cancel"),
    ("POST", f"{JOB}/pause"),
    ("POST", f"{JOB}/resume"),
    ("POST", f"{JOB}/rerun"),
    ("GET", f"{JOB}/failures"),
    ("GET", f"{RUN}/failures"),
    ("GET", f"{JOB}/timeline"),
    ("GET", f"{RUN}/timeline"),
    ("PUT", f"{JOB}/schedule"),
    ("POST", f"{JOB}/schedule/state"),
    ("GET", f"{JOB}/webhook"),
    ("PUT", f"{JOB}/webhook"),
    ("DELETE", f"{JOB}/webhook"),
    ("GET", f"{JOB}/webhook/deliveries"),
    ("POST", f"{JOB}/webhook/deliveries/{{event}}/redeliver"),
    ("GET", f"{JOB}/runs"),
    ("GET", RUN),
    ("DELETE", RUN),
    ("GET", f"{JOB}/events"),
    ("GET", f"{RUN}/events"),
    ("GET", f"{JOB}/ingest_errors"),
    ("GET", f"{RUN}/ingest_errors"),
    ("GET", f"{JOB}/results"),
    ("GET", f"{RUN}/results"),
    ("GET", f"{JOB}/tasks/{{task}}/content"),
    ("GET", f"{RUN}/tasks/{{task}}/content"),
    ("GET", f"{JOB}/tasks/{{task}}/history"),
    ("GET", f"{RUN}/tasks/{{task}}/history"),
    ("POST", f"{RUN}/exports"),
    ("GET", f"{RUN}/exports/{{export}}"),
    ("GET", "/v1/hmac/keys"),
    ("POST", "/v1/hmac/keys/rotate"),
    ("POST", "/v1/hmac/keys/rotate/finalize"),
    ("DELETE", "/v1/hmac/keys/rotate"),
    ("POST", "/v1/webhook/test"),
    ("POST", "/v1/job_inputs"),
    ("GET", "/v1/caller"),
    ("GET", "/v1/operator/callers"),
    ("GET", "/v1/operator/callers/{caller}/jobs"),
    ("GET", "/v1/operator/runs"),
    ("GET", "/v1/operator/dead_letters"),
    ("POST", "/v1/operator/dead_letters/{message}/redrive"),
    ("GET", "/v1/operator/processes"),
    ("GET", "/v1/operator/engines"),
    ("POST", "/v1/operator/jobs/{job}/pause"),
    ("POST", "/v1/operator/jobs/{job}/resume"),
    ("POST", "/v1/operator/jobs/{job}/stop"),
}


@pytest.fixture(scope="module")
def api() -> dict[str, Any]:
    """The document as clients get it."""
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(document()))
    return decoded


def test_every_call_of_the_contract_has_a_route_and_there_is_no_other() -> None:
    assert {(route.method, route.path) for route in ROUTES} == CONTRACT
    assert len(ROUTES) == len(CONTRACT)


def test_every_route_names_a_handler_that_exists() -> None:
    for route in ROUTES:
        [door] = [
            one
            for one in (JobHandlers, FileHandlers, WebhookHandlers, OperatorHandlers)
            if hasattr(one, route.handler)
        ]
        assert callable(getattr(door, route.handler))


def test_every_route_is_in_the_document_and_nothing_else(api: dict[str, Any]) -> None:
    described = {(method.upper(), path) for method, path, _ in _operations(api)}
    assert described == {(route.method, route.path) for route in ROUTES}


def test_the_document_says_what_it_is(api: dict[str, Any]) -> None:
    assert api["openapi"].startswith("3.1.")
    assert api["info"].keys() >= {"title", "version", "description"}
    [requirement] = api["security"]
    [scheme] = requirement
    assert api["components"]["securitySchemes"][scheme]["name"] == "X-API-Key"


# Fields with what a caller, a site, the gateway or an engine says; and ids, whose names end with `_id`.
FREE_TEXTS = {
    *("name", "job_name", "external_id", "metadata", "payload", "headers", "caller", "rerun_of"),
    *("url", "final_url", "result_url", "download_url", "example_url", "host", "content_type"),
    *("type", "title", "code", "detail", "instance", "field", "error", "failure_detail"),
    *("ingest_error", "value", "kid", "active_kid", "secret", "next_cursor", "engine", "version"),
    *("timezone", "cron", "delimiter", "quote", *TEXTS, HEADERS, "zenrows_params"),
}
# Texts that name something only in one document.
FREE_THERE = {("WireDeadLetter", "reason")}


def test_every_text_has_its_values_or_a_form_or_is_free(api: dict[str, Any]) -> None:
    unmarked = {
        (shape, name)
        for shape, schema in api["components"]["schemas"].items()
        for name, text in _texts(schema, "")
        if not text.keys() & {"enum", "const", "format", "pattern"} and not name.endswith("_id")
    }
    free = {pair for pair in unmarked if pair[1] in FREE_TEXTS} - {("WireResult", "type")}
    assert unmarked - free == FREE_THERE


def _texts(schema: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every text of a schema, with the name of the field that it is, or is in."""
    if isinstance(schema, list):
        for one in schema:
            yield from _texts(one, name)
    elif isinstance(schema, dict):
        if schema.get("type") == "string":
            yield name, schema
        for key, inner in schema.items():
            if key == "properties":
                for field, one in inner.items():
                    yield from _texts(one, field)
            else:
                yield from _texts(inner, name)


def test_times_of_responses_are_marked_as_such(api: dict[str, Any]) -> None:
    shapes = api["components"]["schemas"]
    assert shapes["WireRun"]["properties"]["created_at"]["format"] == "date-time"
    run_is_due = shapes["WireJob"]["properties"]["next_scheduled_run"]["anyOf"]
    assert {"type": "string", "format": "date-time"} in run_is_due


def test_roles_and_states_are_those_of_the_program(api: dict[str, Any]) -> None:
    shapes = api["components"]["schemas"]
    assert shapes["WireProcess"]["properties"]["role"]["enum"] == list(Role)
    assert tuple(Role) == main.ROLES
    assert set(shapes["WireEngine"]["properties"]["holds"]["enum"]) == set(SCHEMES)


def test_every_reference_resolves(api: dict[str, Any]) -> None:
    references = set(_references(api))
    assert references
    for reference in references:
        place: Any = api
        assert reference.startswith("#/")
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


def test_every_field_and_parameter_has_a_sentence(api: dict[str, Any]) -> None:
    shapes = api["components"]["schemas"]
    told = {
        f"{name}.{field}": shape.get("description", "")
        for name, schema in shapes.items()
        for field, shape in schema.get("properties", {}).items()
    }
    assert [name for name, sentence in told.items() if not sentence.endswith(".")] == []
    for _, _, operation in _operations(api):
        assert [one["name"] for one in operation["parameters"] if not one["description"]] == []
    known = {f"{name}.{field}" for name, fields in descriptions.FIELDS.items() for field in fields}
    assert known - told.keys() == set(), "no such field"


def test_every_call_is_in_a_group_and_no_group_is_empty(api: dict[str, Any]) -> None:
    groups = [tag["name"] for tag in api["tags"]]
    assert {tag for _, _, operation in _operations(api) for tag in operation["tags"]} == set(groups)


def test_every_schema_is_used(api: dict[str, Any]) -> None:
    used = {one.rpartition("/")[2] for one in _references(api) if "/schemas/" in one}
    assert used == api["components"]["schemas"].keys()


def test_every_operation_has_an_id_of_its_own_fit_for_a_name(api: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in _operations(api)]
    assert len(set(ids)) == len(ids)
    for one in ids:
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", one), one


def test_every_operation_describes_all_it_needs(api: dict[str, Any]) -> None:
    for method, path, operation in _operations(api):
        assert operation["summary"], (method, path)
        in_path = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))
        names = [(one["in"], one["name"]) for one in operation["parameters"]]
        assert len(set(names)) == len(names)
        for one in operation["parameters"]:
            assert one["schema"]
            assert one["in"] != "path" or one["required"]


def test_every_answer_says_its_form(api: dict[str, Any]) -> None:
    for _, path, operation in _operations(api):
        for status, answer in operation["responses"].items():
            assert answer["description"]
            assert "X-Request-ID" in answer["headers"]
            if "content" not in answer:
                assert status in {"202", "204"}, path
                continue
            [(kind, content)] = answer["content"].items()
            assert (kind == "application/problem+json") == (int(status) >= 400)
            assert kind == "*/*" or content["schema"]["$ref"]


# What any call may be answered.
ANYTIME = {"400", "401", "408", "414", "429", "431", "500", "503"}


def test_every_call_names_what_any_call_may_be_answered(api: dict[str, Any]) -> None:
    for _, path, operation in _operations(api):
        assert operation["responses"].keys() >= ANYTIME, path
        if "requestBody" in operation:
            assert operation["responses"].keys() >= {"413", "415"}, path


def test_every_status_of_the_table_is_in_the_document(api: dict[str, Any]) -> None:
    for route in ROUTES:
        operation = api["paths"][route.path][route.method.lower()]
        assert operation["responses"].keys() >= {str(status) for status in route.statuses}


NEVER_ANSWERED_THERE = {
    "method_not_allowed",  # by a method that has no operation
    "file_input_already_uploaded", "range_not_satisfiable",  # by signed links
}  # fmt: skip


def test_every_error_that_can_be_answered_is_in_the_document(api: dict[str, Any]) -> None:
    told: set[str] = set()
    for _, _, operation in _operations(api):
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                shown = answer["content"]["application/problem+json"]["schema"]["properties"]
                # A failed task's own problem has its own status, too.
                assert status == "422" or shown["status"] == {"const": int(status)}
                told |= set(shown.get("code", {"enum": ["task_failed"]})["enum"])
                assert all(
                    f"`{code}`" in answer["description"]
                    for code in shown.get("code", {}).get("enum", [])
                )
    kinds = (_tree(CallerFault) | _tree(Unavailable)) - {CallerFault}
    raised = {kind.code for kind in kinds} | {ConveyorError.code}
    assert told == raised - NEVER_ANSWERED_THERE


def _tree(root: type[ConveyorError]) -> set[type[ConveyorError]]:
    return {root}.union(*map(_tree, root.__subclasses__()))


def test_a_refused_call_names_its_own_codes(api: dict[str, Any]) -> None:
    def codes(method: str, path: str, status: int) -> set[str]:
        answer = api["paths"][path][method]["responses"][str(status)]
        schema = answer["content"]["application/problem+json"]["schema"]
        return set(schema["properties"]["code"]["enum"])

    assert codes("post", f"{JOB}/tasks", 409) == {
        "job_not_open", "last_batch_received", "run_not_terminal", "idempotency_key_conflict",
    }  # fmt: skip
    assert codes("post", "/v1/jobs", 404) == {"file_input_not_found"}
    assert codes("get", JOB, 404) == {"not_found"}
    assert codes("get", JOB, 429) == {"rate_limited", "quota_exceeded"}
    assert codes("post", "/v1/jobs", 402) == {"payment_required", "api_key_cap_reached"}
    assert codes("get", JOB, 503) == {"unavailable", "storage_full", "overloaded"}


def test_a_call_with_a_refused_key_is_told_when_to_come_again(api: dict[str, Any]) -> None:
    responses = api["paths"]["/v1/jobs"]["post"]["responses"]
    assert all("Retry-After" in responses[status]["headers"] for status in ("401", "402"))
    assert all(
        "Conveyor-Ignored-Fields" in responses[status]["headers"] for status in ("201", "202")
    )


def test_the_fields_of_bodies_have_their_bounds(api: dict[str, Any]) -> None:
    shapes = api["components"]["schemas"]
    task, job = shapes["TaskInput"]["properties"], shapes["Submission"]["properties"]
    assert task["url"]["maxLength"] == 2048
    assert job["retries"]["anyOf"][0]["maximum"] == 100
    assert set(shapes["NewJobStatus"]["enum"]) == {"open", "closed"}
    assert job["metadata"]["anyOf"][0]["maxProperties"] == 20
    rerun = shapes["RerunBody"]["properties"]
    for shape, name in (task, "ScraperParams"), (job, "ScraperParams"), (rerun, "ChangedParams"):
        reference = {"$ref": f"#/components/schemas/{name}"}
        assert shape["zenrows_params"]["anyOf"] == [reference, {"type": "null"}]
        assert shapes[name]["additionalProperties"] is False
        assert shapes[name]["properties"].keys() == KNOWN
    assert shapes["ScraperParams"]["properties"]["wait"]["anyOf"][0]["maximum"] == 30_000


def test_links_lead_to_calls_that_are_there(api: dict[str, Any]) -> None:
    known = {operation["operationId"]: operation for _, _, operation in _operations(api)}
    links = [
        link
        for _, _, operation in _operations(api)
        for answer in operation["responses"].values()
        for link in answer.get("links", {}).values()
    ]
    assert len(links) > 50
    for link in links:
        wanted = known[link["operationId"]]["parameters"]
        in_path = {one["name"] for one in wanted if one["in"] == "path"}
        assert link["parameters"].keys() == in_path


def test_calls_that_may_be_repeated_take_a_key(api: dict[str, Any]) -> None:
    for path in ("/v1/jobs", f"{JOB}/tasks"):
        headers = {
            one["name"] for one in api["paths"][path]["post"]["parameters"] if one["in"] == "header"
        }
        assert "Idempotency-Key" in headers


def test_the_extensions_are_described_in_both_their_forms(api: dict[str, Any]) -> None:
    submit = api["paths"]["/v1/jobs"]["post"]
    headers = {one["name"]: one["schema"] for one in submit["parameters"] if one["in"] == "header"}
    fields = api["components"]["schemas"]["Submission"]["properties"]
    for name, (lowest, highest) in BOUNDS.items():
        whole = {"type": "integer", "minimum": lowest, "maximum": highest}
        assert whole in fields[name]["anyOf"]
        assert headers["Conveyor-" + name.replace("_", "-").title()] == whole
    assert "async" in fields
    assert headers["Conveyor-Async"] == {"type": "boolean"}


def _operations(api: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            yield method, path, operation


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(reference := part.get("$ref"), str):
            yield reference
        for inner in part.values():
            yield from _references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _references(inner)


def test_a_problem_may_name_the_field_at_fault() -> None:
    properties = document()["components"]["schemas"]["WireProblem"]["properties"]
    assert properties["field"]["type"] == "string"


def test_examples_are_bodies_of_their_calls_and_leave_no_job_open() -> None:
    bodies = {route.handler: route.body for route in ROUTES}
    for handler, example in EXAMPLES.items():
        body = msgspec.json.decode(msgspec.json.encode(example), type=bodies[handler])
        assert example.keys() <= set(body.__struct_encode_fields__), handler
    assert EXAMPLES["submit_job"].get("status") != JobStatus.OPEN
