"""The doctor: examines all stored state and changes nothing.

It reports what the sweeper would repair, dead letters, missing files, faults between jobs and their
runs, and the audit of each run. It only reads, so it may run at any time.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from msgspec import structs

from conveyor.domain import file_input as file_input_rules
from conveyor.domain.audit import (
    AuditProgress,
    AuditSummary,
    DoctorEvent,
    DoctorScope,
    Environment,
    Finding,
    MissedStep,
    Severity,
)
from conveyor.domain.batch import Batch
from conveyor.domain.credentials import context
from conveyor.domain.export import Export, ExportStatus, export_blob
from conveyor.domain.file_input import FileInput
from conveyor.domain.ids import LAST, JobId, RunId, stands_for_id, whole_id
from conveyor.domain.job import Job, JobStatus
from conveyor.domain.run import Run, RunStatus
from conveyor.ports.blobs import Blobs
from conveyor.ports.clock import Clock
from conveyor.ports.control_queue import DeadLetter, DeadLetters
from conveyor.ports.encryption import KeyRing, Undecryptable
from conveyor.ports.metadata import Metadata, key_of
from conveyor.ports.tasks import Tasks
from conveyor.steps.doctor.audit import Audit
from conveyor.steps.shared.pagination import every, rows, runs_of

PAGE = 100
TRIES = 5
LEAST_ROOM = 64 * 1024 * 1024  # bytes: about what one page and its rows may take
RESTORE = "Conveyor never does this by itself: restore the data folder from a backup"

GATEWAY_SILENT = "gateway_silent"

AnyId = TypeVar("AnyId", bound=str)
Findings = AsyncIterator[Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    metadata: Metadata
    tasks: Tasks
    control_queue: DeadLetters
    blobs: Blobs
    clock: Clock
    audit: Audit
    missed_steps: Callable[[], AsyncIterator[tuple[MissedStep, str]]]  # and when each is repaired
    environment: Callable[[], Awaitable[Environment]]
    gateway_responds: Callable[[], Awaitable[bool]] | None  # None without a service or a gateway
    encryption: KeyRing | None  # None without a service: it has the keys

    async def examine(self, scope: DoctorScope) -> AsyncIterator[DoctorEvent]:
        """Yield findings and progress as they come, and a summary at the end."""
        tally = _Tally()
        async for event in self._events(scope):
            tally.add(event)
            yield event
        yield tally.summary(tried=self.gateway_responds is not None)

    async def _events(self, scope: DoctorScope) -> AsyncIterator[DoctorEvent]:
        environment = await self.environment()
        yield environment
        if environment.free is not None and environment.free < LEAST_ROOM:
            yield _wrong(
                "no_room",
                f"{environment.free / 2**20:,.0f} MiB are free at {environment.folder}",
                advice="free disk space: without it no page can be stored",
            )
        if self.gateway_responds and not await self.gateway_responds():
            yield _wrong(
                GATEWAY_SILENT,
                "the gateway does not respond: no page can be fetched",
                advice="check the setting `gateway` and the network of this machine",
            )
        try:
            scope = await self._with_full_ids(scope)
        except _Ambiguous as error:
            yield _wrong("unknown", str(error), advice="give more of the id")
            return
        async for finding in self._general(scope):
            yield finding
        known = False
        async for job in self._jobs(scope):
            known = True
            async for event in self._job(job, scope):
                yield event
        if not known and (scope.job_id or scope.run_id):
            yield _wrong(
                "unknown",
                "the job or run does not exist",
                scope.job_id,
                scope.run_id,
                advice="look for it without --job and --run, or in another folder with --data",
            )

    async def _with_full_ids(self, scope: DoctorScope) -> DoctorScope:
        """Replace `@last` and beginnings of ids by the ids that they stand for."""
        job_id, run_id = scope.job_id, scope.run_id
        if job_id:
            jobs = every(self.metadata, Job)
            ids = (job.id async for job in jobs if job.status is not JobStatus.DELETED)
            job_id = await _full_id(job_id, ids)
        if run_id:
            runs = runs_of(self.metadata, job_id) if job_id else every(self.metadata, Run)
            run_ids = (run.id async for run in runs if run.status is not RunStatus.DELETED)
            run_id = await _full_id(run_id, run_ids)
        return structs.replace(scope, job_id=job_id, run_id=run_id)

    async def _general(self, scope: DoctorScope) -> Findings:
        async for missed, when in self.missed_steps():
            if _is_of(scope, missed.job_id, missed.run_id):
                yield _to_repair(missed, when)
        async for message in self._dead_letters():
            # An ingest names its run; a purge names the run or the job that was deleted.
            name = message.payload.get("id", "")
            run = await self.metadata.get(Run, RunId(message.payload.get("run_id", name)))
            job_id = run.job_id if run else JobId(name) or None
            if _is_of(scope, job_id, run.id if run else None):
                yield _wrong(
                    "dead_letter",
                    f"the control message {message.id} ({message.kind}) failed: {message.reason}",
                    job_id,
                    run.id if run else None,
                    advice=f"remove the cause, then `conveyor dlq redrive {message.id}`; or "
                    f"`conveyor dlq drop {message.id}`",
                )
        async for finding in self._missing():
            if _is_of(scope, finding.job_id, finding.run_id):
                yield finding
        if not (scope.job_id or scope.run_id):
            async for finding in self._strays():
                yield finding

    def _dead_letters(self) -> AsyncIterator[DeadLetter]:
        return rows(
            lambda after: self.control_queue.dead_letters(limit=PAGE, after=after),
            start="",
            key=lambda message: message.id,
        )

    async def _missing(self) -> Findings:
        """Objects that a stored row refers to and that do not exist."""
        async for batch in every(self.metadata, Batch):
            # A batch that is gone by now was finished meanwhile, and its list was removed.
            if await self._is_missing(batch.blob) and await self.metadata.get(Batch, key_of(batch)):
                yield _missing_list(batch.blob, batch.job_id, batch.run_id)
        async for file_input in every(self.metadata, FileInput):
            is_over = file_input_rules.is_over(file_input, self.clock.now())
            is_missing = not is_over and await self._is_missing(file_input.blob)
            if is_missing and await self.metadata.get(FileInput, file_input.id) == file_input:
                for job_id in file_input.jobs or (None,):
                    yield _missing_list(file_input.blob, job_id)
        async for export in every(self.metadata, Export):
            is_missing = self._is_ready(export) and await self._is_missing(export_blob(export))
            if is_missing and await self.metadata.get(Export, export.id) == export:
                yield _wrong(
                    "export_missing",
                    f"its export {export.id} is completed, and its file is missing",
                    export.job_id,
                    export.run_id,
                    advice="ask for another export of the run",
                )

    def _is_ready(self, export: Export) -> bool:
        """Whether its file may be downloaded."""
        is_kept = self.clock.now() < export.kept_until
        return export.status is ExportStatus.COMPLETED and is_kept

    async def _is_missing(self, key: str | None) -> bool:
        return key is not None and await self.blobs.length(key) is None

    async def _strays(self) -> Findings:
        """Runs without a job: no caller can reach them."""
        held = rows(lambda after: self.tasks.runs_held(limit=PAGE, after=after), start="", key=str)
        async for run_id in held:
            run = await self.metadata.get(Run, run_id)
            if run and await self.metadata.get(Job, run.job_id) is None:
                yield _wrong("run_without_job", "its job does not exist", run.job_id, run.id)

    async def _jobs(self, scope: DoctorScope) -> AsyncIterator[Job]:
        if scope.job_id or scope.run_id:
            run = await self.metadata.get(Run, scope.run_id) if scope.run_id else None
            job_id = scope.job_id or (run.job_id if run else None)
            job = await self.metadata.get(Job, job_id) if job_id else None
            fits = not scope.run_id or (run is not None and run.job_id == job_id)
            if job and fits:
                yield job
            return
        async for job in every(self.metadata, Job):
            yield job

    async def _job(self, job: Job, scope: DoctorScope) -> AsyncIterator[DoctorEvent]:
        if job.status is JobStatus.DELETED:
            return
        runs, faults = await self._job_state(job)
        for finding in faults:
            yield finding
        for run in runs:
            if run.is_live and _is_of(scope, job.id, run.id) and not await self._has_key(job):
                yield _wrong(
                    "key_unreadable",
                    "the gateway key of its job cannot be decrypted: no task is started",
                    job.id,
                    run.id,
                    advice="copy the `encryption.key` that the job was submitted under to "
                    "`encryption.old.key` in the data folder and restart the service, which then "
                    "reads both; if it is lost, stop the run and run the job again",
                )
            if scope.run_id in {None, run.id} and run.status is not RunStatus.DELETED:
                yield AuditProgress(job_id=job.id, run_id=run.id, total=run.total)
                async for event in self.audit.run(job, run.id, scope.bodies):
                    yield event

    async def _has_key(self, job: Job) -> bool:
        """Whether the service has the key that decrypts the gateway key of a job."""
        if self.encryption is None:
            return True
        try:
            await self.encryption.decrypt(
                job.encrypted_gateway_key, context=context(job.caller, job.id)
            )
        except Undecryptable:
            return False
        return True

    async def _job_state(self, job: Job) -> tuple[Sequence[Run], Sequence[Finding]]:
        """A job's runs and the faults between them; read again while the job changes."""
        for _ in range(TRIES):
            runs = [run async for run in runs_of(self.metadata, job.id)]
            latest = await self.metadata.get(Job, job.id)
            if latest is None or latest.status is JobStatus.DELETED:
                return [], []
            if latest == job:
                return runs, list(_job_faults(job, runs))
            job = latest
        return runs, []


class _Ambiguous(Exception):
    """Several ids begin with this text."""


async def _full_id(text: AnyId, ids: AsyncIterator[AnyId]) -> AnyId:
    """The id that `@last` or the beginning of an id stands for; the text itself if there is none."""
    if not stands_for_id(text):
        return cast("AnyId", whole_id(text) or text)
    begins = "" if text == LAST else text.upper()
    newest: list[AnyId] = []
    async for one in ids:
        if one.startswith(begins):
            newest = sorted([*newest, one])[-2:]
    if len(newest) > 1 and begins:
        raise _Ambiguous(f"several ids begin with {text}, such as {newest[0]} and {newest[1]}")
    return newest[-1] if newest else text


def _job_faults(job: Job, runs: Sequence[Run]) -> Iterator[Finding]:
    live = [run.id for run in runs if run.is_live]
    if len(live) > 1:
        yield _wrong("two_live_runs", f"runs {', '.join(live)} are live at once", job.id)
    newest = runs[0].id if runs else None
    if job.latest_run_id != newest:
        text = f"its latest run is {job.latest_run_id}, and its newest is {newest}"
        yield _wrong("wrong_latest_run", text, job.id, newest)
    numbers = Counter(run.sequence for run in runs)
    for run in runs:
        if numbers[run.sequence] > 1 or run.sequence > job.runs:
            text = f"its number {run.sequence} is that of another run, or was never assigned"
            yield _wrong("wrong_sequence", text, job.id, run.id)
        if run.caller != job.caller:
            yield _wrong("wrong_caller", "its caller is not that of its job", job.id, run.id)


def _is_of(scope: DoctorScope, job_id: JobId | None, run_id: RunId | None) -> bool:
    if scope.run_id:
        return run_id == scope.run_id
    return scope.job_id is None or job_id == scope.job_id


def _wrong(
    code: str,
    what: str,
    job_id: JobId | None = None,
    run_id: RunId | None = None,
    *,
    advice: str = RESTORE,
) -> Finding:
    return Finding(
        severity=Severity.WRONG, code=code, what=what, advice=advice, job_id=job_id, run_id=run_id
    )


def _missing_list(key: str | None, job_id: JobId | None, run_id: RunId | None = None) -> Finding:
    return _wrong(
        "list_missing",
        f"its list {key} is missing, and is still needed",
        job_id,
        run_id,
        advice="restore it from a backup, or submit the list again as a new job",
    )


def _to_repair(missed: MissedStep, when: str) -> Finding:
    return Finding(
        severity=Severity.REPAIR,
        code=missed.action,
        what=missed.what,
        advice=f"nothing to do: the sweeper repairs it {when}",
        job_id=missed.job_id,
        run_id=missed.run_id,
        task_id=missed.task_id,
    )


class _Tally:
    """Counts of what has been examined so far."""

    def __init__(self) -> None:
        self._jobs: set[JobId] = set()
        self._runs = self._rows = self._bodies = 0
        self._last: AuditProgress | None = None
        self._found: Counter[Severity] = Counter()
        self._gateway_responds = True

    def add(self, event: DoctorEvent) -> None:
        if isinstance(event, Finding):
            self._found[event.severity] += 1
            self._gateway_responds &= event.code != GATEWAY_SILENT
        if isinstance(event, AuditProgress):
            if self._last and self._last.run_id != event.run_id:
                self._count(self._last)
            self._last = event

    def summary(self, *, tried: bool) -> AuditSummary:
        if self._last:
            self._count(self._last)
        return AuditSummary(
            jobs=len(self._jobs),
            runs=self._runs,
            rows=self._rows,
            bodies=self._bodies,
            wrong=self._found[Severity.WRONG],
            repairs=self._found[Severity.REPAIR],
            notes=self._found[Severity.NOTE],
            gateway_responds=self._gateway_responds if tried else None,
        )

    def _count(self, run: AuditProgress) -> None:
        self._jobs.add(run.job_id)
        self._runs += 1
        self._rows += run.rows
        self._bodies += run.bodies
