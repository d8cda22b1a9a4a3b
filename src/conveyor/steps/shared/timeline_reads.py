"""When the tasks of runs ended, from all rows of small runs and from a sample of large ones."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from conveyor.domain import run as run_rules
from conveyor.domain.ids import RunId
from conveyor.domain.run import Run
from conveyor.domain.task import Task, TaskStatus
from conveyor.domain.timeline import NEIGHBOURS, Ending, Timeline, counted, estimated, places
from conveyor.ports.clock import Clock
from conveyor.ports.tasks import Tasks
from conveyor.steps.shared.shared_readings import SharedReadings

FindTimeline = Callable[[Run], Awaitable[Timeline]]

MOST_COUNTED = 2_000  # indexes of a run of which all rows are read
READ_AT_A_TIME = 1_000  # of these rows
PLACES = 64  # at which a larger run is read, `NEIGHBOURS` rows at each
PROBES = 12  # places that tell how far a live run is, twice
PROBED = 4  # rows at each: the first may wait for a retry
SHARED_FOR = timedelta(seconds=10)
# After a stop, calls to the gateway that were under way may end for minutes, and count.
OVER = timedelta(minutes=15)
KEPT_FOR = timedelta(days=1)  # of runs that are over
MOST_KEPT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineReader:
    """Reads timelines, which all who ask for a run share.

    Tasks are claimed by index, in groups. So neighbours end together, and many small pages tell
    more than a few large ones; each is a query. A live run has no endings beyond the tasks that
    were claimed last, so pages are spread over the part before them.
    """

    tasks: Tasks
    clock: Clock
    count: Callable[[int], None]  # rows that were read
    shared: SharedReadings[Timeline]

    async def find(self, run: Run) -> Timeline:
        is_over = not run.is_live and run.updated_at < self.clock.now() - OVER
        key, life = (run.id, run.is_live, is_over), KEPT_FOR if is_over else SHARED_FOR
        return await self.shared.find(key, partial(self._read, run), life=life)

    async def _read(self, run: Run) -> Timeline:
        now = self.clock.now()
        if run.next_index <= MOST_COUNTED:
            endings = await self._all(run.id)
            if endings is not None:
                return counted(endings, until=now if run.is_live else None)
        settled = (await self.tasks.counts([run.id]))[run.id]
        all_done, inherited = run_rules.counts(run, settled), run.inherited.counts
        successful = all_done.successful - inherited.successful
        failed = all_done.failed - inherited.failed
        if not successful + failed:
            return Timeline()
        return await self._estimate(run, successful, failed, now)

    async def _all(self, run_id: RunId) -> list[Ending] | None:
        """All endings; None if there are too many rows by now, because its list is being read."""
        endings, after = list[Ending](), -1
        while True:
            page = await self.tasks.page(run_id, limit=READ_AT_A_TIME, after=after)
            self.count(len(page.tasks))
            endings += _endings(page.tasks)
            if page.cursor is None:
                return endings
            if page.cursor >= MOST_COUNTED:
                return None
            after = page.cursor

    async def _estimate(self, run: Run, successful: int, failed: int, now: datetime) -> Timeline:
        end = await self._reach(run, successful + failed)
        sample = list[Ending]()
        for place in places(end, PLACES):
            sample += await self._at(run.id, place, below=place + end // PLACES)
        # The first and the last rows tell when the run began and ended: a sample has neither.
        edges = [*await self._at(run.id, 0), *await self._at(run.id, end - NEIGHBOURS)]
        times = [ending.at for ending in (*sample, *edges)]
        latest = max(times, default=run.updated_at)
        return estimated(
            sample,
            successful=successful,
            failed=failed,
            first=min(times, default=run.created_at),
            until=max(now, latest) if run.is_live else latest,
        )

    async def _reach(self, run: Run, done: int) -> int:
        """An index below which most rows are that this run has ended.

        Where most of all rows are, or where they are among inherited ones, that is the end.
        """
        end = max(run.next_index, MOST_COUNTED)
        for _ in range(2):
            if done >= end // 2 or run.inherited.sources:
                break
            width = end // PROBES
            with_endings = [
                place
                for place in range(0, width * PROBES, width)
                if await self._at(run.id, place, limit=PROBED)
            ]
            if not with_endings:
                break
            end = min(end, max(MOST_COUNTED, with_endings[-1] + width))
        return end

    async def _at(
        self, run_id: RunId, place: int, *, below: int | None = None, limit: int = NEIGHBOURS
    ) -> list[Ending]:
        """The endings among the rows at an index; those after a gap are not at it."""
        page = await self.tasks.page(run_id, limit=limit, after=place - 1)
        self.count(len(page.tasks))
        return _endings(task for task in page.tasks if below is None or task.index < below)


def _endings(tasks: Iterable[Task]) -> list[Ending]:
    """Those of this run: an inherited row was made by an earlier one."""
    return [
        Ending(task.updated_at, task.status is TaskStatus.FAILED)
        for task in tasks
        if task.is_final and task.source_run_id is None
    ]
