"""What every message queue must do. It may deliver twice, deliver late and return nothing."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from conveyor.domain.ids import RunId, TaskId
from conveyor.ports.queues import TASK_MESSAGE_VERSION, Queues, TaskMessage
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import OTHER_RUN, RUN, ids_of, new_tasks

TRIES = 100
# Receives that find nothing before a queue counts as empty: a queue with bad habits may say so in vain.
EMPTY_CALM, EMPTY = 3, 40
SECOND = timedelta(seconds=1)
NOW = timedelta()  # a delay of none


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBench:
    """Queues with their clock and how long they hide what was received."""

    queues: Queues
    clock: FakeClock
    visibility: timedelta
    calm: bool  # delivers once as long as nothing goes wrong: a real queue promises less
    counts: bool = True  # it tells each receive of a message, also after answers that were lost
    # Waits by the clock of a queue that has one of its own; None: the fake clock is its clock.
    wait: Callable[[timedelta], Awaitable[None]] | None = None

    async def pass_time(self, by: timedelta) -> None:
        self.clock.advance(by)
        if self.wait:
            await self.wait(by)


class QueuesContract:
    """An engine passes by providing a `bench` fixture."""

    async def test_what_is_sent_arrives(self, bench: QueueBench) -> None:
        sent = await _given_messages(bench, 25)
        assert {message.task_id for message in await _receive_all(bench)} == set(sent)

    async def test_a_receive_gives_no_more_than_asked_for(self, bench: QueueBench) -> None:
        await _given_messages(bench, 25)
        for limit in (1, 3, 10):
            assert len(await bench.queues.receive(RUN, limit) or []) <= limit

    async def test_an_empty_queue_is_not_a_queue_that_is_gone(self, bench: QueueBench) -> None:
        await bench.queues.open(RUN)
        assert await bench.queues.receive(RUN, 10) is not None

        await bench.queues.close(RUN)
        assert await bench.queues.receive(RUN, 10) is None

    async def test_a_queue_that_never_was_is_gone(self, bench: QueueBench) -> None:
        assert await bench.queues.receive(RUN, 10) is None

    async def test_opening_again_keeps_what_is_in_it(self, bench: QueueBench) -> None:
        sent = await _given_messages(bench, 3)
        await bench.queues.open(RUN)
        assert {message.task_id for message in await _receive_all(bench)} == set(sent)

    async def test_closing_drops_what_is_in_it(self, bench: QueueBench) -> None:
        await _given_messages(bench, 3)
        await bench.queues.close(RUN)
        await bench.queues.close(RUN)
        assert await _receive_all(bench) == []

    async def test_queues_are_listed_in_order_until_they_are_closed(
        self, bench: QueueBench
    ) -> None:
        runs = [RunId(f"{n:026}") for n in (3, 1, 2)]
        for run_id in runs:
            await bench.queues.open(run_id)
        assert list(await bench.queues.opened(limit=2)) == sorted(runs)[:2]
        assert list(await bench.queues.opened(limit=9, after=runs[1])) == [runs[2], runs[0]]

        await bench.queues.close(runs[0])

        assert list(await bench.queues.opened(limit=9)) == sorted(runs)[:2]

    async def test_each_message_has_a_delay_of_its_own(self, bench: QueueBench) -> None:
        await bench.queues.open(RUN)
        early, late = _names(2)
        await bench.queues.send(RUN, [(early, SECOND), (late, 5 * SECOND)])
        await bench.pass_time(2 * SECOND)
        received = await _receive_all(bench)
        assert {message.task_id for message in received} == {early}
        await bench.queues.postpone(RUN, {received[-1].receipt: 5 * SECOND})

        await bench.pass_time(4 * SECOND)

        assert {message.task_id for message in await _receive_all(bench)} == {late} or (
            not bench.calm
        )

    async def test_a_message_carries_its_stamp_and_its_version(self, bench: QueueBench) -> None:
        await _given_messages(bench, 2)
        assert {(each.stamp, each.v) for each in await _receive_all(bench)} == {
            ("job/1", TASK_MESSAGE_VERSION)
        }

    async def test_runs_do_not_share_a_queue(self, bench: QueueBench) -> None:
        await _given_messages(bench, 3)
        await bench.queues.open(OTHER_RUN)
        assert await _receive_all(bench, OTHER_RUN) == []

    async def test_a_delayed_message_is_not_seen_before_its_time(self, bench: QueueBench) -> None:
        await bench.queues.open(RUN)
        [task_id] = _names(1)
        await bench.queues.send(RUN, [(task_id, 5 * SECOND)])

        await bench.pass_time(4 * SECOND)
        assert await _receive_all(bench) == []

        await bench.pass_time(2 * SECOND)
        assert {message.task_id for message in await _receive_all(bench)} == {task_id}

    async def test_a_received_message_is_hidden_and_comes_back(self, bench: QueueBench) -> None:
        [task_id] = await _given_messages(bench, 1)
        received = await _receive_all(bench)
        assert len(received) == 1 or not bench.calm

        await bench.pass_time(bench.visibility)

        assert {message.task_id for message in await _receive_all(bench)} == {task_id}

    async def test_each_delivery_has_a_receipt_of_its_own(self, bench: QueueBench) -> None:
        await _given_messages(bench, 5)
        received = await _receive_all(bench)
        await bench.pass_time(bench.visibility)
        received += await _receive_all(bench)

        assert len({message.receipt for message in received}) == len(received)

    async def test_each_delivery_tells_how_often_its_message_was_received(
        self, bench: QueueBench
    ) -> None:
        await _given_messages(bench, 1)
        counts = [message.receives for message in await _receive_all(bench)]
        await bench.pass_time(bench.visibility)
        counts += [message.receives for message in await _receive_all(bench)]

        assert len(counts) >= 2
        assert counts == list(range(1, len(counts) + 1)) or not bench.counts

    async def test_a_message_that_is_put_off_again_and_again_is_not_given_up(
        self, bench: QueueBench
    ) -> None:
        [task_id] = await _given_messages(bench, 1)
        for _ in range(TRIES):
            received = await bench.queues.receive(RUN, 10) or []
            await bench.queues.postpone(RUN, {message.receipt: NOW for message in received})

        assert {message.task_id for message in await _receive_all(bench)} == {task_id}

    async def test_another_message_of_a_task_begins_to_count_anew(self, bench: QueueBench) -> None:
        await _given_messages(bench, 1)
        await _receive_all(bench)
        await _given_messages(bench, 1)

        assert (await _receive_all(bench))[0].receives == 1 or not bench.calm

    async def test_an_acked_message_is_gone_in_the_end(self, bench: QueueBench) -> None:
        await _given_messages(bench, 5)
        for _ in range(TRIES):
            if not (received := await _receive_all(bench)):
                break
            await bench.queues.ack(RUN, [each.receipt for each in received])
            await bench.pass_time(bench.visibility)

        assert await _receive_all(bench) == []

    async def test_a_postponed_message_is_hidden_for_the_delay(self, bench: QueueBench) -> None:
        await _given_messages(bench, 1)
        *_, newest = await _receive_all(bench)
        await bench.queues.postpone(RUN, {newest.receipt: 2 * bench.visibility})

        await bench.pass_time(2 * bench.visibility - SECOND)
        assert await _receive_all(bench) == [] or not bench.calm

        await bench.pass_time(2 * SECOND)
        assert len(await _receive_all(bench)) == 1 or not bench.calm

    async def test_a_message_may_be_put_back_at_once(self, bench: QueueBench) -> None:
        [task_id] = await _given_messages(bench, 1)
        *_, newest = await _receive_all(bench)
        await bench.queues.postpone(RUN, {newest.receipt: NOW})

        assert [message.task_id for message in await _receive_all(bench)][:1] == [task_id]

    async def test_a_queue_that_is_gone_takes_everything_and_keeps_nothing(
        self, bench: QueueBench
    ) -> None:
        [task_id] = await _given_messages(bench, 1)
        receipts = [message.receipt for message in await _receive_all(bench)]
        await bench.queues.close(RUN)

        await bench.queues.send(RUN, [(task_id, NOW)])
        await bench.queues.postpone(RUN, dict.fromkeys(receipts, SECOND))
        await bench.queues.ack(RUN, receipts)

        assert await bench.queues.receive(RUN, 10) is None


def _names(n: int) -> list[TaskId]:
    return ids_of(new_tasks(RUN, n))


async def _given_messages(bench: QueueBench, n: int) -> list[TaskId]:
    names = _names(n)
    await bench.queues.open(RUN)
    await bench.queues.send(RUN, [(name, NOW) for name in names], stamp="job/1")
    return names


async def _receive_all(bench: QueueBench, run_id: RunId = RUN) -> list[TaskMessage]:
    """All that can be received now, some of it perhaps more than once."""
    received, empty = list[TaskMessage](), 0
    for _ in range(TRIES):
        found = await bench.queues.receive(run_id, 10) or []
        received += found
        empty = 0 if found else empty + 1
        if empty == (EMPTY_CALM if bench.calm else EMPTY):
            break
    return received
