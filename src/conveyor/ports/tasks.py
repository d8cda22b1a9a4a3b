"""The rows of tasks: written once, read in pages. Their claims are another port."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from conveyor.domain.counts import Counts
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Attempt, NewTask, Task, TaskStatus, spec_size
from conveyor.ports.work import Held

# Bytes of texts (`size_of`) that one call reads or removes at most. A row of a caller with large
# tasks is 64 KiB, older ones are some MB: a limit in rows alone would bound nothing.
PAGE_BYTES = 4 * 1024 * 1024


def in_chunks(rows: Sequence[NewTask]) -> Iterator[list[NewTask]]:
    """Rows in their order, for one call of `add` each: at most `PAGE_BYTES`, or a single row."""
    chunk, room = list[NewTask](), PAGE_BYTES
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
    """Some tasks, and where to go on."""

    tasks: Sequence[Task]
    cursor: int | None  # the `after` of the next page; None when this is the last


class Tasks(Protocol):
    """Durable home of tasks. Raises `Unavailable`, and `StorageFull` when there is no room."""

    async def add(self, run_id: RunId, tasks: Sequence[NewTask]) -> int:
        """Store new tasks, leave known ones alone, say how many were new.

        All of one call are stored, or none.
        """
        ...

    async def get(self, run_id: RunId, task_id: TaskId) -> Task | None:
        """One task, `as_listed`."""
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
        """Tasks in order of index from above `after`, only those in `statuses` when given.

        They are `as_listed`, or `whole` for callers that copy them. At most `limit` of them, and
        at most `PAGE_BYTES` in all unless the first alone is larger: a page with a cursor may have
        any number of tasks, even none. Reads about as many rows as it gives, whatever the filter
        leaves out.
        """
        ...

    async def history(self, run_id: RunId, task_id: TaskId) -> Sequence[Attempt]:
        """The attempts at a task that ended, in the order they ended."""
        ...

    async def histories(
        self, run_id: RunId, *, after: int, up_to: int
    ) -> Mapping[TaskId, Sequence[Attempt]]:
        """The history of each task with an index above `after` and not above `up_to`.

        As `history` gives it, but `in_brief`; tasks without an attempt are left out.
        """
        ...

    async def lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Held]:
        """List claims whose lease ended at least `overdue` ago: what `Work.release_lapsed` would
        release. Nothing is changed.
        """
        ...

    async def counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, Counts]:
        """What has been settled of each run; a run without settled tasks counts zero."""
        ...

    async def tally(self, run_id: RunId) -> Mapping[TaskStatus, int]:
        """How many tasks of a run stand in each status, counted from the rows themselves."""
        ...

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[RunId]:
        """Ids of runs that have rows here, in order, from above `after`."""
        ...

    async def discard(self, run_id: RunId, *, limit: int) -> int:
        """Remove rows of a run with all that hangs on them, and say how many went.

        At most `limit`, and at most `PAGE_BYTES` unless the first alone is larger. None went
        only when there are none left.
        """
        ...
