"""The routes for operators: who gets in, what they show, and what they change."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from conveyor.api.routes import ROUTES
from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.ids import CallerId
from conveyor.domain.job import PURGE
from conveyor.errors import Unavailable
from tests.unit.api.test_auth import NOT_THERE, TASKS, Door, a_door, code

FOR_OPERATORS = [route for route in ROUTES if route.for_operators]
ANN = CallerId("ann")


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with a_door(tmp_path, auth="keys", gateway_key="the-services-own") as one:
        yield one


async def a_job(door: Door, key: str, **given: Any) -> dict[str, Any]:
    answer = await door.ask("POST", "/v1/jobs", key, TASKS | {"status": "open"} | given)
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()
    return job


async def get(door: Door, path: str, key: str) -> dict[str, Any]:
    answer = await door.ask("GET", f"/v1/operator/{path}", key)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


# Who gets in.


async def test_an_ordinary_key_gets_the_same_refusal_whatever_exists(door: Door) -> None:
    key = await door.create(caller="ann")
    other = await a_job(door, await door.create(caller="bob"), name="of bob")
    for route in FOR_OPERATORS:
        refusals = set()
        for ids in (NOT_THERE, NOT_THERE | {"job": other["job_id"], "caller": "bob"}):
            path = route.path.format(**ids)
            answer = await door.ask(route.method, path, key)
            assert code(answer) == (403, "permission_denied"), path
            assert answer.headers["content-type"] == "application/problem+json"
            refusals.add(answer.text.replace(path, ""))
        assert len(refusals) == 1, route.path
        assert "bob" not in refusals.pop()
    run = await door.ask("GET", f"/v1/jobs/{other['job_id']}", await door.create(caller="bob"))
    assert run.json()["latest_run"]["status"] == "running"


async def test_an_operator_that_may_only_read_changes_nothing(door: Door) -> None:
    reader = await door.create(caller="ops", read_only=True, operator=True)
    for route in FOR_OPERATORS:
        answer = await door.ask(route.method, route.path.format(**NOT_THERE), reader)
        assert (answer.status_code == 403) is (route.method != "GET"), route.path


async def test_an_operator_sees_the_jobs_of_others_only_on_the_routes_for_operators(
    door: Door,
) -> None:
    job = await a_job(door, await door.create(caller="ann"))
    operator = await door.create(caller="ops", operator=True)
    assert (await door.ask("GET", "/v1/jobs", operator)).json()["jobs"] == []
    assert (await door.ask("GET", f"/v1/jobs/{job['job_id']}", operator)).status_code == 404


async def test_a_key_tells_its_caller_and_scopes(door: Door) -> None:
    keys = {
        ("read",): await door.create(caller="ann", read_only=True),
        ("read", "write"): await door.create(caller="ann"),
        ("read", "write", "operator"): await door.create(caller="ann", operator=True),
    }
    for scopes, key in keys.items():
        told = (await door.ask("GET", "/v1/caller", key)).json()
        assert told == {"caller": "ann", "scopes": list(scopes), "has_default_key": False}


@pytest.mark.parametrize(("role", "status"), [("dev", 200), ("serve", 403), ("api", 403)])
async def test_only_a_service_for_development_makes_every_caller_an_operator(
    role: str, status: int, tmp_path: Path
) -> None:
    async with a_door(tmp_path, role=role, auth="dev") as door:
        assert (await door.ask("GET", "/v1/operator/runs", "any")).status_code == status
    async with a_door(tmp_path, role=role, auth="forward") as door:
        assert (await door.ask("GET", "/v1/operator/runs", "any")).status_code == 403


@pytest.mark.parametrize("gateway", ["http://127.0.0.1:1/", "direct:", "https://gateway.example/"])
@pytest.mark.parametrize("role", ["dev", "serve", "api"])
@pytest.mark.parametrize("auth", ["dev", "forward", "keys"])
async def test_only_a_service_for_development_without_accounts_has_a_default_key(
    gateway: str, role: str, auth: str, tmp_path: Path
) -> None:
    expected = (role, auth) == ("dev", "dev") and "example" not in gateway
    async with a_door(tmp_path, role=role, auth=auth, gateway=gateway) as door:
        for path in ("/", "/docs"):
            page = (await door.http.get(path)).text
            assert ("my-key" in page) is expected
        key = await door.create() if auth == "keys" else "any"
        told = (await door.ask("GET", "/v1/caller", key)).json()
        assert told["has_default_key"] is expected


async def test_where_any_key_is_accepted_only_requests_to_this_machine_are(tmp_path: Path) -> None:
    async with a_door(tmp_path, role="dev", auth="dev") as door:
        for host, status in (
            ("127.0.0.1:8080", 200),
            ("localhost", 200),
            ("[::1]:8080", 200),
            ("conveyor.example", 401),  # a site that resolves to this machine
            ("127.0.0.1.example", 401),
            ("", 401),
        ):
            headers = {"X-API-Key": "my-key", "Host": host}
            for path in ("/v1/jobs", "/v1/operator/runs"):
                answer = await door.http.get(path, headers=headers)
                assert answer.status_code == status, host
        assert "CONVEYOR_AUTH" in answer.json()["detail"]


@pytest.mark.parametrize("auth", ["forward", "dev"])
async def test_a_key_of_the_service_is_never_taken_for_a_gateway_key(
    auth: str, tmp_path: Path
) -> None:
    async with a_door(tmp_path, auth=auth) as door:
        operator = await door.create(caller="ops", operator=True)
        assert (await door.ask("GET", "/v1/jobs", operator)).status_code == 200
        await door.operate("DELETE", f"keys/{operator.split('_')[1]}")
        for key in (operator, operator[:-1], await door.create(caller="ann")):
            for method in ("GET", "POST"):
                refused = await door.ask(method, "/v1/jobs", key, TASKS)
                assert code(refused) == (401, "unauthenticated")


async def test_where_keys_are_forwarded_operators_have_keys_of_the_service(tmp_path: Path) -> None:
    async with a_door(tmp_path, auth="forward", api_keys=("of-ann",)) as door:
        operator = await door.create(caller="ops", operator=True)
        plain = await door.create(caller="ann")
        job = await a_job(door, "of-ann")
        assert (await door.ask("GET", "/v1/operator/runs", operator)).status_code == 200
        headers = {"X-API-Key": "of-ann", "Host": "127.0.0.1"}
        assert (await door.http.get("/v1/operator/runs", headers=headers)).status_code == 403
        assert code(await door.ask("GET", "/v1/jobs", plain)) == (401, "unauthenticated")
        assert code(await door.ask("POST", "/v1/jobs", operator, TASKS))[0] == 403
        stop = await door.ask("POST", f"/v1/operator/jobs/{job['job_id']}/stop", operator)
        assert stop.json()["status"] == "stopped"
        await door.operate("DELETE", f"keys/{operator.split('_')[1]}")
        assert (await door.ask("GET", "/v1/operator/runs", operator)).status_code == 401


# What they show.


async def test_live_runs_come_with_caller_job_progress_and_cost(door: Door) -> None:
    ann, bob = await door.create(caller="ann"), await door.create(caller="bob")
    mine, theirs = await a_job(door, ann, name="prices"), await a_job(door, bob)
    operator = await door.create(caller="ops", operator=True)
    first = await get(door, "runs?limit=1", operator)
    second = await get(door, f"runs?limit=1&cursor={first['next_cursor']}", operator)
    assert second["next_cursor"] is None
    [one], [two] = first["runs"], second["runs"]
    assert (one["caller"], one["job_name"]) == ("ann", "prices")
    [job] = (await door.ask("GET", "/v1/jobs", ann)).json()["jobs"]
    assert job["job_id"] == mine["job_id"]
    assert one["run"] == job["latest_run"]
    assert (two["caller"], two["run"]["job_id"]) == ("bob", theirs["job_id"])
    assert "job_name" not in two
    of_bob = await get(door, "runs?caller=bob", operator)
    assert [run["caller"] for run in of_bob["runs"]] == ["bob"]
    assert (await get(door, "runs?caller=nobody", operator))["runs"] == []


async def test_callers_come_with_keys_live_runs_and_open_tasks(door: Door) -> None:
    ann = await door.create(caller="ann")
    await a_job(door, ann)
    operator = await door.create(caller="ops", operator=True)
    first = await get(door, "callers?limit=1", operator)
    assert first["next_cursor"] == "ann"
    [caller] = first["callers"]
    expected = {"caller": "ann", "active_keys": 1, "live_runs": 1, "open_tasks": 1}
    assert caller == expected | {"spend": {"credits": 0, "cost": 0.0}}
    [ops] = (await get(door, "callers?cursor=ann", operator))["callers"]
    assert (ops["caller"], ops["live_runs"]) == ("ops", 0)


async def test_the_jobs_of_any_caller_are_listed_in_that_callers_order(door: Door) -> None:
    ann = await door.create(caller="ann")
    for number in range(3):
        await a_job(door, ann, name=f"job {number}")
    operator = await door.create(caller="ops", operator=True)
    for query in ("", "?limit=2", "?status=closed"):
        own = (await door.ask("GET", f"/v1/jobs{query}", ann)).json()
        assert await get(door, f"callers/ann/jobs{query}", operator) == own
    assert (await get(door, "callers/nobody/jobs", operator))["jobs"] == []


async def test_no_route_for_operators_shows_what_may_hold_a_callers_secret(door: Door) -> None:
    ann = await door.create(caller="ann")
    given = {
        "zenrows_params": {"custom_headers": '{"Cookie": "canary-of-params"}'},
        "metadata": {"token": "canary-of-metadata"},
        "webhook": {"url": "https://93.184.215.14/canary-of-webhook"},
        "tasks": [{"url": "https://ok.example/canary-of-task", "metadata": {"a": "canary-too"}}],
    }
    job = await a_job(door, ann, name="prices", external_id="an-id", **given)
    own = await door.ask("GET", "/v1/jobs", ann)
    assert own.text.count("canary") == 3
    operator = await door.create(caller="ops", operator=True)
    paths = NOT_THERE | {"job": job["job_id"], "caller": "ann"}
    for route in FOR_OPERATORS:
        answer = await door.ask(route.method, route.path.format(**paths), operator)
        assert "canary" not in answer.text, route.path
    [seen] = (await get(door, "callers/ann/jobs", operator))["jobs"]
    [full] = (await door.ask("GET", "/v1/jobs", ann)).json()["jobs"]
    assert full.keys() - seen.keys() == {"zenrows_params", "metadata", "webhook"}
    assert seen.items() <= full.items()


@pytest.mark.parametrize(
    "path",
    [
        "runs?cursor=x",
        "runs?limit=0",
        "runs?limit=101",
        "runs?caller=",
        "runs?caller=a%20b",
        "callers?cursor=%2f",
        "callers?limit=x",
        "callers/a%20b/jobs",
        "callers/ann/jobs?status=odd",
        "dead_letters?cursor=1",
    ],
)
async def test_bad_pages_are_refused(door: Door, path: str) -> None:
    operator = await door.create(operator=True)
    answer = await door.ask("GET", f"/v1/operator/{path}", operator)
    assert code(answer) == (400, "invalid_argument")


async def test_dead_letters_are_listed_and_redriven(door: Door) -> None:
    queue, lease = door.engines.control_queue, timedelta(minutes=1)
    await queue.send(ControlMessage(kind=PURGE, subject="a", payload={"id": "a"}))
    [message] = await queue.receive(1, lease=lease)
    await queue.dead_letter(message, "bug: ZeroDivisionError")
    operator = await door.create(operator=True)
    listed = await get(door, "dead_letters", operator)
    [dead] = listed["dead_letters"]
    assert (dead["kind"], dead["payload"], dead["reason"]) == (
        PURGE,
        {"id": "a"},
        "bug: ZeroDivisionError",
    )
    path = f"/v1/operator/dead_letters/{dead['message_id']}/redrive"
    assert (await door.ask("POST", path, operator)).status_code == 202
    assert code(await door.ask("POST", path, operator)) == (404, "not_found")
    assert len(await queue.receive(1, lease=lease)) == 1
    assert (await get(door, "dead_letters", operator))["dead_letters"] == []


async def test_the_process_that_answers_is_listed(door: Door) -> None:
    operator = await door.create(operator=True)
    [process] = (await get(door, "processes", operator))["processes"]
    assert process["role"] == "serve"
    assert process["process_id"] == door.engines.incarnation


async def test_an_engine_that_does_not_answer_is_named_and_the_others_are_shown(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = await door.create(operator=True)
    healthy = await get(door, "engines", operator)
    held = {one["holds"]: one["engine"] for one in healthy["engines"]}
    assert held == {
        "metadata": "sqlite",
        "tasks": "sqlite",
        "control_queue": "sqlite",
        "bodies": "segments",
        "blobs": "files",
        "coordination": "memory",
    }
    assert all(one["available"] for one in healthy["engines"])
    assert healthy["disk_free"] > 0

    async def away(*_: object, **__: object) -> None:
        raise Unavailable("the disk is away")

    monkeypatch.setattr(door.engines.blobs, "length", away)
    async with a_second_service(door) as http:
        answer = await http.get("/v1/operator/engines", headers={"X-API-Key": operator})
    [faulty] = [one for one in answer.json()["engines"] if not one["available"]]
    assert faulty["holds"] == "blobs"
    assert "the disk is away" in faulty["error"]


def a_second_service(door: Door) -> httpx.AsyncClient:
    """The same engines, each port wrapped again: its methods are wrapped once."""
    from conveyor.app.services import build_service  # noqa: PLC0415
    from conveyor.settings import Settings  # noqa: PLC0415

    service = build_service(Settings(auth="keys"), door.engines)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(service.app), base_url="http://conveyor.example"
    )


# What they change.


async def test_an_operator_pauses_resumes_and_stops_any_job(door: Door) -> None:
    ann = await door.create(caller="ann")
    job = await a_job(door, ann)
    operator = await door.create(caller="ops", operator=True)
    path = f"/v1/operator/jobs/{job['job_id']}"
    with capture_logs() as logs:
        for action, field, expected in (
            ("pause", "pause_state", "paused"),
            ("resume", "pause_state", None),
            ("stop", "status", "stopped"),
        ):
            answer = await door.ask("POST", f"{path}/{action}", operator)
            assert answer.status_code == 200, answer.text
            assert answer.json().get(field) == expected
            seen = (await door.ask("GET", f"/v1/jobs/{job['job_id']}", ann)).json()
            assert seen["latest_run"] == answer.json()
    acted = [
        (line["action"], line["job_id"], line["caller"], line["by"])
        for line in logs
        if line["event"] == "operator.acted"
    ]
    assert acted == [
        (action, job["job_id"], "ann", "ops") for action in ("pause", "resume", "stop")
    ]
    assert code(await door.ask("POST", f"{path}/pause", operator)) == (409, "conflict")
    missing = f"/v1/operator/jobs/{NOT_THERE['job']}/stop"
    assert code(await door.ask("POST", missing, operator)) == (404, "not_found")


async def test_operators_calls_count_against_the_limit_of_their_rate(tmp_path: Path) -> None:
    async with a_door(tmp_path, auth="keys", requests_per_second=0.001, requests_burst=2) as door:
        operator = await door.create(operator=True)
        asked = [(await door.ask("GET", "/v1/operator/runs", operator)).status_code for _ in "123"]
    assert asked == [200, 200, 429]
