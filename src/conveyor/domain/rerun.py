"""Which rows of an earlier run a rerun scrapes again, and what it inherits from the others."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from conveyor.domain.counts import Counts
from conveyor.domain.failure import FailureReason
from conveyor.domain.job import Job
from conveyor.domain.json_bodies import check_names, decode_body
from conveyor.domain.run import Inheritance, Run
from conveyor.domain.task import FINAL, Inherited, NewRow, Task, TaskStatus, counter_of, inherit
from conveyor.errors import InvalidArgument

Statuses = frozenset[TaskStatus]


class RerunBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a rerun. It has no fields, but some clients always send a body."""


def check_body(raw: bytes) -> None:
    """Refuse fields, which would be ignored. Raises `InvalidArgument`."""
    if raw.strip() not in {b"", b"null"}:
        decode_body(raw, RerunBody, _no_body)


def _no_body(field: str, _: str) -> InvalidArgument:
    return InvalidArgument(
        "A rerun must have no body: give statuses in the query, as in `?status=failed`",
        extras={"field": field} if field else None,
    )


def parse_statuses(text: str | None) -> Statuses | None:
    """The statuses of the tasks that a rerun repeats; None for all."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    check_names("status", names, list(TaskStatus))
    return frozenset(map(TaskStatus, names))


def copy_rows(rows: Sequence[Task], statuses: Statuses | None) -> list[NewRow]:
    """The copy rule: the rows that a rerun has in place of an earlier run's.

    Each keeps its index, id and the caller's fields. A row in one of `statuses` is scraped again,
    every row when they are None; any other is inherited as it is.
    """
    again = _scraped_again(statuses)
    return [
        NewRow(row.index, row.id, row.spec, None if row.status in again else inherit(row))
        for row in rows
    ]


def _scraped_again(statuses: Statuses | None) -> Statuses:
    """A row that an ended run still holds as processing counts as pending."""
    if statuses is None:
        return frozenset(TaskStatus)
    return statuses | {TaskStatus.PROCESSING} if TaskStatus.PENDING in statuses else statuses


def inherited(rows: Iterable[Task | Inherited]) -> Inheritance:
    """What a rerun inherits with its rows. Their cost stays with the run that paid it."""
    taken_over = [row for row in rows if row.source_run_id]
    tally = Counter(counter_of(row) for row in taken_over if row.is_final)
    return Inheritance(
        counts=Counts(**tally),
        idle=len(taken_over) - tally.total(),
        sources=tuple(sorted({row.source_run_id for row in taken_over if row.source_run_id})),
    )


def expected(
    source: Run, tally: Mapping[TaskStatus, int], counts: Counts, statuses: Statuses | None
) -> tuple[int, Inheritance]:
    """How many tasks a rerun will scrape, and what it will inherit, before a row is copied.

    The source run is listed even when nothing is inherited: it must not be deleted until then.
    """
    if statuses is None:
        return sum(tally.values()), Inheritance(sources=(source.id,))
    again = _scraped_again(statuses)
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
    """Whether every result that a partial rerun would inherit has expired.

    An ended run was last changed when it ended: none of its results is newer.
    """
    return source.updated_at + timedelta(days=job.result_ttl_days) <= now
