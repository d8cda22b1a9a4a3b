"""Read: what callers see of their jobs, runs and tasks. Nothing here writes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

import msgspec

from conveyor.domain import cursor
from conveyor.domain.counts import Counts, OpenCounts
from conveyor.domain.ids import CallerId, JobId, RunId, TaskId, task_index
from conveyor.domain.job import Job, JobStatus, JobType, is_named, next_run
from conveyor.domain.progress import Waiting
from conveyor.domain.run import IngestStatus, Run
from conveyor.domain.selection import ALL, Selection, matcher
from conveyor.domain.task import Attempt, Task, TaskStatus, expires_at, has_expired
from conveyor.domain.task_list.reader import error_reports
from conveyor.domain.timeline import Timeline
from conveyor.errors import NotFound, ResultExpired, TaskNotReady, TaskUnsuccessful, Unavailable
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Coordination
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import TaskPage, Tasks
from conveyor.steps.shared.failure_reads import FindFailures, FoundFailures
from conveyor.steps.shared.open_counts import FindOpenCounts, find_no_open_counts
from conveyor.steps.shared.ownership import latest_run, own_job, own_run
from conveyor.steps.shared.run_waits import FindWaits, find_no_waits
from conveyor.steps.shared.shared_readings import ConcurrentReads
from conveyor.steps.shared.timeline_reads import FindTimeline

REPORTS = 500  # listed at a time
HOT = timedelta(milliseconds=250)  # how long pollers of a run share one read of its counts
SEARCHED_AT_ONCE = 100  # jobs
MOST_SEARCHED = 1_000  # jobs that one call looks at for a name
READ_AT_ONCE = 1_000  # rows, or `PAGE_BYTES`
FEW_ROWS = 101  # whose read other requests can wait for: the default page, and one more
MOST_READS = 5  # that one call makes to find rows of a host, reason or code
UP_TO_DATE = timedelta(minutes=1)  # after which copies of rows that lag have caught up
COUNTS = msgspec.json.Decoder(Counts)


FoundJobs = tuple[list[tuple[Job, Run | None]], str | None]  # with the cursor of the next


class ListJobs(Protocol):
    """`Metadata.jobs` of a caller, with its filters."""

    async def __call__(
        self, *, limit: int, before: str | None
    ) -> Sequence[tuple[Job, Run | None]]: ...


class RunView(msgspec.Struct, frozen=True):
    run: Run
    settled: Counts
    waiting: Waiting | None = None
    open_counts: OpenCounts | None = None


class JobView(msgspec.Struct, frozen=True):
    job: Job
    latest: RunView | None
    next_run: datetime | None = None  # by its schedule


class ResultPart(msgspec.Struct, frozen=True):
    """Some tasks of a page of results."""

    tasks: Sequence[Task]
    is_last: bool = False
    next_cursor: str | None = None  # set in the last part; None there when nothing follows


class ResultContent(msgspec.Struct, frozen=True):
    task_id: TaskId
    format: str
    content_type: str | None
    length: int
    checksum: str
    chunks: AsyncIterator[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    metadata: Metadata
    tasks: Tasks
    bodies: Bodies
    blobs: Blobs
    coordination: Coordination
    clock: Clock
    find_failures: FindFailures
    find_timeline: FindTimeline
    waits: FindWaits = find_no_waits
    open_counts: FindOpenCounts = find_no_open_counts
    count: Callable[[int], None] = lambda _: None  # rows read for pages of results
    reading: ConcurrentReads[Counts] = field(default_factory=ConcurrentReads)
    # A caller's lock exists while a read holds it or waits for it.
    turns: WeakValueDictionary[CallerId, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def job(self, caller: CallerId, job_id: JobId) -> JobView:
        job = await own_job(self.metadata, caller, job_id)
        run = await latest_run(self.metadata, job)
        return self._view(job, await self._run_view(job, run) if run else None)

    async def run(self, caller: CallerId, job_id: JobId, run_id: RunId) -> RunView:
        job = await own_job(self.metadata, caller, job_id)
        return await self._run_view(job, await own_run(self.metadata, job, run_id))

    async def bad_rows(
        self, caller: CallerId, job_id: JobId, run_id: RunId | None
    ) -> AsyncIterator[bytes]:
        """The rows of a run's list that are not tasks, as JSON lines in the order of the list."""
        job = await own_job(self.metadata, caller, job_id)
        run = await own_run(self.metadata, job, run_id)
        return self._reports(error_reports(job.id, run.id))

    async def _reports(self, prefix: str) -> AsyncIterator[bytes]:
        after = ""
        while keys := await self.blobs.keys(prefix, limit=REPORTS, after=after):
            for key in keys:
                async for chunk in self.blobs.read(key):
                    yield chunk
            after = keys[-1]

    async def jobs(
        self,
        caller: CallerId,
        *,
        limit: int,
        before: str | None,
        status: JobStatus | None,
        kind: JobType | None,
        name: str | None = None,
    ) -> tuple[list[JobView], str | None]:
        """A page of the caller's jobs, newest first, and the cursor of the next.

        With a name it looks at `MOST_SEARCHED` jobs at most: the page may have few of them, or none,
        and a cursor all the same.
        """
        listed = partial(self.metadata.jobs, caller, status=status, kind=kind)
        if name:
            page, after = await self._named(listed, name, limit=limit, before=before)
        else:
            page, after = await self._dense(listed, limit=limit, before=before)
        runs = await self._run_views([(job, run) for job, run in page if run])
        return [self._view(job, runs[run.id] if run else None) for job, run in page], after

    async def _dense(self, listed: ListJobs, *, limit: int, before: str | None) -> FoundJobs:
        found = list[tuple[Job, Run | None]]()
        # Only an empty page is the end: engines also bound the bytes of a page.
        while len(found) <= limit and (
            more := await listed(limit=limit + 1 - len(found), before=before)
        ):
            found += more
            before = more[-1][0].id
        return found[:limit], found[limit - 1][0].id if len(found) > limit else None

    async def _named(
        self, listed: ListJobs, name: str, *, limit: int, before: str | None
    ) -> FoundJobs:
        """Engines do not index names, so jobs are read and compared, up to a bound."""
        found, looked = list[tuple[Job, Run | None]](), 0
        while looked < MOST_SEARCHED:
            more = await listed(limit=SEARCHED_AT_ONCE, before=before)
            if not more:
                return found, None
            for job, run in more:
                if len(found) == limit:
                    return found, before
                found += [(job, run)] if is_named(job, name) else []
                before = job.id
            looked += len(more)
        return found, before

    async def runs(
        self, caller: CallerId, job_id: JobId, *, limit: int, before: str | None
    ) -> tuple[list[RunView], str | None]:
        job = await own_job(self.metadata, caller, job_id)
        found = list[Run]()
        while len(found) <= limit and (
            more := await self.metadata.runs(job.id, limit=limit + 1 - len(found), before=before)
        ):
            found += more
            before = more[-1].id
        page = found[:limit]
        views = await self._run_views([(job, run) for run in page])
        return list(views.values()), page[-1].id if len(found) > limit else None

    async def results(
        self,
        caller: CallerId,
        job_id: JobId,
        run_id: RunId | None,
        *,
        limit: int,
        after: int,
        selection: Selection = ALL,
    ) -> tuple[Job, AsyncGenerator[ResultPart, None]]:
        """A page of a run's tasks, of the latest run when none is named; with their job.

        In parts, each of which fits in memory: large rows may take many reads. The page is dense
        unless the selection has other conditions than statuses: it may then have few tasks, or
        none, and a cursor all the same.
        """
        job = await own_job(self.metadata, caller, job_id)
        run = await own_run(self.metadata, job, run_id)
        statuses = None if selection.statuses is None else selection.scraped_again
        if selection.is_by_status:
            return job, self._parts(run, limit, after, statuses)
        return job, self._found(run, limit, after, statuses, matcher(selection))

    async def failures(
        self, caller: CallerId, job_id: JobId, run_id: RunId | None, *, limit: int
    ) -> FoundFailures:
        """The failed tasks of a run by host, reason and code, of the latest run when none is named.

        With them come the examples of the first `limit` groups.
        """
        job = await own_job(self.metadata, caller, job_id)
        run = await own_run(self.metadata, job, run_id)
        return await self.find_failures(run, limit)

    async def timeline(
        self, caller: CallerId, job_id: JobId, run_id: RunId | None
    ) -> tuple[Run, Timeline]:
        """When the tasks of a run ended, of the latest run when none is named."""
        job = await own_job(self.metadata, caller, job_id)
        run = await own_run(self.metadata, job, run_id)
        return run, await self.find_timeline(run)

    async def _parts(
        self, run: Run, limit: int, after: int, statuses: frozenset[TaskStatus] | None
    ) -> AsyncGenerator[ResultPart, None]:
        last: TaskId | None = None
        lagging = self._may_lag(run)
        while True:
            # One more than requested shows whether any follow.
            page = await self._rows(
                run, limit=limit + 1, after=after, statuses=statuses, lagging=lagging
            )
            tasks = page.tasks[:limit]
            limit -= len(tasks)
            last = tasks[-1].id if tasks else last
            if len(page.tasks) > len(tasks):
                yield ResultPart(tasks, is_last=True, next_cursor=last and cursor.at_task(last))
                return
            if page.cursor is None:
                yield ResultPart(tasks, is_last=True)
                return
            if page.is_costly:
                yield ResultPart(tasks, is_last=True, next_cursor=cursor.at_index(page.cursor))
                return
            yield ResultPart(tasks)
            after = page.cursor

    async def _found(
        self,
        run: Run,
        limit: int,
        after: int,
        statuses: frozenset[TaskStatus] | None,
        matches: Callable[[Task], bool],
    ) -> AsyncGenerator[ResultPart, None]:
        """Engines do not index hosts, reasons and codes: rows are read and compared, up to a bound."""
        if statuses == frozenset():  # conditions that no task can meet
            yield ResultPart((), is_last=True)
            return
        lagging = self._may_lag(run)
        for reads_left in reversed(range(MOST_READS)):
            page = await self._rows(
                run, limit=READ_AT_ONCE, after=after, statuses=statuses, lagging=lagging
            )
            found = list(filter(matches, page.tasks))
            tasks = found[:limit]
            limit -= len(tasks)
            going_on = None if page.cursor is None else cursor.at_index(page.cursor)
            if len(found) > len(tasks):
                going_on = cursor.at_task(tasks[-1].id)
            is_last = not (going_on and limit and reads_left) or page.is_costly
            yield ResultPart(tasks, is_last=is_last, next_cursor=going_on if is_last else None)
            if is_last or page.cursor is None:
                return
            after = page.cursor

    async def _rows(self, run: Run, *, limit: int, **options: Any) -> TaskPage:
        """Read rows for a page. The large reads of one caller follow each other.

        Each takes the event loop for milliseconds: those of one caller at the same time would make
        the requests of all others wait.
        """
        turn = self.turns.setdefault(run.caller, asyncio.Lock())
        async with turn if limit > FEW_ROWS else nullcontext():
            page = await self.tasks.page(run.id, limit=limit, **options)
            self.count(len(page.tasks))
            return page

    def _may_lag(self, run: Run) -> bool:
        """Whether the rows may be read from a copy that lags.

        Those of a run that ended a minute ago have reached every copy.
        """
        return not run.is_live and run.updated_at < self.clock.now() - UP_TO_DATE

    async def content(
        self, caller: CallerId, job_id: JobId, run_id: RunId | None, task_id: TaskId
    ) -> ResultContent:
        """The body of a successful task."""
        job = await own_job(self.metadata, caller, job_id)
        return self._open(job, await self._own_task(job, run_id, task_id))

    async def content_by_link(self, job_id: JobId, run_id: RunId, task_id: TaskId) -> ResultContent:
        """The body that a signed link names; the link is the authority."""
        job = await self.metadata.get(Job, job_id)
        if job is None or job.status is JobStatus.DELETED:
            raise NotFound("No such task")
        return self._open(job, await self._own_task(job, run_id, task_id))

    async def history(
        self, caller: CallerId, job_id: JobId, run_id: RunId | None, task_id: TaskId
    ) -> Sequence[Attempt]:
        job = await own_job(self.metadata, caller, job_id)
        task = await self._own_task(job, run_id, task_id)
        # The attempts of an inherited result were made in the run it comes from.
        return await self.tasks.history(task.source_run_id or task.run_id, task.id)

    def has_expired(self, job: Job, task: Task) -> bool:
        return has_expired(task, job.result_ttl_days, self.clock.now())

    def storage_link(
        self, job: Job, task: Task, *, life: timedelta, content_type: str, filename: str | None
    ) -> str | None:
        """A URL by which the storage itself serves a result; None if this service has to.

        Nothing checks the retention of the result behind that URL, so the URL does not outlast it.
        """
        if task.result is None:
            return None
        left = expires_at(task, job.result_ttl_days) - self.clock.now()
        return self.bodies.sign_get(
            task.result.locator,
            life=min(life, left),
            content_type=content_type,
            filename=filename,
        )

    def _open(self, job: Job, task: Task) -> ResultContent:
        if task.status is TaskStatus.FAILED:
            problem = msgspec.json.decode(task.problem or "{}", type=dict[str, object])
            raise TaskUnsuccessful("The task failed; its problem follows", extras=problem)
        if task.result is None:
            raise TaskNotReady(f"The task is {task.status}: try again when it is done")
        if self.has_expired(job, task):
            raise ResultExpired(f"Results of this job are kept for {job.result_ttl_days} days")
        result = task.result
        chunks = self.bodies.read(result.locator)
        return ResultContent(
            task.id, result.format, result.content_type, result.length, result.checksum, chunks
        )

    async def _own_task(self, job: Job, run_id: RunId | None, task_id: TaskId) -> Task:
        run = await own_run(self.metadata, job, run_id)
        task = await self.tasks.get(run.id, task_id) if task_index(task_id) is not None else None
        if task is None:
            raise NotFound("No such task")
        return task

    def _view(self, job: Job, latest: RunView | None) -> JobView:
        return JobView(job, latest, next_run(job, self.clock.now()))

    async def _run_view(self, job: Job, run: Run) -> RunView:
        waits = await self.waits([(job, run)])
        open_counts = await self.open_counts([run])
        settled = await self._settled(run)
        return RunView(run, settled, waits.get(run.id), open_counts.get(run.id))

    async def _run_views(self, of: Sequence[tuple[Job, Run]]) -> Mapping[RunId, RunView]:
        """Views of listed runs: without open counts, which take up to `MOST_OPEN` rows a figure."""
        runs = [run for _, run in of]
        settled, waits = await self._fresh(runs), await self.waits(of)
        return {run.id: RunView(run, settled[run.id], waits.get(run.id)) for run in runs}

    async def _settled(self, run: Run) -> Counts:
        """The counts of a run, shared for 250 ms by all requests that poll it.

        Counts that decide the shown status are always read: a caller never sees a stale status. A
        run that changed has another version, and so another key.
        """
        if not _is_shared(run):
            return await self._counts(run)
        key = _counts_key(run)
        # Without sharing, all pollers of a process would read when a cached value expires.
        return await self.reading.find(
            key,
            partial(self._counts, run),
            recall=partial(self._recall, key),
            store=lambda settled: self._share([run], {run.id: settled}),
        )

    async def _counts(self, run: Run) -> Counts:
        return (await self.tasks.counts([run.id]))[run.id]

    async def _recall(self, key: str) -> Counts | None:
        with suppress(Unavailable):
            if known := (await self.coordination.recall([key])).get(key):
                return COUNTS.decode(known)
        return None

    async def _fresh(self, runs: Sequence[Run]) -> Mapping[RunId, Counts]:
        """Read the counts and share them with other readers, so that none sees older ones."""
        settled = await self.tasks.counts([run.id for run in runs])
        for run in runs:
            self.reading.outdate(_counts_key(run))
        await self._share(runs, settled)
        return settled

    async def _share(self, runs: Sequence[Run], settled: Mapping[RunId, Counts]) -> None:
        shared = {
            _counts_key(run): msgspec.json.encode(settled[run.id])
            for run in filter(_is_shared, runs)
        }
        with suppress(Unavailable):
            if shared:
                await self.coordination.remember(shared, life=HOT)


def _is_shared(run: Run) -> bool:
    """Whether the counts of a run only show its progress, not its status."""
    all_known = run.last_batch_received or run.ingest_status is IngestStatus.PENDING
    return run.is_live and all_known


def _counts_key(run: Run) -> str:
    return f"counts:{run.id}:{run.version}"
