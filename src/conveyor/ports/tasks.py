"""Task rows: inserted once, read in pages. `Work` and `Claims` hand them out."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from conveyor.domain.counts import Counts
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Attempt, NewRow, Task, TaskStatus, spec_size
from conveyor.ports.work import Held

# Bytes of texts (`size_of`) that one call reads or removes at most. A row may have 64 KiB, and one of
# an older version some MB: a limit in rows alone would not bound memory.
PAGE_BYTES = 4 * 1024 * 1024


def in_chunks(rows: Sequence[NewRow]) -> Iterator[list[NewRow]]:
    """Cut rows into chunks for `add`: at most `PAGE_BYTES` each, or a single row."""
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


class Tasks(Protocol):
    """The rows of tasks. Raises `Unavailable`, and `StorageFull` when there is no room."""

    async def add(self, run_id: RunId, tasks: Sequence[NewRow]) -> int:
        """Insert tasks that are not there yet; return how many were new.

        All tasks of one call are stored, or none. Stored tasks are not changed.
        """
        ...

    async def get(self, run_id: RunId, task_id: TaskId) -> Task | None:
        """Read one task, `as_listed`."""
        ...

    async def page(
        self,
        run_id: RunId,
        *,
        limit: int,
        after: int = -1,
        statuses: frozenset[TaskStatus] | None = None,
        whole: bool = False,
    ) -> TaskPage:
        """List tasks in order of index from above `after`; only those in `statuses` when given.

        They are `as_listed`, or complete when `whole`, for steps that copy them. A page has at most
        `limit` tasks and `PAGE_BYTES`, unless its first task alone is larger. A page with a cursor
        may have any number of tasks, even none. The engine reads about as many rows as it returns,
        whatever the filter leaves out.
        """
        ...

    async def history(self, run_id: RunId, task_id: TaskId) -> Sequence[Attempt]:
        """List the ended attempts at a task, in the order they ended."""
        ...

    async def histories(
        self, run_id: RunId, *, after: int, up_to: int
    ) -> Mapping[TaskId, Sequence[Attempt]]:
        """Return the history of each task with an index above `after` and at most `up_to`.

        As `history` returns it, but `in_brief`; tasks without an ended attempt are left out.
        """
        ...

    async def lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Held]:
        """List claims whose lease ended at least `overdue` ago: what `Work.release_lapsed` would
        release. Nothing is changed.
        """
        ...

    async def counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, Counts]:
        """Return what has been settled of each run; zero for a run without settled tasks."""
        ...

    async def tally(self, run_id: RunId) -> Mapping[TaskStatus, int]:
        """Count the tasks of a run by status, from the rows themselves."""
        ...

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[RunId]:
        """List the ids of runs that have rows, in order, from above `after`."""
        ...

    async def discard(self, run_id: RunId, *, limit: int) -> int:
        """Remove rows of a run with their history and counts; return how many were removed.

        At most `limit` rows and `PAGE_BYTES`, unless the first row alone is larger. Zero means that
        none are left.
        """
        ...
