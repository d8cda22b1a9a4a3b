"""Rerun: a new run of a job, created from the rows of its latest run.

As with a submit, rows are written first; then one transaction stores the job, the run and the
idempotency record. For a large run it stores a batch as well, whose rows the control worker copies.
Of two concurrent reruns, or a rerun and a delete, the job's version lets one commit; the other
starts over.

A scheduled job that has no run yet is run from its list. So is a job whose last run lacks rows of
the list.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec
import structlog

from conveyor.domain import job as job_rules
from conveyor.domain.batch import Batch, batch_of, ingest_message, run_of
from conveyor.domain.counts import Counts
from conveyor.domain.credentials import context
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.job import Job
from conveyor.domain.rerun import expected, inherited, is_too_late
from conveyor.domain.run import NO_INHERITANCE, IngestStatus, Inheritance, Run, Trigger, counts
from conveyor.domain.selection import (
    Chosen,
    RerunRequest,
    Selection,
    check_params,
    chosen_among,
    chosen_by_group,
    chosen_by_status,
    described,
)
from conveyor.domain.submission import Limits
from conveyor.domain.task import TaskStatus
from conveyor.domain.task_list.spec import SourceList
from conveyor.errors import (
    CallerFault,
    ConveyorError,
    KeyTaken,
    NoMatchingTasks,
    NoPriorRun,
    PartialRerunWindowExpired,
    RunNotTerminal,
    Stale,
    Unavailable,
)
from conveyor.ports.blobs import Blobs
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Work
from conveyor.steps.shared.gateway_key_check import CheckGatewayKey, any_key
from conveyor.steps.shared.idempotency import Answer, Call, Idempotency
from conveyor.steps.shared.notifier import Notifier
from conveyor.steps.shared.ownership import latest_run, own_job
from conveyor.steps.shared.pagination import runs_of
from conveyor.steps.shared.quotas import CheckQuota, QuotaDemand, unlimited
from conveyor.steps.shared.row_sources import RowChunk, copied_rows, stored_rows
from conveyor.steps.shared.task_reads import tasks_by_id
from conveyor.steps.shared.work_limits import DEFAULT_SIZES, Sizes

PROCESSING = frozenset({TaskStatus.PROCESSING})

log = structlog.get_logger()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A rerun that is not stored yet, and where its rows come from: a run, or the job's list."""

    job: Job
    source: Run | SourceList
    rerun_of: RunId | None
    run_id: RunId
    retried: int
    large: bool
    asked: RerunRequest
    inherited: Inheritance = NO_INHERITANCE

    @property
    def taken_over(self) -> int:
        return self.inherited.counts.done + self.inherited.idle


class Rerunning(msgspec.Struct, frozen=True):
    """A new run, as its caller sees it."""

    job: Job
    run: Run
    rerun_of: RunId | None
    retried: int
    inherited: int


RenderRerun = Callable[[Rerunning], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunJob:
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
    check_completion: Callable[[RunId], Awaitable[bool]]
    notifier: Notifier
    check_quota: CheckQuota = unlimited
    check_gateway_key: CheckGatewayKey = any_key
    sizes: Sizes = DEFAULT_SIZES
    under_way: set[JobId] = field(default_factory=set)

    async def rerun(
        self, call: Call, job_id: JobId, asked: RerunRequest, render: RenderRerun
    ) -> Answer:
        """Start a run of the selected tasks; the results of the others are inherited."""
        with self.idempotency.claiming(call):
            while True:
                if known := await self.idempotency.find(call):
                    return known
                job = await own_job(self.metadata, call.caller, job_id)
                try:
                    with suppress(Stale), self._alone(job_id):
                        # Stale: a rerun elsewhere, a close or a delete came first.
                        return await self._rerun(call, job, asked, render)
                except CallerFault as refusal:
                    return await self.idempotency.unless_answered(call, refusal)

    @contextmanager
    def _alone(self, job_id: JobId) -> Iterator[None]:
        """Refuse a second concurrent rerun: it would copy all rows, and could not commit."""
        if job_id in self.under_way:
            raise RunNotTerminal("Another rerun of this job is in progress: see its latest run")
        self.under_way.add(job_id)
        try:
            yield
        finally:
            self.under_way.discard(job_id)

    async def _source(self, job: Job) -> Run:
        """The run to repeat; it must have ended, with all its rows written."""
        run = await latest_run(self.metadata, job)
        if run is None:
            raise NoPriorRun("This job has no run to repeat")
        if run.is_live:
            raise RunNotTerminal(
                f"The run must have ended, and is {run.status}: stop it first, or wait"
            )
        if await self.metadata.of_run(Batch, run.id, limit=1):
            raise RunNotTerminal(
                "The run has ended, but its rows are still being written: try again later"
            )
        return run

    async def _rerun(
        self, call: Call, job: Job, asked: RerunRequest, render: RenderRerun
    ) -> Answer:
        await self.check_gateway_key(call.gateway_key)
        check_params(asked, job)
        plan = await self._plan(job, asked)
        self._check_plan(plan)
        await self.check_quota(QuotaDemand(caller=call.caller, jobs=1, tasks=plan.retried))
        try:
            plan = await self._prepared(plan)
            self._check_plan(plan)  # again: now the rows tell what is selected
            return await self._store(call, plan, render)
        except KeyTaken:
            await self._abandon(plan)
            return await self.idempotency.won_by_another(call)
        except ConveyorError:
            await self._abandon(plan)
            raise

    async def _plan(self, job: Job, asked: RerunRequest) -> Plan:
        selection = asked.selection
        if job.schedule and job.source_list and job.latest_run_id is None and selection.is_all:
            is_small = (
                job.source_list.spec is None and job.source_list.count < self.limits.sync_tasks
            )
            return self._from_list(job, asked, job.source_list, None, large=not is_small)
        source = await self._source(job)
        if source.is_cut and selection.is_all:
            if job.source_list:  # the last run lacks rows of it
                return self._from_list(job, asked, job.source_list, source.id, large=True)
            source = await self._whole_run(job) or source
        done = counts(source, (await self.tasks.counts([source.id]))[source.id])
        chosen = await self._chosen(source, done, selection)
        return Plan(
            job=job,
            source=source,
            rerun_of=source.id,
            asked=asked,
            run_id=RunId(self.ids.new()),
            retried=chosen.total,
            inherited=expected(source, done, selection, chosen),
            large=source.total >= self.limits.sync_tasks,
        )

    async def _chosen(self, source: Run, done: Counts, selection: Selection) -> Chosen:
        """How many tasks of an ended run are selected, or at most so many.

        A caller waits for this, so it follows from counts and failure groups. Rows are read only if
        the selection names them. The ingest of the copy corrects what is too high.
        """
        if selection.task_ids:
            chosen = Chosen()
            async for some in tasks_by_id(self.tasks, source.id, selection.task_ids):
                chosen += chosen_among(selection, some)
            return chosen
        if selection.is_of_failures and (selection.codes or selection.hosts):
            return chosen_by_group(selection, await self.tasks.failure_groups(source.id))
        return chosen_by_status(selection, done, await self._tally(source, done, selection))

    async def _tally(
        self, source: Run, done: Counts, selection: Selection
    ) -> Mapping[TaskStatus, int]:
        """How many tasks have not ended, by status.

        Those still held by a worker are counted only if they alone are asked for.
        """
        held, statuses = 0, selection.scraped_again
        if statuses >= PROCESSING and TaskStatus.PENDING not in statuses:
            after: int | None = -1
            while after is not None:
                page = await self.tasks.page(
                    source.id, limit=self.sizes.chunk_rows, after=after, statuses=PROCESSING
                )
                held, after = held + len(page.tasks), page.cursor
        return {
            TaskStatus.PROCESSING: held,
            TaskStatus.PENDING: source.total - done.done - held,
        }

    async def _whole_run(self, job: Job) -> Run | None:
        """The job's newest run that has all its rows."""
        async for run in runs_of(self.metadata, job.id):
            if not run.is_cut:
                return run
        return None

    def _from_list(
        self,
        job: Job,
        asked: RerunRequest,
        source_list: SourceList,
        rerun_of: RunId | None,
        *,
        large: bool,
    ) -> Plan:
        """A plan for all rows of the job's list."""
        return Plan(
            job=job,
            asked=asked,
            source=source_list,
            rerun_of=rerun_of,
            run_id=RunId(self.ids.new()),
            retried=source_list.count,
            large=large,
        )

    async def _prepared(self, plan: Plan) -> Plan:
        """Write the rows of a small rerun; return the plan as it is stored."""
        if plan.large:
            return plan
        retried, taken_over = await self._write_rows(plan)
        return msgspec.structs.replace(plan, retried=retried, inherited=taken_over)

    def _check_plan(self, plan: Plan) -> None:
        if isinstance(plan.source, SourceList):
            return
        if not plan.retried:
            raise NoMatchingTasks(f"The last run has no tasks{described(plan.asked.selection)}")
        takes_bodies = plan.inherited.counts.successful > 0
        if takes_bodies and is_too_late(plan.source, plan.job, self.clock.now()):
            days = plan.job.result_ttl_days
            raise PartialRerunWindowExpired(
                f"Results are kept for {days} days, and the last run's are past that: "
                "run the whole job again"
            )

    async def _write_rows(self, plan: Plan) -> tuple[int, Inheritance]:
        retried, taken_over = 0, Inheritance()
        await self.tasks.lay_out(plan.run_id, plan.job.place)
        async for chunk in self._rows(plan):
            await self.tasks.add(plan.run_id, chunk.rows)
            fresh = [row.id for row in chunk.rows if row.inherited is None]
            await self.work.enqueue(plan.run_id, fresh)
            retried += len(fresh)
            taken_over += inherited(row.inherited for row in chunk.rows if row.inherited)
        return retried, taken_over

    def _rows(self, plan: Plan) -> AsyncIterator[RowChunk]:
        most, asked = self.sizes.chunk_rows, plan.asked
        if isinstance(plan.source, SourceList):
            return stored_rows(
                self.blobs, plan.source.blob, plan.run_id, most=most, params=asked.params
            )
        return copied_rows(self.tasks, plan.source.id, asked.selection, asked.params, most=most)

    async def _store(self, call: Call, plan: Plan, render: RenderRerun) -> Answer:
        run = self._new_run(plan)
        async with self.encryption.writing():
            encrypted = self.encryption.encrypt(
                call.gateway_key, context=context(call.caller, plan.job.id)
            )
            job = msgspec.structs.replace(
                job_rules.run_again(plan.job, run.id, run.created_at),
                encrypted_gateway_key=encrypted,
                api_key_id=call.api_key_id,
            )
            made = Rerunning(job, run, plan.rerun_of, plan.retried, plan.taken_over)
            answer = Answer(202 if plan.large else 201, render(made))
            batches = [_batch(plan, run)] if plan.large else []
            claims = self.idempotency.claim(call, answer)
            await self.metadata.commit(job, run, *batches, *claims)
        log.info("run.again", job_id=job.id, run_id=run.id, tasks=plan.retried)
        with suppress(Unavailable):  # the run is stored: the sweeper does the rest
            for batch in batches:
                await self.control_queue.send(ingest_message(batch, call.caller))
                self.notifier.message_sent()
            await self.check_completion(run.id)
        self.notifier.run_changed(run.id)
        return answer

    def _new_run(self, plan: Plan) -> Run:
        source, now = plan.source, self.clock.now()
        if isinstance(source, SourceList):
            run = run_of(plan.job, source, plan.run_id, Trigger.MANUAL, now)
        else:
            run = Run(
                id=plan.run_id,
                job_id=plan.job.id,
                caller=plan.job.caller,
                created_at=now,
                updated_at=now,
                total=plan.retried + plan.taken_over,
                next_index=source.next_index,
                sequence=plan.job.runs + 1,
                inherited=plan.inherited,
                is_cut=source.is_cut,
                ingest_error=source.ingest_error if source.is_cut else None,
            )
        return msgspec.structs.replace(
            run,
            last_batch_received=not plan.large,
            ingest_status=IngestStatus.PENDING if plan.large else None,
        )

    async def _abandon(self, plan: Plan) -> None:
        """Remove rows that no run refers to; the sweeper removes the rest."""
        try:
            if plan.large or await self.metadata.get(Run, plan.run_id):
                return  # it has none; or the commit took effect, and only its answer was lost
            while await self.tasks.discard(plan.run_id, limit=self.sizes.chunk_rows):
                pass
        except ConveyorError:
            return


def _batch(plan: Plan, run: Run) -> Batch:
    if isinstance(plan.source, SourceList):
        batch = batch_of(plan.source, run.job_id, run.id, run.created_at)
        return msgspec.structs.replace(batch, params=plan.asked.params)
    return Batch(
        run_id=run.id,
        job_id=run.job_id,
        first=0,
        count=run.total,
        source_run_id=plan.source.id,
        selection=plan.asked.selection,
        params=plan.asked.params,
        created_at=run.created_at,
    )
