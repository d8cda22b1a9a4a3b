"""Roles: what a process of each role serves and runs, and what it refuses to start with."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from conveyor.app import roles
from conveyor.app.roles import Role, check_role, open_service, serve_until, work
from conveyor.errors import RefusedToStart
from conveyor.settings import LOOPS, Settings
from conveyor.steps.dispatch.config import StopTimes

MONITORING = ("/healthz", "/readyz", "/metrics")
API = ("/", "/assets/main.js", "/v1/jobs", "/docs", "/openapi.json", "/operator/dlq")


@pytest.mark.parametrize("role", Role)
async def test_every_role_serves_health_readiness_and_metrics(role: Role, tmp_path: Path) -> None:
    async with _served(role, tmp_path) as client:
        answers = {path: (await client.get(path)).status_code for path in MONITORING}
    assert answers == dict.fromkeys(MONITORING, 200)


async def test_a_worker_serves_no_api(tmp_path: Path) -> None:
    async with _served(Role.WORKER, tmp_path) as client:
        answers = [await client.get(path) for path in API]
    assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {
        (404, "not_found")
    }


async def test_a_worker_holds_its_callers_to_the_bounds_of_the_api(tmp_path: Path) -> None:
    async with _served(Role.WORKER, tmp_path, connections=1) as first:
        assert (await first.get("/healthz")).status_code == 200
        async with httpx.AsyncClient(base_url=first.base_url) as second:
            refused = await second.get("/healthz")
    assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")


@pytest.mark.parametrize("loops", [(name,) for name in LOOPS] + [LOOPS], ids="+".join)
async def test_a_worker_runs_the_loops_that_are_chosen(
    loops: tuple[str, ...], tmp_path: Path
) -> None:
    settings = Settings(data=str(tmp_path), durability="process")
    async with open_service(settings, Role.WORKER) as opened:
        seen, stopping = _Seen(), asyncio.Event()
        steps: Any = {
            "dispatcher": _Loop("dispatch", seen),
            "control_worker": _Loop("control", seen),
            "deliver": _Loop("sender", seen),
            "fire": _Loop("scheduler", seen),
            "sweep": _Loop("sweeper", seen),
        }
        service = replace(opened, steps=replace(opened.steps, **steps))
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(work(service, stopping, loops))
            await seen.every(len(loops))
            stopping.set()
    assert seen.names == set(loops)


def test_serve_refuses_to_leave_a_loop_to_others() -> None:
    with pytest.raises(RefusedToStart, match=r"loops must .* got dispatch, sender: use `conveyor"):
        check_role(Role.SERVE, Settings(loops=("dispatch", "sender")))
    check_role(Role.SERVE, Settings(loops=LOOPS[::-1]))


def test_a_worker_on_every_address_needs_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "check_engines", lambda *_, **__: None)
    check_role(Role.WORKER, Settings(host="0.0.0.0"))
    with pytest.raises(RefusedToStart, match="anyone could use this service"):
        check_role(Role.API, Settings(host="0.0.0.0"))


@pytest.mark.parametrize(
    ("role", "flag"), [(Role.API, "--port"), (Role.WORKER, "--metrics-port")], ids=str
)
def test_a_port_that_is_taken_is_reported_with_the_flag_to_choose_another(
    role: Role, flag: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RefusedToStart, match=rf"{port}: .* with --host and {flag}$"):
            roles._listen(role, Settings(port=port, metrics_port=port))


@asynccontextmanager
async def _served(role: Role, folder: Path, **changes: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A process of a role, as far as one fits into a test: all but its signals."""
    settings = Settings(
        data=str(folder), durability="process", grace=timedelta(milliseconds=50), **changes
    )
    stopping = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with asyncio.timeout(60), open_service(settings, role) as service:
            serving = serve_until(stopping, role, service, listening, settings)
            async with asyncio.TaskGroup() as group:
                group.create_task(serving)
                async with httpx.AsyncClient(base_url=url) as client:
                    yield client
                stopping.set()


class _Seen:
    def __init__(self) -> None:
        self.names: set[str] = set()
        self._changed = asyncio.Condition()

    async def add(self, name: str) -> None:
        async with self._changed:
            self.names.add(name)
            self._changed.notify_all()

    async def every(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.names) >= count)


class _Loop:
    """A step whose loop says that it runs."""

    def __init__(self, name: str, seen: _Seen) -> None:
        self._name, self._seen = name, seen
        self.slots = self.config = self
        self.count = 1
        self.permit = None  # a sweeper may need one to make its rounds
        self.stop_times = StopTimes(timedelta())
        self.permit = None

    async def run(self, stopping: asyncio.Event) -> None:
        await self._seen.add(self._name)
        await stopping.wait()

    async def step(self) -> int:
        await self._seen.add(self._name)
        return 0
