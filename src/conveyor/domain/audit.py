"""Audits: what the doctor finds, and the accounts of a run made up from its rows.

The accounts are compared with what was counted. Rows may change while they are read. The counts
before and after the reading bound what the rows can say: counts only grow, and the write that ends
a row also counts it. Where nothing changed the bounds are equal, and the comparison is exact.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from conveyor.domain.batch import Batch
from conveyor.domain.counts import COLUMNS, ZERO, Counts
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import JobId, RunId, TaskId, task_ids, task_index
from conveyor.domain.rerun import inherited
from conveyor.domain.run import NO_INHERITANCE, IngestStatus, Inheritance, Run, RunStatus, counts
from conveyor.domain.task import WORKER_LOST, Attempt, Task, TaskStatus

MONEY = {"credits", "nanos"}
FIGURES = tuple(name for name in COLUMNS if name not in MONEY)


class Severity(StrEnum):
    WRONG = "wrong"  # an operator must act
    REPAIR = "repair"  # the sweeper will repair it
    NOTE = "note"  # worth knowing; nothing to do


class MissedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that a crash left out, or cut short, and that the sweeper makes up for."""

    action: str  # as the sweeper counts it
    key: str  # equal for two sightings of the same thing in the same state
    what: str  # in words
    job_id: JobId | None = None
    run_id: RunId | None = None
    task_id: TaskId | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True, tag="finding", tag_field="event"):
    """One thing that is wrong: where, what, and what to do about it."""

    severity: Severity
    code: str
    what: str
    advice: str = ""
    job_id: JobId | None = None
    run_id: RunId | None = None
    task_id: TaskId | None = None


class AuditProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress", tag_field="event"):
    """How far the audit of one run is."""

    job_id: JobId
    run_id: RunId
    rows: int = 0
    bodies: int = 0
    total: int = 0


class DoctorScope(msgspec.Struct, frozen=True, kw_only=True):
    """What the doctor examines: everything, one job, or one run."""

    job_id: JobId | None = None
    run_id: RunId | None = None
    bodies: bool = True  # read every body and compare it with its checksum


class Environment(msgspec.Struct, frozen=True, kw_only=True, tag="environment", tag_field="event"):
    """Where the data is and which settings apply; secrets are masked."""

    version: str
    running: bool  # a service answered; otherwise the folder was opened at rest
    folder: str
    free: int  # bytes on its disk
    size: int
    settings: dict[str, str]


class AuditSummary(msgspec.Struct, frozen=True, kw_only=True, tag="summary", tag_field="event"):
    """What was examined in all, and how much was found."""

    jobs: int = 0
    runs: int = 0
    rows: int = 0
    bodies: int = 0
    wrong: int = 0
    repairs: int = 0
    notes: int = 0


DoctorEvent = Finding | AuditProgress | Environment | AuditSummary


class RunSnapshot(msgspec.Struct, frozen=True):
    """What is stored of a run at one moment."""

    run: Run
    settled: Counts
    batches: Sequence[Batch]

    @property
    def promised(self) -> int:
        """Rows that may not be written yet."""
        return sum(batch.count - batch.written for batch in self.batches)

    @property
    def is_whole(self) -> bool:
        """Whether all its rows should exist."""
        return not self.batches and self.run.ingest_status is not IngestStatus.PENDING


class Ledger:
    """Sums over the rows of one run, added page by page."""

    def __init__(self) -> None:
        self.rows = 0
        self.statuses: Counter[TaskStatus] = Counter()
        self.figures: Counter[str] = Counter()
        self.inherited: Inheritance = NO_INHERITANCE

    def add(self, page: Sequence[Task]) -> None:
        self.rows += len(page)
        self.statuses.update(task.status for task in page)
        self.figures.update(_figure(task) for task in page if task.is_final)
        self.inherited += inherited(page)

    def faults(self, before: RunSnapshot, after: RunSnapshot) -> Iterator[tuple[str, str]]:
        """(code, text) of each account that does not agree."""
        yield from _rows(self.rows, before, after)
        yield from self._counted(before, after)
        if (
            before.run.status is RunStatus.COMPLETED
        ):  # before a row was read: else rows were at work
            yield from self._completed(after)
        if before.is_whole and after.is_whole and self.inherited != after.run.inherited:
            yield (
                "inheritance_differs",
                (
                    f"its rows have {_told(self.inherited)} from earlier runs, and the run says "
                    f"{_told(after.run.inherited)}"
                ),
            )

    def _counted(self, before: RunSnapshot, after: RunSnapshot) -> Iterator[tuple[str, str]]:
        if not (before.is_whole and after.is_whole):
            # Its inheritance is a forecast until all rows are copied: own rows alone are counted.
            yield from self._compare(before.settled, after.settled, less=self.inherited.counts)
            return
        yield from self._compare(
            counts(before.run, before.settled), counts(after.run, after.settled), less=ZERO
        )
        frozen = after.run.frozen
        if frozen and frozen != after.run.inherited.counts + after.settled:
            yield (
                "frozen_differs",
                (
                    f"the figures frozen at completion are {_shown(frozen)}, and the counters say "
                    f"{_shown(after.run.inherited.counts + after.settled)}"
                ),
            )

    def _compare(self, low: Counts, high: Counts, *, less: Counts) -> Iterator[tuple[str, str]]:
        for name in FIGURES:
            found = self.figures[name] - getattr(less, name)
            if not getattr(low, name) <= found <= getattr(high, name):
                counted = getattr(high, name)
                yield (
                    "counter_differs",
                    f"{found:,} of its rows are `{name}`, and {counted:,} were counted",
                )

    def _completed(self, standing: RunSnapshot) -> Iterator[tuple[str, str]]:
        if held := self.statuses[TaskStatus.PROCESSING]:
            yield "unfinished_row", f"it is completed, and {held:,} of its rows are processing"
        idle = self.statuses[TaskStatus.PENDING]
        if idle != standing.run.inherited.idle:
            yield (
                "unfinished_row",
                (
                    f"it is completed, and {idle:,} of its rows are pending, where "
                    f"{standing.run.inherited.idle:,} were to be left alone"
                ),
            )


def _rows(found: int, before: RunSnapshot, after: RunSnapshot) -> Iterator[tuple[str, str]]:
    totals = before.run.total, after.run.total
    fewest, most = min(totals) - before.promised - after.promised, max(totals)
    if found < fewest:
        yield "rows_missing", f"it has {found:,} rows, and should have {fewest:,}"
    if found > most:
        yield "rows_too_many", f"it has {found:,} rows, and should have {most:,}"


def row_faults(run: Run, task: Task, lines: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    """(code, text) of what is wrong with one row and its history."""
    yield from _name_faults(run, task)
    yield from _state_faults(task)
    yield from _history_faults(task, lines)


def _name_faults(run: Run, task: Task) -> Iterator[tuple[str, str]]:
    strange = task_index(task.id) != task.index
    if run.sequence == 1 and task.id != task_ids(run.id)(task.index):
        strange = True
    if strange:
        yield "wrong_id", f"the row at index {task.index:,} bears an id that is not its own"
    if task.index >= run.next_index:
        yield "wrong_index", f"its index {task.index:,} was never given out"


def _state_faults(task: Task) -> Iterator[tuple[str, str]]:
    if task.status is TaskStatus.SUCCESSFUL and task.result is None:
        yield "result_missing", "it is successful, and says nothing of where its body is"
    if task.status is TaskStatus.FAILED and not (task.problem and task.reason):
        yield "problem_missing", "it is failed, and does not say why"
    if not task.is_final and task.result is not None:
        yield "wrong_status", f"it is {task.status}, and has a result"
    idle = task.is_final or task.source_run_id is not None
    if idle and task.due_at is not None:
        yield "wrong_status", f"it is {task.status} for good, and up for claiming"
    if not idle and task.due_at is None:
        yield "never_due", f"it is {task.status}, and will never be up for claiming"


def _history_faults(task: Task, lines: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    charged = [line.attempt for line in lines if line.problem != WORKER_LOST]
    lost = len(lines) - len(charged)
    if task.source_run_id:
        # A row that was left open may have gone on in its own run.
        fits = len(charged) == task.attempts or (not task.is_final and len(charged) > task.attempts)
    else:
        fits = charged == list(range(1, task.attempts + 1)) and lost == task.lost
    if not fits:
        yield (
            "history_differs",
            (
                f"it counts {task.attempts} attempts and {task.lost} lost workers, and its history "
                f"has {len(charged)} and {lost}"
            ),
        )


def _figure(task: Task) -> str:
    if task.status is TaskStatus.SUCCESSFUL:
        return "successful"
    return task.reason or FailureReason.OTHER


def _told(inheritance: Inheritance) -> str:
    sources = len(inheritance.sources)
    return f"{_shown(inheritance.counts)}, {inheritance.idle:,} left alone, of {sources} runs"


def _shown(figures: Counts) -> str:
    shown = [f"{getattr(figures, name):,} {name}" for name in COLUMNS if getattr(figures, name)]
    return ", ".join(shown) or "nothing"
