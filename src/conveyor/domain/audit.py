"""Audits: what the doctor reports, and sums over the rows of a run to compare with its counts.

Rows may change while they are read. So the counts are read before and after the rows, and the sums
must lie between the two: counts only grow, and the write that ends a row also counts it. If nothing
changed meanwhile, both bounds are equal and the comparison is exact.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from conveyor.domain.batch import Batch
from conveyor.domain.counts import COUNT_COLUMNS, ZERO, Counts
from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import MOST_GROUPS, FailureGroup, FailureKey
from conveyor.domain.ids import JobId, RunId, TaskId, task_ids, task_index
from conveyor.domain.rerun import inherited
from conveyor.domain.run import NO_INHERITANCE, IngestStatus, Inheritance, Run, RunStatus, counts
from conveyor.domain.task import WORKER_LOST, Attempt, Task, TaskStatus, counter_of, failure_of

MONEY = {"credits", "nanos"}
FIGURES = tuple(name for name in COUNT_COLUMNS if name not in MONEY)


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
    running: bool  # a service answered or is alive; otherwise the stores were opened at rest
    folder: str | None  # None if no engine uses the data folder
    free: int | None  # bytes on its disk
    size: int | None
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
    gateway_responds: bool | None = None  # None: not tried


DoctorEvent = Finding | AuditProgress | Environment | AuditSummary


class RunSnapshot(msgspec.Struct, frozen=True):
    """What is stored of a run at one moment."""

    run: Run
    settled: Counts
    batches: Sequence[Batch]
    failures: Sequence[FailureGroup] = ()

    @property
    def promised(self) -> int:
        """Rows that may not be written yet."""
        return sum(batch.count - batch.written for batch in self.batches)

    @property
    def reads_list(self) -> bool:
        """Whether it reads a file input, whose rows are counted after they are written."""
        return any(batch.source_list for batch in self.batches)

    @property
    def is_whole(self) -> bool:
        """Whether all its rows should exist."""
        return not self.batches and self.run.ingest_status is not IngestStatus.PENDING


class Ledger:
    """Sums over the rows of one run, added page by page; `groups` are those counted before."""

    def __init__(self, groups: Iterable[FailureGroup] = ()) -> None:
        self.rows = 0
        self.failures = _FailureSums(groups)
        self.statuses: Counter[TaskStatus] = Counter()
        self.figures: Counter[str] = Counter()
        self.inherited: Inheritance = NO_INHERITANCE

    def add(self, page: Sequence[Task]) -> None:
        self.rows += len(page)
        self.statuses.update(task.status for task in page)
        self.figures.update(counter_of(task) for task in page if task.is_final)
        self.inherited += inherited(page)
        for task in page:
            if task.status is TaskStatus.FAILED:
                self.failures.add(failure_of(task))

    def faults(self, before: RunSnapshot, after: RunSnapshot) -> Iterator[tuple[str, str]]:
        """The code and text of each sum that does not agree with what was counted."""
        yield from _rows(self.rows, before, after)
        yield from self._counted(before, after)
        yield from self.failures.faults(before.failures, after.failures)
        # Only if the run had completed before the first row was read: until then rows change.
        if before.run.status is RunStatus.COMPLETED:
            yield from self._completed(after)
        if before.is_whole and after.is_whole and self.inherited != after.run.inherited:
            found, stored = _inheritance(self.inherited), _inheritance(after.run.inherited)
            what = f"its rows have {found} from earlier runs, and the run says {stored}"
            yield "inheritance_differs", what

    def _counted(self, before: RunSnapshot, after: RunSnapshot) -> Iterator[tuple[str, str]]:
        if not (before.is_whole and after.is_whole):
            # Its inheritance is a forecast until all rows are copied: own rows alone are counted.
            yield from self._compare(before.settled, after.settled, less=self.inherited.counts)
            return
        yield from self._compare(
            counts(before.run, before.settled), counts(after.run, after.settled), less=ZERO
        )
        frozen, counted = after.run.frozen, after.run.inherited.counts + after.settled
        if frozen and frozen != counted:
            what = f"the figures frozen at completion are {_shown(frozen)}"
            yield "frozen_differs", f"{what}, and the counters say {_shown(counted)}"

    def _compare(self, low: Counts, high: Counts, *, less: Counts) -> Iterator[tuple[str, str]]:
        for name in FIGURES:
            found = self.figures[name] - getattr(less, name)
            if not getattr(low, name) <= found <= getattr(high, name):
                counted = f"{getattr(high, name):,} were counted"
                yield "counter_differs", f"{found:,} of its rows are `{name}`, and {counted}"

    def _completed(self, standing: RunSnapshot) -> Iterator[tuple[str, str]]:
        if held := self.statuses[TaskStatus.PROCESSING]:
            yield "unfinished_row", f"it is completed, and {held:,} of its rows are processing"
        idle, expected = self.statuses[TaskStatus.PENDING], standing.run.inherited.idle
        if idle != expected:
            what = f"it is completed, and {idle:,} of its rows are pending"
            yield "unfinished_row", f"{what}, where {expected:,} were to be left alone"


class _FailureSums:
    """Failed rows by group. At most `MOST_GROUPS` are kept besides those that were counted before."""

    def __init__(self, groups: Iterable[FailureGroup]) -> None:
        self._sums: Counter[FailureKey] = Counter({group.key: 0 for group in groups})
        self._room = MOST_GROUPS

    def add(self, key: FailureKey) -> None:
        if key not in self._sums:
            key = key if self._room else key.other
            self._room -= not key.is_other
        self._sums[key] += 1

    def faults(
        self, before: Iterable[FailureGroup], after: Iterable[FailureGroup]
    ) -> Iterator[tuple[str, str]]:
        """Compare them with what was counted before and after the rows were read.

        A failure may count in `other` of its reason although its group exists, but nowhere else.
        """
        low = {group.key: group.count for group in before}
        high = {group.key: group.count for group in after}
        for key in sorted({*self._sums, *low, *high}):
            found, most = self._sums[key], high.get(key, 0) + high.get(key.other, 0)
            if not key.is_other and not low.get(key, 0) <= found <= most:
                where = f"at {key.host} for `{key.reason}` with code {key.code!r}"
                what = f"{found:,} of its rows failed {where}"
                yield "failure_group_differs", f"{what}, and {high.get(key, 0):,} were counted"
        for reason in FailureReason:
            least, found, most = (_of(reason, sums) for sums in (low, self._sums, high))
            if not least <= found <= most:
                what = f"{found:,} of its rows failed for `{reason}`"
                yield "failure_group_differs", f"{what}, and its groups count {most:,}"


def _of(reason: FailureReason, sums: Mapping[FailureKey, int]) -> int:
    return sum(count for key, count in sums.items() if key.reason is reason)


def _rows(found: int, before: RunSnapshot, after: RunSnapshot) -> Iterator[tuple[str, str]]:
    totals = before.run.total, after.run.total
    fewest, most = min(totals) - before.promised - after.promised, max(totals)
    if found < fewest:
        yield "rows_missing", f"it has {found:,} rows, and should have {fewest:,}"
    if found > most and not (before.reads_list or after.reads_list):
        yield "rows_too_many", f"it has {found:,} rows, and should have {most:,}"


def row_faults(run: Run, task: Task, lines: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    """The code and text of everything that is wrong with one row and its history."""
    yield from _name_faults(run, task)
    yield from _state_faults(task)
    yield from _history_faults(task, lines)


def _name_faults(run: Run, task: Task) -> Iterator[tuple[str, str]]:
    # Rows of later runs keep the ids that the first run gave them.
    is_derived = run.sequence > 1 or task.id == task_ids(run.id)(task.index)
    if task_index(task.id) != task.index or not is_derived:
        yield "wrong_id", f"the row at index {task.index:,} has the id of another row"
    # A file input is counted after its rows: those of its latest chunk may be ahead of their run.
    if task.index >= run.next_index and run.ingest_status is not IngestStatus.PENDING:
        yield "wrong_index", f"its index {task.index:,} was never given out"


def _state_faults(task: Task) -> Iterator[tuple[str, str]]:
    if task.status is TaskStatus.SUCCESSFUL and task.result is None:
        yield "result_missing", "it is successful, and does not say where its body is"
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
        what = f"it counts {task.attempts} attempts and {task.lost} lost workers"
        yield "history_differs", f"{what}, and its history has {len(charged)} and {lost}"


def _inheritance(inheritance: Inheritance) -> str:
    sources = len(inheritance.sources)
    return f"{_shown(inheritance.counts)}, {inheritance.idle:,} left alone, of {sources} runs"


def _shown(figures: Counts) -> str:
    shown = [
        f"{getattr(figures, name):,} {name}" for name in COUNT_COLUMNS if getattr(figures, name)
    ]
    return ", ".join(shown) or "nothing"
