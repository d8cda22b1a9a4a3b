"""Accept: from a caller's submission to a stored job with its rows, or its list, on record.

The order is what makes it safe. Rows (or the staged list) come first: without a run nobody sees
them. Then one transaction stores job, run and the answer for a repeated call: that is the moment
the submission exists. Whoever dies before it leaves rows that the sweeper clears; whoever dies
after it leaves a whole job.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from conveyor.domain.batch import Batch, ingest_duty, lines, list_key
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.job import Job, JobStatus
from conveyor.domain.params import dump, result_format
from conveyor.domain.run import IngestStatus, Run
from conveyor.domain.submission import (
    Limits,
    Submission,
    accept_tasks,
    job_params,
    parse_submission,
)
from conveyor.domain.task import TaskSpec
from conveyor.errors import ConveyorError, KeyTaken, Unavailable
from conveyor.ports.blobs import Blobs, as_stream
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.duties import Duties
from conveyor.ports.metadata import Metadata
from conveyor.ports.sealing import Sealing
from conveyor.ports.tasks import Tasks, new_tasks
from conveyor.ports.work import Work
from conveyor.steps.idempotency import Answer, Call, Replays

WORTH_A_THREAD = 64 * 1024  # bytes of body from which decoding would hold up other callers


log = structlog.get_logger()

Render = Callable[[Job, Run, int], bytes]


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A submission that is fit to be stored."""

    job: Job
    run: Run
    specs: list[TaskSpec]
    large: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    metadata: Metadata
    tasks: Tasks
    work: Work
    blobs: Blobs
    duties: Duties
    sealing: Sealing
    replays: Replays
    clock: Clock
    ids: Ids
    limits: Limits
    wake: Callable[[RunId], None]

    async def submit(self, call: Call, render: Render) -> Answer:
        """Store the submission and answer 201, or 202 when its rows will follow."""
        with self.replays.claiming(call):
            if known := await self.replays.find(call):
                return known
            draft = await self._draft(call)
            answer = Answer(
                202 if draft.large else 201, render(draft.job, draft.run, len(draft.specs))
            )
            return await self._store(call, draft, answer)

    async def _draft(self, call: Call) -> Draft:
        if len(call.raw) < WORTH_A_THREAD:
            return self._checked(call)
        return await asyncio.to_thread(self._checked, call)

    def _checked(self, call: Call) -> Draft:
        body = parse_submission(call.raw, call.extensions, self.limits)
        params = job_params(body)
        specs = accept_tasks(body.tasks or [], params)
        large = bool(body.async_) or len(specs) >= self.limits.sync_tasks
        job_id, run_id = JobId(self.ids.new()), RunId(self.ids.new())
        job = self._new_job(call, body, job_id, run_id)
        run = self._new_run(job, run_id, len(specs), large=large)
        return Draft(job=job, run=run, specs=specs, large=large)

    def _new_job(self, call: Call, body: Submission, job_id: JobId, run_id: RunId) -> Job:
        params = job_params(body)
        now = self.clock.now()
        given = {
            name: value
            for name in ("max_inflight", "retries", "result_ttl_days")
            if (value := getattr(body, name)) is not None
        }
        return Job(
            id=job_id,
            caller=call.caller,
            status=body.status or JobStatus.CLOSED,
            format=result_format(params),
            latest_run_id=run_id,
            sealed_key=self.sealing.seal(call.api_key, context=f"{call.caller}|{job_id}"),
            params=dump(params),
            name=body.name,
            external_id=body.external_id,
            metadata=dump(body.metadata or {}),
            created_at=now,
            updated_at=now,
            **given,
        )

    def _new_run(self, job: Job, run_id: RunId, count: int, *, large: bool) -> Run:
        closed = job.status is JobStatus.CLOSED
        return Run(
            id=run_id,
            job_id=job.id,
            caller=job.caller,
            created_at=job.created_at,
            updated_at=job.created_at,
            total=count,
            next_index=count,
            last_batch_received=closed and not large,
            ingest_status=IngestStatus.PENDING if large else None,
        )

    async def _store(self, call: Call, draft: Draft, answer: Answer) -> Answer:
        try:
            batches = await self._stage(draft) if draft.large else await self._write_rows(draft)
            claims = self.replays.claim(call, answer)
            await self.metadata.commit(draft.job, draft.run, *batches, *claims)
        except KeyTaken:
            await self._abandon(draft)
            return await self.replays.won_by_another(call)
        except ConveyorError:
            await self._abandon(draft)
            raise
        count = len(draft.specs)
        log.info("job.accepted", job_id=draft.job.id, run_id=draft.run.id, tasks=count)
        await self._send_duties(batches)
        self.wake(draft.run.id)
        return answer

    async def _send_duties(self, batches: list[Batch]) -> None:
        try:
            for batch in batches:
                await self.duties.send(*ingest_duty(batch))
        except Unavailable:
            return  # the job is on record: the sweeper finds its batch and sends the duty

    async def _write_rows(self, draft: Draft) -> list[Batch]:
        run_id = draft.run.id
        rows = new_tasks(run_id, 0, draft.specs)
        if rows:
            await self.tasks.add(run_id, rows)
            await self.work.offer(run_id, [row.id for row in rows])
        return []

    async def _stage(self, draft: Draft) -> list[Batch]:
        blob = list_key(draft.job.id, draft.run.id, "0")
        batch = Batch(
            run_id=draft.run.id,
            job_id=draft.job.id,
            first=0,
            count=len(draft.specs),
            blob=blob,
            created_at=draft.run.created_at,
        )
        await self.blobs.put(blob, as_stream(lines(draft.specs)))
        return [batch]

    async def _abandon(self, draft: Draft) -> None:
        """Clear what a failed submission wrote; what cannot be cleared now the sweeper finds."""
        try:
            if await self.metadata.run(draft.run.id):
                return  # it took effect, and only the word of it was lost
            if draft.large:
                await self.blobs.delete([list_key(draft.job.id, draft.run.id, "0")])
            else:
                await self.tasks.discard(draft.run.id, limit=self.limits.sync_tasks + 1)
        except ConveyorError:
            return
