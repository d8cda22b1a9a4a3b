"""Rerun: a new run of a job, from the rows of its last one.

As with a submission, rows come first and one transaction makes the run: job, run and the answer
for a repeated call. A run of many rows is made with a batch instead, and copied by an ingester.
The job's version decides between two reruns, or a rerun and a delete: the loser begins again.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import structlog

from conveyor.domain import job as job_life
from conveyor.domain.batch import Batch, ingest_duty
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.job import Job
from conveyor.domain.rerun import Statuses, expected, inherited, is_too_late
from conveyor.domain.run import IngestStatus, Inheritance, Run, counts
from conveyor.domain.submission import Limits
from conveyor.errors import (
    ConveyorError,
    KeyTaken,
    NoMatchingTasks,
    NoPriorRun,
    PartialRerunWindowExpired,
    RunNotTerminal,
    Stale,
    Unavailable,
)
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.duties import Duties
from conveyor.ports.metadata import Metadata
from conveyor.ports.sealing import Sealing
from conveyor.ports.tasks import NewTask, Tasks, copied
from conveyor.ports.work import Work
from conveyor.steps.idempotency import Answer, Call, Replays
from conveyor.steps.ownership import latest_run, own_job

PAGE = 2_000

log = structlog.get_logger()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A rerun about to be made, with the job and run it comes from."""

    job: Job
    source: Run
    statuses: Statuses | None
    run_id: RunId
    retried: int
    inherited: Inheritance
    large: bool

    @property
    def taken_over(self) -> int:
        return self.inherited.counts.done + self.inherited.idle


class Rerunning(msgspec.Struct, frozen=True):
    """What a caller is told of a new run."""

    job: Job
    run: Run
    rerun_of: RunId
    retried: int
    inherited: int


Render = Callable[[Rerunning], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    metadata: Metadata
    tasks: Tasks
    work: Work
    duties: Duties
    sealing: Sealing
    replays: Replays
    clock: Clock
    ids: Ids
    limits: Limits
    check: Callable[[RunId], Awaitable[bool]]
    wake: Callable[[RunId], None]

    async def rerun(
        self, call: Call, job_id: JobId, statuses: Statuses | None, render: Render
    ) -> Answer:
        """Start a new run: of every task, or with `statuses` of those, the rest inherited."""
        with self.replays.claiming(call):
            while True:
                if known := await self.replays.find(call):
                    return known
                job = await own_job(self.metadata, call.caller, job_id)
                source = await self._source(job)
                with suppress(Stale):  # another rerun, a close or a delete came first
                    return await self._rerun(call, job, source, statuses, render)

    async def _source(self, job: Job) -> Run:
        """The run to be done again, if it is over and all its rows are there."""
        run = await latest_run(self.metadata, job)
        if run is None:
            raise NoPriorRun("This job has no run to repeat")
        if run.is_live:
            raise RunNotTerminal(f"The run is {run.status}: stop it first, or wait for its end")
        unfinished = await self.metadata.batches(limit=1, after=(run.id, -1))
        if any(batch.run_id == run.id for batch in unfinished):
            raise RunNotTerminal("The run has ended, and its rows are being written: try again")
        return run

    async def _rerun(
        self, call: Call, job: Job, source: Run, statuses: Statuses | None, render: Render
    ) -> Answer:
        run_id = RunId(self.ids.new())
        large = source.total >= self.limits.sync_tasks
        try:
            make = self._expect if large else self._write_rows
            retried, taken_over = await make(run_id, source, statuses)
            plan = Plan(
                job=job,
                source=source,
                statuses=statuses,
                run_id=run_id,
                retried=retried,
                inherited=taken_over,
                large=large,
            )
            self._check(plan)
            return await self._store(call, plan, render)
        except KeyTaken:
            await self._abandon(run_id)
            return await self.replays.won_by_another(call)
        except ConveyorError:
            await self._abandon(run_id)
            raise

    def _check(self, plan: Plan) -> None:
        if plan.statuses is None:
            return
        if not plan.retried:
            wanted = ", ".join(sorted(plan.statuses))
            raise NoMatchingTasks(f"No task of the last run is {wanted}")
        takes_bodies = plan.inherited.counts.successful > 0
        if takes_bodies and is_too_late(plan.source, plan.job, self.clock.now()):
            days = plan.job.result_ttl_days
            raise PartialRerunWindowExpired(
                f"Results are kept for {days} days, and the last run's are past that: "
                "run the whole job again"
            )

    async def _expect(
        self, _: RunId, source: Run, statuses: Statuses | None
    ) -> tuple[int, Inheritance]:
        tally = await self.tasks.tally(source.id)
        settled = (await self.tasks.counts([source.id]))[source.id]
        return expected(source, tally, counts(source, settled), statuses)

    async def _write_rows(
        self, run_id: RunId, source: Run, statuses: Statuses | None
    ) -> tuple[int, Inheritance]:
        retried, taken_over = 0, Inheritance()
        async for rows in self._copies(source, statuses):
            await self.tasks.add(run_id, rows)
            fresh = [row.id for row in rows if row.inherited is None]
            await self.work.offer(run_id, fresh)
            retried += len(fresh)
            taken_over += inherited(row.inherited for row in rows if row.inherited)
        return retried, taken_over

    async def _copies(self, source: Run, statuses: Statuses | None) -> AsyncIterator[list[NewTask]]:
        after = -1
        while rows := await self.tasks.page(source.id, limit=PAGE, after=after):
            yield [copied(row, statuses) for row in rows]
            after = rows[-1].index

    async def _store(self, call: Call, plan: Plan, render: Render) -> Answer:
        run = self._new_run(plan)
        sealed = self.sealing.seal(call.api_key, context=f"{call.caller}|{plan.job.id}")
        job = msgspec.structs.replace(
            job_life.run_again(plan.job, run.id, run.created_at), sealed_key=sealed
        )
        told = Rerunning(job, run, plan.source.id, plan.retried, plan.taken_over)
        answer = Answer(202 if plan.large else 201, render(told))
        batches = [_batch(plan, run)] if plan.large else []
        claims = self.replays.claim(call, answer)
        await self.metadata.commit(job, run, *batches, *claims)
        log.info("run.again", job_id=job.id, run_id=run.id, tasks=plan.retried)
        with suppress(Unavailable):  # the run is on record: the sweeper does what is left undone
            for batch in batches:
                await self.duties.send(*ingest_duty(batch))
            await self.check(run.id)
        self.wake(run.id)
        return answer

    def _new_run(self, plan: Plan) -> Run:
        source, now = plan.source, self.clock.now()
        takes_bodies = plan.inherited.counts.successful > 0
        return Run(
            id=plan.run_id,
            job_id=plan.job.id,
            caller=plan.job.caller,
            created_at=now,
            updated_at=now,
            total=plan.retried + plan.taken_over,
            next_index=source.next_index,
            sequence=plan.job.runs + 1,
            last_batch_received=not plan.large,
            ingest_status=IngestStatus.PENDING if plan.large else None,
            inherited=plan.inherited,
            bodies_since=(source.bodies_since or source.created_at) if takes_bodies else None,
        )

    async def _abandon(self, run_id: RunId) -> None:
        """Clear rows that no run came of; what cannot be cleared now the sweeper finds."""
        try:
            if await self.metadata.run(run_id):
                return  # it took effect, and only the word of it was lost
            await self.tasks.discard(run_id, limit=self.limits.sync_tasks + 1)
        except ConveyorError:
            return


def _batch(plan: Plan, run: Run) -> Batch:
    return Batch(
        run_id=run.id,
        job_id=run.job_id,
        first=0,
        count=run.total,
        source=plan.source.id,
        statuses=None if plan.statuses is None else tuple(sorted(plan.statuses)),
        created_at=run.created_at,
    )
