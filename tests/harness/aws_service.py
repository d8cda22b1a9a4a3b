"""The service over DynamoDB in simulated time: the real steps, engines and client over the fake.

Queues, coordination and pages are in memory. Every request to DynamoDB is counted by the step that
makes it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from random import Random
from typing import Any
from unittest.mock import Mock

import msgspec

from conveyor.adapters.aws.dynamodb.layout import table_definition
from conveyor.adapters.aws.dynamodb.metadata import DynamoMetadata
from conveyor.adapters.aws.dynamodb.records import RUN, run_place
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.adapters.aws.dynamodb.task_engine import SETTLE_WAIT, open_task_rows
from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.adapters.memory.queues import MemoryQueues
from conveyor.adapters.queued.work import QueuedWork
from conveyor.app.engines import Engines
from conveyor.app.steps import Steps, build_steps
from conveyor.domain.failure import FailureReason, Handling, RefusalRule
from conveyor.domain.ids import CallerId, RunId, ulid
from conveyor.domain.run import Run
from conveyor.ports.bodies import Spool
from conveyor.ports.gateway import GatewayRefusal, Page, PageRequest
from conveyor.settings import Settings
from conveyor.steps.shared.idempotency import Call
from conveyor.telemetry.metrics import Metrics
from conveyor.testing.dynamodb.capacity import Units, total
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.in_process import client_in_process
from conveyor.testing.memory.blobs import MemoryBlobs
from conveyor.testing.memory.bodies import MemoryBodies
from conveyor.testing.memory.step_functions import MemoryStepFunctions
from tests.harness.memory_service import ids_as_answer, ids_in
from tests.harness.time_lapse import LapseClock

TABLE = "conveyor"
LEASE = timedelta(seconds=90)
SEED = 7
CALLER = CallerId("caller")
LONG_ENOUGH = timedelta(hours=12)
PAGE = b"<html>page</html>"
FAILED_ONCE = GatewayRefusal(
    status=502,
    code="RESP001",
    problem='{"title":"Could not get content","status":502,"code":"RESP001"}',
    rule=RefusalRule(Handling.RETRY, FailureReason.OTHER),
)


@dataclass(slots=True)
class PageGateway:
    """Pages that take a while, give or take a tenth."""

    page: timedelta
    random: Random
    refuses_first: bool = False  # every address, once
    refused: set[str] = field(default_factory=set)
    calls: int = 0

    async def fetch(
        self, request: PageRequest, spool: Callable[[], Spool]
    ) -> Page | GatewayRefusal:
        del spool
        self.calls += 1
        await asyncio.sleep(self.page.total_seconds() * self.random.uniform(0.9, 1.1))
        if self.refuses_first and request.url not in self.refused:
            self.refused.add(request.url)
            return FAILED_ONCE
        return Page(content=PAGE, content_type="text/html")

    async def check_health(self) -> bool:
        return True


class LapseIds:
    """ULIDs of the clock's moment."""

    def __init__(self, clock: LapseClock) -> None:
        self._clock, self._numbers = clock, count(1)

    def new(self) -> str:
        return ulid(int(self._clock.now().timestamp() * 1000), next(self._numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsService:
    clock: LapseClock
    fake: DynamoDbEngine
    gateway: PageGateway
    engines: Engines
    steps: Steps

    async def submit(self, tasks: int, *, max_inflight: int = 100) -> RunId:
        urls = [{"url": f"https://shop.example.com/products/{n:07}"} for n in range(tasks)]
        raw = msgspec.json.encode({"tasks": urls, "max_inflight": max_inflight})
        call = Call(
            caller=CALLER, gateway_key="key", raw=raw, fingerprint=raw, idempotency_key=None
        )
        _, run_id = ids_in(await self.steps.submit.submit(call, ids_as_answer))
        return run_id

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """With the dispatcher and the control worker at work."""
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.steps.dispatcher.run(stopping))
            group.create_task(self._handle_messages(stopping))
            try:
                yield
            finally:
                stopping.set()

    async def _handle_messages(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            if not await self.steps.control_worker.step():
                await asyncio.sleep(0.1)

    async def ended(self, run_id: RunId) -> float:
        """Wait until a run is complete, and return when that was."""
        async with asyncio.timeout(LONG_ENOUGH.total_seconds()):
            while self.run(run_id).is_live:  # noqa: ASYNC110 - the run is in no process
                await asyncio.sleep(0.05)
        return self.clock.monotonic()

    def run(self, run_id: RunId) -> Run:
        """The run as it is stored, without a request that would be counted."""
        item = self.fake.tables[TABLE].get(run_place(run_id).fields)
        assert item is not None
        return RUN.of_item(item)

    def used(self) -> dict[str, Units]:
        return dict(self.fake.meter.by_kind)

    def wcu(self, *steps: str) -> float:
        return total(self.used().get(step, Units()) for step in steps).written


def aws_service(
    *, shards: int, page: timedelta, knobs: Knobs | None = None, sync_tasks: int = 10_000
) -> AwsService:
    clock = LapseClock()
    knobs = knobs or Knobs(writes_per_second=None, reads_per_second=None)
    fake = DynamoDbEngine(clock, knobs, classify=step_of)
    fake.execute("CreateTable", table_definition(TABLE))
    gateway = PageGateway(page, Random(SEED))
    table = DynamoTable(client_in_process(fake), TABLE)
    rows = open_task_rows(table, clock, lease=LEASE, holder="w", random=Random(SEED))
    queues = MemoryQueues(clock, visibility=LEASE, random=Random(SEED))
    engines = Engines(
        clock=clock,
        ids=LapseIds(clock),
        metadata=DynamoMetadata(table, clock),
        tasks=rows.tasks,
        work=QueuedWork(rows.claims, queues, clock=clock, lease=LEASE, holder="w"),
        queues=queues,
        control_queue=MemoryControlQueue(clock),
        bodies=MemoryBodies(),
        blobs=MemoryBlobs(),
        coordination=MemoryCoordination(clock),
        gateway=gateway,
        step_functions=MemoryStepFunctions(),
        webhooks=Mock(),
        encryption=AesKeyRing(bytes(32)),
        link_secret=bytes(32),
        disk_space=Mock(),
        incarnation="w",
        task_shard_count=shards,
        settle_wait=SETTLE_WAIT,
    )
    settings = Settings(lease=LEASE, renewal=timedelta(seconds=10), sync_tasks=sync_tasks)
    steps = build_steps(settings, engines, Metrics())
    return AwsService(clock=clock, fake=fake, gateway=gateway, engines=engines, steps=steps)


# Which step makes a request.


def step_of(operation: str, request: Mapping[str, Any]) -> str:
    match operation:
        case "BatchExecuteStatement":
            return _statement_step(request["Statements"][0]["Statement"])
        case "TransactWriteItems":
            return "settle" if _is_about_rows(request["TransactItems"]) else "record"
        case "Query":
            return _query_step(request)
        case "GetItem" | "BatchGetItem":
            return "read"
        case _:
            return "record"


def _statement_step(text: str) -> str:
    if "INSERT" in text:
        return "insert"
    if "RETURNING" in text:
        return "claim"
    return "renew" if text.count("SET") == 1 else "retry"


def _is_about_rows(actions: list[dict[str, Any]]) -> bool:
    keys = [one.get("Item") or one["Key"] for action in actions for one in action.values()]
    return any(key["sk"]["S"].startswith("T#") for key in keys)


def _query_step(request: Mapping[str, Any]) -> str:
    values = [str(value.get("S", "")) for value in request["ExpressionAttributeValues"].values()]
    if "IndexName" in request:
        return "look for runs"
    if any(value.startswith("T#") for value in values):
        return "list"
    return "count" if any(value.startswith("C#") for value in values) else "read"
