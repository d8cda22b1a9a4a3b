"""Runs: one execution of a job, its states and its figures.

    running ⇄ pending → completed | stopped | failed | deleted
                        completed | stopped | failed → deleted

`pending` means that every known task is done and more may be added: an open job between batches.
It is derived when a run is read and never stored. If it were stored, a settle that ends the last
task and a call that adds tasks would race to set it.
"""

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from conveyor.domain.counts import ZERO, Counts, Spend
from conveyor.domain.failure import AccountReason
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.errors import IllegalMove

LONGEST_DETAIL = 500


class RunStatus(StrEnum):
    RUNNING = "running"
    PENDING = "pending"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    DELETED = "deleted"


LIVE = frozenset({RunStatus.RUNNING, RunStatus.PENDING})
ENDED = frozenset({RunStatus.COMPLETED, RunStatus.STOPPED, RunStatus.FAILED})
MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.RUNNING: frozenset({RunStatus.PENDING, RunStatus.DELETED}) | ENDED,
    RunStatus.PENDING: frozenset({RunStatus.RUNNING, RunStatus.DELETED}) | ENDED,
    RunStatus.COMPLETED: frozenset({RunStatus.DELETED}),
    RunStatus.STOPPED: frozenset({RunStatus.DELETED}),
    RunStatus.FAILED: frozenset({RunStatus.DELETED}),
    RunStatus.DELETED: frozenset(),
}


class Trigger(StrEnum):
    MANUAL = "manual"
    SCHEDULED = "scheduled"


class IngestStatus(StrEnum):
    PENDING = "pending"
    DONE = "done"


class PauseState(StrEnum):
    """Independent of the status: while a run is paused, no task of it is claimed."""

    ACTIVE = "active"
    PAUSED = "paused"


class Inheritance(msgspec.Struct, frozen=True, kw_only=True):
    """What a rerun inherits from earlier runs."""

    counts: Counts = ZERO  # of inherited rows that are final
    idle: int = 0  # inherited rows that are not final: this run never claims them
    sources: tuple[RunId, ...] = ()  # the runs that own the inherited rows

    def __add__(self, other: "Inheritance") -> "Inheritance":
        return Inheritance(
            counts=self.counts + other.counts,
            idle=self.idle + other.idle,
            sources=tuple(sorted({*self.sources, *other.sources})),
        )


NO_INHERITANCE = Inheritance()


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The stored row. What tasks have settled meanwhile is kept apart, in counter rows."""

    id: RunId
    job_id: JobId
    caller: CallerId
    created_at: datetime
    updated_at: datetime
    total: int  # rows that exist or are promised by an unfinished batch
    next_index: int  # above every index that was given to a task; there may be gaps below it
    sequence: int = 1
    status: RunStatus = RunStatus.RUNNING
    trigger: Trigger = Trigger.MANUAL
    last_batch_received: bool = False
    ingest_status: IngestStatus | None = None
    pause_state: PauseState = PauseState.ACTIVE
    failure_reason: AccountReason | None = None
    failure_detail: str | None = None
    inherited: Inheritance = NO_INHERITANCE
    ingest_errors: int = 0  # rows of its list that are no tasks
    ingest_error: str | None = None  # why its list was not read to its end
    is_cut: bool = False  # it has fewer rows than its list
    frozen: Counts | None = None  # set once, at completion
    bodies_removed: bool = False  # because they expired; only where storage is not swept
    encrypted_token: bytes = b""  # of the waiting state of Step Functions, for its caller and id
    version: int = 0  # 0: not stored yet; each store raises it

    @property
    def is_live(self) -> bool:
        return self.status in LIVE

    @property
    def is_paused(self) -> bool:
        return self.pause_state is PauseState.PAUSED


class Cost(msgspec.Struct, frozen=True, rename={"dollars": "cost"}):
    credits: int
    dollars: float


class Stats(msgspec.Struct, frozen=True):
    total: int
    completed: int
    successful: int
    failed: int
    spend: Cost
    failure_reasons: dict[str, int] | UnsetType = UNSET


def counts(run: Run, settled: Counts) -> Counts:
    """A run's figures: frozen at completion, before that inherited ones plus settled ones."""
    return run.frozen or run.inherited.counts + settled


def open_tasks(run: Run, settled: Counts) -> int:
    """How many tasks of a live run are not done yet, including rows that are not written yet."""
    done = counts(run, settled).done
    return max(run.total - done - run.inherited.idle, 0) if run.is_live else 0


def wiped(run: Run) -> Run:
    """The run without its task token, once the waiting state has received the end of the run."""
    return msgspec.structs.replace(run, encrypted_token=b"")


def is_complete(run: Run, settled: Counts) -> bool:
    """Whether every task is done, except inherited ones, and no more tasks can be added."""
    return (
        run.is_live
        and run.last_batch_received
        and run.ingest_status is not IngestStatus.PENDING
        and counts(run, settled).done + run.inherited.idle == run.total
    )


def shown_status(run: Run, settled: Counts) -> RunStatus:
    """The status that the API shows: a live run that is idle and may get more tasks is pending."""
    idle = (
        not run.last_batch_received
        and run.ingest_status is not IngestStatus.PENDING
        and counts(run, settled).done >= run.total
    )
    return RunStatus.PENDING if run.is_live and idle else run.status


def shown_total(run: Run, settled: Counts) -> int:
    """The total that the API shows. While rows are being written it is above what is done.

    Otherwise a client that compares the two would take the run for finished.
    """
    if run.ingest_status is IngestStatus.PENDING:
        return max(run.total, counts(run, settled).done + 1)
    return run.total


def stats(run: Run, settled: Counts) -> Stats:
    """A run's figures as webhooks and Step Functions receive them: the API's `stats`."""
    figures = counts(run, settled)
    failed = figures.failed
    return Stats(
        total=shown_total(run, settled),
        completed=figures.successful + failed,
        successful=figures.successful,
        failed=failed,
        failure_reasons=figures.reasons if failed else UNSET,
        spend=cost(figures.spend),
    )


def cost(spend: Spend) -> Cost:
    return Cost(spend.credits, spend.dollars)


def complete(run: Run, settled: Counts, now: datetime) -> Run:
    if not is_complete(run, settled):
        raise IllegalMove(f"run {run.id} is not complete")
    return _moved(run, RunStatus.COMPLETED, now, frozen=counts(run, settled))


def stop(run: Run, now: datetime) -> Run:
    return _moved(run, RunStatus.STOPPED, now)


def delete(run: Run, now: datetime) -> Run:
    return _moved(run, RunStatus.DELETED, now)


def fail(run: Run, reason: AccountReason, detail: str, now: datetime) -> Run:
    why = {"failure_reason": reason, "failure_detail": detail[:LONGEST_DETAIL]}
    return _moved(run, RunStatus.FAILED, now, **why)


def pause(run: Run, state: PauseState, now: datetime) -> Run:
    """Pause a live run, or resume it."""
    if not run.is_live:
        raise IllegalMove(f"run {run.id} is {run.status}")
    return msgspec.structs.replace(run, pause_state=state, updated_at=now)


def grow(run: Run, count: int, now: datetime) -> Run:
    """Promise `count` more rows, at the indexes from `run.next_index` on."""
    if run.last_batch_received or not run.is_live:
        raise IllegalMove(f"run {run.id} takes no more tasks")
    return msgspec.structs.replace(
        run, total=run.total + count, next_index=run.next_index + count, updated_at=now
    )


def latch(run: Run, now: datetime) -> Run:
    """Record that no more tasks will be added."""
    return msgspec.structs.replace(run, last_batch_received=True, updated_at=now)


def listed(run: Run, total: int, next_index: int, errors: int, now: datetime) -> Run:
    """Record how much of a file input was read: its length is unknown until its end."""
    return msgspec.structs.replace(
        run, total=total, next_index=next_index, ingest_errors=errors, updated_at=now
    )


def ingested(run: Run, total: int, inherited: Inheritance, now: datetime) -> Run:
    """Record that every row is written. Figures are set, not added to, so a repeat is harmless."""
    return msgspec.structs.replace(
        run,
        total=total,
        inherited=inherited,
        ingest_status=IngestStatus.DONE,
        updated_at=now,
    )


def explained(run: Run, why: str | None, *, is_cut: bool) -> Run:
    """Record why the run has fewer rows than its list, if it has."""
    error = why[:LONGEST_DETAIL] if why else run.ingest_error
    return msgspec.structs.replace(run, is_cut=run.is_cut or is_cut, ingest_error=error)


def _moved(run: Run, status: RunStatus, now: datetime, **changes: object) -> Run:
    if status not in MOVES[run.status]:
        raise IllegalMove(f"run {run.id}: {run.status} -> {status}")
    return msgspec.structs.replace(run, status=status, updated_at=now, **changes)
