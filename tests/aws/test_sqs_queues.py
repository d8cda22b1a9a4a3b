"""Run queues on emulators of SQS, plainly and behind a proxy that makes the faults of the real one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count

import pytest

from conveyor.adapters.aws.client import SQS
from conveyor.adapters.aws.sqs.address import SqsAddress
from conveyor.adapters.aws.sqs.calls import SqsCalls
from conveyor.adapters.aws.sqs.queues import NEW_FOR, SqsQueues, open_queues
from conveyor.adapters.aws.sqs.setup import set_up_queues
from conveyor.domain.ids import RunId, TaskId
from conveyor.errors import Unavailable
from conveyor.ports.queues import Queues
from conveyor.testing.clock import FakeClock
from conveyor.testing.contracts.queues import QueueBench, QueuesContract
from conveyor.testing.factories import RUN, ids_of, new_tasks
from conveyor.testing.sqs.proxy import SqsFaults, SqsProxy, sqs_proxy
from tests.emulators import Emulator
from tests.harness.aws_server import Answer, client_of, refusal, scripted_service
from tests.seed import sampled

VISIBILITY = timedelta(seconds=60)
NOW = timedelta()
NUMBERS = count(1)
FAULTS = SqsFaults(
    lost_before=0.03,
    lost_after=0.05,
    throttled=0.03,
    failed=0.1,
    empty=0.1,
    late=0.1,
    doubled=0.1,
    undead=0.1,
)


def an_address() -> SqsAddress:
    """Of a prefix that no other test has."""
    return SqsAddress(prefix=f"test-{next(NUMBERS)}")


@asynccontextmanager
async def queues_at(
    url: str, address: SqsAddress, clock: FakeClock, *, close_after: timedelta = NOW
) -> AsyncIterator[SqsQueues]:
    async with client_of(url, service=SQS) as client:
        calls = SqsCalls(client)
        await set_up_queues(calls, address, None)
        yield SqsQueues(calls, address, clock, visibility=VISIBILITY, close_after=close_after)


@asynccontextmanager
async def bench_at(emulator: Emulator, url: str, *, calm: bool = True) -> AsyncIterator[QueueBench]:
    async def wait(by: timedelta) -> None:
        emulator.pass_time(by)

    clock = FakeClock()
    async with queues_at(url, an_address(), clock) as queues:
        yield QueueBench(
            queues=queues, clock=clock, visibility=VISIBILITY, calm=calm, counts=calm, wait=wait
        )


class TestQueuesOnMinistack(QueuesContract):
    @pytest.fixture
    async def bench(self, ministack: Emulator) -> AsyncIterator[QueueBench]:
        async with bench_at(ministack, ministack.url) as bench:
            yield bench


@pytest.mark.long
class TestQueuesOnMoto(QueuesContract):
    @pytest.fixture
    async def bench(self, moto: Emulator) -> AsyncIterator[QueueBench]:
        async with bench_at(moto, moto.url) as bench:
            yield bench


@pytest.mark.long
class TestQueuesOnFauxqs(QueuesContract):
    @pytest.fixture
    async def bench(self, fauxqs: Emulator) -> AsyncIterator[QueueBench]:
        async with bench_at(fauxqs, fauxqs.url) as bench:
            yield bench


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
class TestQueuesWithFaults(QueuesContract):
    @pytest.fixture
    async def bench(self, ministack: Emulator, seed: int) -> AsyncIterator[QueueBench]:
        FAULTS.seed = seed
        async with (
            sqs_proxy(ministack.url, FAULTS) as proxy,
            bench_at(ministack, proxy.url, calm=False) as bench,
        ):
            yield bench


@pytest.fixture
async def proxy(ministack: Emulator) -> AsyncIterator[SqsProxy]:
    async with sqs_proxy(ministack.url) as opened:
        yield opened


@pytest.fixture
async def queues(proxy: SqsProxy) -> AsyncIterator[SqsQueues]:
    async with queues_at(proxy.url, an_address(), FakeClock()) as opened:
        yield opened


def entries(tasks: int) -> list[tuple[TaskId, timedelta]]:
    return [(task_id, NOW) for task_id in ids_of(new_tasks(RUN, tasks))]


async def received(queues: Queues) -> list[TaskId]:
    found = list[TaskId]()
    for _ in range(20):
        found += [message.task_id for message in await queues.receive(RUN, 10) or []]
    return found


async def test_messages_share_requests_of_ten(queues: SqsQueues, proxy: SqsProxy) -> None:
    await queues.open(RUN)
    await queues.send(RUN, entries(95))
    receipts = [
        message.receipt for _ in range(10) for message in await queues.receive(RUN, 10) or []
    ]
    await queues.postpone(RUN, dict.fromkeys(receipts, VISIBILITY))
    await queues.ack(RUN, receipts)

    assert len(receipts) == 95
    batches = ("SendMessageBatch", "ChangeMessageVisibilityBatch", "DeleteMessageBatch")
    assert [proxy.requests[name] for name in batches] == [10, 10, 10]


@pytest.mark.parametrize("fault", sampled(["failed", "lost_after", "throttled"], 1, of="faults"))
async def test_no_message_is_lost_by_a_fault(
    queues: SqsQueues, proxy: SqsProxy, fault: str
) -> None:
    setattr(proxy.faults, fault, 0.3)
    await queues.open(RUN)

    await queues.send(RUN, entries(95))

    assert proxy.made[fault] > 0
    assert set(await received(queues)) == {task_id for task_id, _ in entries(95)}


async def test_what_is_received_and_lost_on_the_way_comes_back(
    queues: SqsQueues, proxy: SqsProxy, ministack: Emulator
) -> None:
    await queues.open(RUN)
    await queues.send(RUN, entries(10))
    proxy.faults.lost_receives = 1.0
    seen = list[TaskId]()

    async def receive() -> None:
        seen.extend(message.task_id for message in await queues.receive(RUN, 5) or [])

    receiving = asyncio.create_task(receive())
    while not proxy.made["lost_receives"]:  # noqa: ASYNC110 - a proxy has no event
        await asyncio.sleep(0.01)
    proxy.faults.lost_receives = 0.0
    await receiving
    assert len(seen) < 10, "some are hidden, and nobody has them"

    ministack.pass_time(VISIBILITY)

    assert set(seen) | set(await received(queues)) == {task_id for task_id, _ in entries(10)}


async def test_faults_of_sqs_that_last_are_reported(
    queues: SqsQueues, proxy: SqsProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conveyor.adapters.aws.sqs.calls.DEADLINE", timedelta(milliseconds=100))
    await queues.open(RUN)
    proxy.faults.failed = 1.0
    with pytest.raises(Unavailable, match="SendMessageBatch: InternalError"):
        await queues.send(RUN, entries(1))


async def test_an_existing_queue_keeps_its_attributes(
    ministack: Emulator, queues: SqsQueues
) -> None:
    """A process with another lease, or of another release, finds queues with other attributes."""
    client = ministack.client("sqs")
    name = queues._name(RUN)
    client.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "7"})

    await queues.open(RUN)
    await queues.send(RUN, entries(1))
    [message] = await queues.receive(RUN, 1) or []
    ministack.pass_time(VISIBILITY / 2)

    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    kept = client.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
    assert kept["Attributes"] == {"VisibilityTimeout": "7"}
    assert await received(queues) == [], "it is hidden for as long as this process asks for"
    await queues.ack(RUN, [message.receipt])


async def test_a_queue_gives_messages_up_after_a_thousand_receives(
    ministack: Emulator, queues: SqsQueues
) -> None:
    await queues.open(RUN)
    client = ministack.client("sqs")
    url = client.get_queue_url(QueueName=queues._name(RUN))["QueueUrl"]
    attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]

    assert '"maxReceiveCount": "1000"' in attributes["RedrivePolicy"]
    assert attributes["MessageRetentionPeriod"] == str(14 * 24 * 3600)
    assert attributes["VisibilityTimeout"] == "60"


async def test_without_the_queue_of_dead_messages_it_says_what_to_run(ministack: Emulator) -> None:
    async with client_of(ministack.url, service=SQS) as client:
        queues = SqsQueues(SqsCalls(client), an_address(), FakeClock(), visibility=VISIBILITY)
        with pytest.raises(Unavailable, match="run `conveyor migrate`"):
            await queues.open(RUN)


async def test_a_closed_queue_is_deleted_after_some_minutes(ministack: Emulator) -> None:
    address, wait = an_address(), timedelta(milliseconds=50)
    async with client_of(ministack.url, service=SQS) as client:
        calls = SqsCalls(client)
        await set_up_queues(calls, address, None)
        async with open_queues(calls, address, FakeClock(), visibility=VISIBILITY) as queues:
            queues._close_after = wait.total_seconds()
            await queues.open(RUN)
            await queues.send(RUN, entries(1))

            await queues.close(RUN)

            assert await queues.receive(RUN, 10) is None, "it is closed to this process at once"
            assert list(await queues.opened(limit=9)) == [RUN]
            async with asyncio.timeout(30):
                while await queues.opened(limit=9):  # noqa: ASYNC110 - a queue has no event
                    await asyncio.sleep(0.02)


async def test_a_new_queue_that_sqs_does_not_know_yet_is_waited_for() -> None:
    missing = refusal("QueueDoesNotExist")
    async with scripted_service() as service, client_of(service.url, service=SQS) as client:
        clock = FakeClock()
        queues = SqsQueues(SqsCalls(client), an_address(), clock, visibility=VISIBILITY)
        queues._redrive = "{}"
        service.script(
            Answer({"QueueUrl": "http://host/1/name"}),
            missing,  # the receive
            missing,  # the send
            Answer({"QueueUrl": "http://host/1/name"}),
            Answer({"Successful": [{"Id": "0"}]}),
            missing,
        )
        await queues.open(RUN)

        assert await queues.receive(RUN, 10) == [], "it is not gone"
        queues._urls[RUN] = "http://host/1/name"
        await queues.send(RUN, entries(1))

        assert [target for target, _ in service.calls][-1] == "AmazonSQS.SendMessageBatch"
        clock.advance(timedelta(seconds=NEW_FOR))
        assert await queues.receive(RUN, 10) is None


@pytest.mark.parametrize("error", ["QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"])
async def test_a_missing_queue_is_known_by_both_names_of_the_error(error: str) -> None:
    async with scripted_service() as service, client_of(service.url, service=SQS) as client:
        queues = SqsQueues(SqsCalls(client), an_address(), FakeClock(), visibility=VISIBILITY)
        service.script(refusal(error))
        assert await queues.receive(RUN, 10) is None
        await queues.ack(RUN, ["receipt"])
        await queues.postpone(RUN, {"receipt": NOW})


async def test_too_many_messages_in_flight_are_no_error() -> None:
    async with scripted_service() as service, client_of(service.url, service=SQS) as client:
        queues = SqsQueues(SqsCalls(client), an_address(), FakeClock(), visibility=VISIBILITY)
        service.script(Answer({"QueueUrl": "http://host/1/name"}), refusal("OverLimit"))
        assert await queues.receive(RUN, 10) == []


async def test_a_page_of_queues_is_continued_without_another_listing(
    queues: SqsQueues, proxy: SqsProxy
) -> None:
    runs = [RunId(f"{n:026}") for n in range(3)]
    for run_id in runs:
        await queues.open(run_id)
    listings = proxy.requests["ListQueues"]

    first = await queues.opened(limit=2)
    rest = await queues.opened(limit=2, after=first[-1])

    assert [*first, *rest] == runs
    assert proxy.requests["ListQueues"] == listings + 1
