"""Ports that are timed: every call is, nothing else changes, and slow ones are told of."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.domain.job import Job
from conveyor.errors import NotFound, Unavailable
from conveyor.ports.blobs import Blobs, as_stream
from conveyor.ports.bodies import Bodies, Body, BodyName
from conveyor.ports.control_queue import ControlQueue, ReceivedMessage
from conveyor.ports.coordination import Coordination
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Work
from conveyor.telemetry.metrics import Metrics
from conveyor.telemetry.ports import timed
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import JOB
from conveyor.testing.memory.blobs import MemoryBlobs
from conveyor.testing.memory.bodies import MemoryBodies
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.tasks import MemoryTasks
from conveyor.testing.memory.work import MemoryWork

NEVER = timedelta(hours=1)
ALWAYS = timedelta()
RUN = RunId("01ARZ3NDEKTSV4RRFFQ69G5FAV")
PORTS: Mapping[str, type] = {
    "metadata": Metadata,
    "tasks": Tasks,
    "work": Work,
    "control_queue": ControlQueue,
    "bodies": Bodies,
    "blobs": Blobs,
    "coordination": Coordination,
}


def engines() -> dict[str, object]:
    clock = FakeClock()
    lease = timedelta(seconds=30)
    rows = Rows(clock, lease=lease)
    return {
        "metadata": MemoryMetadata(clock),
        "tasks": MemoryTasks(rows),
        "work": MemoryWork(rows),
        "control_queue": MemoryControlQueue(clock),
        "bodies": MemoryBodies(),
        "blobs": MemoryBlobs(),
        "coordination": MemoryCoordination(clock, lease=lease),
    }


class Engine:
    """An engine with every kind of method, and one that is away."""

    def __init__(self, why: Exception | None = None) -> None:
        self._why = why
        self.closed = False

    async def get(self, run_id: RunId, task_id: TaskId, *, text: str = "") -> str:
        if self._why:
            raise self._why
        return f"{run_id}{task_id}{text}"

    async def ack(self, message: ReceivedMessage) -> None: ...

    async def put(self, *changes: bytes, secret: str) -> int:
        return len(changes) + len(secret)

    async def read(self, key: str) -> AsyncIterator[bytes]:
        try:
            if self._why:
                raise self._why
            for chunk in key.split():
                yield chunk.encode()
        finally:
            self.closed = True

    def spool(self) -> str:
        return "spool"


def count(metrics: Metrics, name: str, method: str) -> float:
    found = metrics.registry.get_sample_value(name, {"port": "work", "method": method})
    assert found is not None
    return found


@pytest.mark.parametrize("name", PORTS)
def test_every_method_of_every_port_is_timed_but_for_what_does_not_wait(name: str) -> None:
    metrics = Metrics()
    timed(engines()[name], name, metrics, slow=NEVER)
    measured = {
        sample.labels["method"]
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "conveyor_port_seconds_count"
    }
    asked = {method for method in vars(PORTS[name]) if not method.startswith("_")}
    at_once = {"bodies": {"is_swept", "sign_get", "spool"}}
    at_once["blobs"] = {"is_swept", "sign_get", "sign_put"}
    assert asked - measured == at_once.get(name, set())


async def test_a_timed_call_gives_what_the_call_gives_and_is_counted_once() -> None:
    metrics = Metrics()
    port = timed(Engine(), "work", metrics, slow=NEVER)
    with capture_logs() as logs:
        assert await port.get(RUN, TaskId("7"), text="!") == f"{RUN}7!"
    assert port.spool() == "spool"
    assert count(metrics, "conveyor_port_seconds_count", "get") == 1
    assert count(metrics, "conveyor_port_slow_total", "get") == 0
    assert logs == []


async def test_a_stream_comes_whole_and_is_timed_once() -> None:
    metrics = Metrics()
    port = timed(Engine(), "work", metrics, slow=NEVER)
    assert [chunk async for chunk in port.read("a b c")] == [b"a", b"b", b"c"]
    assert [chunk async for chunk in port.read("")] == []
    assert count(metrics, "conveyor_port_seconds_count", "read") == 2


async def test_a_stream_is_timed_up_to_its_first_chunk_and_closed_when_left() -> None:
    metrics, engine = Metrics(), Engine()
    chunks = timed(engine, "work", metrics, slow=NEVER).read("a b")
    assert await anext(chunks) == b"a"
    assert count(metrics, "conveyor_port_seconds_count", "read") == 1
    await chunks.aclose()  # type: ignore[attr-defined]  # a generator is behind it
    assert engine.closed


@pytest.mark.parametrize(("why", "away"), [(Unavailable("gone"), 1), (NotFound("none"), 0)])
async def test_an_engine_that_is_away_is_counted_and_its_error_passed_on(
    why: Exception, away: int
) -> None:
    metrics = Metrics()
    port = timed(Engine(why), "work", metrics, slow=NEVER)
    with pytest.raises(type(why)):
        await port.get(RUN, TaskId("7"))
    with pytest.raises(type(why)):
        await anext(port.read("a"))
    for method in ("get", "read"):
        assert count(metrics, "conveyor_port_seconds_count", method) == 1
        assert count(metrics, "conveyor_port_unavailable_total", method) == away


async def test_a_slow_call_is_told_with_ids_and_numbers_and_no_content() -> None:
    metrics = Metrics()
    port = timed(Engine(), "work", metrics, slow=ALWAYS)
    message = ReceivedMessage(
        id="d1", kind="k", subject="s", payload={"secret": "word"}, deliveries=1, receipt="r"
    )
    with capture_logs() as logs:
        await port.get(RUN, TaskId("7"), text="secret")
        await port.put(b"secret", b"word", secret="word")
        await port.ack(message)
        assert [chunk async for chunk in port.read("secret")] == [b"secret"]
    told = [{name: line[name] for name in line if name != "seconds"} for line in logs]
    slow: dict[str, Any] = {"event": "port.slow", "log_level": "warning", "port": "work"}
    assert told == [
        {**slow, "method": "get", "run_id": RUN, "task_id": "7"},
        {**slow, "method": "put", "changes": 2},
        {**slow, "method": "ack", "message_id": "d1"},
        {**slow, "method": "read"},
    ]
    assert all(line["seconds"] >= 0 for line in logs)
    for method in ("get", "put", "ack", "read"):
        assert count(metrics, "conveyor_port_slow_total", method) == 1


async def test_bodies_and_blobs_work_as_before_when_timed() -> None:
    metrics = Metrics()
    bodies = timed(MemoryBodies(), "bodies", metrics, slow=NEVER)
    spool = bodies.spool()
    await spool.write(b"large")
    name = BodyName(JobId("j"), RUN, TaskId("7"), 1)
    [kept] = await bodies.put_many([Body(name, spool)])
    assert [chunk async for chunk in bodies.read(kept.locator)] == [b"large"]
    blobs = timed(MemoryBlobs(), "blobs", metrics, slow=NEVER)
    await blobs.put("a/b", as_stream([b"list"]))
    assert [chunk async for chunk in blobs.read("a/b", offset=1)] == [b"ist"]


async def test_a_slow_point_read_is_told_with_its_kind_and_only_ids_of_ours() -> None:
    metadata = timed(MemoryMetadata(FakeClock()), "metadata", Metrics(), slow=ALWAYS)
    with capture_logs() as logs:
        await metadata.get(Job, JOB)
        await metadata.get(IdempotencyRecord, ("a caller", "a key of its own"))
    told = [
        {name: line[name] for name in line if name not in {"seconds", "log_level"}} for line in logs
    ]
    slow = {"event": "port.slow", "port": "metadata", "method": "get"}
    assert told == [
        {**slow, "kind": "Job", "job_id": JOB},
        {**slow, "kind": "IdempotencyRecord"},
    ]


async def test_a_put_is_not_slow_because_its_content_is() -> None:
    async def slow() -> AsyncIterator[bytes]:
        for piece in (b"a", b"b"):
            await asyncio.sleep(0.05)
            yield piece

    blobs: Blobs = timed(MemoryBlobs(), "blobs", Metrics(), slow=timedelta(milliseconds=50))
    with capture_logs() as logs:
        assert await blobs.put("key", slow()) == 2
    assert logs == []


async def test_a_put_is_not_slow_because_its_content_breaks_off_late() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.sleep(0.05)
        raise ZeroDivisionError

    blobs: Blobs = timed(MemoryBlobs(), "blobs", Metrics(), slow=timedelta(milliseconds=50))
    with capture_logs() as logs, pytest.raises(ZeroDivisionError):
        await blobs.put("key", broken())
    assert logs == []
