"""What callers see while an engine is unavailable: the table of docs/scaling.md."""

import inspect
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self

import httpx
import pytest

from conveyor.app.engines import SCHEMES, Engines, open_engines
from conveyor.app.services import build_service
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.task import Scraped, Settlement, StoredBody, decide
from conveyor.errors import Unavailable
from conveyor.ports.bodies import Body, BodyName
from conveyor.settings import Settings
from tests.docs.chapters import SCALING, tables

FEW = {"tasks": [{"url": "https://ok.example/"}]}
MANY = {"tasks": [{"url": f"https://ok.example/{n}"} for n in range(9)]}
CALLS = {
    "status": ("GET", "/v1/jobs/{job}", None),
    "jobs": ("GET", "/v1/jobs", None),
    "submit": ("POST", "/v1/jobs", FEW),
    "large submit": ("POST", "/v1/jobs", MANY),
    "add tasks": ("POST", "/v1/jobs/{open}/tasks", FEW),
    "results": ("GET", "/v1/jobs/{job}/results", None),
    "content": ("GET", "/v1/jobs/{job}/tasks/{task}/content", None),
    "webhook": ("GET", "/v1/hmac/keys", None),
    "export": ("POST", "/v1/jobs/{job}/runs/{run}/exports", {}),
    "delete": ("DELETE", "/v1/jobs/{job}", None),
}
# Port that is unavailable -> the calls that are answered 503. All others are served.
REFUSED = {
    "metadata": set(CALLS),
    "tasks": {"status", "jobs", "submit", "add tasks", "results", "content"},
    "work": {"submit"},  # its queue, if it has one
    "control_queue": set[str](),
    "bodies": {"content"},
    "blobs": {"large submit", "add tasks"},
    "coordination": set[str](),
    "gateway": set[str](),
}


@pytest.mark.parametrize("port", REFUSED)
async def test_callers_are_served_what_does_not_need_the_engine(port: str, tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), durability="process", sync_tasks=3)
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        names = await _given_jobs(settings, engines)
        gone: Any = {port: _Gone(getattr(engines, port))}
        async with _api_of(settings, replace(engines, **gone)) as api:
            answers = {
                name: await api.request(method, path.format(**names), json=body)
                for name, (method, path, body) in CALLS.items()
            }
    assert {name for name, answer in answers.items() if answer.status_code == 503} == REFUSED[port]
    served = {name: one for name, one in answers.items() if name not in REFUSED[port]}
    assert {name for name, one in served.items() if one.status_code >= 400} == set()
    assert all("retry-after" in answers[name].headers for name in REFUSED[port])


def test_the_table_of_outages_has_a_row_for_every_engine() -> None:
    [table] = tables("When an engine is unavailable", SCALING)
    assert [row["engine"] for row in table] == [*SCHEMES, "gateway"]


async def _given_jobs(settings: Settings, engines: Engines) -> dict[str, str]:
    """A job with a page, and an open one; return their ids."""
    async with _api_of(settings, engines) as api:
        done = (await api.post("/v1/jobs", json=FEW)).json()
        growing = (await api.post("/v1/jobs", json={**FEW, "status": "open"})).json()
    job_id, run_id = JobId(done["job_id"]), RunId(done["latest_run"]["run_id"])
    [task] = await engines.work.claim({run_id: 1})
    name = BodyName(job_id, run_id, task.id, task.claim_no)
    [kept] = await engines.bodies.put_many([Body(name, b"page")])
    body = StoredBody(
        locator=kept.locator, length=kept.length, checksum=kept.checksum, format="html"
    )
    decision = decide(task, Scraped(body), RetryPolicy())
    settlement = Settlement(
        run_id=run_id, task_id=task.id, claim_no=task.claim_no, decision=decision
    )
    assert await engines.work.settle([settlement]) == [True]
    return {"job": job_id, "run": run_id, "task": task.id, "open": growing["job_id"]}


@asynccontextmanager
async def _api_of(settings: Settings, engines: Engines) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=build_service(settings, engines).app)
    headers = {"X-API-Key": "a-key"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers
    ) as client:
        yield client


class _Gone:
    """An engine that answers no call. What needs no call, such as a signature, is its own."""

    def __init__(self, engine: object) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> object:
        kept = getattr(self._engine, name)

        async def call(*_: object, **__: object) -> NoReturn:
            raise Unavailable("it does not answer")

        if inspect.iscoroutinefunction(kept):
            return call
        return _GoneStream if name == "read" else kept


class _GoneStream:
    def __init__(self, _locator: str) -> None:
        return

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> NoReturn:
        raise Unavailable("it does not answer")
