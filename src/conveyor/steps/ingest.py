"""Ingest: the control worker's side of batches. It writes them in turns, and gives up hopeless ones."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from conveyor.domain import run as life
from conveyor.domain.batch import Batch
from conveyor.domain.ids import RunId
from conveyor.domain.outbox import events_at_end
from conveyor.domain.run import Run
from conveyor.errors import Stale
from conveyor.ports.blobs import Blobs
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.metadata import Metadata
from conveyor.steps.shared.batch_writer import BatchEnding, BatchWriter
from conveyor.steps.shared.turn import ENDLESS, Turn

FIRST_STORED = 1
LIST_GIVEN_UP = "Reading the list was given up; run the job again to read all of it"
LIST_GONE = "The list is no longer in storage; submit it again"
COPY_GIVEN_UP = "Copying the earlier run was given up; run the job again to copy all of it"
ADDED_GIVEN_UP = "Adding tasks was given up; submit the missing ones as a new job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    metadata: Metadata
    blobs: Blobs
    clock: Clock
    ids: Ids
    wake_sender: Callable[[], None]  # events were put in the outbox
    writer: BatchWriter

    async def run(self, run_id: RunId, first: int, turn: Turn = ENDLESS) -> Batch | None:
        """Finish a batch; when the turn is over before that, return it as far as it has come."""
        return await self.writer.ingest(run_id, first, turn)

    async def standing(self, run_id: RunId, first: int, version: int) -> tuple[bool, Batch | None]:
        """Whether a batch is finished; and the batch, if it has progressed since `version`."""
        batch = await self.metadata.get(Batch, (run_id, first))
        was = max(version, FIRST_STORED)  # its first message was sent before it was stored
        return batch is None, batch if batch and batch.version > was else None

    async def abandon(self, run_id: RunId, first: int) -> None:
        """Give up a batch that cannot be finished: its run is stopped with the rows it has."""
        batch = await self.metadata.get(Batch, (run_id, first))
        if batch is None:
            return
        why = await self._why_given_up(batch)
        while (run := await self.metadata.get(Run, run_id)) and run.is_live:
            stopped = life.explained(life.stop(run, self.clock.now()), why, is_cut=True)
            events = events_at_end(stopped, self.ids.new)
            with suppress(Stale):
                await self.metadata.commit(stopped, *events)
                if events:
                    self.wake_sender()
        while batch := await self.metadata.get(Batch, (run_id, first)):
            with suppress(Stale):
                await self.writer.finish(BatchEnding(batch, is_cut=True, why=why))
        await self.writer.close_work(run_id)

    async def _why_given_up(self, batch: Batch) -> str:
        if batch.source_run_id:
            return COPY_GIVEN_UP
        key = batch.source_list.blob if batch.source_list else batch.blob or ""
        if await self.blobs.length(key) is None:
            return LIST_GONE
        return (
            LIST_GIVEN_UP
            if batch.source_list or await self.writer.is_kept(batch)
            else ADDED_GIVEN_UP
        )
