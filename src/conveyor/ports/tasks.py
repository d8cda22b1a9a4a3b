"""Task rows: inserted once, read in pages. `Work` and `Claims` hand them out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from conveyor.domain.counts import Counts, OpenCounts
from conveyor.domain.failure_groups import FailureGroup
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.job import RunPlace
from conveyor.domain.task import Attempt, NewRow, Task, TaskStatus, spec_size

# Bytes of texts (`size_of`) that one call reads or removes at most. A row may have 64 KiB, and rows of
# 0.1.0 several MB, so a limit in rows alone would not bound memory.
PAGE_BYTES = 4 * 1024 * 1024


def in_chunks(rows: Sequence[NewRow]) -> Iterator[list[NewRow]]:
    """Cut rows into chunks for `Tasks.add`, each of at most `PAGE_BYTES` or a single row."""
    chunk, room = list[NewRow](), PAGE_BYTES
    for row in rows:
        size = spec_size(row.spec)
        if chunk and size > room:
            yield chunk
            chunk, room = [], PAGE_BYTES
        chunk.append(row)
        room -= size
    if chunk:
        yield chunk


class TaskPage(msgspec.Struct, frozen=True):
    """Some tasks, and where the next page begins."""

    tasks: Sequence[Task]
    cursor: int | None  # the `after` of the next page; None when this is the last
    # The page ended because its filter had to read too much. To go on may cost as much again.
    is_costly: bool = False


class Tasks(Protocol):
    """The rows of tasks.

    Every method raises `Unavailable`; `add` also raises `StorageFull`.
    """

    async def lay_out(self, run_id: RunId, place: RunPlace) -> None:
        """Fix where the rows of a run are stored. Each writer calls it before it adds rows.

        The first call decides. The call may be repeated with the same place; another one raises
        `ValueError`. An engine may store the place with the first rows of the run, and remember it
        after all rows were discarded: the id of a run is never used again.
        """
        ...

    async def add(self, run_id: RunId, tasks: Sequence[NewRow]) -> int:
        """Insert the rows that do not exist yet, and return how many were inserted.

        When the call raises, some of the rows may be inserted: rows mean nothing before the commit
        of their run or the watermark that follows them, and the call may be repeated. The number is
        for metrics, and may be too low after a repeat. Existing rows are not changed, whatever
        their state, so an ingest that resumes may add the same rows again. New rows are due at once;
        inherited rows are never due. An inherited row that failed is counted in the failure groups
        of the run by the write that inserts it.

        Raises `ValueError` unless the run was laid out.
        """
        ...

    async def get(self, run_id: RunId, task_id: TaskId) -> Task | None:
        """Read one task, `as_listed`; None when it does not exist."""
        ...

    async def page(
        self,
        run_id: RunId,
        *,
        limit: int,
        after: int = -1,
        statuses: frozenset[TaskStatus] | None = None,
        whole: bool = False,
        lagging: bool = False,
    ) -> TaskPage:
        """List tasks in order of index, beginning above `after`; with `statuses`, only those.

        Tasks are `as_listed`, or complete with `whole`, for steps that copy them. A page has at
        most `limit` tasks and `PAGE_BYTES`, unless its first task alone is larger. A page that has
        a cursor may have fewer tasks, even none. A filter must not make the engine read many more
        rows than it returns: a page that would ends, and `is_costly`. With `lagging` the rows may be
        as they were some seconds ago, which costs some engines half as much.
        """
        ...

    async def history(self, run_id: RunId, task_id: TaskId) -> Sequence[Attempt]:
        """List the attempts at a task that have ended, in the order in which they ended."""
        ...

    async def histories(
        self, run_id: RunId, *, after: int, up_to: int
    ) -> Mapping[TaskId, Sequence[Attempt]]:
        """Return the history of each task with an index above `after` and at most `up_to`.

        The attempts are as in `history`, but `in_brief`. Tasks without an ended attempt are left
        out.
        """
        ...

    async def counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, Counts]:
        """Return the sum of what was settled of each run; zero for a run without settled tasks.

        A settled task is counted in the transaction that settles it.
        """
        ...

    async def open_counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, OpenCounts]:
        """Return how many tasks of each run are in flight, and how many wait for a retry.

        Each figure is counted up to `MOST_OPEN`. A run is left out if the engine would have to read
        its rows for that, because this is called for every request that shows a live run.
        """
        ...

    async def failure_groups(self, run_id: RunId) -> Sequence[FailureGroup]:
        """Return the failed tasks of a run by group, inherited ones too, as `listed` orders them.

        A failure is counted in the atomic step that writes its row. An engine with several writers
        may bound the groups of each writer instead of those of the run: the result has at most
        `MOST_GROUPS` and `other` all the same, but a failure may count in `other` although the
        result has its group.
        """
        ...

    async def tally(self, run_id: RunId) -> Mapping[TaskStatus, int]:
        """Count the tasks of a run by status.

        This reads all rows of the run, so no request of a caller may wait for it.
        """
        ...

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[RunId]:
        """List at most `limit` ids of runs that have rows, in order, beginning above `after`."""
        ...

    async def discard(self, run_id: RunId, *, limit: int) -> int:
        """Remove rows of a run with their history and counts, and return how many were removed.

        One call removes at most `limit` rows and `PAGE_BYTES`, unless the first row alone is
        larger. Zero means that no rows are left.
        """
        ...
