from datetime import timedelta
from random import Random

from conveyor.adapters.memory.queues import MemoryQueues
from conveyor.testing.clock import FakeClock
from conveyor.testing.contracts.queues import QueuesContract
from conveyor.testing.factories import RUN, ids_of, new_tasks


class TestQueues(QueuesContract):
    pass


async def test_a_fake_queue_sets_aside_what_was_received_too_often() -> None:
    queues = MemoryQueues(
        FakeClock(), visibility=timedelta(seconds=60), random=Random(1), most_receives=3
    )
    sent = ids_of(new_tasks(RUN, 2))
    await queues.open(RUN)
    await queues.send(RUN, [(task_id, timedelta()) for task_id in sent])
    for _ in range(3):
        received = await queues.receive(RUN, 10)
        assert received is not None
        assert {message.task_id for message in received} == set(sent)
        receipts = [message.receipt for message in received]
        await queues.postpone(RUN, dict.fromkeys(receipts, timedelta()))
    await queues.ack(RUN, [receipts[0]])  # too late: it is visible again

    assert await queues.receive(RUN, 10) == []
    assert set(queues.dead(RUN)) == set(sent)
    assert queues.waiting(RUN) == 0
