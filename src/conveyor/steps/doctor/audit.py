"""The audit of a run: verifies its counts by its rows, their histories and their bodies.

It writes nothing and holds one page of rows at a time. Workers may change rows meanwhile, so what
looks wrong is read again before it is reported. Nothing is reported of a run that is deleted
meanwhile.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from conveyor.domain.audit import AuditProgress, Finding, Ledger, RunSnapshot, Severity, row_faults
from conveyor.domain.batch import Batch
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.job import Job
from conveyor.domain.run import Run, RunStatus
from conveyor.domain.task import Attempt, StoredBody, Task, TaskStatus
from conveyor.errors import NotFound, Unavailable
from conveyor.ports.bodies import Bodies, BodyName
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.steps.shared.pagination import every_of_run

PAGE = 500
NAMES = 5_000
MOST_LISTED = 20  # findings of one code in one run; the others are counted
AT_ONCE = 4  # bodies read concurrently
TRIES = 5
LAST = "~"

AGAIN = "restore it from a backup, or run the job again (POST /v1/jobs/{job}/rerun)"
ADVICE = {
    "body_missing": AGAIN,
    "body_damaged": AGAIN,
    "body_unreadable": "look at the disk and its permissions; if the file is lost, " + AGAIN,
    "body_orphaned": "no row refers to it: remove the file, or leave it until the run is deleted",
    "source_missing": "its inherited results cannot be read: run the whole job again",
}
TAMPERED = (
    "Conveyor never does this by itself: restore the data folder from a backup, or run the job "
    "again (POST /v1/jobs/{job}/rerun) and delete this run"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    metadata: Metadata
    tasks: Tasks
    bodies: Bodies
    clock: Clock

    async def run(
        self, job: Job, run_id: RunId, bodies: bool
    ) -> AsyncIterator[AuditProgress | Finding]:
        """Yield progress after each page, and at the end the findings."""
        before = await self._snapshot(run_id)
        if before is None:
            return
        # Storage that several processes write to may take a page after its claim was released. With
        # one process that owns the storage, the release finds every page.
        case = _Case(job, before, () if self.bodies.is_swept else {"body_orphaned"})
        names = _Names(self.bodies, before.run) if bodies else None
        async for page in self._pages(run_id):
            await self._check_rows(case, page, names)
            yield case.progress
        if names:
            await self._note_orphans(case, await names.up_to(LAST), [])
        await self._check_sources(case)
        after = await self._snapshot(run_id)
        if after is None:
            return
        for code, text in case.ledger.faults(before, after):
            case.note(code, text)
        for finding in case.findings():
            yield finding

    async def _snapshot(self, run_id: RunId) -> RunSnapshot | None:
        """What is stored of a run; None when it is gone."""
        run = await self.metadata.get(Run, run_id)
        if run is None or run.status is RunStatus.DELETED:
            return None
        settled = (await self.tasks.counts([run_id]))[run_id]
        unfinished = [batch async for batch in every_of_run(self.metadata, Batch, run_id)]
        failures = await self.tasks.failure_groups(run_id)
        return RunSnapshot(run, settled, unfinished, failures)

    async def _pages(self, run_id: RunId) -> AsyncIterator[Sequence[Task]]:
        after: int | None = -1
        while after is not None:
            page = await self.tasks.page(run_id, limit=PAGE, after=after)
            if page.tasks:
                yield page.tasks
            after = page.cursor

    async def _check_rows(
        self, case: "_Case", page: Sequence[Task], names: "_Names | None"
    ) -> None:
        case.ledger.add(page)
        lines = await self._histories(case.run.id, page)
        for task in page:
            if any(row_faults(case.run, task, lines.get(task.id, ()))):
                await self._check_again(case, task)
        if names:
            async with asyncio.TaskGroup() as group:
                for part in range(AT_ONCE):
                    group.create_task(self._check_bodies(case, page[part::AT_ONCE]))
            await self._note_orphans(case, await names.up_to(page[-1].id), page)

    async def _histories(
        self, run_id: RunId, page: Sequence[Task]
    ) -> Mapping[TaskId, Sequence[Attempt]]:
        """The histories of a page's tasks, those of inherited ones from the runs that own them."""
        found: dict[TaskId, Sequence[Attempt]] = {}
        after, up_to = page[0].index - 1, page[-1].index
        for owner in {task.source_run_id or run_id for task in page}:
            lines = await self.tasks.histories(owner, after=after, up_to=up_to)
            owned = {task.id for task in page if (task.source_run_id or run_id) == owner}
            found |= {task_id: lines[task_id] for task_id in owned & lines.keys()}
        return found

    async def _check_again(self, case: "_Case", task: Task) -> None:
        """Read a row until two reads are equal, then judge it with its run and its history."""
        for _ in range(TRIES):
            run = await self.metadata.get(Run, case.run.id)
            found = await self._row(case.run.id, task.index)
            if run is None or not found:
                return
            [row] = found
            lines = await self.tasks.history(row.source_run_id or run.id, row.id)
            if await self._row(case.run.id, task.index) == found:
                for code, text in row_faults(run, row, lines):
                    case.note(code, text, row.id)
                return

    async def _row(self, run_id: RunId, index: int) -> list[Task]:
        near = await self.tasks.page(run_id, limit=1, after=index - 1)
        return [row for row in near.tasks if row.index == index]

    async def _check_bodies(self, case: "_Case", tasks: Sequence[Task]) -> None:
        for task in tasks:
            await self._check_body(case, task)

    async def _check_body(self, case: "_Case", task: Task) -> None:
        if task.status is not TaskStatus.SUCCESSFUL or task.result is None:
            return
        case.bodies += 1
        fault = await self._body_fault(task.result)
        expires = task.updated_at + timedelta(days=case.job.result_ttl_days)
        if fault and not (fault[0] == "body_missing" and expires <= self.clock.now()):
            case.note(*fault, task.id)

    async def _body_fault(self, result: StoredBody) -> tuple[str, str] | None:
        digest, length = hashlib.sha256(), 0
        try:
            async for chunk in self.bodies.read(result.locator):
                digest.update(chunk)
                length += len(chunk)
        except NotFound:
            return "body_missing", f"its body is missing: {result.locator}"
        except Unavailable as error:
            return "body_unreadable", f"its body cannot be read: {result.locator} ({error})"
        if length != result.length:
            fault = f"has {length:,} bytes, expected {result.length:,}"
        elif digest.hexdigest() != result.checksum:
            fault = "is not what was stored: its SHA-256 differs"
        else:
            return None
        return "body_damaged", f"its body {fault}: {result.locator}"

    async def _note_orphans(
        self, case: "_Case", names: Iterable[BodyName], page: Sequence[Task]
    ) -> None:
        wanted = {(task.id, task.claim_no) for task in page if _may_have_body(task)}
        for name in names:
            if (name.task_id, name.claim_no) not in wanted and await self._is_orphan(name):
                text = f"it has a body of claim {name.claim_no}, and no row refers to it"
                case.note("body_orphaned", text, name.task_id)

    async def _is_orphan(self, name: BodyName) -> bool:
        """Whether the body still exists, and its task still does not refer to it."""
        task = await self.tasks.get(name.run_id, name.task_id)
        if task and task.claim_no == name.claim_no and _may_have_body(task):
            return False
        after = (name.task_id, name.claim_no - 1)
        return name in await self.bodies.names(name.job_id, name.run_id, limit=1, after=after)

    async def _check_sources(self, case: "_Case") -> None:
        for source in case.run.inherited.sources:
            run = await self.metadata.get(Run, source)
            if run is None or run.status is RunStatus.DELETED:
                case.note(
                    "source_missing", f"it shows results of run {source}, which does not exist"
                )


def _may_have_body(task: Task) -> bool:
    """Whether the latest claim of a row has written a body, or may still write one."""
    return task.source_run_id is None and task.status in {
        TaskStatus.SUCCESSFUL,
        TaskStatus.PROCESSING,
    }


class _Case:
    """One run under audit: its sums, and the faults noted so far."""

    def __init__(self, job: Job, before: RunSnapshot, expected: Collection[str]) -> None:
        self.job = job
        self._expected = expected  # codes of what the engines may leave behind
        self.run = before.run
        self.ledger = Ledger(before.failures)
        self.bodies = 0
        self._noted: dict[str, list[tuple[str, TaskId | None]]] = {}
        self._more: dict[str, int] = {}

    @property
    def progress(self) -> AuditProgress:
        return AuditProgress(
            job_id=self.job.id,
            run_id=self.run.id,
            rows=self.ledger.rows,
            bodies=self.bodies,
            total=self.run.total,
        )

    def note(self, code: str, text: str, task_id: TaskId | None = None) -> None:
        noted = self._noted.setdefault(code, [])
        if len(noted) < MOST_LISTED:
            noted.append((text, task_id))
        else:
            self._more[code] = self._more.get(code, 0) + 1

    def findings(self) -> Iterator[Finding]:
        for code, noted in self._noted.items():
            for text, task_id in noted:
                yield self._finding(code, text, task_id)
            if more := self._more.get(code):
                yield self._finding(code, f"{more:,} more of its tasks have this fault", None)

    def _finding(self, code: str, text: str, task_id: TaskId | None) -> Finding:
        return Finding(
            severity=Severity.NOTE if code in self._expected else Severity.WRONG,
            code=code,
            what=text,
            advice=ADVICE.get(code, TAMPERED).replace("{job}", self.job.id),
            job_id=self.job.id,
            run_id=self.run.id,
            task_id=task_id,
        )


class _Names:
    """The names of a run's bodies in order, read as far as needed."""

    def __init__(self, bodies: Bodies, run: Run) -> None:
        self._bodies = bodies
        self._run = run
        self._ahead: list[BodyName] = []
        self._after = ("", -1)
        self._ended = False

    async def up_to(self, task_id: str) -> list[BodyName]:
        """Names not returned yet, up to those of this task."""
        while not self._ended and not (self._ahead and self._ahead[-1].task_id > task_id):
            await self._read_on()
        taken = [name for name in self._ahead if name.task_id <= task_id]
        self._ahead = self._ahead[len(taken) :]
        return taken

    async def _read_on(self) -> None:
        page = await self._bodies.names(
            self._run.job_id, self._run.id, limit=NAMES, after=self._after
        )
        self._ahead += page
        self._ended = not page
        if page:
            self._after = (page[-1].task_id, page[-1].claim_no)
