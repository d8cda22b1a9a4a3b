"""What work put together from claims and queues owes its queue, beyond the contract of work."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from random import Random

import pytest

from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.adapters.memory.queues import CALM, LONGEST_HIDING, NASTY, Habits, MemoryQueues
from conveyor.adapters.queued.work import QueuedWork
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import MOST_LOST, SettleDecision, Settlement, Task, as_redelivered
from conveyor.errors import Unavailable
from conveyor.ports.queues import TASK_MESSAGE_VERSION, TaskMessage
from conveyor.testing.clock import FakeClock
from conveyor.testing.contracts.engine import (
    Engine,
    ack,
    claim,
    claim_final,
    given_claim,
    given_tasks,
    let_lapse,
    settle,
    stored,
)
from conveyor.testing.factories import (
    OTHER_RUN,
    RUN,
    held,
    ids_of,
    new_tasks,
    refused,
    scraped,
    settlement,
    to_retry,
    uncharged,
)
from conveyor.testing.memory.claims import MemoryClaims
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.tasks import MemoryTasks

LEASE = timedelta(seconds=60)
SECOND = timedelta(seconds=1)


class FaultyQueues(MemoryQueues):
    """Queues that count what is asked of them, and fail when told to."""

    def __init__(
        self, clock: FakeClock, *, habits: Habits = CALM, visibility: timedelta = LEASE
    ) -> None:
        super().__init__(clock, visibility=visibility, random=Random(1), habits=habits)
        self.down: set[str] = set()
        self.receives = 0
        self.postpones = 0
        self.acked = 0

    async def receive(self, run_id: RunId, limit: int) -> Sequence[TaskMessage] | None:
        self._check("receive")
        self.receives += 1
        return await super().receive(run_id, limit)

    async def ack(self, run_id: RunId, receipts: Sequence[str]) -> None:
        self._check("ack")
        self.acked += len(receipts)
        await super().ack(run_id, receipts)

    async def postpone(self, run_id: RunId, delays: Mapping[str, timedelta]) -> None:
        self._check("postpone")
        self.postpones += 1
        await super().postpone(run_id, delays)

    def _check(self, call: str) -> None:
        if call in self.down:
            raise Unavailable(f"queues: {call} is down")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def queues(clock: FakeClock) -> FaultyQueues:
    return FaultyQueues(clock)


@pytest.fixture
def engine(clock: FakeClock, queues: FaultyQueues) -> Engine:
    return _engine(clock, queues)


async def test_a_queue_is_empty_once_all_its_tasks_are_final(
    engine: Engine, queues: FaultyQueues
) -> None:
    await given_tasks(engine, 25)
    tasks = await claim(engine, 25)
    for task in tasks:
        await settle(engine, task, scraped() if task.index % 2 else refused())
    assert queues.waiting(RUN) == 25

    await ack(engine, tasks)
    assert queues.waiting(RUN) == 0


async def test_even_a_nasty_queue_runs_empty() -> None:
    clock = FakeClock()
    queues = FaultyQueues(clock, habits=NASTY)
    engine = _engine(clock, queues)
    await given_tasks(engine, 25)
    for _ in range(60):
        taken = await claim(engine, 25)
        for task in taken:
            await settle(engine, task, scraped())
        await ack(engine, taken[::2])
        clock.advance(LEASE)

    assert (await engine.tasks.counts([RUN]))[RUN].successful == 25
    assert queues.waiting(RUN) == 0


async def test_a_task_is_acked_only_when_it_is_final(engine: Engine, queues: FaultyQueues) -> None:
    task = await given_claim(engine)
    await ack(engine, [task])
    await settle(engine, task, to_retry())
    await ack(engine, [task])
    assert (queues.acked, queues.waiting(RUN)) == (0, 1)

    engine.clock.advance(SECOND)
    [again] = await claim(engine)
    await settle(engine, again, scraped())
    assert (queues.acked, queues.waiting(RUN)) == (0, 1)

    await ack(engine, [again])
    assert (queues.acked, queues.waiting(RUN)) == (1, 0)


async def test_a_crash_between_settle_and_ack_brings_the_final_task_round(
    engine: Engine, queues: FaultyQueues
) -> None:
    task = await given_claim(engine)
    await settle(engine, task, scraped())
    survivor = _stranger(engine, queues)
    assert list(await survivor.claim({RUN: 10})) == []

    engine.clock.advance(LEASE)

    [final] = await survivor.claim({RUN: 10})
    assert final == await stored(engine, task)
    assert final.is_final
    await survivor.ack([held(final)])
    assert queues.waiting(RUN) == 0


async def test_crashes_before_the_ack_bring_a_final_task_round_each_time(
    engine: Engine, queues: FaultyQueues
) -> None:
    task = await given_claim(engine)
    await settle(engine, task, refused())
    for _ in range(5):
        engine.clock.advance(LEASE)
        assert list(await _stranger(engine, queues).claim({RUN: 10})) == [
            as_redelivered(await stored(engine, task))
        ]

    assert queues.waiting(RUN) == 1


async def test_a_task_failed_for_its_lost_workers_is_acked_when_that_is_asked(
    engine: Engine, queues: FaultyQueues
) -> None:
    await given_tasks(engine)
    await let_lapse(engine, MOST_LOST)
    [failed] = await claim_final(engine)
    assert queues.waiting(RUN) == 1

    await ack(engine, [failed])

    assert queues.waiting(RUN) == 0


async def test_a_final_task_delivered_again_is_acked_by_its_newest_receipt(
    clock: FakeClock,
) -> None:
    queues = FaultyQueues(clock, visibility=LEASE / 3)
    engine = _engine(clock, queues)
    task = await given_claim(engine)
    await settle(engine, task, scraped())
    clock.advance(LEASE / 2)
    assert await claim_final(engine) == [await stored(engine, task)]

    await ack(engine, [task])

    assert queues.waiting(RUN) == 0


async def test_a_settle_under_way_does_not_bring_an_older_receipt_back(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = FaultyQueues(clock, visibility=LEASE / 3)
    engine = _engine(clock, queues)
    task = await given_claim(engine)
    clock.advance(LEASE / 2)
    assert engine.claims is not None
    whole = engine.claims.settle

    async def slow(settlements: Sequence[Settlement]) -> Sequence[bool]:
        settled = await whole(settlements)
        assert len(await claim_final(engine)) == 1
        return settled

    monkeypatch.setattr(engine.claims, "settle", slow)
    await settle(engine, task, scraped())
    await ack(engine, [task])

    assert queues.waiting(RUN) == 0


async def test_a_renewal_in_the_middle_of_a_settle_doubles_no_message(
    engine: Engine, queues: FaultyQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the renewal the claim has fallen, which to the settle it has not."""
    await given_tasks(engine, 2)
    retried, done = await claim(engine, 2)
    assert engine.claims is not None
    whole = engine.claims.settle

    async def slow(settlements: Sequence[Settlement]) -> Sequence[bool]:
        settled = await whole(settlements)
        assert len(await engine.work.renew([held(retried), held(done)])) == 2
        return settled

    monkeypatch.setattr(engine.claims, "settle", slow)
    await engine.work.settle([settlement(retried, to_retry()), settlement(done, scraped())])
    await ack(engine, [done])

    assert queues.waiting(RUN) == 1
    assert _remembered(engine) == 0


async def test_doubled_messages_of_a_final_task_are_acked_one_after_the_other(
    engine: Engine, queues: FaultyQueues
) -> None:
    task = await given_claim(engine)
    await engine.work.enqueue(RUN, [task.id, task.id])
    await settle(engine, task, scraped())
    for _ in range(3):
        await ack(engine, [*await claim_final(engine), task])
        engine.clock.advance(LEASE)

    assert queues.waiting(RUN) == 0


async def test_a_message_without_a_row_is_acked(engine: Engine, queues: FaultyQueues) -> None:
    await given_tasks(engine, 3)
    await engine.tasks.discard(RUN, limit=9)

    assert await claim(engine) == []
    assert queues.waiting(RUN) == 0


async def test_receives_carry_full_batches(engine: Engine, queues: FaultyQueues) -> None:
    await given_tasks(engine, 30)
    assert len(await engine.work.claim({RUN: 25})) == 25
    assert queues.receives == 3


async def test_a_dry_queue_is_asked_once(engine: Engine, queues: FaultyQueues) -> None:
    await given_claim(engine)
    queues.receives = 0
    assert list(await engine.work.claim({RUN: 100})) == []
    assert queues.receives == 1


async def test_a_running_task_is_not_delivered_while_it_is_renewed(
    engine: Engine, queues: FaultyQueues
) -> None:
    task = await given_claim(engine)
    for _ in range(5):
        engine.clock.advance(LEASE * 0.9)
        await engine.work.renew([held(task)])

    assert await queues.receive(RUN, 10) == []


async def test_a_waiting_task_is_not_delivered_before_its_time(
    engine: Engine, queues: FaultyQueues
) -> None:
    task = await given_claim(engine)
    await settle(engine, task, to_retry(delay=3 * LEASE))

    engine.clock.advance(3 * LEASE - SECOND)
    assert await queues.receive(RUN, 10) == []


async def test_a_message_that_comes_early_is_put_off_until_its_task_is_due(
    engine: Engine, queues: FaultyQueues
) -> None:
    task = await given_claim(engine)
    await settle(engine, task, to_retry(delay=2 * LEASE))
    await engine.work.enqueue(RUN, [task.id])
    assert await claim(engine) == []

    engine.clock.advance(2 * LEASE - SECOND)

    assert await queues.receive(RUN, 10) == []


async def test_a_task_refused_without_an_attempt_comes_back_later_each_time(
    engine: Engine, queues: FaultyQueues
) -> None:
    task = await given_claim(engine)
    for most in [5, 10, 20, 40, 80, 160, 300, 300, 300]:
        wait, task = await _hidden_after(engine, task, uncharged(wait=SECOND))
        assert most * 3 / 4 <= wait <= most + 1

    assert task.attempts == 0
    assert queues.waiting(RUN) == 1


async def test_attempts_and_hand_backs_are_no_bounces(engine: Engine) -> None:
    task = await given_claim(engine)
    for _ in range(3):
        wait, task = await _hidden_after(engine, task, to_retry(delay=SECOND))
        assert wait == 1
    wait, task = await _hidden_after(engine, task, uncharged())
    assert wait == 0
    wait, task = await _hidden_after(engine, task, uncharged(wait=SECOND))
    assert wait <= 10


async def test_a_longer_wait_than_a_bounce_is_kept(engine: Engine) -> None:
    task = await given_claim(engine)
    assert (await _hidden_after(engine, task, uncharged(wait=60 * SECOND)))[0] == 60


async def test_messages_whose_rows_are_away_are_put_away_for_longer_each_time(
    engine: Engine, queues: FaultyQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    [task] = await given_tasks(engine)
    assert engine.claims is not None

    async def take(run_id: RunId, task_ids: Sequence[TaskId], *, stamp: str) -> Sequence[Task]:
        raise Unavailable("claims: take is down")

    with monkeypatch.context() as patch:
        patch.setattr(engine.claims, "take", take)
        for most in (5, 10, 20, 40):
            with pytest.raises(Unavailable):
                await engine.work.claim({RUN: 10})
            engine.clock.advance(SECOND * most * 3 / 4 - SECOND)
            assert await engine.work.claim({RUN: 10}) == []
            engine.clock.advance(SECOND * most / 4 + SECOND)

    assert ids_of(await claim(engine)) == [task.id]


async def test_a_task_that_is_due_and_not_given_is_not_asked_for_at_once(
    engine: Engine, queues: FaultyQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    [task] = await given_tasks(engine)
    assert engine.claims is not None

    async def take(run_id: RunId, task_ids: Sequence[TaskId], *, stamp: str) -> Sequence[Task]:
        return [task]

    with monkeypatch.context() as patch:
        patch.setattr(engine.claims, "take", take)
        assert await engine.work.claim({RUN: 10}) == []
    assert await queues.receive(RUN, 10) == []

    engine.clock.advance(5 * SECOND)
    assert ids_of(await claim(engine)) == [task.id]


async def test_a_running_task_delivered_again_is_acked_by_its_newest_receipt(
    clock: FakeClock,
) -> None:
    queues = FaultyQueues(clock, visibility=LEASE / 3)
    engine = _engine(clock, queues)
    task = await given_claim(engine)
    clock.advance(LEASE / 2)
    assert await claim(engine) == []

    await settle(engine, task, scraped())
    await ack(engine, [task])

    assert queues.waiting(RUN) == 0


async def test_a_wait_longer_than_the_queue_can_hide_is_waited_out(engine: Engine) -> None:
    task = await given_claim(engine)
    await settle(engine, task, uncharged(wait=LONGEST_HIDING + SECOND))

    engine.clock.advance(LONGEST_HIDING)
    assert await claim(engine) == []

    engine.clock.advance(SECOND)
    assert ids_of(await claim(engine)) == [task.id]


async def test_a_released_task_gets_a_new_message(engine: Engine, queues: FaultyQueues) -> None:
    task = await given_claim(engine)
    await queues.close(RUN)
    await queues.open(RUN)
    engine.clock.advance(LEASE)

    await engine.work.release_lapsed(RUN, overdue=timedelta(), limit=10)

    assert ids_of(await claim(engine)) == [task.id]


async def test_an_ack_that_fails_may_be_repeated(engine: Engine, queues: FaultyQueues) -> None:
    task = await given_claim(engine)
    await settle(engine, task, scraped())
    queues.down = {"ack"}
    with pytest.raises(Unavailable):
        await ack(engine, [task])

    queues.down = set()
    await ack(engine, [task])

    assert (queues.acked, queues.waiting(RUN)) == (1, 0)


async def test_an_ack_is_sent_once(engine: Engine, queues: FaultyQueues) -> None:
    task = await given_claim(engine)
    await settle(engine, task, scraped())

    await ack(engine, [task, task])
    await ack(engine, [task])

    assert queues.acked == 1


async def test_one_ack_serves_many_runs(engine: Engine, queues: FaultyQueues) -> None:
    await given_tasks(engine, 2, RUN)
    await given_tasks(engine, 1, OTHER_RUN)
    tasks = [*await claim(engine, 2, RUN), *await claim(engine, 1, OTHER_RUN)]
    await engine.work.settle([settlement(task, scraped()) for task in tasks])

    await ack(engine, tasks)

    assert (queues.waiting(RUN), queues.waiting(OTHER_RUN)) == (0, 0)


async def test_a_queue_that_cannot_ack_holds_up_no_final_task(
    engine: Engine, queues: FaultyQueues
) -> None:
    task = await given_claim(engine)
    await settle(engine, task, refused())
    await engine.work.enqueue(RUN, ids_of(new_tasks(RUN, 3, first=7)))
    engine.clock.advance(LEASE)
    queues.down = {"ack", "postpone"}

    again = as_redelivered(await stored(engine, task))
    assert list(await engine.work.claim({RUN: 10})) == [again]
    assert queues.waiting(RUN) == 4


async def test_a_claim_whose_answer_was_lost_is_given_when_its_message_comes_again(
    engine: Engine, queues: FaultyQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    [task] = await given_tasks(engine)
    assert engine.claims is not None
    whole = engine.claims.take

    async def take(run_id: RunId, task_ids: Sequence[TaskId], *, stamp: str) -> Sequence[Task]:
        await whole(run_id, task_ids, stamp=stamp)
        raise Unavailable("claims: no answer")

    with monkeypatch.context() as patch:
        patch.setattr(engine.claims, "take", take)
        with pytest.raises(Unavailable):
            await engine.work.claim({RUN: 10})
    engine.clock.advance(5 * SECOND)

    [taken] = await engine.work.claim({RUN: 10})

    assert (taken.id, taken.claim_no, taken.lost) == (task.id, 1, 0)
    assert await settle(engine, taken, scraped())


async def test_messages_of_a_newer_version_are_left_to_newer_processes(
    engine: Engine, queues: FaultyQueues
) -> None:
    newer, known = await given_tasks(engine, 2)
    [message] = [one for one in queues._queues[RUN] if one.task_id == newer.id]
    message.v = TASK_MESSAGE_VERSION + 1

    assert ids_of(await claim(engine, 2)) == [known.id]

    assert queues.waiting(RUN) == 2
    assert await stored(engine, newer) == newer


async def test_retries_of_a_group_are_put_off_in_one_call(
    engine: Engine, queues: FaultyQueues
) -> None:
    await given_tasks(engine, 10)
    tasks = await claim(engine, 10)
    queues.postpones = 0

    delays = [SECOND * (1 + task.index) for task in tasks]
    await engine.work.settle(
        [settlement(task, to_retry(delay=delay)) for task, delay in zip(tasks, delays, strict=True)]
    )

    assert queues.postpones == 1


async def test_runs_are_claimed_side_by_side(
    engine: Engine, queues: FaultyQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_tasks(engine, 1, RUN)
    await given_tasks(engine, 1, OTHER_RUN)
    whole, both = queues.receive, asyncio.Barrier(2)

    async def together(run_id: RunId, limit: int) -> Sequence[TaskMessage] | None:
        async with asyncio.timeout(60):
            await both.wait()
        return await whole(run_id, limit)

    monkeypatch.setattr(queues, "receive", together)

    assert len(await engine.work.claim({RUN: 1, OTHER_RUN: 1})) == 2


async def test_a_queue_is_opened_once_and_again_when_it_is_gone(
    engine: Engine, queues: FaultyQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = list[RunId]()
    whole = queues.open

    async def counted(run_id: RunId) -> None:
        opens.append(run_id)
        await whole(run_id)

    monkeypatch.setattr(queues, "open", counted)
    tasks = await given_tasks(engine, 2)
    await engine.work.enqueue(RUN, ids_of(tasks))
    assert opens == [RUN]

    await queues.close(RUN)
    assert await engine.work.claim({RUN: 2}) == []
    await engine.work.enqueue(RUN, ids_of(tasks))

    assert opens == [RUN, RUN]
    assert len(await claim(engine, 2)) == 2


async def test_a_queue_that_cannot_put_off_holds_up_no_work(
    engine: Engine, queues: FaultyQueues
) -> None:
    tasks = await given_tasks(engine, 2)
    await engine.work.enqueue(RUN, ids_of(tasks))
    queues.down = {"ack", "postpone"}

    taken = await claim(engine, 2)

    assert sorted(ids_of(taken)) == ids_of(tasks)
    assert list(await engine.work.renew([held(task) for task in taken])) == []
    assert await settle(engine, taken[0], to_retry()) is True


async def test_what_was_claimed_before_a_queue_failed_is_given(
    engine: Engine, queues: FaultyQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_tasks(engine, 1, RUN)
    await given_tasks(engine, 1, OTHER_RUN)
    whole = queues.receive

    async def half(run_id: RunId, limit: int) -> Sequence[TaskMessage] | None:
        if run_id == OTHER_RUN:
            raise Unavailable("queues: down")
        return await whole(run_id, limit)

    monkeypatch.setattr(queues, "receive", half)

    assert len(await engine.work.claim({RUN: 1, OTHER_RUN: 1})) == 1
    with pytest.raises(Unavailable):
        await engine.work.claim({OTHER_RUN: 1})


async def test_a_late_offer_does_not_bring_a_closed_queue_back(
    engine: Engine, queues: FaultyQueues
) -> None:
    [task] = await given_tasks(engine)
    await engine.work.close(RUN)
    await engine.work.enqueue(RUN, [task.id])

    assert await queues.receive(RUN, 10) is None


async def test_nothing_is_remembered_of_claims_that_ended(engine: Engine) -> None:
    await given_tasks(engine, 4)
    done, retried, lost, renewed = await claim(engine, 4)
    await engine.work.settle([settlement(done, scraped()), settlement(retried, to_retry())])
    await ack(engine, [done, retried])
    engine.clock.advance(LEASE)
    await engine.work.release_lapsed(RUN, overdue=timedelta(), limit=10)

    assert await settle(engine, lost, scraped()) is False
    assert list(await engine.work.renew([held(renewed)])) == [held(renewed)]

    assert _remembered(engine) == 0


async def test_nothing_is_remembered_for_acks_that_never_came(engine: Engine) -> None:
    """Past its visibility a receipt is good for nothing: the message comes round with a new one."""
    await given_tasks(engine, 26)
    first, *others = await claim(engine, 26)
    await engine.work.settle([settlement(task, scraped()) for task in others])
    engine.clock.advance(LEASE / 2)
    await engine.work.renew([held(first)])
    assert _remembered(engine) == 26
    engine.clock.advance(LEASE / 2)

    await settle(engine, first, refused())

    assert _remembered(engine) == 1
    await ack(engine, [first, *others])
    assert _remembered(engine) == 0


async def test_a_receipt_made_new_does_not_keep_older_ones(clock: FakeClock) -> None:
    engine = _engine(clock, queues := FaultyQueues(clock, visibility=LEASE / 4))
    task = await given_claim(engine)
    await given_tasks(engine, 2, OTHER_RUN)
    first, second = await claim(engine, 2, OTHER_RUN)
    await engine.work.settle([settlement(each, scraped()) for each in (task, first)])
    clock.advance(LEASE / 2)
    assert len(await claim_final(engine)) == 1
    clock.advance(LEASE / 2)

    await settle(engine, second, scraped())

    assert _remembered(engine) == 2
    assert queues.waiting(RUN) + queues.waiting(OTHER_RUN) == 3


async def test_a_receipt_that_is_too_old_is_not_used(engine: Engine, queues: FaultyQueues) -> None:
    task = await given_claim(engine)
    await settle(engine, task, scraped())
    engine.clock.advance(LEASE)

    await ack(engine, [task])

    assert (queues.acked, queues.waiting(RUN), _remembered(engine)) == (0, 1, 0)


async def _hidden_after(engine: Engine, task: Task, decision: SettleDecision) -> tuple[int, Task]:
    """For how many seconds a task is not given after its claim ended so, and its next claim."""
    await settle(engine, task, decision)
    for seconds in range(1_000):
        if taken := await engine.work.claim({RUN: 1}):
            return seconds, taken[0]
        engine.clock.advance(SECOND)
    raise AssertionError("the task never came back")


def _remembered(engine: Engine) -> int:
    assert isinstance(engine.work, QueuedWork)
    return len(engine.work._receipts) + len(engine.work._final)


def _stranger(engine: Engine, queues: MemoryQueues) -> QueuedWork:
    """Another process at the same rows and queues."""
    assert engine.claims is not None
    assert isinstance(engine.claims, MemoryClaims)
    claims = MemoryClaims(engine.claims._rows, "stranger")
    return QueuedWork(claims, queues, clock=engine.clock, lease=LEASE, holder="stranger")


def _engine(clock: FakeClock, queues: MemoryQueues) -> Engine:
    rows, control_queue = Rows(clock, LEASE), MemoryControlQueue(clock)
    metadata = MemoryMetadata(clock)
    claims = MemoryClaims(rows)
    return Engine(
        metadata=metadata,
        tasks=MemoryTasks(rows),
        work=QueuedWork(claims, queues, clock=clock, lease=LEASE),
        claims=claims,
        control_queue=control_queue,
        clock=clock,
        lease=LEASE,
        ordered=False,
        hinted=True,
    )
