"""The loops of a worker, and how they end."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from conveyor.app import health
from conveyor.app.engines import open_engines
from conveyor.app.roles import work
from conveyor.app.services import build_doctor, build_service
from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.job import PURGE
from conveyor.errors import Unavailable
from conveyor.settings import Settings
from conveyor.steps.doctor.doctor import LEAST_ROOM
from conveyor.telemetry.process import DiskSpace

A_PURGE = ControlMessage(kind=PURGE, subject="a job", payload={"id": "01HZZZZZZZZZZZZZZZZZZZZZZZ"})


async def test_a_long_message_does_not_hold_up_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be cut off anywhere, and comes again at the next start."""
    settings = Settings(data=str(tmp_path), durability="process", grace=timedelta(milliseconds=50))
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        begun, stopping = asyncio.Event(), asyncio.Event()

        async def endless(*_: object) -> None:
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(engines.metadata, "get", endless)
        await engines.control_queue.send(A_PURGE)
        service = build_service(settings, engines)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(work(service, stopping))
            await begun.wait()
            stopping.set()
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        [message] = await engines.control_queue.receive(9, lease=timedelta(seconds=1))
        assert message.kind == PURGE


@pytest.mark.parametrize(("gateway", "tried"), [("http://127.0.0.1:9/", True), ("direct:", False)])
async def test_the_doctor_of_a_service_tries_its_gateway_if_it_has_one(
    tmp_path: Path, gateway: str, *, tried: bool
) -> None:
    """`direct:` knows the health of single sites only, and at first of none."""
    settings = Settings(data=str(tmp_path), durability="process", gateway=gateway)
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        sweep = build_service(settings, engines).steps.sweep
        doctor = build_doctor(settings, engines, sweep, running=True)
        assert (doctor.gateway_responds is not None) is tried


async def test_a_bug_in_a_background_loop_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loop logs it, rests and goes on; the message that met one is tried again later."""
    settings = Settings(
        data=str(tmp_path), durability="process", sweep_every=timedelta(milliseconds=1)
    )
    met: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        stopping = asyncio.Event()

        def break_call(port: object, name: str) -> None:
            async def fail(*_: object, **__: object) -> NoReturn:
                met[name] += 1
                raise ZeroDivisionError(name)

            monkeypatch.setattr(port, name, fail)

        break_call(engines.metadata, "due")
        break_call(engines.metadata, "clear_expired")
        break_call(engines.metadata, "page")
        break_call(engines.metadata, "get")
        await engines.control_queue.send(A_PURGE)
        service = build_service(settings, engines)
        with capture_logs() as logs:
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                group.create_task(work(service, stopping))
                while met["page"] < 3 or met["clear_expired"] < 3:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
                stopping.set()
    assert {"control.bug", "step.bug", "sweeper.failed"} <= {line["event"] for line in logs}
    assert {"deliver", "fire"} <= {line.get("step") for line in logs}


async def test_a_service_without_room_for_pages_is_not_ready(tmp_path: Path) -> None:
    free = LEAST_ROOM

    async def disk_space() -> DiskSpace:
        return DiskSpace(free, 10 * LEAST_ROOM, {})

    settings = Settings(data=str(tmp_path), durability="process")
    async with AsyncExitStack() as stack:
        engines = replace(await open_engines(settings, stack), disk_space=disk_space)
        service = build_service(settings, engines)
        transport = httpx.ASGITransport(app=service.app)
        client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        api = await stack.enter_async_context(client)
        assert (await api.get("/readyz")).status_code == 200
        free -= 1
        full = await api.get("/readyz")
        assert (full.status_code, full.json()["code"]) == (503, "storage_full")
        free += 1
        service.steps.dispatcher.storage.learn(stored=False)
        assert (await api.get("/readyz")).status_code == 503
        assert (await api.get("/healthz")).status_code == 200


@pytest.mark.parametrize("has_queues", [True, False])
async def test_tasks_are_prefetched_only_without_queues(tmp_path: Path, has_queues: bool) -> None:
    settings = Settings(data=str(tmp_path), durability="process", concurrency=7)
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        queues: Any = _Away() if has_queues else None
        config = build_service(settings, replace(engines, queues=queues)).steps.dispatcher.config
    assert (config.concurrency, config.lease) == (7, settings.lease)
    assert bool(config.prefetch) is not has_queues
    assert (config.probe_choice == 1) is has_queues


@pytest.mark.parametrize("runs_workers", [True, False])
@pytest.mark.parametrize(
    "port", ["metadata", "tasks", "control_queue", "queues", "bodies", "blobs", "coordination"]
)
async def test_a_service_with_an_engine_that_does_not_answer_is_not_ready(
    tmp_path: Path, port: str, runs_workers: bool
) -> None:
    async with _api_without(port, tmp_path, runs_workers=runs_workers) as api:
        answer = await api.get("/readyz")
        if port == "coordination" and not runs_workers:
            assert answer.status_code == 200  # only workers need it
        else:
            assert answer.status_code == 503
            assert f"engine of {port} does not answer" in answer.json()["detail"]


async def test_readiness_waits_for_no_engine_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "READY_WITHIN", timedelta(seconds=1))
    async with _api_without("bodies", tmp_path, engine=_Hanging()) as api:
        answer = await api.get("/readyz")
    assert answer.status_code == 503
    assert "engine of bodies does not answer in time" in answer.json()["detail"]


async def test_without_coordination_requests_are_served_and_not_limited(tmp_path: Path) -> None:
    async with _api_without("coordination", tmp_path, requests_per_second=0.001) as api:
        job = await api.post("/v1/jobs", json={"tasks": [{"url": "https://ok.example/"}]})
        assert job.status_code == 201
        polls = [await api.get(f"/v1/jobs/{job.json()['job_id']}") for _ in range(9)]
        assert {poll.status_code for poll in polls} == {200}
        metrics = (await api.get("/metrics")).text
        assert "conveyor_rate_limits_skipped_total 10.0" in metrics


@pytest.mark.parametrize(
    ("body", "field", "told"),
    [
        ({"caler": "ann"}, "caler", "`caler` is an unknown field; did you mean `caller`?"),
        ({"read_only": 1}, "read_only", "`read_only` must be a boolean, got an integer"),
    ],
)
async def test_a_refused_key_names_the_field_as_other_refusals_do(
    tmp_path: Path, body: dict[str, Any], field: str, told: str
) -> None:
    settings = Settings(data=str(tmp_path), durability="process")
    async with AsyncExitStack() as stack:
        service = build_service(settings, await open_engines(settings, stack))
        transport = httpx.ASGITransport(app=service.app)
        client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        api = await stack.enter_async_context(client)
        operator = {"Authorization": f"Bearer {service.token}"}
        answer = await api.post("/operator/keys", json=body, headers=operator)
    assert answer.status_code == 400
    assert (answer.json()["field"], answer.json()["detail"]) == (field, told)


@asynccontextmanager
async def _api_without(
    port: str, folder: Path, *, runs_workers: bool = True, engine: object = None, **changes: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """The API of a service in which one engine does not answer."""
    settings = Settings(data=str(folder), durability="process", **changes)
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        away: dict[str, Any] = {port: engine or _Away()}
        service = build_service(settings, replace(engines, **away), runs_workers=runs_workers)
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=service.app),
            base_url="http://localhost",
            headers={"X-API-Key": "a-key"},
        )
        yield await stack.enter_async_context(client)


async def test_the_clock_is_kept_also_without_due_times_to_repair(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), durability="process")
    async with AsyncExitStack() as stack:
        engines = replace(await open_engines(settings, stack), due_times=None)
        assert build_service(settings, engines).timekeeper


class _Hanging:
    """An engine whose calls never end."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        async def call(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        return call


class _Away:
    """An engine that answers no call."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        async def call(*_: object, **__: object) -> NoReturn:
            raise Unavailable("it does not answer")

        return call


async def test_the_backlog_is_written_to_standard_output_if_it_has_a_namespace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(data=str(tmp_path), durability="process")
    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        assert build_service(settings, engines).backlog is None

        service = build_service(msgspec.structs.replace(settings, cloudwatch="ours"), engines)
        assert service.backlog
        await service.backlog.step()

    line = msgspec.json.decode(capsys.readouterr().out)
    assert line["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "ours"
    assert (line["Workers"], line["BacklogPerWorker"]) == (1, 0)
