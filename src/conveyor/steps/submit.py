"""Submit: store a job, with its rows or with the list they come from.

The rows, or the list, are written first: without a run they are invisible. Then one transaction
stores job, run and the idempotency record: from then on the submission exists. A crash before it
leaves rows that the sweeper removes; a crash after it leaves a complete job.

A scheduled job has no run yet. Its list is kept, whatever its size, for every fire of the schedule.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

import msgspec
import structlog

from conveyor.domain.batch import (
    Batch,
    batch_of,
    ingest_message,
    lines,
    list_key,
    source_list_key,
)
from conveyor.domain.credentials import context
from conveyor.domain.file_input import (
    MOST_JOBS,
    FileInput,
    arrived,
    is_open,
    source_list_of,
    used_by,
)
from conveyor.domain.ids import CallerId, EventId, InputId, JobId, RunId, is_ulid
from conveyor.domain.job import SHARDED_FROM, Job, JobStatus, JobType
from conveyor.domain.json_bodies import field_error
from conveyor.domain.outbox import OutboxEvent, heartbeat_event
from conveyor.domain.params import dump, result_format
from conveyor.domain.run import IngestStatus, Run
from conveyor.domain.schedule import first_fire
from conveyor.domain.step_functions import token_context, unconfigured
from conveyor.domain.submission import (
    Limits,
    OnInvalid,
    Submission,
    checked_params,
    copied_fields,
    job_schedule,
)
from conveyor.domain.task import TaskSpec, new_tasks
from conveyor.domain.task_bodies import read_submission
from conveyor.domain.task_list.decompress import Compression, detect_compression
from conveyor.domain.task_list.reader import ListChunk, ReadEnough, invalid_rows
from conveyor.domain.task_list.rows import RowError
from conveyor.domain.task_list.spec import SourceList
from conveyor.domain.webhook import NewWebhook, Webhook
from conveyor.errors import (
    ConveyorError,
    FileInputNotFound,
    FileInputNotUploaded,
    InvalidArgument,
    KeyTaken,
    Stale,
    Unavailable,
)
from conveyor.ports.blobs import Blobs, as_stream
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks, in_chunks
from conveyor.ports.work import Work
from conveyor.steps.shared.gateway_key_check import CheckGatewayKey, any_key
from conveyor.steps.shared.idempotency import Answer, Call, Idempotency
from conveyor.steps.shared.loop_slices import LoopSlices
from conveyor.steps.shared.notifier import Notifier
from conveyor.steps.shared.quotas import CheckQuota, QuotaDemand, unlimited
from conveyor.steps.shared.row_sources import file_chunks
from conveyor.steps.shared.work_limits import DEFAULT_SIZES, Sizes

log = structlog.get_logger()

RenderSubmitted = Callable[[Job, Run | None, int], bytes]
CheckWebhook = Callable[[CallerId, NewWebhook], Awaitable[Webhook]]  # raises `InvalidArgument`


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A submission that is checked and ready to be stored."""

    job: Job
    run: Run | None  # None for a scheduled job
    specs: list[TaskSpec]
    large: bool  # the control worker writes its rows
    staged: SourceList | None = None  # the list its rows come from, now or at each fire
    file_input: FileInput | None = None  # that holds this list
    heartbeat: OutboxEvent | None = None  # for the state that waits for its run
    ignored: tuple[str, ...] = ()  # fields of the body that are not known here


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    metadata: Metadata
    tasks: Tasks
    work: Work
    blobs: Blobs
    control_queue: ControlQueue
    encryption: KeyRing
    idempotency: Idempotency
    clock: Clock
    ids: Ids
    limits: Limits
    slices: LoopSlices
    check_webhook: CheckWebhook
    notifier: Notifier
    takes_tokens: bool = False  # task tokens of Step Functions
    task_shard_count: int = 1  # of new jobs that are open or large
    sharded_from: int = SHARDED_FROM  # tasks
    check_quota: CheckQuota = unlimited
    check_gateway_key: CheckGatewayKey = any_key
    sizes: Sizes = DEFAULT_SIZES

    async def submit(self, call: Call, render: RenderSubmitted) -> Answer:
        """Store the submission and answer 201, or 202 when its rows are written later."""
        with self.idempotency.claiming(call):
            async with self.encryption.writing():
                while True:
                    if known := await self.idempotency.find(call):
                        return known
                    draft = await self._draft(call)
                    await self.check_quota(_demand(draft))
                    await self.check_gateway_key(call.gateway_key)
                    answer = Answer(
                        202 if draft.large else 201,
                        render(draft.job, draft.run, len(draft.specs)),
                        draft.ignored,
                    )
                    with suppress(Stale):  # another job used the same file input meanwhile
                        return await self._store(call, draft, answer)

    async def _draft(self, call: Call) -> Draft:
        given = await self.slices.run(read_submission(call.raw, call.extensions, self.limits))
        body = given.body
        if body.step_functions and not self.takes_tokens:
            raise unconfigured()
        webhook = await self.check_webhook(call.caller, body.webhook) if body.webhook else None
        specs: list[TaskSpec] | None = given.specs
        file_input, source_list = None, None
        if body.file_input_id is not None:
            file_input = await self._uploaded_file_input(call.caller, InputId(body.file_input_id))
            source_list = await self._source_list(file_input, body)
            specs = await self._small_list(file_input, source_list, body)
            if specs is not None:  # read already: stored like tasks in the body of the call
                file_input, source_list = None, None
        draft = self._new_draft(
            call, body, specs or [], webhook, file_input=file_input, source_list=source_list
        )
        return msgspec.structs.replace(draft, ignored=given.ignored)

    async def _uploaded_file_input(self, caller: CallerId, file_input_id: InputId) -> FileInput:
        """The caller's file input, with its file whole in storage."""
        is_id = is_ulid(file_input_id)  # not every engine can look up any text
        found = await self.metadata.get(FileInput, file_input_id) if is_id else None
        if found is None or found.caller != caller or not is_open(found, self.clock.now()):
            raise FileInputNotFound("There is no such file input: they expire after a day")
        if found.key is None:
            raise FileInputNotUploaded("The file was not uploaded")
        if len(found.jobs) >= MOST_JOBS:
            raise field_error(
                "file_input_id", f"must be used by at most {MOST_JOBS} jobs: upload the file again"
            )
        length = await self.blobs.length(found.key)
        if found.blob is None:
            return arrived(found, length, self.limits.list_bytes)
        if length != found.length or length > self.limits.list_bytes:
            raise FileInputNotUploaded(
                "The file is not as it was uploaded: upload it to a new file input"
            )
        return found

    async def _source_list(self, file_input: FileInput, body: Submission) -> SourceList:
        async with aclosing(self.blobs.read(file_input.blob or "")) as content:
            compressed = detect_compression(await anext(content, b"")) is not Compression.NONE
        return source_list_of(
            file_input, compressed=compressed, strict=body.on_invalid is OnInvalid.FAIL
        )

    async def _small_list(
        self, file_input: FileInput, source_list: SourceList, body: Submission
    ) -> list[TaskSpec] | None:
        """The tasks of a file that is cheap to read; None for one that is read later.

        The beginning of a large file is read too. Most faults that concern a whole list show
        there, such as a missing column, and are refused at once.
        """
        specs, errors = list[TaskSpec](), list[RowError]()
        read = file_chunks(
            self.blobs,
            source_list,
            checked_params(body.zenrows_params, self.limits),
            task_limits=self.limits,
            limits=self.sizes.reader,
            most_bytes=self.sizes.probed_file_bytes,
        )
        with suppress(ReadEnough):
            async with read as chunks:
                async for chunk in chunks:
                    if self._is_large(file_input, body, chunk):
                        return None
                    specs += [spec for _, spec in chunk.tasks]
                    errors += chunk.errors
                return self._whole(specs, errors, body)
        return None

    def _whole(
        self, specs: list[TaskSpec], errors: list[RowError], body: Submission
    ) -> list[TaskSpec] | None:
        if body.on_invalid is OnInvalid.SKIP:
            return None
        if errors:
            raise invalid_rows(errors)
        if not specs:
            raise InvalidArgument(
                "The list must have at least one row", extras={"field": "file_input_id"}
            )
        return specs

    def _is_large(self, file_input: FileInput, body: Submission, chunk: ListChunk) -> bool:
        return (
            body.on_invalid is OnInvalid.SKIP
            or max(file_input.length, chunk.position.offset) > self.sizes.small_file_bytes
            or chunk.position.ordinal >= self.limits.sync_tasks
        )

    def _new_draft(
        self,
        call: Call,
        body: Submission,
        specs: list[TaskSpec],
        webhook: Webhook | None,
        *,
        file_input: FileInput | None = None,
        source_list: SourceList | None = None,
    ) -> Draft:
        large = bool(source_list or body.async_) or len(specs) >= self.limits.sync_tasks
        job_id, run_id = JobId(self.ids.new()), RunId(self.ids.new())
        job = self._new_job(call, body, job_id)
        is_small = source_list is None and len(specs) < self.sharded_from
        if job.status is JobStatus.CLOSED and is_small:
            job = msgspec.structs.replace(job, task_shard_count=1)
        is_kept = job.schedule or (large and job.status is not JobStatus.OPEN)
        if is_kept and source_list is None:
            source_list = SourceList(blob=source_list_key(job_id), count=len(specs))
        job = msgspec.structs.replace(job, source_list=source_list, webhook=webhook)
        if job.schedule:
            return Draft(
                job=job,
                run=None,
                specs=specs,
                large=False,
                staged=source_list,
                file_input=file_input,
            )
        job = msgspec.structs.replace(job, latest_run_id=run_id, runs=1)
        run, heartbeat = self._awaited(self._new_run(job, run_id, len(specs), large=large), body)
        staged = source_list or SourceList(blob=list_key(job_id, run_id, "0"), count=len(specs))
        return Draft(
            job=job,
            run=run,
            specs=specs,
            large=large,
            staged=staged if large else None,
            file_input=file_input,
            heartbeat=heartbeat,
        )

    def _awaited(self, run: Run, body: Submission) -> tuple[Run, OutboxEvent | None]:
        """The run with the token of the state that waits for it, and the heartbeat it asks for."""
        given = body.step_functions
        if given is None:
            return run, None
        encrypted = self.encryption.encrypt(
            given.task_token, context=token_context(run.caller, run.id)
        )
        run = msgspec.structs.replace(run, encrypted_token=encrypted)
        if given.heartbeat_seconds is None:
            return run, None
        return run, heartbeat_event(run, given.heartbeat_seconds, EventId(self.ids.new()))

    def _new_job(self, call: Call, body: Submission, job_id: JobId) -> Job:
        params, schedule = checked_params(body.zenrows_params, self.limits), job_schedule(body)
        now = self.clock.now()
        return Job(
            id=job_id,
            caller=call.caller,
            type=JobType.SCHEDULED if schedule else JobType.REGULAR,
            status=JobStatus(body.status or JobStatus.CLOSED),
            format=result_format(params),
            latest_run_id=None,
            runs=0,
            schedule=schedule,
            next_fire_at=first_fire(schedule, now, within="schedule") if schedule else None,
            api_key_id=call.api_key_id,
            encrypted_gateway_key=self.encryption.encrypt(
                call.gateway_key, context=context(call.caller, job_id)
            ),
            params=dump(params),
            metadata=dump(body.metadata or {}),
            task_shard_count=self.task_shard_count,
            created_at=now,
            updated_at=now,
            **copied_fields(body),
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
            # A large list has no rows yet: the run would be complete at once. Its ingest sets this.
            last_batch_received=closed and not large,
            ingest_status=IngestStatus.PENDING if large else None,
        )

    async def _store(self, call: Call, draft: Draft, answer: Answer) -> Answer:
        try:
            made, batches = await self._prepared(draft)
            claims = self.idempotency.claim(call, answer)
            inputs = [used_by(draft.file_input, draft.job.id)] if draft.file_input else []
            heartbeats = [draft.heartbeat] if draft.heartbeat else []
            await self.metadata.commit(draft.job, *made, *batches, *inputs, *heartbeats, *claims)
        except KeyTaken:
            await self._abandon(draft)
            return await self.idempotency.won_by_another(call)
        except ConveyorError:
            await self._abandon(draft)
            raise
        count = len(draft.specs)
        log.info("job.accepted", job_id=draft.job.id, run_id=draft.job.latest_run_id, tasks=count)
        await self._send_messages(batches, call.caller)
        for run in made:
            self.notifier.run_changed(run.id)
        return answer

    async def _prepared(self, draft: Draft) -> tuple[list[Run], list[Batch]]:
        """Write what must exist before the job; return what is committed with it."""
        run, staged = draft.run, draft.staged
        if staged and draft.file_input is None:
            await self.blobs.put(staged.blob, as_stream(lines(draft.specs)))
        if run is None:
            return [], []
        if staged:
            return [run], [batch_of(staged, draft.job.id, run.id, run.created_at)]
        await self.tasks.lay_out(run.id, draft.job.place)
        await self._write_rows(run.id, draft.specs)
        return [run], []

    async def _send_messages(self, batches: list[Batch], caller: CallerId) -> None:
        try:
            for batch in batches:
                await self.control_queue.send(ingest_message(batch, caller))
                self.notifier.message_sent()
        except Unavailable:
            return  # the job is stored: the sweeper finds its batch and sends the message

    async def _write_rows(self, run_id: RunId, specs: list[TaskSpec]) -> None:
        for rows in in_chunks(new_tasks(run_id, 0, specs)):
            await self.tasks.add(run_id, rows)
            await self.work.enqueue(run_id, [row.id for row in rows])

    async def _abandon(self, draft: Draft) -> None:
        """Remove what a failed submission wrote; the sweeper removes the rest."""
        try:
            if await self.metadata.get(Job, draft.job.id):
                return  # the commit took effect, and only its answer was lost
            if draft.staged and draft.file_input is None:
                await self.blobs.delete([draft.staged.blob])
            elif draft.run and not draft.staged:
                while await self.tasks.discard(draft.run.id, limit=self.limits.sync_tasks):
                    pass
        except ConveyorError:
            return


def _demand(draft: Draft) -> QuotaDemand:
    caller, tasks = draft.job.caller, len(draft.specs)
    if draft.job.type is JobType.SCHEDULED:
        return QuotaDemand(caller=caller, scheduled=1)
    return QuotaDemand(caller=caller, jobs=1, tasks=tasks)
