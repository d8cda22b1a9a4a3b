"""Work over queues: what an error of one run means for the others."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random

import pytest

from conveyor.adapters.memory.queues import MemoryQueues
from conveyor.adapters.queued.work import QueuedWork
from conveyor.app.sqs import visibility_for
from conveyor.domain.ids import RunId
from conveyor.ports.queues import TaskMessage
from conveyor.ports.work import Held, PartlyRenewed
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import (
    OTHER_RUN,
    RUN,
    add_rows,
    held,
    ids_of,
    new_tasks,
    scraped,
    settlement,
)
from conveyor.testing.memory.claims import MemoryClaims
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.tasks import MemoryTasks

LEASE = timedelta(seconds=30)


async def test_a_bug_in_the_claims_of_one_run_does_not_cancel_those_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    rows = Rows(clock, LEASE)
    queues = MemoryQueues(clock, visibility=LEASE, random=Random(1))
    work = QueuedWork(MemoryClaims(rows), queues, clock=clock, lease=LEASE)
    for run_id in (RUN, OTHER_RUN):
        new = new_tasks(run_id, 1)
        await add_rows(MemoryTasks(rows), run_id, new)
        await work.enqueue(run_id, ids_of(new))
    receive, failed = queues.receive, asyncio.Event()

    async def receive_of_one(run_id: RunId, limit: int) -> Sequence[TaskMessage] | None:
        if run_id == RUN:
            failed.set()
            raise ValueError
        await failed.wait()
        await asyncio.sleep(0)
        return await receive(run_id, limit)

    monkeypatch.setattr(queues, "receive", receive_of_one)
    [task] = await work.claim({RUN: 1, OTHER_RUN: 1})
    assert task.run_id == OTHER_RUN
    with pytest.raises(ValueError):  # noqa: PT011 - that very one
        await work.claim({RUN: 1, OTHER_RUN: 1})


async def test_messages_are_renewed_although_claims_of_another_run_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    rows = Rows(clock, LEASE)
    queues = MemoryQueues(clock, visibility=LEASE, random=Random(1))
    claims = MemoryClaims(rows)
    work = QueuedWork(claims, queues, clock=clock, lease=LEASE)
    for run_id in (RUN, OTHER_RUN):
        new = new_tasks(run_id, 2)
        await add_rows(MemoryTasks(rows), run_id, new)
        await work.enqueue(run_id, ids_of(new))
    tasks = await work.claim({RUN: 2, OTHER_RUN: 2})
    throttled = [held(task) for task in tasks if task.run_id == RUN]
    ended, kept = (task for task in tasks if task.run_id == OTHER_RUN)
    await claims.settle([settlement(ended, scraped())])
    renew = claims.renew

    async def renew_some(given: Sequence[Held]) -> Sequence[Held]:
        fallen = await renew([claim for claim in given if claim not in throttled])
        raise PartlyRenewed("throttled", fallen=fallen, unknown=throttled)

    monkeypatch.setattr(claims, "renew", renew_some)
    clock.advance(LEASE / 2)
    with pytest.raises(PartlyRenewed) as failed:
        await work.renew([held(task) for task in tasks])
    assert list(failed.value.fallen) == [held(ended)]

    clock.advance(LEASE / 2 + timedelta(seconds=1))
    visible = [message.task_id for message in await queues.receive(OTHER_RUN, 10) or ()]
    assert kept.id not in visible
    assert len(await queues.receive(RUN, 10) or ()) == 2, "they are left to others in time"


async def test_a_task_of_a_dead_worker_comes_back_ten_seconds_after_its_lease() -> None:
    clock, lease = FakeClock(), timedelta(seconds=90)
    rows = Rows(clock, lease)
    queues = MemoryQueues(clock, visibility=visibility_for(lease), random=Random(1))
    dead, other = (
        QueuedWork(
            MemoryClaims(rows),
            queues,
            clock=clock,
            lease=lease,
            visibility=visibility_for(lease),
        )
        for _ in range(2)
    )
    new = new_tasks(RUN, 1)
    await add_rows(MemoryTasks(rows), RUN, new)
    await dead.enqueue(RUN, ids_of(new))
    assert await dead.claim({RUN: 1})
    clock.advance(timedelta(seconds=100))
    [task] = await other.claim({RUN: 1})
    assert task.lost == 1
