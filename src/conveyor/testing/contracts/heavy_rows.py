"""Rows so large that few of them fit in memory: no call reads, returns or removes more than its
bytes, and pages still give every row.
"""

from collections.abc import Iterable

import msgspec
import pytest

from conveyor.domain.ids import RunId
from conveyor.domain.page_facts import PageFacts
from conveyor.domain.task import (
    FINAL,
    NewRow,
    Task,
    TaskSpec,
    TaskStatus,
    as_claimed,
    as_listed,
    size_of,
)
from conveyor.ports.tasks import PAGE_BYTES, TaskPage
from conveyor.ports.work import CLAIM_BYTES
from conveyor.testing.contracts.engine import (
    MANY,
    SECOND,
    TRIES,
    Engine,
    by_index,
    claim,
    counts_of,
    rows,
    settle,
)
from conveyor.testing.factories import (
    OTHER_RUN,
    RUN,
    a_task_spec,
    add_rows,
    held,
    new_tasks,
    refused,
    scraped,
)

HEAVY = 10  # rows of a run, one and a half pages in all
LARGE = PAGE_BYTES * 3 // 2 // HEAVY
MANY_HEAVY = 3 * HEAVY  # more than twice what a claim gives
LARGER = 2 * max(PAGE_BYTES, CLAIM_BYTES)  # more than a page by itself


class HeavyRowsContract:
    @pytest.mark.parametrize("field", ["metadata", "external_id"])
    @pytest.mark.parametrize("statuses", [None, frozenset(TaskStatus), FINAL])
    async def test_a_page_ends_with_its_bytes_and_says_where_to_go_on(
        self, engine: Engine, statuses: frozenset[TaskStatus] | None, field: str
    ) -> None:
        wanted = await _given_heavy(engine, a_task_spec(**{field: _text(LARGE)}))
        if statuses == FINAL:
            wanted = await _ended(engine)

        pages = await _pages(engine, statuses)

        assert [task for page in pages for task in page.tasks] == wanted
        assert all(_bytes(page.tasks) <= PAGE_BYTES for page in pages)
        assert len(pages) >= 2
        assert all(page.tasks for page in pages)

    async def test_whole_rows_are_read_in_pages_too(self, engine: Engine) -> None:
        await _given_heavy(engine, a_task_spec(params=_text(LARGE), metadata="{}"))

        first = await engine.tasks.page(RUN, limit=MANY, whole=True)

        assert 1 <= len(first.tasks) < HEAVY
        assert _bytes(first.tasks) <= PAGE_BYTES
        assert first.cursor == first.tasks[-1].index
        assert [task.spec.params for task in await rows(engine)] == [_text(LARGE)] * HEAVY

    async def test_what_is_not_listed_does_not_fill_a_page(self, engine: Engine) -> None:
        await _given_heavy(engine, a_task_spec(params=_text(LARGE), body=_text(LARGE)))

        page = await engine.tasks.page(RUN, limit=MANY)

        assert page.tasks == [as_listed(task) for task in await rows(engine)]
        assert page.cursor is None

    async def test_a_row_larger_than_a_page_is_a_page(self, engine: Engine) -> None:
        await _given_heavy(engine, a_task_spec(metadata=_text(LARGER), params=_text(LARGER)), 2)

        listed = await engine.tasks.page(RUN, limit=MANY)
        whole = await engine.tasks.page(RUN, limit=MANY, after=0, whole=True)

        assert [task.index for task in listed.tasks] == [0]
        assert [task.index for task in whole.tasks] == [1]
        assert len(await rows(engine)) == 2

    @pytest.mark.parametrize(
        "large",
        [
            {"problem": msgspec.json.encode("ü" * (LARGE // 2)).decode()},
            {"facts": PageFacts(final_url="ü" * (LARGE // 2))},
        ],
        ids=["problem", "final_url"],
    )
    async def test_large_ends_of_tasks_fill_a_page(
        self, engine: Engine, large: dict[str, object]
    ) -> None:
        await _given_heavy(engine, a_task_spec())
        decision = msgspec.structs.replace(refused(), **large)
        for task in await claim(engine, HEAVY):
            assert await settle(engine, task, decision)

        pages = await _pages(engine, frozenset({TaskStatus.FAILED}))

        told = [(task.problem, task.facts) for page in pages for task in page.tasks]
        assert told == [(decision.problem, decision.facts)] * HEAVY
        assert all(_bytes(page.tasks) <= PAGE_BYTES for page in pages)

    async def test_more_than_a_page_is_added_at_once(self, engine: Engine) -> None:
        new = _heavy(RUN, HEAVY, a_task_spec(params=_text(LARGE)))

        assert await add_rows(engine.tasks, RUN, new) == HEAVY

        assert [(task.id, task.spec) for task in await rows(engine)] == [
            (one.id, one.spec) for one in new
        ]

    async def test_a_discard_ends_with_its_bytes_and_goes_on(self, engine: Engine) -> None:
        await _given_heavy(engine, a_task_spec(params=_text(LARGE)))
        await _given_heavy(engine, a_task_spec(), run_id=OTHER_RUN)

        first = await engine.tasks.discard(RUN, limit=MANY)
        left = await rows(engine)
        gone = first
        while more := await engine.tasks.discard(RUN, limit=MANY):
            gone += more

        assert 1 <= first < HEAVY
        assert first * LARGE <= PAGE_BYTES
        assert [task.index for task in left] == list(range(first, HEAVY))
        assert gone == HEAVY
        assert list(await engine.tasks.runs_held(limit=9)) == [OTHER_RUN]

    async def test_a_claim_ends_with_its_bytes(self, engine: Engine) -> None:
        spec = a_task_spec(params=_text(LARGE), metadata="{}", external_id="mine")
        await _given_heavy(engine, spec, MANY_HEAVY)

        given = await _claimed(engine, {RUN: MANY_HEAVY}, MANY_HEAVY)

        assert all(_bytes(tasks) <= 2 * CLAIM_BYTES for tasks in given)
        taken = by_index(task for tasks in given for task in tasks)
        assert [task.spec for task in taken] == [
            as_claimed(task).spec for task in await rows(engine)
        ]
        assert {task.claim_no for task in taken} == {1}

    async def test_of_many_runs_each_gives_a_task_however_large(self, engine: Engine) -> None:
        spec = a_task_spec(params=_text(LARGER))
        await _given_heavy(engine, spec, 2)
        await _given_heavy(engine, spec, 2, run_id=OTHER_RUN)

        first, *_ = await _claimed(engine, {RUN: 2, OTHER_RUN: 2}, 4)

        assert len(first) <= 2
        if engine.ordered:  # a queue may give nothing of a run that has tasks
            assert {task.run_id for task in first} == {RUN, OTHER_RUN}

    async def test_heavy_tasks_of_lost_workers_are_taken_over(self, engine: Engine) -> None:
        await _given_heavy(engine, a_task_spec(params=_text(LARGE)), MANY_HEAVY)
        await _claimed(engine, {RUN: MANY_HEAVY}, MANY_HEAVY)
        await engine.pass_time(engine.lease)

        given = await _claimed(engine, {RUN: MANY_HEAVY}, MANY_HEAVY)

        assert all(_bytes(tasks) <= 2 * CLAIM_BYTES for tasks in given)
        again = [task for tasks in given for task in tasks]
        assert sorted(task.index for task in again) == list(range(MANY_HEAVY))
        assert {task.lost for task in again} == {1}
        assert all(task.spec.params == _text(LARGE) for task in again)


async def _claimed(engine: Engine, wants: dict[RunId, int], count: int) -> list[list[Task]]:
    """What each claim returned, until `count` tasks are held.

    A queue hides for a while a message whose task could not be claimed at once.
    """
    given = list[list[Task]]()
    for _ in range(TRIES):
        given.append([task for task in await engine.work.claim(wants) if not task.is_final])
        if sum(map(len, given)) == count:
            return given
        if engine.hinted:
            await engine.pass_time(SECOND)
            await engine.work.renew([held(task) for tasks in given for task in tasks])
    raise AssertionError(f"{count} tasks were to be claimed, and were not: {given}")


def _heavy(run_id: RunId, count: int, spec: TaskSpec) -> list[NewRow]:
    return [NewRow(new.index, new.id, spec) for new in new_tasks(run_id, count)]


async def _given_heavy(
    engine: Engine, spec: TaskSpec, count: int = HEAVY, *, run_id: RunId = RUN
) -> list[Task]:
    """Tasks of an open run, due now, as they are listed."""
    new = _heavy(run_id, count, spec)
    for one in new:
        await add_rows(engine.tasks, run_id, [one])
    await engine.work.enqueue(run_id, [one.id for one in new])
    return [as_listed(task) for task in await rows(engine, run_id)]


async def _ended(engine: Engine) -> list[Task]:
    """Settle all tasks but one, as successful or failed; return those that ended, `as_listed`."""
    taken = await claim(engine, HEAVY)
    for task in taken[1:]:
        await settle(engine, task, scraped() if task.index % 2 else refused())
    counts = await counts_of(engine)
    assert counts.done == HEAVY - 1
    return [as_listed(task) for task in await rows(engine) if task.is_final]


async def _pages(engine: Engine, statuses: frozenset[TaskStatus] | None) -> list[TaskPage]:
    pages, after = list[TaskPage](), -1
    while True:
        page = await engine.tasks.page(RUN, limit=MANY, after=after, statuses=statuses)
        pages.append(page)
        if page.cursor is None:
            return pages
        after = page.cursor


def _text(size: int) -> str:
    """A text of `size` bytes, and half as many characters."""
    return "ü" * (size // 2)


def _bytes(tasks: Iterable[Task]) -> int:
    return sum(map(size_of, tasks))
