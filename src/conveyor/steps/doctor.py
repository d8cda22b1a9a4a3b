"""Doctor: everything there is, looked at and left as it is.

What the sweeper would do, dead letters, each job's runs, and each run's accounts. Reading only:
a doctor may be called at any time, and as often as one likes.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from conveyor.domain import export as export_life
from conveyor.domain import file_input as file_input_life
from conveyor.domain.batch import Batch
from conveyor.domain.export import Export, ExportStatus, export_blob
from conveyor.domain.file_input import FileInput
from conveyor.domain.finding import (
    Checked,
    Event,
    Finding,
    Lost,
    Progress,
    Severity,
    Surroundings,
    Wanted,
)
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.job import Job, JobStatus
from conveyor.domain.run import Run, RunStatus
from conveyor.ports.blobs import Blobs
from conveyor.ports.clock import Clock
from conveyor.ports.control_queue import DeadLetter, DeadLetters
from conveyor.ports.metadata import Metadata, key_of
from conveyor.ports.tasks import Tasks
from conveyor.steps.shared.pagination import every

PAGE = 100
TRIES = 5
LEAST_ROOM = 64 * 1024 * 1024  # bytes: about what one page and its rows may take
REPORT = "Conveyor does not do this by itself: restore the data folder from a backup"

Findings = AsyncIterator[Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    metadata: Metadata
    tasks: Tasks
    control_queue: DeadLetters
    blobs: Blobs
    clock: Clock
    audit: Callable[[Job, RunId, bool], AsyncIterator[Progress | Finding]]
    lost: Callable[[], AsyncIterator[tuple[Lost, str]]]  # with when it is repaired
    surroundings: Callable[[], Awaitable[Surroundings]]

    async def examine(self, wanted: Wanted) -> AsyncIterator[Event]:
        """Findings and progress as they come, and a summary last of all."""
        tally = _Tally()
        async for event in self._events(wanted):
            tally.add(event)
            yield event
        yield tally.summary()

    async def _events(self, wanted: Wanted) -> AsyncIterator[Event]:
        about = await self.surroundings()
        yield about
        if about.free < LEAST_ROOM:
            yield _no_room(about)
        async for finding in self._general(wanted):
            yield finding
        known = False
        async for job in self._jobs(wanted):
            known = True
            async for event in self._job(job, wanted):
                yield event
        if not known and (wanted.job_id or wanted.run_id):
            yield _unknown(wanted)

    async def _general(self, wanted: Wanted) -> Findings:
        async for lost, when in self.lost():
            if _is_of(wanted, lost.job_id, lost.run_id):
                yield _to_repair(lost, when)
        async for message in self._dead_letters():
            run = await self.metadata.get(
                Run, RunId(message.payload.get("run_id", message.payload.get("id", "")))
            )
            job_id = run.job_id if run else JobId(message.payload.get("id", "")) or None
            if _is_of(wanted, job_id, run.id if run else None):
                yield _dead_letter(message, job_id, run.id if run else None)
        async for finding in self._missing():
            if _is_of(wanted, finding.job_id, finding.run_id):
                yield finding
        if not (wanted.job_id or wanted.run_id):
            async for finding in self._strays():
                yield finding

    async def _dead_letters(self) -> AsyncIterator[DeadLetter]:
        after = ""
        while page := await self.control_queue.dead_letters(limit=PAGE, after=after):
            for message in page:
                yield message
            after = page[-1].id

    async def _missing(self) -> Findings:
        """Objects that somebody counts on, and that are not there."""
        async for batch in every(self.metadata, Batch):
            # A batch that is gone by now was finished meanwhile, and its list with it.
            if await self._is_missing(batch.blob) and await self.metadata.get(Batch, key_of(batch)):
                yield _missing_list(batch.blob, batch.job_id, batch.run_id)
        async for file_input in every(self.metadata, FileInput):
            is_over = file_input_life.is_over(file_input, self.clock.now())
            is_missing = not is_over and await self._is_missing(file_input.blob)
            if is_missing and await self.metadata.get(FileInput, file_input.id) == file_input:
                for job_id in file_input.jobs or (None,):
                    yield _missing_list(file_input.blob, job_id)
        async for export in every(self.metadata, Export):
            is_missing = self._is_ready(export) and await self._is_missing(export_blob(export))
            if is_missing and await self.metadata.get(Export, export.id) == export:
                yield _missing_export(export)

    def _is_ready(self, export: Export) -> bool:
        """Whether the caller may fetch it."""
        is_over = export_life.is_over(export, self.clock.now())
        return export.status is ExportStatus.COMPLETED and not is_over

    async def _is_missing(self, key: str | None) -> bool:
        return key is not None and await self.blobs.length(key) is None

    async def _strays(self) -> Findings:
        """Runs that belong to no job: no caller can reach them."""
        after = ""
        while page := await self.tasks.runs_held(limit=PAGE, after=after):
            for run_id in page:
                run = await self.metadata.get(Run, run_id)
                if run and await self.metadata.get(Job, run.job_id) is None:
                    yield _wrong("run_without_job", "its job is gone", run.job_id, run.id)
            after = page[-1]

    async def _jobs(self, wanted: Wanted) -> AsyncIterator[Job]:
        if wanted.job_id or wanted.run_id:
            run = await self.metadata.get(Run, wanted.run_id) if wanted.run_id else None
            job_id = wanted.job_id or (run.job_id if run else None)
            job = await self.metadata.get(Job, job_id) if job_id else None
            fits = not wanted.run_id or (run is not None and run.job_id == job_id)
            if job and fits:
                yield job
            return
        async for job in every(self.metadata, Job):
            yield job

    async def _job(self, job: Job, wanted: Wanted) -> AsyncIterator[Event]:
        if job.status is JobStatus.DELETED:
            return
        runs, faults = await self._judged(job)
        for finding in faults:
            yield finding
        for run in runs:
            if wanted.run_id in {None, run.id} and run.status is not RunStatus.DELETED:
                yield Progress(job_id=job.id, run_id=run.id, total=run.total)
                async for event in self.audit(job, run.id, wanted.bodies):
                    yield event

    async def _judged(self, job: Job) -> tuple[Sequence[Run], Sequence[Finding]]:
        """A job's runs, and what is wrong between it and them; read again while it moves."""
        for _ in range(TRIES):
            runs = await self._runs(job.id)
            latest = await self.metadata.get(Job, job.id)
            if latest is None or latest.status is JobStatus.DELETED:
                return [], []
            if latest == job:
                return runs, list(_job_faults(job, runs))
            job = latest
        return runs, []

    async def _runs(self, job_id: JobId) -> list[Run]:
        """Newest first."""
        found: list[Run] = []
        before = None
        while page := await self.metadata.runs(job_id, limit=PAGE, before=before):
            found += page
            before = page[-1].id
        return found


def _job_faults(job: Job, runs: Sequence[Run]) -> Iterator[Finding]:
    live = [run.id for run in runs if run.is_live]
    if len(live) > 1:
        yield _wrong("two_live_runs", f"runs {', '.join(live)} are live at once", job.id)
    newest = runs[0].id if runs else None
    if job.latest_run_id != newest:
        text = f"it says its latest run is {job.latest_run_id}, and its newest is {newest}"
        yield _wrong("wrong_latest_run", text, job.id, newest)
    numbers = Counter(run.sequence for run in runs)
    for run in runs:
        if numbers[run.sequence] > 1 or run.sequence > job.runs:
            text = f"it is run {run.sequence} of its job, which is given twice or not yet"
            yield _wrong("wrong_sequence", text, job.id, run.id)
        if run.caller != job.caller:
            yield _wrong("wrong_caller", "it is another caller's than its job", job.id, run.id)


def _is_of(wanted: Wanted, job_id: JobId | None, run_id: RunId | None) -> bool:
    if wanted.run_id:
        return run_id == wanted.run_id
    return wanted.job_id is None or job_id == wanted.job_id


def _wrong(code: str, what: str, job_id: JobId, run_id: RunId | None = None) -> Finding:
    return Finding(
        severity=Severity.WRONG, code=code, what=what, advice=REPORT, job_id=job_id, run_id=run_id
    )


def _unknown(wanted: Wanted) -> Finding:
    return Finding(
        severity=Severity.WRONG,
        code="unknown",
        what="there is no such job or run here",
        advice="look for it without --job and --run, or in another folder with --data",
        job_id=wanted.job_id,
        run_id=wanted.run_id,
    )


def _missing_list(key: str | None, job_id: JobId | None, run_id: RunId | None = None) -> Finding:
    return Finding(
        severity=Severity.WRONG,
        code="list_missing",
        what=f"its list {key} is gone, and is still to be read",
        advice="restore it from a backup, or hand the list in again as a new job",
        job_id=job_id,
        run_id=run_id,
    )


def _missing_export(export: Export) -> Finding:
    return Finding(
        severity=Severity.WRONG,
        code="export_missing",
        what=f"its export {export.id} is said to be ready, and its file is gone",
        advice="ask for another export of the run",
        job_id=export.job_id,
        run_id=export.run_id,
    )


def _no_room(about: Surroundings) -> Finding:
    return Finding(
        severity=Severity.WRONG,
        code="no_room",
        what=f"{about.free / 2**20:,.0f} MiB are free at {about.folder}",
        advice="make room: without it no page can be kept",
    )


def _to_repair(lost: Lost, when: str) -> Finding:
    return Finding(
        severity=Severity.REPAIR,
        code=lost.action,
        what=lost.what,
        advice=f"nothing to do: the sweeper repairs it {when}",
        job_id=lost.job_id,
        run_id=lost.run_id,
        task_id=lost.task_id,
    )


def _dead_letter(message: DeadLetter, job_id: JobId | None, run_id: RunId | None) -> Finding:
    return Finding(
        severity=Severity.WRONG,
        code="dead_letter",
        what=f"the message {message.id} ({message.kind}) was given up: {message.reason}",
        advice=f"mend the cause, then `conveyor dlq redrive {message.id}`; or `conveyor dlq drop "
        f"{message.id}`",
        job_id=job_id,
        run_id=run_id,
    )


class _Tally:
    """What has been looked at so far."""

    def __init__(self) -> None:
        self._jobs: set[JobId] = set()
        self._runs = self._rows = self._bodies = 0
        self._last: Progress | None = None
        self._found: Counter[Severity] = Counter()

    def add(self, event: Event) -> None:
        if isinstance(event, Finding):
            self._found[event.severity] += 1
        if isinstance(event, Progress):
            if self._last and self._last.run_id != event.run_id:
                self._count(self._last)
            self._last = event

    def summary(self) -> Checked:
        if self._last:
            self._count(self._last)
        return Checked(
            jobs=len(self._jobs),
            runs=self._runs,
            rows=self._rows,
            bodies=self._bodies,
            wrong=self._found[Severity.WRONG],
            repairs=self._found[Severity.REPAIR],
            notes=self._found[Severity.NOTE],
        )

    def _count(self, run: Progress) -> None:
        self._jobs.add(run.job_id)
        self._runs += 1
        self._rows += run.rows
        self._bodies += run.bodies
