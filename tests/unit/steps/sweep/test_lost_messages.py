"""Messages that a queue lost: the sweeper enqueues due tasks again, and removes queues of ended runs."""

from collections import Counter
from datetime import timedelta
from random import Random

import pytest
from msgspec.structs import replace

from conveyor.adapters.memory.queues import MemoryQueues
from conveyor.adapters.queued.work import QueuedWork
from conveyor.domain.ids import RunId
from conveyor.domain.run import PauseState, RunStatus
from conveyor.domain.task import Task
from conveyor.steps.shared.notifier import Notifier, Topic
from conveyor.steps.sweep import lost_messages as lost_messages_step
from conveyor.steps.sweep.lost_messages import LostMessages
from conveyor.steps.sweep.sweeper import Sweeper
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import (
    RUN,
    a_run,
    add_rows,
    held,
    ids_of,
    new_tasks,
    scraped,
    settlement,
    to_retry,
)
from conveyor.testing.memory.bodies import MemoryBodies
from conveyor.testing.memory.claims import MemoryClaims
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.tasks import MemoryTasks

LEASE = timedelta(seconds=30)
ROUND = timedelta(minutes=1)


class Scene:
    """A run with queues beside its rows, and a sweeper that makes a round every minute."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        rows = Rows(self.clock, LEASE)
        self.metadata, self.tasks = MemoryMetadata(self.clock), MemoryTasks(rows)
        self.queues = MemoryQueues(self.clock, visibility=LEASE, random=Random(1))
        self.work = QueuedWork(MemoryClaims(rows), self.queues, clock=self.clock, lease=LEASE)
        self.repaired: Counter[str] = Counter()
        self.woken: list[str] = []
        notifier = Notifier()
        notifier.on(Topic.RUNS, lambda names: self.woken.extend(names or ()))
        lost = LostMessages(
            metadata=self.metadata,
            tasks=self.tasks,
            work=self.work,
            queues=self.queues,
            clock=self.clock,
            notifier=notifier,
        )
        self.sweeper = Sweeper(
            metadata=self.metadata,
            tasks=self.tasks,
            work=self.work,
            bodies=MemoryBodies(),
            clock=self.clock,
            checks=lost.checks(),
            count=lambda action, times: self.repaired.update({action: times}),
            cleared=lambda _kind, _times: None,
        )

    async def submit(self, count: int, **changes: object) -> None:
        new = new_tasks(RUN, count)
        await add_rows(self.tasks, RUN, new)
        await self.work.enqueue(RUN, ids_of(new))
        run = a_run(total=count, next_index=count, last_batch_received=True)
        await self.metadata.commit(replace(run, **changes))

    async def lose_messages(self) -> None:
        self.queues._queues[RUN].clear()

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            self.clock.advance(ROUND)
            await self.sweeper.step()

    async def claim(self) -> list[Task]:
        return [task for _ in range(9) for task in await self.work.claim({RUN: 10})]


async def test_due_tasks_of_a_run_that_stands_still_are_enqueued_again() -> None:
    scene = Scene()
    await scene.submit(3)
    [waiting] = await scene.work.claim({RUN: 1})
    await scene.work.settle([settlement(waiting, to_retry(delay=timedelta(hours=1)))])
    await scene.lose_messages()

    await scene.rounds(2)
    assert await scene.claim() == []
    await scene.rounds(1)

    assert len(await scene.claim()) == 2
    assert scene.repaired["lost_message"] == 2
    assert scene.woken == [RUN], "a dispatcher may have set the run aside"


async def test_a_claim_that_was_lost_with_its_message_is_released_and_claimed() -> None:
    scene = Scene()
    await scene.submit(1)
    await scene.claim()
    await scene.lose_messages()

    await scene.rounds(2)

    [again] = await scene.claim()
    assert (again.claim_no, again.lost) == (2, 1)
    assert scene.repaired["lapsed_lease"] == 1


async def test_a_run_that_moves_is_left_alone() -> None:
    scene = Scene()
    await scene.submit(9)
    for _ in range(8):
        [task] = await scene.work.claim({RUN: 1})
        await scene.work.settle([settlement(task, scraped())])
        await scene.work.ack([held(task)])
        await scene.rounds(1)
    assert scene.repaired == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"pause_state": PauseState.PAUSED},
        {"status": RunStatus.STOPPED},
        {"total": 0},
    ],
    ids=["paused", "ended", "without open tasks"],
)
async def test_a_run_that_waits_for_nothing_is_left_alone(changes: dict[str, object]) -> None:
    scene = Scene()
    await scene.submit(3, **changes)
    await scene.lose_messages()

    await scene.rounds(5)

    assert scene.repaired["lost_message"] == 0


async def test_a_run_with_a_task_in_progress_does_not_stand_still() -> None:
    scene = Scene()
    await scene.submit(3)
    [task] = await scene.work.claim({RUN: 1})
    for _ in range(10):
        scene.clock.advance(ROUND - LEASE / 2)
        await scene.work.renew([held(task)])
        scene.clock.advance(LEASE / 2)
        await scene.sweeper.step()
    assert scene.repaired["lost_message"] == 0


async def test_a_slow_run_is_not_enqueued_again_and_again() -> None:
    scene = Scene()
    await scene.submit(50)
    for _ in range(30):
        await scene.rounds(5)
        task = (await scene.work.claim({RUN: 1}))[0]
        await scene.work.settle([settlement(task, scraped())])
        await scene.work.ack([held(task)])
    assert scene.repaired["lost_message"] < 4 * 50


async def test_each_time_without_effect_doubles_the_wait() -> None:
    scene = Scene()
    await scene.submit(1)

    await scene.rounds(1 + 2 + 4 + 8)
    assert scene.repaired["lost_message"] == 3

    await scene.rounds(24 * 60)
    assert scene.repaired["lost_message"] < 35


@pytest.mark.parametrize(("age", "rounds"), [(timedelta(), 2), (timedelta(hours=1), 1)])
async def test_a_queue_that_is_gone_is_opened_again_at_once_unless_its_run_is_new(
    age: timedelta, rounds: int
) -> None:
    scene = Scene()
    await scene.submit(3, created_at=scene.clock.now() - age)
    await scene.queues.close(RUN)

    [(missed, when)] = [one async for one in scene.sweeper.findings(patient=True)]
    assert missed.action == "lost_message"
    assert when.startswith("in its next round" if rounds == 1 else "in the round after the next")
    await scene.rounds(rounds - 1)
    assert scene.queues.waiting(RUN) == 0
    await scene.rounds(1)

    assert scene.queues.waiting(RUN) == 3
    assert len(await scene.claim()) == 3


async def test_a_start_enqueues_at_once() -> None:
    scene = Scene()
    await scene.submit(3)
    await scene.lose_messages()

    await scene.sweeper.at_start([])

    assert len(await scene.claim()) == 3


async def test_after_the_loss_of_a_queue_every_unfinished_task_is_claimed_when_it_is_due() -> None:
    """As after a restart with queues in memory."""
    scene = Scene()
    await scene.submit(3)
    waiting, _dead = await scene.work.claim({RUN: 2})
    await scene.work.settle([settlement(waiting, to_retry(delay=timedelta(hours=1)))])
    await scene.queues.close(RUN)

    await scene.sweeper.at_start([])

    assert len(await scene.claim()) == 1
    scene.clock.advance(LEASE)
    claimed = await scene.claim()
    assert {task.lost for task in claimed} == {1}
    scene.clock.advance(timedelta(hours=1))
    assert waiting.id in {task.id for task in await scene.claim()}


@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_large_run_is_enqueued_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    monkeypatch.setattr(lost_messages_step, "CHUNK", 2)
    monkeypatch.setattr(lost_messages_step, "MOST_READ", 4)
    monkeypatch.setattr(lost_messages_step, "MOST_LOST", 4)
    scene = Scene()
    await scene.submit(7)
    if is_gone:
        await scene.queues.close(RUN)
        await scene.rounds(2)
    else:
        await scene.lose_messages()
        await scene.rounds(3)
    assert scene.queues.waiting(RUN) == 4
    await scene.rounds(1)

    assert scene.queues.waiting(RUN) == 7
    assert len({task.id for task in await scene.claim()}) == 7


async def test_the_queue_of_a_run_that_ended_or_never_was_is_removed() -> None:
    scene = Scene()
    await scene.submit(1, status=RunStatus.STOPPED)
    await scene.queues.open(RunId("not ours"))

    await scene.rounds(10)
    assert list(await scene.queues.opened(limit=9)) == [RUN, "not ours"]
    await scene.rounds(2)

    assert list(await scene.queues.opened(limit=9)) == ["not ours"]
    assert scene.repaired["orphan_queue"] == 1
