"""Ports that are counted: each call changes the right series, and nothing else."""

from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from random import Random
from typing import Any, Protocol
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest

from conveyor.adapters.memory.queues import MemoryQueues
from conveyor.adapters.queued.work import QueuedWork
from conveyor.domain.counts import Spend
from conveyor.domain.failure import FailureReason
from conveyor.domain.outbox import DeliveryResult
from conveyor.domain.task import SettleDecision, TaskStatus
from conveyor.ports.gateway import Gateway, Page
from conveyor.ports.webhooks import Webhooks
from conveyor.telemetry.metrics import Metrics
from conveyor.telemetry.ports import (
    MeteredGateway,
    MeteredTasks,
    MeteredWebhooks,
    MeteredWork,
    timed,
)
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import RUN, add_rows, new_tasks, refused, scraped, settlement
from conveyor.testing.memory.claims import MemoryClaims
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.tasks import MemoryTasks
from conveyor.testing.memory.work import MemoryWork

LEASE = timedelta(seconds=30)
MOST_LOST = 10


class Counted:
    """Metered tasks and work over memory engines."""

    def __init__(self) -> None:
        self.clock, self.metrics = FakeClock(), Metrics()
        rows = Rows(self.clock, lease=LEASE)
        self.tasks = MeteredTasks(MemoryTasks(rows), self.metrics)
        self.work = MeteredWork(MemoryWork(rows), self.metrics)

    def happened(self, name: str) -> dict[str, float]:
        """The series of a counter that are not zero, by the value of their label."""
        return {
            "".join(sample.labels.values()): sample.value
            for metric in self.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == f"conveyor_{name}_total" and sample.value
        }


def pending(*, charged: bool, reason: FailureReason | None) -> SettleDecision:
    return SettleDecision(status=TaskStatus.PENDING, charged=charged, reason=reason)


async def test_claims_and_the_ways_they_end_are_counted() -> None:
    counted = Counted()
    await add_rows(counted.tasks, RUN, new_tasks(n=6))
    await add_rows(counted.tasks, RUN, new_tasks(n=6))
    tasks = await counted.work.claim({RUN: 9})
    decisions = [
        scraped(),
        refused(),
        pending(charged=True, reason=FailureReason.GATEWAY_ERROR),
        pending(charged=False, reason=FailureReason.AUTH_FAILED),
        pending(charged=False, reason=None),
    ]
    ends = [settlement(*one) for one in zip(tasks, decisions, strict=False)]
    await counted.work.settle([*ends, ends[0]])

    assert counted.happened("ingested") == {"": 6}
    assert counted.happened("receives") == {"": 6}
    assert counted.happened("settled") == {
        "successful": 1,
        "failed": 1,
        "retried": 1,
        "given_back": 2,
        "dropped": 1,
    }
    assert counted.happened("retries") == {"gateway_error": 1, "auth_failed": 1, "interrupted": 1}


async def test_a_task_that_lost_its_last_worker_is_counted_when_a_claim_fails_it() -> None:
    counted = Counted()
    await add_rows(counted.tasks, RUN, new_tasks(n=1))
    for _ in range(MOST_LOST):
        await counted.work.claim({RUN: 1})
        assert counted.happened("settled") == {}
        counted.clock.advance(LEASE)
    await counted.work.claim({RUN: 1})
    assert counted.happened("settled") == {"worker_lost": 1}


async def test_a_task_that_lost_its_last_worker_is_counted_when_the_sweeper_fails_it() -> None:
    counted = Counted()
    await add_rows(counted.tasks, RUN, new_tasks(n=1))
    for _ in range(MOST_LOST):
        assert counted.happened("settled") == {}
        await counted.work.claim({RUN: 1})
        counted.clock.advance(LEASE)
        await counted.work.release_lapsed(RUN, overdue=timedelta(), limit=10)
    assert counted.happened("settled") == {"worker_lost": 1}


async def test_a_task_that_the_sweeper_failed_is_counted_once_where_it_has_a_message() -> None:
    counted, rows = Counted(), Rows(clock := FakeClock(), lease=LEASE)
    queues = MemoryQueues(clock, visibility=LEASE, random=Random(1))
    queued = QueuedWork(MemoryClaims(rows), queues, clock=clock, lease=LEASE)
    work = MeteredWork(queued, counted.metrics)
    [task] = new_tasks(n=1)
    await add_rows(MemoryTasks(rows), RUN, [task])
    await work.enqueue(RUN, [task.id])
    for _ in range(MOST_LOST):
        assert await work.claim({RUN: 1})
        clock.advance(LEASE)
        await work.release_lapsed(RUN, overdue=timedelta(), limit=10)
    [again] = await work.claim({RUN: 1})
    assert again.status is TaskStatus.FAILED
    assert counted.happened("settled") == {"worker_lost": 1}


async def test_a_failed_task_whose_message_comes_again_lost_no_worker() -> None:
    counted = Counted()
    await add_rows(counted.tasks, RUN, new_tasks(n=1))
    [task] = await counted.work.claim({RUN: 1})
    failed = msgspec.structs.replace(
        task, status=TaskStatus.FAILED, problem="{}", reason=FailureReason.BLOCKED
    )
    again = Mock(claim=AsyncMock(return_value=[failed]))
    await MeteredWork(again, counted.metrics).claim({RUN: 1})
    assert counted.happened("settled") == {}


async def test_pages_and_their_cost_are_counted() -> None:
    counted = Counted()
    page = Mock(spec=Page, spend=Spend(3, 2_000_000_000))
    gateway = Mock(spec=Gateway, fetch=AsyncMock(return_value=page))
    metered = MeteredGateway(gateway, counted.metrics, {"RESP001"})
    assert await metered.fetch(Mock(), Mock()) is page
    for code in ("RESP001", "NEVER_SEEN", "NOR_THIS"):
        gateway.fetch.return_value = Mock(code=code, spend=Spend(0, 0))
        await metered.fetch(Mock(), Mock())

    assert counted.happened("gateway_answers") == {"page": 1, "RESP001": 1, "other": 2}
    assert counted.happened("gateway_credits") == {"": 3}
    assert counted.happened("gateway_dollars") == {"": 2}
    assert counted.metrics.registry.get_sample_value("conveyor_gateway_seconds_count") == 4


async def test_deliveries_are_counted_by_their_outcome() -> None:
    counted = Counted()
    webhooks = Mock(spec=Webhooks)
    metered = MeteredWebhooks(webhooks, counted.metrics)
    for error in (None, "http_5xx", "timeout: 10 s", "something new"):
        webhooks.post = AsyncMock(return_value=Mock(spec=DeliveryResult, error=error))
        await metered.post("https://hook.example", {}, b"{}")
    assert counted.happened("webhook_deliveries") == {
        "delivered": 1,
        "http_5xx": 1,
        "timeout": 1,
        "other": 1,
    }


class Waiting(Protocol):
    async def get(self) -> int: ...

    def read(self) -> AsyncIterator[bytes]: ...

    def spool(self) -> object: ...


class Whole:
    async def get(self) -> int:
        return 1

    async def read(self) -> AsyncIterator[bytes]:
        yield b""

    def spool(self) -> object:
        return None


class NoCoroutine(Whole):
    def get(self) -> Coroutine[Any, Any, int]:
        return super().get()


class NoGenerator(Whole):
    def read(self) -> AsyncIterator[bytes]:
        return super().read()


def test_an_engine_whose_calls_could_not_be_timed_is_refused() -> None:
    given: dict[str, Any] = {"slow": LEASE, "protocol": Waiting}
    timed(Whole(), "work", Metrics(), **given)
    for engine, method in ((NoCoroutine(), "get"), (NoGenerator(), "read")):
        with pytest.raises(TypeError, match=rf"{type(engine).__name__}\.{method} must be"):
            timed(engine, "work", Metrics(), **given)
