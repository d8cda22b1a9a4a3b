"""What callers see: their own, all of it, and nothing that is not there."""

import asyncio
from dataclasses import replace as with_
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from msgspec import structs

from conveyor.domain import cursor
from conveyor.domain import job as job_rules
from conveyor.domain.counts import Counts
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import JobId, RunId, TaskId, task_ids, task_index
from conveyor.domain.job import JobStatus, JobType
from conveyor.domain.run import RunStatus, counts
from conveyor.domain.selection import ALL, FAILED, Selection, matcher
from conveyor.domain.task import AttemptFailed, Task, TaskStatus, new_tasks
from conveyor.errors import NotFound, ResultExpired, TaskNotReady, TaskUnsuccessful, Unavailable
from conveyor.ports.metadata import LISTING_BYTES
from conveyor.ports.tasks import PAGE_BYTES, TaskPage, Tasks
from conveyor.steps.read import HOT, UP_TO_DATE, ResultContent, ResultPart, RunView
from conveyor.steps.shared.attempt import CallResult, Fetched, FinishedAttempt
from conveyor.testing.factories import a_problem, a_run, a_task_spec
from tests.harness.memory_service import (
    A_PAGE,
    CALLER,
    STRANGER,
    House,
    a_house,
    an_assignment,
    away,
    until,
)
from tests.harness.signing_storage import HOST, SigningBodies

A_DAY = timedelta(days=1)


async def test_a_job_is_seen_with_its_run_and_what_is_settled_of_it() -> None:
    house, job_id, run_id = await _drained(3)

    view = await house.read.job(CALLER, job_id)

    assert view.latest is not None
    assert (view.job.id, view.latest.run.id) == (job_id, run_id)
    assert view.latest.settled == _counts(3)
    assert await house.read.run(CALLER, job_id, run_id) == view.latest


async def test_others_see_nothing_of_a_job_and_neither_does_anyone_of_a_deleted_one() -> None:
    house, job_id, run_id = await _drained(1)
    unknown = JobId(house.ids.new())
    for caller, name in ((STRANGER, job_id), (CALLER, unknown)):
        with pytest.raises(NotFound):
            await house.read.job(caller, name)
        with pytest.raises(NotFound):
            await house.read.run(caller, name, run_id)

    await house.metadata.commit(job_rules.delete(await house.job(job_id), house.clock.now()))

    with pytest.raises(NotFound):
        await house.read.job(CALLER, job_id)
    with pytest.raises(NotFound):
        await house.read.content_by_link(job_id, run_id, task_ids(run_id)(0))


async def test_a_run_is_seen_only_under_its_own_job_and_while_it_is_not_deleted() -> None:
    house, job_id, run_id = await _drained(1)
    other_job, other_run = await house.submit(1)
    for run in (other_run, RunId(house.ids.new())):
        with pytest.raises(NotFound):
            await house.read.run(CALLER, job_id, run)

    deleted = structs.replace(await house.run(other_run), status=RunStatus.DELETED)
    await house.metadata.commit(deleted)

    with pytest.raises(NotFound):
        await house.read.run(CALLER, other_job, other_run)
    assert (await house.read.run(CALLER, job_id, run_id)).run.id == run_id


async def test_jobs_are_paged_newest_first_and_each_is_seen_once() -> None:
    house = a_house()
    made = [(await house.submit(1))[0] for _ in range(5)]

    seen: list[JobId] = []
    before: str | None = None
    for expected in (2, 2, 1):
        page, before = await house.read.jobs(
            CALLER, limit=2, before=before, status=JobStatus.CLOSED, kind=JobType.REGULAR
        )
        assert len(page) == expected
        seen += [view.job.id for view in page]

    assert before is None
    assert seen == made[::-1]


async def test_jobs_are_found_by_name_or_external_id_a_page_at_a_time() -> None:
    house = a_house()
    made = [(await house.submit(1))[0] for _ in range(5)]
    for job_id, named in zip(
        made, ({}, {"name": "Shops, DE"}, {}, {"external_id": "shops-1"}), strict=False
    ):
        await house.metadata.commit(structs.replace(await house.job(job_id), **named))
    find = partial(house.read.jobs, CALLER, status=None, kind=None, name="SHOPS")

    [first], cursor = await find(limit=1, before=None)
    [second], end = await find(limit=1, before=cursor)

    assert [first.job.id, second.job.id] == [made[3], made[1]]
    assert (await find(limit=5, before=end))[1] is None
    assert await find(limit=1, before=made[1]) == ([], None)


async def test_a_search_looks_at_so_many_jobs_and_goes_on_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("conveyor.steps.read.SEARCHED_AT_ONCE", 2)
    monkeypatch.setattr("conveyor.steps.read.MOST_SEARCHED", 4)
    house = a_house()
    made = [(await house.submit(1))[0] for _ in range(5)]
    await house.metadata.commit(structs.replace(await house.job(made[0]), name="oldest"))
    find = partial(house.read.jobs, CALLER, status=None, kind=None, name="oldest", limit=3)

    none, cursor = await find(before=None)
    [found], end = await find(before=cursor)

    assert (none, cursor, found.job.id, end) == ([], made[1], made[0], None)


async def test_a_page_of_large_jobs_is_dense() -> None:
    """Two fit into what the port gives at once."""
    house = a_house()
    made = [(await house.submit(1))[0] for _ in range(5)]
    for job_id in made:
        large = structs.replace(await house.job(job_id), metadata="x" * (LISTING_BYTES * 2 // 5))
        await house.metadata.commit(large)

    seen: list[JobId] = []
    before: str | None = None
    for expected in (4, 1):
        page, before = await house.read.jobs(CALLER, limit=4, before=before, status=None, kind=None)
        assert len(page) == expected
        seen += [view.job.id for view in page]

    assert before is None
    assert seen == made[::-1]


async def test_runs_are_paged_newest_first() -> None:
    house, job_id, first = await _drained(1)
    runs = [
        a_run(id=RunId(house.ids.new()), job_id=job_id, status=RunStatus.COMPLETED)
        for _ in range(2)
    ]
    await house.metadata.commit(*runs)

    page, before = await house.read.runs(CALLER, job_id, limit=2, before=None)
    rest, end = await house.read.runs(CALLER, job_id, limit=2, before=before)

    assert [view.run.id for view in (*page, *rest)] == [runs[1].id, runs[0].id, first]
    assert rest[0].settled == _counts(1)
    assert end is None


async def test_a_short_page_of_runs_is_not_the_end_of_the_list() -> None:
    house, job_id, first = await _drained(1)
    later = [
        a_run(id=RunId(house.ids.new()), job_id=job_id, status=RunStatus.COMPLETED)
        for _ in range(3)
    ]
    await house.metadata.commit(*later)
    whole = house.metadata.runs

    async def bounded(job_id: JobId, *, limit: int, before: str | None) -> object:
        """Engines also bound the bytes of a page."""
        return await whole(job_id, limit=min(limit, 1), before=before)

    house.metadata.runs = bounded  # type: ignore[method-assign,assignment]
    page, before = await house.read.runs(CALLER, job_id, limit=3, before=None)
    rest, end = await house.read.runs(CALLER, job_id, limit=3, before=before)

    assert [view.run.id for view in page] == [run.id for run in reversed(later)]
    assert [view.run.id for view in rest] == [first]
    assert end is None


async def test_results_are_paged_in_order_each_once_also_when_filtered() -> None:
    house, job_id, run_id = await _drained(7)

    for statuses, expected in (
        (None, 7),
        ((TaskStatus.SUCCESSFUL,), 7),
        (FAILED, 0),
    ):
        seen: list[int] = []
        after, more = -1, True
        while more:
            selection = Selection(statuses=statuses)
            [part] = await _results(
                house, job_id, run_id, limit=3, after=after, selection=selection
            )
            seen += [task.index for task in part.tasks]
            more = part.next_cursor is not None
            after = seen[-1] if seen else -1
        assert seen == list(range(expected))

    [latest] = await _results(house, job_id, None, limit=9)
    assert len(latest.tasks) == 7


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize(
    "selection",
    [
        Selection(hosts=("ok.example",)),
        Selection(hosts=("other.test",)),
        Selection(statuses=FAILED, hosts=("other.test",)),
        Selection(statuses=FAILED, codes=("RESP002",)),
        Selection(statuses=FAILED, reasons=(FailureReason.BLOCKED,), codes=("RESP002",)),
        Selection(statuses=(), codes=("RESP002",)),
    ],
)
async def test_a_filter_finds_what_a_rerun_would_repeat_a_few_reads_at_a_time(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, limit: int
) -> None:
    monkeypatch.setattr("conveyor.steps.read.READ_AT_ONCE", 2)
    monkeypatch.setattr("conveyor.steps.read.MOST_READS", 3)
    house = a_house()
    job_id, run_id = await house.submit(3)
    others = [a_task_spec(url=f"https://other.test/{n}") for n in range(20)]
    await house.tasks.add(run_id, new_tasks(run_id, 3, others))
    await house.drain(run_id, _page_or_refusal)
    rows = (await house.tasks.page(run_id, limit=100)).tasks
    read = list[int]()
    read_counted = with_(house.read, count=read.append)

    seen, after = list[TaskId](), -1
    while True:
        before = len(read)
        _, found = await read_counted.results(
            CALLER, job_id, None, limit=limit, after=after, selection=selection
        )
        parts = [part async for part in found]
        seen += [task.id for part in parts for task in part.tasks]
        assert len(read) - before <= 3
        assert max(read[before:], default=0) <= 2
        assert sum(len(part.tasks) for part in parts) <= limit
        assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
        if parts[-1].next_cursor is None:
            break
        after = cursor.after_index(parts[-1].next_cursor)

    assert seen == [task.id for task in rows if matcher(selection)(task)]
    assert bool(read) == (selection.statuses != ())


async def test_others_find_no_rows_by_any_condition() -> None:
    house, job_id, run_id = await _drained(1)
    for run in (run_id, None):
        with pytest.raises(NotFound):
            await house.read.results(
                STRANGER, job_id, run, limit=1, after=-1, selection=Selection(hosts=("ok.example",))
            )


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 8])
async def test_a_page_of_heavy_tasks_is_dense_and_read_in_parts(limit: int) -> None:
    """Of these tasks two fit into what the port gives at once."""
    house = a_house()
    job_id, run_id = await house.submit(1)
    heavy = a_task_spec(metadata=f'{{"key":"{"x" * (PAGE_BYTES * 2 // 5)}"}}')
    await house.tasks.add(run_id, new_tasks(run_id, 1, [heavy] * 6))

    seen: list[int] = []
    after, more = -1, True
    while more:
        parts = await _results(house, job_id, run_id, limit=limit, after=after)
        assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
        page = [task for part in parts for task in part.tasks]
        seen += [task.index for task in page]
        more = parts[-1].next_cursor is not None
        assert len(page) == limit or not more
        assert parts[-1].next_cursor == (page[-1].id if more else None)
        after = seen[-1]
    assert seen == list(range(7))


async def test_the_body_of_a_successful_task_is_read_whole() -> None:
    house, job_id, run_id = await _drained(1)
    task_id = task_ids(run_id)(0)

    for content in (
        await house.read.content(CALLER, job_id, None, task_id),
        await house.read.content(CALLER, job_id, run_id, task_id),
        await house.read.content_by_link(job_id, run_id, task_id),
    ):
        assert (content.format, content.length) == ("html", 4)
        assert await _whole(content) == b"page"


async def test_a_link_to_an_unknown_job_leads_nowhere() -> None:
    house, _, run_id = await _drained(1)
    with pytest.raises(NotFound):
        await house.read.content_by_link(JobId(house.ids.new()), run_id, task_ids(run_id)(0))


@pytest.mark.parametrize("task_id", ["", "../../etc/passwd", "0" * 33, task_ids(RunId("x"))(0)])
async def test_what_is_no_task_of_the_run_is_not_found(task_id: str) -> None:
    house, job_id, _ = await _drained(1)
    with pytest.raises(NotFound):
        await house.read.content(CALLER, job_id, None, TaskId(task_id))
    with pytest.raises(NotFound):
        await house.read.history(CALLER, job_id, None, TaskId(task_id))


async def test_a_task_without_a_result_says_why() -> None:
    house = a_house()
    job_id, run_id = await house.submit(2)
    task_id = task_ids(run_id)
    with pytest.raises(TaskNotReady, match="pending"):
        await house.read.content(CALLER, job_id, None, task_id(0))

    await house.drain(run_id, _page_or_refusal)

    with pytest.raises(TaskUnsuccessful) as told:
        await house.read.content(CALLER, job_id, None, task_id(1))
    assert told.value.extras["code"] == "RESP002"
    [line] = await house.read.history(CALLER, job_id, None, task_id(1))
    assert (line.attempt, line.problem) == (1, a_problem("RESP002"))


async def test_a_result_is_kept_for_as_long_as_its_job_says() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1, result_ttl_days=2)
    await house.drain(run_id, _page_or_refusal)
    job, [task] = await house.job(job_id), await house.rows(run_id)

    house.clock.advance(timedelta(days=2) - timedelta(microseconds=1))
    assert not house.read.has_expired(job, task)
    await house.read.content(CALLER, job_id, None, task.id)

    house.clock.advance(timedelta(microseconds=1))
    assert house.read.has_expired(job, task)
    with pytest.raises(ResultExpired):
        await house.read.content(CALLER, job_id, None, task.id)


async def test_failures_are_seen_by_group_of_the_run_that_is_named_or_the_latest() -> None:
    house = a_house()
    job_id, first = await house.submit(3)
    await house.drain(first, _page_or_refusal)
    await house.rerun(job_id, "successful")
    second = (await house.job(job_id)).latest_run_id
    assert second
    await house.drain(second, _page_or_refusal)

    for run_id in (None, first, second):
        [group], examples = await house.read.failures(CALLER, job_id, run_id, limit=9)
        assert (group.reason, group.code, group.count) == (FailureReason.BAD_TARGET, "RESP002", 1)
        assert group.example == task_ids(first)(1)
        assert examples[group.example].url
        assert not (await house.read.failures(CALLER, job_id, run_id, limit=0))[1]
        with pytest.raises(NotFound):
            await house.read.failures(STRANGER, job_id, run_id, limit=9)


def _page_or_refusal(task: Task) -> CallResult:
    if task_index(task.id) == 1:
        return AttemptFailed(a_problem("RESP002"), FailureReason.BAD_TARGET, retryable=False)
    return Fetched(content=b"page", format="html")


async def _drained(count: int) -> tuple[House, JobId, RunId]:
    """A job all of whose tasks were successful."""
    house = a_house()
    job_id, run_id = await house.submit(count)
    await house.drain(run_id, lambda _: Fetched(content=b"page", format="html"))
    return house, job_id, run_id


def _counts(successful: int) -> Counts:
    return Counts(successful=successful)


async def _whole(content: ResultContent) -> bytes:
    return b"".join([part async for part in content.chunks])


async def _latest(house: House, job_id: JobId) -> RunView:
    view = await house.read.job(CALLER, job_id)
    assert view.latest is not None
    return view.latest


async def test_counts_that_many_ask_for_are_read_once_in_a_while() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    house.trace.forget()

    for _ in range(100):
        await house.read.job(CALLER, job_id)
        await house.read.run(CALLER, job_id, run_id)
    assert house.trace.of("tasks.counts") == ["tasks.counts"]
    assert len(house.trace.of("coordination.remember")) == 1  # or a value would never expire
    assert len(house.trace.of("metadata.get(Run)")) == 200  # whose status is never a late one

    house.clock.advance(HOT)
    await house.read.job(CALLER, job_id)
    assert len(house.trace.of("tasks.counts")) == 2


async def test_a_run_that_moved_on_is_never_shown_with_counts_from_before() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    assert (await _latest(house, job_id)).settled.done == 0

    await house.drain(run_id, lambda _task: A_PAGE)

    view = await _latest(house, job_id)
    assert view.run.status is RunStatus.COMPLETED
    assert counts(view.run, view.settled).successful == 3


async def test_nobody_sees_older_counts_after_newer_ones() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    await house.read.job(CALLER, job_id)
    [task] = await house.work.claim({run_id: 1})
    assignment = an_assignment(await house.job(job_id))
    await house.settle.settle([FinishedAttempt(task, assignment, A_PAGE)])

    [listed], _ = await house.read.runs(CALLER, job_id, limit=9, before=None)
    assert listed.settled.successful == 1
    assert (await _latest(house, job_id)).settled.successful == 1


async def test_counts_are_read_when_there_is_nobody_to_share_them() -> None:
    house = a_house()
    job_id, _ = await house.submit(3)
    for call in ("coordination.recall", "coordination.remember"):
        with away(house.trace, call, Unavailable("away")):
            assert (await _latest(house, job_id)).settled.done == 0


@pytest.mark.parametrize("first_leaves", [False, True])
async def test_polls_at_the_same_time_share_one_read_of_counts(first_leaves: bool) -> None:
    house = a_house()
    job_id, _ = await house.submit(3)
    answered = asyncio.Event()
    house.trace.forget()
    house.trace.before("coordination.recall", 1, answered.wait)
    async with asyncio.TaskGroup() as group:
        polls = [group.create_task(_latest(house, job_id)) for _ in range(9)]
        await until(lambda: len(house.trace.of("metadata.get(Run)")) == 9)
        if first_leaves:  # the read that the others wait for fails
            polls.pop(0).cancel()
        answered.set()

    assert {poll.result().settled.done for poll in polls} == {0}
    assert len(house.trace.of("tasks.counts")) == 1
    if not first_leaves:
        assert len(house.trace.of("coordination.recall")) == 1


async def test_polls_that_share_a_read_share_its_failure() -> None:
    house = a_house()
    job_id, _ = await house.submit(3)
    answered = asyncio.Event()
    house.trace.forget()
    house.trace.before("coordination.recall", 1, answered.wait)
    polls = [asyncio.ensure_future(house.read.job(CALLER, job_id)) for _ in range(9)]
    await until(lambda: len(house.trace.of("metadata.get(Run)")) == 9)
    with away(house.trace, "tasks.counts", Unavailable("away")):
        answered.set()
        results = await asyncio.gather(*polls, return_exceptions=True)
    assert {type(result) for result in results} == {Unavailable}
    assert len(house.trace.of("tasks.counts")) == 1


async def test_polls_do_not_wait_until_the_counts_are_in_the_cache() -> None:
    house = a_house()
    job_id, _ = await house.submit(3)
    asked, cached = asyncio.Event(), asyncio.Event()
    house.trace.forget()
    house.trace.before("tasks.counts", 1, asked.wait)
    house.trace.before("coordination.remember", 1, cached.wait)
    async with asyncio.TaskGroup() as group:
        group.create_task(house.read.job(CALLER, job_id))
        await until(lambda: bool(house.trace.of("coordination.recall")))
        second = group.create_task(_latest(house, job_id))
        await until(lambda: len(house.trace.of("metadata.get(Run)")) == 2)
        asked.set()
        assert (await second).settled.done == 0
        assert not cached.is_set()
        cached.set()


async def test_a_poll_does_not_wait_for_a_read_that_began_before_what_its_caller_saw() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    asked, answered = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        asked.set()
        await answered.wait()

    house.trace.after("tasks.counts", 1, wait)
    async with asyncio.TaskGroup() as group:
        group.create_task(house.read.job(CALLER, job_id))
        await asked.wait()
        [task] = await house.work.claim({run_id: 1})
        assignment = an_assignment(await house.job(job_id))
        await house.settle.settle([FinishedAttempt(task, assignment, A_PAGE)])
        [listed], _ = await house.read.runs(CALLER, job_id, limit=9, before=None)
        assert listed.settled.successful == 1
        assert (await _latest(house, job_id)).settled.successful == 1
        answered.set()
    # Nor has that read put its older counts in the place of the newer ones.
    assert (await _latest(house, job_id)).settled.successful == 1


async def _results(
    house: House,
    job_id: JobId,
    run_id: RunId | None,
    *,
    limit: int,
    after: int = -1,
    selection: Selection = ALL,
) -> list[ResultPart]:
    _, parts = await house.read.results(
        CALLER, job_id, run_id, limit=limit, after=after, selection=selection
    )
    return [part async for part in parts]


async def test_a_link_to_storage_lasts_no_longer_than_the_result() -> None:
    house = a_house(bodies=SigningBodies())
    job_id, run_id = await house.submit(1, result_ttl_days=2)
    await house.drain(run_id, lambda _: A_PAGE)
    job, [task] = await house.job(job_id), await house.rows(run_id)

    def link() -> str | None:
        return house.read.storage_link(
            job, task, life=A_DAY, content_type="text/html", filename="a.html"
        )

    assert task.result
    assert link() == f"{HOST}/{task.result.locator}?life=86400&type=text/html&name=a.html"
    house.clock.advance(A_DAY + A_DAY / 2)
    assert "life=43200&" in str(link())


async def test_a_result_has_no_link_to_storage_that_cannot_sign_for_so_long() -> None:
    house = a_house(bodies=SigningBodies(A_DAY / 2))
    job_id, run_id = await house.submit(1)
    await house.drain(run_id, lambda _: A_PAGE)
    job, [task] = await house.job(job_id), await house.rows(run_id)

    def link(life: timedelta) -> str | None:
        return house.read.storage_link(
            job, task, life=life, content_type="text/html", filename=None
        )

    assert link(A_DAY) is None
    assert link(A_DAY / 2)


async def test_a_task_without_a_result_has_no_link_to_storage() -> None:
    house = a_house(bodies=SigningBodies())
    job_id, run_id = await house.submit(1)
    job, [task] = await house.job(job_id), await house.rows(run_id)
    assert (
        house.read.storage_link(job, task, life=A_DAY, content_type="text/html", filename=None)
        is None
    )


class _Costly:
    """Tasks whose filtered pages end early, and that remember how they were read."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self.lagging: list[bool] = []

    async def page(self, run_id: RunId, *, after: int = -1, lagging: bool, **more: Any) -> TaskPage:
        self.lagging.append(lagging)
        statuses = more.pop("statuses")
        page = await self._tasks.page(run_id, after=after, **(more | {"limit": 3}))
        found = [task for task in page.tasks if statuses is None or task.status in statuses]
        is_costly = statuses is not None and page.cursor is not None
        return TaskPage(found, page.cursor, is_costly)


async def test_a_page_whose_filter_costs_too_much_ends_with_a_cursor() -> None:
    house, job_id, run_id = await _drained(8)
    read = with_(house.read, tasks=cast("Tasks", _Costly(house.tasks)))
    failed, seen, after = Selection(statuses=FAILED), list[int](), -1

    while True:
        _, parts = await read.results(
            CALLER, job_id, run_id, limit=5, after=after, selection=failed
        )
        [part] = [part async for part in parts]
        assert part.is_last
        seen.append(after)
        if part.next_cursor is None:
            break
        after = cursor.after_index(part.next_cursor)

    assert seen == [-1, 2, 5]


class _Slow:
    """Tasks whose pages take a turn of the event loop, with the most that were read at a time."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._now = self.most = 0

    async def page(self, run_id: RunId, **options: Any) -> TaskPage:
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0)
        page = await self._tasks.page(run_id, **options)
        self._now -= 1
        return page


@pytest.mark.parametrize(
    ("limit", "selection", "at_once"),
    [(1_000, ALL, 1), (9, Selection(hosts=("nowhere.example",)), 1), (9, ALL, 4)],
)
async def test_large_reads_of_one_caller_follow_each_other(
    limit: int, selection: Selection, at_once: int
) -> None:
    house, job_id, run_id = await _drained(2)
    slow = _Slow(house.tasks)
    read = with_(house.read, tasks=cast("Tasks", slow))

    async def listed() -> None:
        _, parts = await read.results(
            CALLER, job_id, run_id, limit=limit, after=-1, selection=selection
        )
        async for _ in parts:
            pass

    await asyncio.gather(*[listed() for _ in range(4)])

    assert slow.most == at_once
    assert not read.turns


async def test_rows_of_a_run_that_ended_a_while_ago_may_lag() -> None:
    house, job_id, run_id = await _drained(2)
    costly = _Costly(house.tasks)
    read = with_(house.read, tasks=cast("Tasks", costly))

    for _ in range(2):
        _, parts = await read.results(CALLER, job_id, run_id, limit=9, after=-1)
        assert [len(part.tasks) async for part in parts] == [2]
        house.clock.advance(UP_TO_DATE + timedelta(seconds=1))

    assert costly.lagging == [False, True]
