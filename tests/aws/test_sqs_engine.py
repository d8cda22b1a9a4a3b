"""The engine `sqs:` as the settings choose it: created by `conveyor migrate`, opened and used."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.app.rows import CONTROL_QUEUE, QUEUES
from conveyor.app.schemes import Opening
from conveyor.domain.batch import INGEST
from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.ids import TaskId
from conveyor.settings import Settings
from conveyor.testing.factories import RUN
from tests.emulators import Emulator

ADDRESS = "//engine-test"
SETTINGS = Settings(lease=timedelta(seconds=30))
BOTH = ("control_queue", "queues")


@pytest.fixture(autouse=True)
def environ(ministack: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ministack.environ.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
async def opening() -> AsyncIterator[Opening]:
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        yield Opening(
            settings=SETTINGS, stack=stack, clock=clock, ids=SystemIds(clock), incarnation="one"
        )


async def test_migrate_creates_what_is_missing_and_may_be_repeated() -> None:
    migrate = QUEUES["sqs"].migrate
    assert migrate is not None

    alone = await migrate(SETTINGS, ADDRESS, ["queues"])
    both = await migrate(SETTINGS, ADDRESS, BOTH)
    again = await migrate(SETTINGS, ADDRESS, BOTH)

    names = ["control-ingest", "control-purge", "control-export", "control-other"]
    queues = [f"queue engine-test-{name}" for name in names]
    assert list(alone) == ["created the queue engine-test-dead"]
    assert list(both) == [
        "the queue engine-test-dead exists",
        *(f"created the {queue}" for queue in queues),
        "created the table engine-test-control",
    ]
    assert list(again) == [
        "the queue engine-test-dead exists",
        *(f"the {queue} exists" for queue in queues),
        "the table engine-test-control exists",
    ]


async def test_messages_travel_through_opened_engines(opening: Opening) -> None:
    migrate = CONTROL_QUEUE["sqs"].migrate
    assert migrate is not None
    await migrate(SETTINGS, ADDRESS, BOTH)
    queues, visibility, is_billed = await QUEUES["sqs"].open(opening, ADDRESS)
    control_queue = await CONTROL_QUEUE["sqs"].open(opening, ADDRESS)
    assert (visibility, is_billed) == (SETTINGS.lease + timedelta(seconds=10), True)

    await queues.open(RUN)
    await queues.send(RUN, [(TaskId("a task"), timedelta())], stamp="job/1")
    message = ControlMessage(kind=INGEST, subject="a batch", payload={"run": "1"})
    await control_queue.send(message)

    [received] = await queues.receive(RUN, 10) or []
    assert (received.task_id, received.stamp) == ("a task", "job/1")
    while not (found := await control_queue.receive(1, lease=SETTINGS.lease)):
        pass
    assert found[0].payload == {"run": "1"}
    await control_queue.ack(found[0])
