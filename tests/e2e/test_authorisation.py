"""Every route with every kind of key: what OpenAPI lists is what is tried, so a new route is in."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from conveyor.api.openapi import document
from tests.e2e.conftest import FAST_RETRIES, client_of
from tests.e2e.polling import ended, until
from tests.e2e.test_keys import conveyor, create
from tests.harness.programs import Program, mock_gateway, service

URL = "https://ok.example/"
NOWHERE = {
    "job": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "run": "01ARZ3NDEKTSV4RRFFQ69G5FAW",
    "task": f"00000000-{'0' * 24}",
    "export": "01ARZ3NDEKTSV4RRFFQ69G5FAX",
    "event": "01ARZ3NDEKTSV4RRFFQ69G5FAY",
    "caller": "nobody",
    "message": "01ARZ3NDEKTSV4RRFFQ69G5FAZ",
}
WEBHOOK = {"url": "https://127.0.0.1/hook", "signature": False}
HOURLY = {"rate": {"every": 1, "unit": "hour"}}
# What a call needs to be understood, so that it is its key that decides.
BODIES: dict[tuple[str, str], object] = {
    ("post", "/v1/jobs"): {"tasks": [{"url": URL}]},
    ("post", "/v1/job_inputs"): {"type": "txt"},
    ("post", "/v1/jobs/{job}/tasks"): {"tasks": [{"url": URL}]},
    ("put", "/v1/jobs/{job}/schedule"): HOURLY,
    ("post", "/v1/jobs/{job}/schedule/state"): {"schedule_state": "paused"},
    ("put", "/v1/jobs/{job}/webhook"): WEBHOOK,
    ("post", "/v1/webhook/test"): WEBHOOK,
}
CALLS = [(method, path) for path, calls in document()["paths"].items() for method in calls]
every_call = pytest.mark.parametrize(
    ("method", "path"), CALLS, ids=[f"{method.upper()} {path}" for method, path in CALLS]
)
OPERATOR = "/v1/operator/"
REFUSED = ("none", "unknown", "malformed", "revoked", "expired")


class Keys(msgspec.Struct, frozen=True):
    by_kind: dict[str, str | None]

    def headers(self, kind: str) -> dict[str, str]:
        key = self.by_kind[kind]
        return {} if key is None else {"X-API-Key": key}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def program(data: Path) -> Iterator[Program]:
    environ = FAST_RETRIES | {
        "CONVEYOR_AUTH": "keys",
        "CONVEYOR_GATEWAY_KEY": "the-gateways",
        "CONVEYOR_WEBHOOK_ALLOW_PRIVATE": "127.0.0.0/8",
    }
    with (
        mock_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=environ) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def caller(program: Program) -> Iterator[httpx.Client]:
    """One client for all keys: a call brings its own key, and there are a thousand calls."""
    with httpx.Client(base_url=program.url.removesuffix("/v1"), timeout=200) as client:
        yield client


@pytest.fixture(scope="module")
def keys(program: Program, data: Path) -> Keys:
    revoked = create(data, "--caller", "ann")
    told = conveyor("keys", "revoke", revoked["about"]["id"], "--data", str(data))
    assert told.returncode == 0, told.stderr
    valid = create(data, "--caller", "ann")["key"]
    made: dict[str, str | None] = {
        "valid": valid,
        "read-only": create(data, "--caller", "ann", "--read-only")["key"],
        "operator": create(data, "--caller", "ops", "--scope", "operator")["key"],
        "other": create(data, "--caller", "bob")["key"],
        "revoked": revoked["key"],
        "expired": create(data, "--caller", "ann", "--expires", "1s")["key"],
        "unknown": valid[:-4] + "AAAA",
        "malformed": "no-key-of-ours",
        "none": None,
    }
    found = Keys(made)
    with httpx.Client(base_url=program.url) as api:
        until(lambda: api.get("/jobs", headers=found.headers("expired")).status_code == 401)
    return found


class Things(msgspec.Struct, frozen=True):
    """A caller's own: one of everything that has an id."""

    ids: dict[str, str]


@pytest.fixture(scope="module")
def things(program: Program, keys: Keys) -> Things:
    return _things(program, keys)


def _things(program: Program, keys: Keys) -> Things:
    with client_of(program, key=keys.by_kind["valid"] or "") as api:
        made = {"tasks": [{"url": URL}], "webhook": WEBHOOK}
        job = api.post("/jobs", json=made).raise_for_status().json()["job_id"]
        run = ended(api, job)["run_id"]
        [row] = api.get(f"/jobs/{job}/results").raise_for_status().json()["results"]
        export = api.post(f"/jobs/{job}/runs/{run}/exports").raise_for_status().json()
        deliveries = f"/jobs/{job}/webhook/deliveries"
        [event] = until(lambda: api.get(deliveries).raise_for_status().json()["events"])
    return Things(
        {
            "job": job,
            "run": run,
            "task": row["task_id"],
            "export": export["export_id"],
            "event": event["event_id"],
            "caller": "ann",
            "message": "01ARZ3NDEKTSV4RRFFQ69G5FB0",  # no message was given up
        }
    )


def _ask(  # noqa: PLR0917 - who, what, and of which
    caller: httpx.Client, keys: Keys, kind: str, method: str, path: str, ids: dict[str, str]
) -> httpx.Response:
    """One call, whose refusal holds no key. Of a stream only the head is read: it has no end."""
    headers = keys.headers(kind)
    body = BODIES.get((method, path))
    with caller.stream(method.upper(), path.format(**ids), headers=headers, json=body) as answer:
        if "event-stream" not in answer.headers.get("content-type", ""):
            answer.read()
            if answer.status_code >= 400:
                told = json.dumps(dict(answer.headers)) + answer.text
                assert not [key for key in keys.by_kind.values() if key and key in told]
        return answer


@every_call
def test_whoever_has_no_good_key_is_told_the_same(
    caller: httpx.Client, keys: Keys, things: Things, method: str, path: str
) -> None:
    told = set()
    for kind in REFUSED:
        answer = _ask(caller, keys, kind, method, path, things.ids)
        assert answer.status_code == 401, (kind, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        if kind != "none":  # to whom it is told how to send one
            told.add(answer.content)
    assert len(told) == 1, told


@every_call
def test_a_key_that_may_only_read_does_that_and_no_more(
    caller: httpx.Client, keys: Keys, things: Things, method: str, path: str
) -> None:
    answer = _ask(caller, keys, "read-only", method, path, things.ids)
    if method == "get" and not path.startswith(OPERATOR):
        assert answer.status_code == 200, answer.text
    else:
        assert answer.status_code == 403, answer.text
        assert answer.json()["code"] == "permission_denied"


@every_call
def test_what_is_anothers_is_told_as_if_it_were_not_there(
    caller: httpx.Client, keys: Keys, things: Things, method: str, path: str
) -> None:
    names = re.findall(r"{(\w+)}", path)
    foreign = _ask(caller, keys, "other", method, path, things.ids)
    if not names and path.startswith(OPERATOR):
        assert foreign.status_code == 403
        return
    if not names:
        assert foreign.status_code < 300 or foreign.status_code == 409, foreign.text
        if "event-stream" not in foreign.headers.get("content-type", ""):
            assert not any(one in foreign.text for one in things.ids.values())
        return
    assert foreign.status_code == (403 if path.startswith(OPERATOR) else 404), foreign.text
    unknown = _ask(caller, keys, "other", method, path, NOWHERE)
    assert _without(foreign, things.ids) == _without(unknown, NOWHERE)


def _without(answer: httpx.Response, ids: dict[str, str]) -> tuple[int, str]:
    text = answer.text
    for name, value in ids.items():
        text = text.replace(value, name)
    return answer.status_code, text


@every_call
def test_a_good_key_is_let_in(  # noqa: PLR0917 - fixtures
    program: Program, caller: httpx.Client, keys: Keys, things: Things, method: str, path: str
) -> None:
    # A call that changes a job gets a job of its own: others may need what it ends or deletes.
    ids = (things if method == "get" else _things(program, keys)).ids
    kind = "operator" if path.startswith(OPERATOR) else "valid"
    answer = _ask(caller, keys, kind, method, path, ids)
    if "{message}" in path:  # no message was given up
        assert answer.status_code == 404, answer.text
        return
    assert answer.status_code not in {401, 403, 404}, answer.text
    assert answer.status_code < 500, answer.text
