"""The copy rule of reruns: which rows are scraped again, and what the others leave to inherit."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from conveyor.domain.counts import COUNT_COLUMNS, Counts
from conveyor.domain.job import Job
from conveyor.domain.params import Params
from conveyor.domain.run import Inheritance, Run
from conveyor.domain.selection import Chosen, Selection, matcher, with_params
from conveyor.domain.task import Inherited, NewRow, Task, counter_of, inherit


def copy_rows(rows: Sequence[Task], selection: Selection, params: Params) -> list[NewRow]:
    """The rows that a rerun has in place of an earlier run's.

    Each keeps its index, id and the caller's fields. A selected row is scraped again, with `params`
    in place of its own; any other is inherited as it is.
    """
    is_selected = matcher(selection)
    return [
        NewRow(row.index, row.id, with_params(row.spec, params))
        if is_selected(row)
        else NewRow(row.index, row.id, row.spec, inherit(row))
        for row in rows
    ]


def inherited(rows: Iterable[Task | Inherited]) -> Inheritance:
    """What a rerun inherits with its rows. Their cost stays with the run that paid it."""
    taken_over = [row for row in rows if row.source_run_id]
    tally = Counter(counter_of(row) for row in taken_over if row.is_final)
    return Inheritance(
        counts=Counts(**tally),
        idle=len(taken_over) - tally.total(),
        sources=tuple(sorted({row.source_run_id for row in taken_over if row.source_run_id})),
    )


def expected(source: Run, counts: Counts, selection: Selection, chosen: Chosen) -> Inheritance:
    """What a rerun will inherit, before a row is copied, if it scrapes so many tasks again.

    The source run is listed even when nothing is inherited: it must not be deleted until then.
    """
    if selection.is_all:
        return Inheritance(sources=(source.id,))
    left = {
        name: getattr(counts, name) - getattr(chosen.counts, name)
        for name in COUNT_COLUMNS
        if name not in {"credits", "nanos"}
    }
    return Inheritance(
        counts=Counts(**left),
        idle=source.total - counts.done - chosen.unfinished,
        sources=tuple(sorted({source.id, *source.inherited.sources})),
    )


def is_too_late(source: Run, job: Job, now: datetime) -> bool:
    """Whether every result that a partial rerun would inherit has expired.

    An ended run was last changed when it ended: none of its results is newer.
    """
    return source.updated_at + timedelta(days=job.result_ttl_days) <= now
