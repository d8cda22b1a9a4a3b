"""Who gets in, over every route there is: the wired service, asked without a socket."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from conveyor.api.auth import needed
from conveyor.api.openapi import document
from conveyor.api.routes import ROUTES, Route
from conveyor.app.engines import Engines, open_engines
from conveyor.app.roles import check_callers, note_uses
from conveyor.app.services import Service, build_service
from conveyor.domain.api_key import Scope
from conveyor.domain.ids import JobId
from conveyor.domain.job import Job
from conveyor.domain.submission import Addition
from conveyor.errors import RefusedToStart
from conveyor.settings import Auth, Settings
from conveyor.settings_loader import load_settings

TASKS = {"tasks": [{"url": "https://ok.example/1"}]}
NOT_THERE = {
    "job": "01M7GNPVD0697FEM6F7VYWRK5F",
    "run": "01M7GNPVD0697FEM6F7VYWRK5F",
    "task": "00000000-000000000000000000000000",
    "export": "01M7GNPVD0697FEM6F7VYWRK5F",
    "event": "01M7GNPVD0697FEM6F7VYWRK5G",
    "caller": "nobody",
    "message": "01M7GNPVD0697FEM6F7VYWRK5G",
}


@dataclass(slots=True)
class Door:
    http: httpx.AsyncClient
    engines: Engines
    service: Service

    async def ask(self, method: str, path: str, key: str, body: Any = None) -> httpx.Response:
        return await self.http.request(method, path, headers={"X-API-Key": key}, json=body)

    async def create(self, **wanted: Any) -> str:
        answer = await self.operate("POST", "keys", wanted)
        assert answer.status_code == 200, answer.text
        key: str = answer.json()["key"]
        return key

    async def operate(self, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.service.token}"}
        return await self.http.request(method, f"/operator/{path}", headers=headers, json=body)

    async def gateway_key_of(self, job_id: str) -> str:
        job = await self.engines.metadata.get(Job, JobId(job_id))
        assert job
        return await self.engines.encryption.decrypt(
            job.encrypted_gateway_key, context=f"{job.caller}|{job.id}"
        )


@asynccontextmanager
async def a_door(folder: Path, *, role: str = "serve", **given: Any) -> AsyncIterator[Door]:
    settings = Settings(data=str(folder), durability="process", **given)
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        service = build_service(settings, engines, role=role)
        transport = httpx.ASGITransport(service.app)
        http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        yield Door(await stack.enter_async_context(http), engines, service)


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with a_door(tmp_path, auth="keys", gateway_key="the-services-own") as one:
        yield one


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


# Scopes.


async def test_a_key_that_may_only_read_changes_nothing_on_any_route(door: Door) -> None:
    reader = await door.create(read_only=True)
    for route in ROUTES:
        path = route.path.format(**NOT_THERE)
        answer = await door.ask(route.method, path, reader, TASKS)
        if route.method == "GET" and not route.for_operators:
            assert answer.status_code != 403, path
        else:
            assert code(answer) == (403, "permission_denied"), path


async def test_a_key_that_is_not_known_gets_in_nowhere(door: Door) -> None:
    for route in ROUTES:
        path = route.path.format(**NOT_THERE)
        answer = await door.ask(route.method, path, "nobody", TASKS)
        assert code(answer) == (401, "unauthenticated"), path


async def test_of_two_keys_none_gets_in(door: Door) -> None:
    key = await door.create(caller="ann")
    twice = [("X-API-Key", key), ("X-API-Key", key)]
    assert code(await door.http.get("/v1/jobs", headers=twice)) == (401, "unauthenticated")


def test_only_get_and_head_are_reading() -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "get", ""):
        assert needed(method) is Scope.WRITE
    assert needed("GET") is needed("HEAD") is Scope.READ


def test_the_description_of_the_api_tells_of_it() -> None:
    for path, calls in document()["paths"].items():
        for method, call in calls.items():
            may_be_refused = method != "get" or path.startswith("/v1/operator/")
            assert ("403" in call["responses"]) is may_be_refused, path


# Unknown, revoked and expired are one.


async def test_a_key_that_is_no_good_is_told_nothing_of_why(door: Door) -> None:
    good = await door.create()
    assert (await door.ask("GET", "/v1/jobs", good)).status_code == 200
    revoked = await door.create()
    key_id = revoked.split("_")[1]
    await door.operate("DELETE", f"keys/{key_id}")
    unknown = revoked.replace(key_id, NOT_THERE["job"])
    answers = [
        (await door.ask("GET", "/v1/jobs", key)).content
        for key in (
            revoked,
            unknown,
            good[:-1] + ("x" if good[-1] != "x" else "y"),
            good.replace("_", ""),
            "of-a-gateway",
        )
    ]
    assert len(set(answers)) == 1
    assert b"not valid here" in answers[0]


async def test_a_revoked_key_is_refused_from_the_next_request_on(door: Door) -> None:
    for _ in range(20):
        key = await door.create()
        assert (await door.ask("GET", "/v1/jobs", key)).status_code == 200
        await door.operate("DELETE", f"keys/{key.split('_')[1]}")
        assert (await door.ask("GET", "/v1/jobs", key)).status_code == 401


# What the gateway is asked with.


async def test_a_job_is_scraped_with_the_keys_own_gateway_key_or_the_services(
    door: Door,
) -> None:
    plain = await door.create(caller="ann")
    rich = await door.create(caller="ann", gateway_key="of-ann")
    for key, used in ((plain, "the-services-own"), (rich, "of-ann")):
        job = (await door.ask("POST", "/v1/jobs", key, TASKS)).json()
        assert await door.gateway_key_of(job["job_id"]) == used
    listed = (await door.ask("GET", "/v1/jobs", plain)).json()
    assert len(listed["jobs"]) == 2, "both are ann's"


async def test_without_a_gateway_key_nothing_is_submitted_or_run_again(tmp_path: Path) -> None:
    async with a_door(tmp_path, auth="keys") as door:
        rich, poor = (
            await door.create(caller="ann", gateway_key="g"),
            await door.create(caller="ann"),
        )
        job = (await door.ask("POST", "/v1/jobs", rich, {**TASKS, "status": "open"})).json()
        path = f"/v1/jobs/{job['job_id']}"
        for refused in (
            await door.ask("POST", "/v1/jobs", poor, TASKS),
            await door.ask("POST", f"{path}/rerun", poor),
        ):
            assert code(refused) == (403, "permission_denied")
            assert "gateway_key" in refused.json()["detail"]
        # What needs no gateway key works.
        assert (await door.ask("POST", f"{path}/tasks", poor, TASKS)).status_code == 200
        assert (await door.ask("POST", f"{path}/stop", poor)).status_code == 200
        assert (await door.ask("GET", path, poor)).status_code == 200
        assert len((await door.ask("GET", "/v1/jobs", poor)).json()["jobs"]) == 1


async def test_sites_that_are_asked_directly_need_no_gateway_key(tmp_path: Path) -> None:
    async with a_door(tmp_path, auth="keys", gateway="direct:") as door:
        key = await door.create(caller="ann")
        job = await door.ask("POST", "/v1/jobs", key, TASKS)
        assert job.status_code == 201
        # Callers have a pace each, which goes by this.
        assert await door.gateway_key_of(job.json()["job_id"]) == "ann"


async def test_a_forwarded_key_names_its_caller_as_it_always_did(tmp_path: Path) -> None:
    """Stored jobs stay their callers'."""
    name = hashlib.sha256(b"a-key").hexdigest()[:32]
    ways: list[dict[str, Any]] = [
        {},
        {"auth": "dev"},
        {"auth": "forward"},
        {"api_keys": ("a-key", "b")},
        {"auth": "forward", "api_keys": ("a-key",)},
    ]
    for way in ways:
        async with a_door(tmp_path, **way) as door:
            job = (await door.ask("POST", "/v1/jobs", "a-key", TASKS)).json()
            stored = await door.engines.metadata.get(Job, JobId(job["job_id"]))
            assert stored
            assert stored.caller == name
            assert await door.gateway_key_of(job["job_id"]) == "a-key"
    async with a_door(tmp_path, auth="keys") as door:
        key = await door.create(caller=name)
        assert len((await door.ask("GET", "/v1/jobs", key)).json()["jobs"]) == len(ways)


async def test_a_use_is_noted_without_a_request_waiting_for_it(door: Door) -> None:
    key = await door.create()
    await door.ask("GET", "/v1/jobs", key)
    assert (await door.operate("GET", "keys")).json()[0]["last_used_at"] is None
    stopping = asyncio.Event()
    stopping.set()
    await note_uses(door.service, stopping)
    assert (await door.operate("GET", "keys")).json()[0]["last_used_at"]


async def test_the_operators_door_refuses_what_is_no_request(door: Door) -> None:
    bodies: list[Any] = [[], {"caller": 5}, {"colour": "red"}, {"expires_at": "x"}, {"caller": "|"}]
    for body in bodies:
        assert code(await door.operate("POST", "keys", body)) == (400, "invalid_argument")
    assert (await door.operate("GET", "keys")).json() == []
    assert (await door.operate("DELETE", "keys/nothing")).json() is None
    stranger = await door.http.get("/operator/keys", headers={"Authorization": "Bearer x"})
    assert code(stranger) == (404, "not_found")


# Foreign is unknown.


def with_ids() -> Iterator[tuple[Route, str]]:
    """Each route with each id that is in it."""
    for route in ROUTES:
        for name in re.findall(r"{(\w+)}", route.path):
            yield route, name


NAMED = [*with_ids()]


@dataclass(slots=True)
class Estate:
    key: str
    ids: dict[str, str]


async def an_estate(door: Door, caller: str) -> Estate:
    """A job with a run, a task and an export."""
    key = await door.create(caller=caller)
    body = {**TASKS, "status": "open"}
    job = (await door.ask("POST", "/v1/jobs", key, body)).json()
    ids = {"job": job["job_id"], "run": job["latest_run"]["run_id"]}
    base = "/v1/jobs/{job}/runs/{run}".format(**ids)
    export = (await door.ask("POST", f"{base}/exports", key)).json()
    results = (await door.ask("GET", f"{base}/results?status=all", key)).json()
    ids |= {"export": export["export_id"], "task": results["results"][0]["task_id"]}
    ids["event"] = ids["run"]  # none was sent: real ones are tried in tests/e2e
    ids |= {"caller": caller, "message": ids["run"]}
    return Estate(key, ids)


async def test_what_is_anothers_is_told_to_the_byte_as_what_is_not_there(door: Door) -> None:
    mine, foreign = await an_estate(door, "ann"), await an_estate(door, "bob")
    for route, name in NAMED:
        answers = []
        for other in (foreign.ids[name], NOT_THERE[name]):
            ids = mine.ids | {name: other}
            # A foreign job is asked for with all that is below it.
            if name == "job" and other == foreign.ids["job"]:
                ids = foreign.ids
            path = route.path.format(**ids)
            body = TASKS if route.body else None
            answer = await door.ask(route.method, path, mine.key, body)
            answers.append((answer, ids))
        (theirs, with_theirs), (nothing, with_nothing) = answers
        which = f"{route.method} {route.path}, {name}"
        assert theirs.status_code == nothing.status_code, which
        assert _without(theirs, with_theirs) == _without(nothing, with_nothing), which
        if route.body in {None, Addition}:  # another body may be found wanting first
            assert theirs.status_code == (403 if route.for_operators else 404), which


def _without(answer: httpx.Response, ids: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    """The answer without the ids that were asked for, and the id of the request."""
    content = answer.content
    for name, value in ids.items():
        content = content.replace(value.encode(), b"{%s}" % name.encode())
    heads = {k: v for k, v in answer.headers.items() if k not in {"x-request-id", "content-length"}}
    return content, heads


async def test_a_foreign_list_is_told_as_one_that_is_not_there(door: Door) -> None:
    mine, theirs = await door.create(caller="ann"), await door.create(caller="bob")
    file_input = (await door.ask("POST", "/v1/job_inputs", theirs, {"type": "txt"})).json()
    foreign, nothing = [
        await door.ask("POST", "/v1/jobs", mine, {"file_input_id": one})
        for one in (file_input["file_input_id"], NOT_THERE["job"])
    ]
    assert foreign.content == nothing.content
    assert code(foreign) == (404, "file_input_not_found")


# Settings.


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({}, Auth.DEV),
        ({"api_keys": ("a",)}, Auth.FORWARD),
        ({"auth": "forward"}, Auth.FORWARD),
        ({"auth": "keys"}, Auth.KEYS),
        ({"auth": "dev"}, Auth.DEV),
    ],
)
def test_how_callers_are_told_follows_from_the_settings(given: dict[str, Any], mode: Auth) -> None:
    assert load_settings(given, environ={}).mode is mode


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"auth": "none"}, ["auth", "dev, forward, keys"]),
        ({"auth": "dev", "api_keys": ("a",)}, ["api_keys", "forward"]),
        ({"auth": "keys", "api_keys": ("a",)}, ["api_keys", "forward"]),
        ({"gateway_key": "g"}, ["gateway_key", "keys"]),
        ({"gateway_key": "g", "auth": "forward"}, ["gateway_key", "keys"]),
        ({"gateway_key": "a b", "auth": "keys"}, ["gateway_key"]),
        ({"encryption": "key provider:x"}, ["encryption", "kms:"]),
        ({"encryption": "kms:"}, ["encryption", "kms:"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    given: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(RefusedToStart) as refused:
        load_settings(given, environ={})
    assert all(word in str(refused.value) for word in words)
    assert "'g'" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [{}, {"auth": "dev"}, {"auth": "forward", "gateway": "direct:"}],
)
def test_an_address_that_anyone_can_use_is_refused(given: dict[str, Any]) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "conveyor.example"):
        with pytest.raises(RefusedToStart) as refused:
            check_callers(load_settings({**given, "host": host}, environ={}))
        told = str(refused.value)
        assert all(
            word in told for word in (host, "CONVEYOR_AUTH=keys", "CONVEYOR_API_KEYS", "127.0.0.1")
        )
    for host in ("127.0.0.1", "::1", "localhost"):
        check_callers(load_settings({**given, "host": host}, environ={}))


def test_a_proxy_in_front_of_a_service_that_accepts_any_key_is_refused() -> None:
    public = {"public_url": "https://scrape.example/conveyor"}
    with pytest.raises(RefusedToStart, match=r"scrape\.example.*CONVEYOR_AUTH=keys.*public_url"):
        check_callers(load_settings(public, environ={}))
    for auth in ("forward", "keys"):
        check_callers(load_settings({**public, "auth": auth}, environ={}))
    check_callers(load_settings({"public_url": "http://localhost:8080"}, environ={}))


@pytest.mark.parametrize(
    "given",
    [
        {"auth": "keys"},
        {"auth": "keys", "gateway": "direct:"},
        {"auth": "forward"},
        {"api_keys": ("a",)},
        {"api_keys": ("a",), "gateway": "direct:"},
    ],
)
def test_an_address_with_a_way_to_tell_callers_is_taken(given: dict[str, Any]) -> None:
    check_callers(load_settings({**given, "host": "0.0.0.0"}, environ={}))
