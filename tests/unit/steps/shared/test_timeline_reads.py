"""Timelines of runs: small ones exact, large ones from few rows, shared by all who ask."""

import asyncio
from datetime import timedelta
from typing import cast

import msgspec
import pytest

from conveyor.domain.counts import Counts
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.run import Inheritance, Run, RunStatus
from conveyor.domain.task import AttemptFailed, Task, TaskStatus
from conveyor.domain.timeline import Timeline
from conveyor.errors import NotFound
from conveyor.ports.tasks import TaskPage, Tasks
from conveyor.steps.shared.attempt import CallResult
from conveyor.steps.shared.shared_readings import SharedReadings
from conveyor.steps.shared.timeline_reads import (
    MOST_KEPT,
    OVER,
    SHARED_FOR,
    TimelineReader,
)
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import a_problem, a_task
from tests.harness.memory_service import A_PAGE, CALLER, STRANGER, a_house

MOST_QUERIES = 93
LARGE = 1_000_000
RATE = 1_000  # rows a second
A_TASK = a_task()


async def test_a_small_run_is_counted_without_inherited_rows_and_for_its_owner_alone() -> None:
    house = a_house()
    job_id, first = await house.submit(3)
    house.clock.advance(timedelta(seconds=5))
    await house.drain(first, _one_failure)
    await house.rerun(job_id, "failed")
    house.clock.advance(timedelta(hours=1))
    second = (await house.job(job_id)).latest_run_id
    assert second
    await house.drain(second, lambda _: A_PAGE)

    run, timeline = await house.read.timeline(CALLER, job_id, first)
    assert (run.id, _sums(timeline), timeline.is_estimated) == (first, (2, 1), False)
    for run_id in (None, second):
        run, timeline = await house.read.timeline(CALLER, job_id, run_id)
        assert (run.id, _sums(timeline)) == (second, (1, 0))
    with pytest.raises(NotFound):
        await house.read.timeline(STRANGER, job_id, first)


async def test_a_live_run_lasts_until_now_and_one_without_endings_has_no_intervals() -> None:
    house = a_house()
    job_id, run_id = await house.submit(2, status="open")
    _, timeline = await house.read.timeline(CALLER, job_id, None)
    assert timeline == Timeline()
    await house.drain(run_id, lambda _: A_PAGE)
    house.clock.advance(SHARED_FOR + timedelta(seconds=1))
    _, timeline = await house.read.timeline(CALLER, job_id, None)
    assert timeline.until == house.clock.now()
    assert [one.successful for one in timeline.intervals] == [2, *[0] * 11]


@pytest.mark.parametrize("done", [LARGE, LARGE // 2, 5_000, 300])
@pytest.mark.parametrize("gap", [0, LARGE // 3])
async def test_a_large_run_is_estimated_from_few_pages_of_the_rows_that_have_ended(
    done: int, gap: int
) -> None:
    rows = _Rows(done=done, gap=gap)
    timeline = await _reader(rows).find(rows.run)
    assert timeline.is_estimated
    assert rows.queries <= MOST_QUERIES
    assert _sums(timeline) == (done - done // 50, done // 50)
    assert timeline.rows >= min(done // 10, 250)
    whole = timeline.intervals[1:-2]
    even = RATE * timeline.seconds * 49 / 50
    odd = [one for one in whole if not 0.7 * even < one.successful < 1.3 * even]
    assert len(odd) <= (len(whole) // 10 if gap else 0)


async def test_rows_that_come_while_they_are_read_are_not_followed_to_the_end() -> None:
    rows = _Rows(done=300)
    before = msgspec.structs.replace(rows.run, next_index=0)
    timeline = await _reader(rows).find(before)
    assert timeline.is_estimated
    assert _sums(timeline) == (294, 6)
    assert rows.queries <= MOST_QUERIES


async def test_inherited_rows_do_not_count_however_few_others_there_are() -> None:
    rows = _Rows(done=LARGE, inherits=True)
    timeline = await _reader(rows).find(rows.run)
    assert _sums(timeline) == (LARGE // 1_000, 0)
    assert timeline.rows < 10


async def test_a_live_run_is_read_again_after_some_seconds_and_one_that_is_over_is_kept() -> None:
    rows = _Rows(done=LARGE // 2)
    reader = _reader(rows)

    async def queries(run: Run) -> int:
        before = rows.queries
        await asyncio.gather(*[reader.find(run) for _ in range(3)])
        return rows.queries - before

    once = await queries(rows.run)
    assert once > 0
    rows.clock.advance(SHARED_FOR)
    assert await queries(rows.run) == 0
    rows.clock.advance(timedelta(milliseconds=1))
    assert await queries(rows.run) == once

    stopped = msgspec.structs.replace(
        rows.run, status=RunStatus.STOPPED, updated_at=rows.clock.now()
    )
    assert await queries(stopped) == once, "the end of the run must be seen at once"
    rows.clock.advance(OVER + timedelta(seconds=1))
    assert await queries(stopped) == once, "claims may have been open"
    rows.clock.advance(timedelta(hours=1))
    assert await queries(stopped) == 0


async def test_few_timelines_are_kept() -> None:
    rows = _Rows(done=0)
    reader = _reader(rows)
    for number in range(2 * MOST_KEPT):
        await reader.find(msgspec.structs.replace(rows.run, id=RunId(str(number))))
    assert len(reader.shared.kept) <= MOST_KEPT + 1


def _reader(rows: "_Rows") -> TimelineReader:
    return TimelineReader(
        tasks=cast("Tasks", rows),
        clock=rows.clock,
        count=lambda _: None,
        shared=SharedReadings(clock=rows.clock, most=MOST_KEPT),
    )


class _Rows:
    """Rows of a large run, `RATE` of which ended each second by index; one in 50 of them failed.

    From half of the indexes on, so many as `gap` have no row.
    """

    def __init__(self, *, done: int, gap: int = 0, inherits: bool = False) -> None:
        self.clock = FakeClock()
        self.done = done
        self.queries = 0
        self._gap = gap
        self._inherits = inherits  # all rows but one in a thousand
        self.began = self.clock.now()
        self.clock.advance(timedelta(seconds=done / RATE))
        inherited = done - done // 1_000 if inherits else 0
        self.run = Run(
            id=RunId("run"),
            job_id=JobId("job"),
            caller=CALLER,
            created_at=self.began,
            updated_at=self.clock.now(),
            total=LARGE,
            next_index=LARGE + gap,
            inherited=Inheritance(
                counts=Counts(successful=inherited),
                sources=(RunId("earlier"),) if inherits else (),
            ),
        )

    async def counts(self, run_ids: list[RunId]) -> dict[RunId, Counts]:
        if self._inherits:
            return {run_ids[0]: Counts(successful=self.done // 1_000)}
        failed = self.done // 50
        return {run_ids[0]: Counts(successful=self.done - failed, blocked=failed)}

    async def page(self, _run_id: RunId, *, limit: int, after: int) -> TaskPage:
        self.queries += 1
        half = LARGE // 2
        last = after if after < half else max(after - self._gap, half - 1)
        numbers = range(last + 1, LARGE)[:limit]
        tasks = [self._task(number, number + self._gap * (number >= half)) for number in numbers]
        return TaskPage(tasks, tasks[-1].index if tasks else None)

    def _task(self, number: int, index: int) -> Task:
        is_final = number < self.done
        status = TaskStatus.FAILED if number % 50 == 7 else TaskStatus.SUCCESSFUL
        return msgspec.structs.replace(
            A_TASK,
            index=index,
            status=status if is_final else TaskStatus.PENDING,
            updated_at=self.began + timedelta(seconds=number / RATE),
            source_run_id="earlier" if self._inherits and number % 1_000 else None,
        )


def _sums(timeline: Timeline) -> tuple[int, int]:
    intervals = timeline.intervals
    return sum(one.successful for one in intervals), sum(one.failed for one in intervals)


def _one_failure(task: Task) -> CallResult:
    if task.index == 1:
        return AttemptFailed(a_problem("RESP002"), FailureReason.BAD_TARGET, retryable=False)
    return A_PAGE
