"""Stalled work over a control queue in memory, whose messages end with their process."""

from datetime import timedelta

import pytest

from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.domain.batch import ingest_message
from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.export import begun, completed, export_message
from conveyor.domain.ids import RunId
from conveyor.domain.job import purge_message
from conveyor.steps.sweep.stalled import StalledWork
from conveyor.steps.sweep.sweeper import Sweeper
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import a_batch, a_deletion, a_job, a_run, an_export
from conveyor.testing.memory.blobs import MemoryBlobs
from conveyor.testing.memory.bodies import MemoryBodies
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.tasks import MemoryTasks
from conveyor.testing.memory.work import MemoryWork


class Restarted:
    """Records of an earlier process, and a sweeper with an empty control queue."""

    def __init__(self, *, forgets: bool) -> None:
        self.clock = FakeClock()
        self.metadata = MemoryMetadata(self.clock)
        self.queue = MemoryControlQueue(self.clock)
        rows = Rows(self.clock, timedelta(seconds=30))
        stalled = StalledWork(
            metadata=self.metadata,
            control_queue=self.queue,
            blobs=MemoryBlobs(),
            clock=self.clock,
            is_due=_no,
            check_completion=_no,
            forgets=forgets,
        )
        self.sweeper = Sweeper(
            metadata=self.metadata,
            tasks=MemoryTasks(rows),
            work=MemoryWork(rows),
            bodies=MemoryBodies(),
            clock=self.clock,
            checks=stalled.checks(),
            count=lambda _action, _times: None,
            cleared=lambda _kind, _times: None,
        )

    async def is_live(self, *messages: ControlMessage) -> list[bool]:
        return [await self.queue.is_live(one.kind, one.subject) for one in messages]


async def _no(_run_id: RunId) -> bool:
    return False


@pytest.mark.parametrize("forgets", [True, False])
async def test_a_queue_that_forgets_gets_all_messages_again_in_the_second_round(
    forgets: bool,
) -> None:
    scene = Restarted(forgets=forgets)
    batch, deletion, export = a_batch(), a_deletion(), begun(an_export())
    await scene.metadata.commit(a_job(), a_run(), batch, deletion, export)
    messages = (ingest_message(batch, None), purge_message(deletion, None), export_message(export))

    await scene.sweeper.step()
    assert await scene.is_live(*messages) == [False] * 3
    await scene.sweeper.step()

    assert await scene.is_live(*messages) == [forgets] * 3


async def test_a_start_sends_all_messages_at_once() -> None:
    scene = Restarted(forgets=True)
    export, ended = begun(an_export()), completed(begun(an_export(id="01J9EXPORTENDED")), 3)
    await scene.metadata.commit(a_job(), a_run(), a_batch(), export, ended)

    await scene.sweeper.at_start(())

    messages = (ingest_message(a_batch(), None), export_message(export), export_message(ended))
    assert await scene.is_live(*messages) == [True, True, False]
