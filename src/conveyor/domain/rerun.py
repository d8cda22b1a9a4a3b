"""Which rows of an earlier run a rerun does again, and what it takes over from the others."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from conveyor.domain.counts import Counts
from conveyor.domain.failure import FailureReason
from conveyor.domain.job import Job
from conveyor.domain.run import Inheritance, Run
from conveyor.domain.task import FINAL, Inherited, Task, TaskStatus
from conveyor.errors import InvalidArgument

Statuses = frozenset[TaskStatus]


def parse_statuses(text: str | None) -> Statuses | None:
    """The statuses a rerun is narrowed to; None for a full one."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    try:
        return frozenset(TaskStatus(name) for name in names)
    except ValueError:
        choices = ", ".join(TaskStatus)
        raise InvalidArgument(
            f"`status` must be one or more of {choices}, separated by commas",
            extras={"field": "status"},
        ) from None


def is_done_again(task: Task, statuses: Statuses | None) -> bool:
    """Whether a rerun does this task anew. What still is processing counts as pending too."""
    if statuses is None or task.status in statuses:
        return True
    return task.status is TaskStatus.PROCESSING and TaskStatus.PENDING in statuses


def inherited(rows: Iterable[Task | Inherited]) -> Inheritance:
    """What the rows of a rerun were taken over with. Money is not: the run that spent it has it."""
    taken_over = [row for row in rows if row.source_run_id]
    tally = Counter(_field(row) for row in taken_over if row.is_final)
    return Inheritance(
        counts=Counts(**tally),
        idle=len(taken_over) - tally.total(),
        sources=tuple(sorted({row.source_run_id for row in taken_over if row.source_run_id})),
    )


def expected(
    source: Run, tally: Mapping[TaskStatus, int], counts: Counts, statuses: Statuses | None
) -> tuple[int, Inheritance]:
    """How many tasks a rerun will do, and what it will inherit, before a row is copied.

    Until then the run it is copied from is a source even when nothing is inherited: it must stay.
    """
    if statuses is None:
        return sum(tally.values()), Inheritance(sources=(source.id,))
    again = statuses | ({TaskStatus.PROCESSING} if TaskStatus.PENDING in statuses else set())
    left = {status: n for status, n in tally.items() if status not in again}
    failed = {why: getattr(counts, why) for why in FailureReason}
    return sum(tally.values()) - sum(left.values()), Inheritance(
        counts=Counts(
            successful=left.get(TaskStatus.SUCCESSFUL, 0),
            **(failed if TaskStatus.FAILED in left else {}),
        ),
        idle=sum(n for status, n in left.items() if status not in FINAL),
        sources=tuple(sorted({source.id, *source.inherited.sources})),
    )


def is_too_late(source: Run, job: Job, now: datetime) -> bool:
    """Whether every result that a partial rerun would take over is past its time.

    An ended run's last change is its end: none of its results is younger.
    """
    return source.updated_at + timedelta(days=job.result_ttl_days) <= now


def _field(row: Task | Inherited) -> str:
    """Which figure of its run a final row belongs to."""
    if row.status is TaskStatus.SUCCESSFUL:
        return "successful"
    return row.reason or FailureReason.OTHER
