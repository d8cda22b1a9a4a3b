"""Add tasks to an open job.

The tasks are stored as a list. Then one transaction promises their rows: index range, total, batch
and idempotency record. Then the rows are written. A crash in between leaves a batch, which the
control worker finishes.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import structlog

from conveyor.domain import job as job_rules
from conveyor.domain import run as run_rules
from conveyor.domain.batch import Batch, ingest_message, lines, list_key
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import Job, JobStatus
from conveyor.domain.params import load
from conveyor.domain.run import IngestStatus, Run
from conveyor.domain.submission import Limits
from conveyor.domain.task import TaskSpec
from conveyor.domain.task_bodies import read_addition
from conveyor.errors import (
    CallerFault,
    JobNotOpen,
    KeyTaken,
    LastBatchReceived,
    QuotaExceeded,
    RunNotTerminal,
    Stale,
    StorageFull,
    Unavailable,
)
from conveyor.ports.blobs import Blobs, as_stream
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.metadata import Metadata
from conveyor.steps.shared.gateway_key_check import CheckJobKey, any_job_key
from conveyor.steps.shared.idempotency import Answer, Call, Idempotency
from conveyor.steps.shared.loop_slices import LoopSlices
from conveyor.steps.shared.notifier import Notifier
from conveyor.steps.shared.ownership import latest_run, own_job
from conveyor.steps.shared.quotas import CheckQuota, QuotaDemand, unlimited

log = structlog.get_logger()

RenderAdded = Callable[[Job, Run, int], Awaitable[bytes]]


class StagedAddition(msgspec.Struct, frozen=True, kw_only=True):
    """Checked tasks, and where their list is stored."""

    specs: list[TaskSpec]
    last_batch: bool
    blob: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTasks:
    metadata: Metadata
    blobs: Blobs
    control_queue: ControlQueue
    idempotency: Idempotency
    clock: Clock
    ids: Ids
    limits: Limits
    slices: LoopSlices
    notifier: Notifier
    ingest: Callable[[RunId, int], Awaitable[Batch | None]]  # the batch of a run at an index
    check_quota: CheckQuota = unlimited
    check_job_key: CheckJobKey = any_job_key

    async def add(self, call: Call, job_id: JobId, render: RenderAdded) -> Answer:
        """Add tasks to an open job's run, and close it with `last_batch`."""
        with self.idempotency.claiming(call):
            if known := await self.idempotency.find(call):
                return known
            try:
                job, run = await self._open_job(call, job_id)
            except CallerFault as refusal:
                return await self.idempotency.unless_answered(call, refusal)
            addition = await self._checked(call, job, run.id)
            await self.check_quota(QuotaDemand(caller=call.caller, tasks=len(addition.specs)))
            await self.blobs.put(addition.blob, as_stream(lines(addition.specs)))
            try:
                answer, batch = await self._promise(call, job_id, addition, render)
            except KeyTaken:
                await self._abandon(addition)
                return await self.idempotency.won_by_another(call)
            except CallerFault as refusal:
                await self._abandon(addition)
                return await self.idempotency.unless_answered(call, refusal)
            except StorageFull:
                await self._abandon(addition)
                raise
            ids = {"job_id": batch.job_id, "run_id": batch.run_id}
            log.info("tasks.added", first=batch.first, tasks=batch.count, **ids)
            await self._write_rows(batch, call.caller)
            return answer

    async def _abandon(self, addition: StagedAddition) -> None:
        """Remove a list that nothing refers to. After `Unavailable` that is not certain: the sweeper decides."""
        try:
            await self.blobs.delete([addition.blob])
        except Unavailable:
            return

    async def _write_rows(self, batch: Batch, caller: CallerId) -> None:
        """Write the promised rows, or send a message for them if the engine is unavailable."""
        try:
            await self.ingest(batch.run_id, batch.first)
        except Unavailable:
            with suppress(Unavailable):  # then the sweeper finds the batch
                await self.control_queue.send(ingest_message(batch, caller))
                self.notifier.message_sent()

    async def _checked(self, call: Call, job: Job, run_id: RunId) -> StagedAddition:
        given = await self.slices.run(read_addition(call.raw, load(job.params), self.limits))
        return StagedAddition(
            specs=given.specs,
            last_batch=bool(given.body.last_batch),
            blob=list_key(job.id, run_id, self.ids.new()),
        )

    async def _promise(
        self, call: Call, job_id: JobId, addition: StagedAddition, render: RenderAdded
    ) -> tuple[Answer, Batch]:
        """Promise the rows; start over when job or run changed meanwhile."""
        while True:
            job, run = await self._open_job(call, job_id)
            self._check_room(run, addition)
            batch = self._new_batch(run, addition)
            changed = self._grown(job, run, addition)
            answer = Answer(200, await render(*changed, len(addition.specs)))
            kept = changed if addition.last_batch else changed[1:]
            try:
                await self.metadata.commit(*kept, batch, *self.idempotency.claim(call, answer))
            except Stale:
                continue
            return answer, batch

    async def _open_job(self, call: Call, job_id: JobId) -> tuple[Job, Run]:
        """The job and its run, if they take more tasks."""
        job = await own_job(self.metadata, call.caller, job_id)
        await self.check_job_key(job)
        run = await latest_run(self.metadata, job)
        if run and run.last_batch_received:  # the job may have been closed between the two reads
            job = await own_job(self.metadata, call.caller, job_id)
        if job.last_batch:
            raise LastBatchReceived("The last batch of this job has been received")
        if job.status is not JobStatus.OPEN or run is None or not run.is_live:
            raise JobNotOpen("The job must be open, and is not: submit a new one")
        if run.ingest_status is IngestStatus.PENDING:
            raise RunNotTerminal("The first tasks are still being ingested: try again later")
        return job, run

    def _check_room(self, run: Run, addition: StagedAddition) -> None:
        if run.total + len(addition.specs) > self.limits.open_job_tasks:
            most = self.limits.open_job_tasks
            raise QuotaExceeded(
                f"An open job must have at most {most} tasks, and this one has {run.total}"
            )

    def _new_batch(self, run: Run, addition: StagedAddition) -> Batch:
        return Batch(
            run_id=run.id,
            job_id=run.job_id,
            first=run.next_index,
            count=len(addition.specs),
            blob=addition.blob,
            created_at=self.clock.now(),
        )

    def _grown(self, job: Job, run: Run, addition: StagedAddition) -> tuple[Job, Run]:
        now = self.clock.now()
        grown = run_rules.grow(run, len(addition.specs), now)
        if not addition.last_batch:
            return job, grown
        closed = msgspec.structs.replace(job_rules.close(job, now), last_batch=True)
        return closed, run_rules.latch(grown, now)
