"""Queues whose messages share calls: what is asked of the queue underneath, and when."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from datetime import timedelta
from random import Random

import pytest

from conveyor.adapters.memory.queues import MemoryQueues
from conveyor.adapters.queued.grouping import LATE, TICK, WAIT, GroupedQueues
from conveyor.app.sqs import visibility_for
from conveyor.domain.ids import RunId
from conveyor.errors import Unavailable
from conveyor.ports.queues import TaskMessage
from conveyor.testing.factories import RUN, ids_of, new_tasks
from tests.harness import time_lapse
from tests.harness.time_lapse import LapseClock

VISIBILITY = timedelta(seconds=60)
NOW = timedelta()


class Recorded(MemoryQueues):
    """Queues that note the calls of them, and fail when told to."""

    def __init__(self) -> None:
        super().__init__(LapseClock(), visibility=VISIBILITY, random=Random(1))
        self.calls: list[tuple[str, int]] = []  # each with its number of messages
        self.is_down = False
        self.takes = 0.0  # seconds, of a receive

    async def receive(self, run_id: RunId, limit: int) -> Sequence[TaskMessage] | None:
        self._note("receive", limit)
        if self.takes:
            await asyncio.sleep(self.takes)
        return await super().receive(run_id, limit)

    async def ack(self, run_id: RunId, receipts: Sequence[str]) -> None:
        self._note("ack", len(receipts))
        await super().ack(run_id, receipts)

    async def postpone(self, run_id: RunId, delays: Mapping[str, timedelta]) -> None:
        self._note("postpone", len(delays))
        await super().postpone(run_id, delays)

    def of(self, call: str) -> list[int]:
        return [messages for name, messages in self.calls if name == call]

    def _note(self, call: str, messages: int) -> None:
        if self.is_down:
            raise Unavailable("the queue is down")
        self.calls.append((call, messages))


class Bench:
    def __init__(self) -> None:
        self.below = Recorded()
        self.queues = GroupedQueues(self.below, LapseClock(), visibility=VISIBILITY)

    async def given(self, messages: int) -> None:
        await self.queues.open(RUN)
        await self.queues.send(RUN, [(one, NOW) for one in ids_of(new_tasks(RUN, messages))])

    async def receive(self, limit: int) -> list[str]:
        return [message.receipt for message in await self.queues.receive(RUN, limit) or []]

    async def take_steadily(self, seconds: int, each: int = 2) -> list[str]:
        """A run that starts so many tasks a second."""
        receipts = list[str]()
        for _ in range(seconds):
            await asyncio.sleep(1)
            receipts += await self.receive(each)
        return receipts


def lapse(story: Coroutine[object, object, None]) -> None:
    time_lapse.run(story)


def test_acks_wait_for_others_but_not_for_long() -> None:
    async def story() -> None:
        bench = Bench()
        await bench.given(25)
        receipts = [receipt for _ in range(3) for receipt in await bench.receive(10)]
        for receipt in receipts:
            await bench.queues.ack(RUN, [receipt])
        assert bench.below.of("ack") == [10, 10]

        await asyncio.sleep(6)

        assert bench.below.of("ack") == [10, 10, 5]
        assert bench.below.waiting(RUN) == 0

    lapse(story())


def test_a_wait_for_others_does_not_delay_a_retry() -> None:
    async def story() -> None:
        bench = Bench()
        await bench.given(3)
        early, late, again = await bench.receive(10)
        await bench.queues.postpone(RUN, {early: timedelta(seconds=4)})
        await bench.queues.postpone(RUN, {late: timedelta(seconds=40)})
        await asyncio.sleep(1.9)
        assert bench.below.of("postpone") == []
        await asyncio.sleep(0.4)
        assert bench.below.of("postpone") == [2], "the early one takes the late one along"
        await asyncio.sleep(1.5)
        assert await bench.receive(10) == []

        await asyncio.sleep(0.3)
        assert len(await bench.receive(10)) == 1

        await bench.queues.postpone(RUN, {again: NOW})
        assert len(await bench.receive(10)) == 1, "what must not wait does not"

    lapse(story())


def test_a_retry_that_is_due_soon_needs_no_call() -> None:
    async def story() -> None:
        bench = Bench()
        await bench.given(1)
        [receipt] = await bench.receive(1)
        await asyncio.sleep(5)
        await bench.queues.postpone(RUN, {receipt: timedelta(seconds=2)})
        bench.below.calls.clear()
        await asyncio.sleep(1.9)
        assert await bench.receive(1) == []

        await asyncio.sleep(0.2)
        assert await bench.receive(1) == [receipt]
        await bench.queues.ack(RUN, [receipt])
        await asyncio.sleep(6)

        assert bench.below.of("postpone") == []
        assert bench.below.of("receive") == [1], "of the task that was not due yet"
        assert bench.below.waiting(RUN) == 0

    lapse(story())


def test_a_retry_for_which_its_process_has_no_place_goes_to_others() -> None:
    async def story() -> None:
        bench = Bench()
        await bench.given(1)
        [receipt] = await bench.receive(1)
        await bench.queues.postpone(RUN, {receipt: timedelta(seconds=2)})
        await asyncio.sleep(2 + 1 + 0.3)

        assert await bench.below.receive(RUN, 1)
        assert await bench.receive(1) == []

    lapse(story())


@pytest.mark.parametrize(("age", "delay"), [(1, 3.5), (12, 2)])
def test_a_retry_goes_through_the_queue_if_it_is_not_soon_or_its_message_is_old(
    age: float, delay: float
) -> None:
    async def story() -> None:
        bench = Bench()
        await bench.given(1)
        [receipt] = await bench.receive(1)
        await asyncio.sleep(age)
        await bench.queues.postpone(RUN, {receipt: timedelta(seconds=delay)})
        await asyncio.sleep(delay + 0.1)

        assert bench.below.of("postpone") == [1]
        assert await bench.receive(1) not in ([], [receipt])

    lapse(story())


def test_a_process_that_stops_leaves_its_retries_to_others() -> None:
    async def story() -> None:
        bench = Bench()
        await bench.given(2)
        soon, late = await bench.receive(2)
        await bench.queues.postpone(RUN, {soon: timedelta(seconds=2)})
        await bench.queues.postpone(RUN, {late: timedelta(seconds=20)})

        await bench.queues.flush()

        await asyncio.sleep(2.1)
        assert len(await bench.below.receive(RUN, 10) or ()) == 1
        await asyncio.sleep(18)
        assert len(await bench.below.receive(RUN, 10) or ()) == 1

    lapse(story())


def test_an_ack_replaces_a_delay_that_waits() -> None:
    async def story() -> None:
        bench = Bench()
        await bench.given(1)
        [receipt] = await bench.receive(1)
        await bench.queues.postpone(RUN, {receipt: VISIBILITY})
        await bench.queues.ack(RUN, [receipt])

        await bench.queues.flush()

        assert bench.below.calls == [("receive", 1), ("ack", 1)]

    lapse(story())


def test_a_steady_run_receives_full_batches_and_each_message_once() -> None:
    async def story() -> None:
        bench = Bench()
        await bench.given(200)

        receipts = await bench.take_steadily(60)

        assert len(set(receipts)) == len(receipts) == 120
        assert len(bench.below.of("receive")) <= 16
        assert not bench.below.of("postpone")

    lapse(story())


def test_a_run_that_starts_few_tasks_receives_no_more_than_it_starts() -> None:
    async def story() -> None:
        bench = Bench()
        await bench.given(20)
        for _ in range(5):
            await asyncio.sleep(20)
            await bench.receive(1)
        assert bench.below.of("receive") == [1] * 5

    lapse(story())


def test_what_a_run_does_not_start_goes_back_to_other_processes() -> None:
    async def story() -> None:
        bench, other = Bench(), list[TaskMessage]()
        await bench.given(200)
        taken = await bench.take_steadily(10)

        await asyncio.sleep(16)
        for _ in range(30):
            other += await bench.below.receive(RUN, 10) or []

        assert len(taken) + len(other) == 200

    lapse(story())


def test_what_a_slow_receive_brings_after_a_pause_goes_back_too() -> None:
    async def story() -> None:
        bench, other = Bench(), list[TaskMessage]()
        await bench.given(200)
        taken = await bench.take_steadily(10)
        taken += await bench.receive(len(bench.queues._runs[RUN].kept))
        bench.below.takes = VISIBILITY.total_seconds() / 3
        taken += await bench.receive(1)
        bench.below.takes = 0.0
        assert bench.below.of("receive")[-1] > 1

        await asyncio.sleep(16)
        for _ in range(30):
            other += await bench.below.receive(RUN, 10) or []

        assert len(taken) + len(other) == 200

    lapse(story())


@pytest.mark.parametrize("delay", [0.5, 1, 2.9])
def test_a_kept_retry_starts_early_enough_for_its_first_renewal(delay: float) -> None:
    """With the shortest visibility, and the longest wait for each step."""

    async def story() -> None:
        lease, renewal = 30.0, 10.0
        visibility = visibility_for(timedelta(seconds=lease))
        starts = list[float]()
        for age in range(1, 20):
            below = MemoryQueues(LapseClock(), visibility=visibility, random=Random(1))
            queues = GroupedQueues(below, LapseClock(), visibility=visibility)
            await queues.open(RUN)
            await queues.send(RUN, [(one, NOW) for one in ids_of(new_tasks(RUN, 1))])
            [message] = await queues.receive(RUN, 1) or ()
            await asyncio.sleep(age)
            await queues.postpone(RUN, {message.receipt: timedelta(seconds=delay)})
            await asyncio.sleep(delay + 0.01)
            if [one.receipt for one in await queues.receive(RUN, 1) or ()] == [message.receipt]:
                starts.append(age + delay)
        assert {age + delay for age in range(1, 5)} <= {*starts}
        waits = LATE + TICK + lease / 2 + renewal + visibility.total_seconds() * WAIT
        assert max(starts) + waits < visibility.total_seconds()

    lapse(story())


def test_a_process_that_stops_gives_back_what_it_kept_and_acknowledges() -> None:
    async def story() -> None:
        bench, other = Bench(), list[TaskMessage]()
        await bench.given(100)
        taken = await bench.take_steadily(10)
        await bench.queues.ack(RUN, taken)

        await bench.queues.flush()

        for _ in range(30):
            other += await bench.below.receive(RUN, 10) or []
        assert len(taken) + len(other) == 100
        assert bench.below.waiting(RUN) == len(other)

    lapse(story())


def test_kept_messages_are_used_while_the_queue_is_down() -> None:
    async def story() -> None:
        bench = Bench()
        await bench.given(100)
        await bench.take_steadily(10, each=1)
        kept = len(bench.queues._runs[RUN].kept)
        bench.below.is_down = True

        assert kept
        assert len(await bench.receive(10)) == kept
        with pytest.raises(Unavailable):
            await bench.receive(1)

    lapse(story())


def test_of_a_run_that_ended_nothing_is_kept() -> None:
    async def story() -> None:
        bench = Bench()
        await bench.given(100)
        receipts = await bench.take_steadily(10)
        await bench.queues.ack(RUN, receipts[:5])

        await bench.queues.close(RUN)
        await asyncio.sleep(1)

        assert not bench.queues._runs
        assert sum(bench.below.of("ack")) == 0
        assert await bench.queues.receive(RUN, 1) is None

        await bench.given(1)
        await bench.receive(1)
        await asyncio.sleep(VISIBILITY.total_seconds())
        assert not bench.queues._runs, "nor of one that nobody asks for"

    lapse(story())
