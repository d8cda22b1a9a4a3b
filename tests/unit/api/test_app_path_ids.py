"""Ids in paths: no engine is asked for a text that cannot be an id."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest

from conveyor.api.routes import ROUTES
from conveyor.app.engines import open_engines
from conveyor.app.services import build_service
from conveyor.settings import Settings
from tests.unit.api.test_auth import Door

KEY = "a-gateway-key"
ULID = "01JZZZZZZZZZZZZZZZZZZZZZZZ"
PARAMETER = re.compile(r"{(\w+)}")
# Each route once for each of its parameters, with all others known.
CASES = [
    (route.method, route.path, name) for route in ROUTES for name in PARAMETER.findall(route.path)
]
STRANGE = ["%00", "01JZZZZZZZZZZZZZZZZZZZZZZ%00", "nope", "x" * 3_000]


class Strict:
    """A port that fails when it is asked for what it cannot store, as PostgreSQL does."""

    def __init__(self, port: Any) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if not callable(found):
            return found

        def call(*given: Any, **more: Any) -> Any:
            for text in (one for one in (*given, *more.values()) if isinstance(one, str)):
                assert "\x00" not in text, name
                assert len(text) < 2_048, name
            return found(*given, **more)

        return call


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    settings = Settings(data=str(tmp_path), durability="process")
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        engines = replace(
            engines,
            metadata=cast("Any", Strict(engines.metadata)),
            tasks=cast("Any", Strict(engines.tasks)),
            control_queue=cast("Any", Strict(engines.control_queue)),
        )
        service = build_service(settings, engines, role="dev")
        transport = httpx.ASGITransport(service.app)
        http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        yield Door(await stack.enter_async_context(http), engines, service)


@pytest.mark.parametrize(("method", "path", "name"), CASES)
async def test_a_text_that_cannot_be_an_id_names_nothing(
    door: Door, method: str, path: str, name: str
) -> None:
    known = await _known(door)
    for strange in STRANGE:
        answer = await door.ask(method, path.format(**known | {name: strange}), KEY)
        refused = (400, "invalid_argument") if name == "caller" else (404, "not_found")
        found = answer.status_code, msgspec.json.decode(answer.content or b"{}").get("code")
        if (name, strange) == ("caller", "nope"):
            assert answer.status_code == 200
        else:
            assert found == refused, strange[:40]


@pytest.mark.parametrize(
    ("method", "path", "unknown"),
    [
        ("GET", "dlq/{id}", None),
        ("DELETE", "dlq/{id}", False),
        ("POST", "dlq/{id}/redrive", False),
        ("DELETE", "keys/{id}", None),
    ],
)
async def test_operators_commands_find_nothing_by_it(
    door: Door, method: str, path: str, unknown: object
) -> None:
    for strange in (ULID, *STRANGE):
        answer = await door.operate(method, path.format(id=strange))
        assert (answer.status_code, answer.json()) == (200, unknown)


@pytest.mark.parametrize("strange", ["\x00", "nope", "x" * 3_000])
async def test_a_file_input_is_not_found_by_it(door: Door, strange: str) -> None:
    answer = await door.ask("POST", "/v1/jobs", KEY, {"file_input_id": strange})
    assert (answer.status_code, answer.json()["code"]) == (404, "file_input_not_found")


async def _known(door: Door) -> dict[str, str]:
    """Ids of a job that exists, so that only the strange one is at fault."""
    body = {"tasks": [{"url": "https://ok.example/"}]}
    job = (await door.ask("POST", "/v1/jobs", KEY, body)).json()
    run_id = job["latest_run"]["run_id"]
    page = (await door.ask("GET", f"/v1/jobs/{job['job_id']}/results", KEY)).json()
    return {
        "job": job["job_id"],
        "run": run_id,
        "task": page["results"][0]["task_id"],
        "export": ULID,
        "event": ULID,
        "message": ULID,
        "caller": "someone",
    }
