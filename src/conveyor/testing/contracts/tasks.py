"""What every store of tasks must do."""

from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest

from conveyor.domain.counts import ZERO, Counts, OpenCounts
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.job import ROW_VERSION, RunPlace
from conveyor.domain.task import (
    FINAL,
    NewRow,
    SettleDecision,
    Task,
    TaskStatus,
    as_listed,
    in_brief,
)
from conveyor.ports.tasks import TaskPage
from conveyor.testing.contracts.engine import (
    SECOND,
    Engine,
    by_index,
    claim,
    given_tasks,
    rows,
    settle,
    stored,
)
from conveyor.testing.contracts.heavy_rows import HeavyRowsContract
from conveyor.testing.factories import (
    JOB,
    OTHER_RUN,
    RUN,
    a_task_spec,
    add_rows,
    ids_of,
    inherited_as,
    new_tasks,
    new_tasks_at,
    refused,
    scraped,
    to_retry,
)

FILTERS = [
    None,
    *[frozenset({status}) for status in TaskStatus],
    FINAL,
    frozenset(TaskStatus) - FINAL,
    frozenset({TaskStatus.PENDING, TaskStatus.FAILED}),
    frozenset(TaskStatus),
]


class AddingContract:
    async def test_a_new_task_is_pending_and_due_now(self, engine: Engine) -> None:
        [new] = new_tasks(RUN, 1)
        now = engine.clock.now()

        assert await add_rows(engine.tasks, RUN, [new]) == 1

        assert await engine.tasks.get(RUN, new.id) == Task(
            run_id=RUN,
            id=new.id,
            index=new.index,
            spec=new.spec,
            created_at=now,
            updated_at=now,
            due_at=now,
        )

    async def test_every_field_of_a_spec_comes_back(self, engine: Engine) -> None:
        spec = a_task_spec(
            url="https://example.com/ü?q=1#x",
            method="POST",
            external_id="mine",
            metadata='{"shop":"ß"}',
            params='{"js_render":"true"}',
            body='{"a":[1,null]}',
        )
        [new] = new_tasks(RUN, 1)
        await add_rows(engine.tasks, RUN, [NewRow(new.index, new.id, spec)])

        [task] = await rows(engine)

        assert task.spec == spec
        assert await engine.tasks.get(RUN, new.id) == as_listed(task)
        assert (await engine.tasks.page(RUN, limit=1)).tasks == [as_listed(task)]

    async def test_adding_twice_stores_once(self, engine: Engine) -> None:
        assert await add_rows(engine.tasks, RUN, new_tasks(RUN, 3)) == 3
        assert await add_rows(engine.tasks, RUN, new_tasks(RUN, 5)) == 2
        assert await add_rows(engine.tasks, RUN, new_tasks(RUN, 5)) == 0
        assert await engine.tasks.tally(RUN) == {TaskStatus.PENDING: 5}

    async def test_adding_again_never_resets_a_task(self, engine: Engine) -> None:
        await given_tasks(engine, 3)
        done, running = await claim(engine, 2)
        await settle(engine, done, scraped())
        before = await rows(engine)
        await engine.pass_time(engine.lease)

        assert await add_rows(engine.tasks, RUN, new_tasks(RUN, 3)) == 0

        assert await rows(engine) == before
        assert (await stored(engine, running)).status is TaskStatus.PROCESSING

    async def test_adding_nothing_is_fine(self, engine: Engine) -> None:
        assert await add_rows(engine.tasks, RUN, []) == 0

    async def test_runs_do_not_share_tasks(self, engine: Engine) -> None:
        """A rerun copies ids: a task is known by its run and its id."""
        copied = new_tasks(RUN, 2)
        assert await add_rows(engine.tasks, RUN, copied) == 2
        assert await add_rows(engine.tasks, OTHER_RUN, copied) == 2

        mine = await engine.tasks.get(RUN, copied[0].id)
        theirs = await engine.tasks.get(OTHER_RUN, copied[0].id)

        assert mine is not None
        assert theirs is not None
        assert (mine.run_id, theirs.run_id) == (RUN, OTHER_RUN)

    @pytest.mark.parametrize("name", ["", "nonsense", "00000007-" + "0" * 24, "0000000g-1"])
    async def test_an_unknown_task_is_none(self, engine: Engine, name: str) -> None:
        await add_rows(engine.tasks, RUN, new_tasks(RUN, 8))
        assert await engine.tasks.get(RUN, TaskId(name)) is None

    async def test_a_task_of_an_unknown_run_is_none(self, engine: Engine) -> None:
        [new] = new_tasks(RUN, 1)
        assert await engine.tasks.get(OTHER_RUN, new.id) is None


class LayingOutContract:
    async def test_a_run_is_laid_out_once_and_for_all(self, engine: Engine) -> None:
        place = RunPlace(JOB, shards=4)
        await engine.tasks.lay_out(RUN, place)
        await engine.tasks.lay_out(RUN, place)
        with pytest.raises(ValueError, match="another place"):
            await engine.tasks.lay_out(RUN, RunPlace(JOB, shards=8))
        await engine.tasks.add(RUN, new_tasks(RUN, 1))

        await engine.tasks.lay_out(RUN, place)
        with pytest.raises(ValueError, match="another place"):
            await engine.tasks.lay_out(RUN, RunPlace(JOB, shards=8))
        await engine.tasks.lay_out(OTHER_RUN, RunPlace(JOB, shards=8))

    async def test_rows_of_a_run_that_was_not_laid_out_are_refused(self, engine: Engine) -> None:
        with pytest.raises(ValueError, match="not laid out"):
            await engine.tasks.add(RUN, new_tasks(RUN, 1))

        assert await rows(engine) == []

    async def test_a_run_that_is_discarded_while_it_is_written_takes_rows(
        self, engine: Engine
    ) -> None:
        """A purge may come between two chunks: the writer then finds out and stops."""
        await engine.tasks.lay_out(RUN, RunPlace(JOB))
        await engine.tasks.add(RUN, new_tasks(RUN, 1))
        await _discard(engine)

        assert await engine.tasks.add(RUN, new_tasks(RUN, 2)) == 2

        assert list(await engine.tasks.runs_held(limit=9)) == [RUN]

    async def test_rows_in_a_newer_format_are_left_to_newer_processes(self, engine: Engine) -> None:
        newer = RunPlace(JOB, v=ROW_VERSION + 1)
        await engine.tasks.lay_out(RUN, newer)
        new = new_tasks(RUN, 2)
        await engine.tasks.add(RUN, new)
        await engine.work.enqueue(RUN, ids_of(new))

        assert await claim(engine, 2) == []
        assert await engine.tasks.tally(RUN) == {TaskStatus.PENDING: 2}


class InheritingContract:
    @pytest.mark.parametrize("status", [*sorted(FINAL), TaskStatus.PENDING])
    async def test_an_inherited_row_stands_as_it_stood_and_is_dated_by_its_copy(
        self, engine: Engine, status: TaskStatus
    ) -> None:
        [new] = new_tasks(RUN, 1)
        stood = inherited_as(status)
        await engine.pass_time(timedelta(hours=1))
        assert await add_rows(engine.tasks, OTHER_RUN, [NewRow(0, new.id, new.spec, stood)]) == 1

        assert await engine.tasks.get(OTHER_RUN, new.id) == Task(
            run_id=OTHER_RUN,
            id=new.id,
            index=0,
            spec=new.spec,
            due_at=None,
            updated_at=engine.clock.now(),
            **msgspec.structs.asdict(stood),
        )

    async def test_an_inherited_row_is_never_claimed(self, engine: Engine) -> None:
        rows = [
            NewRow(new.index, new.id, new.spec, inherited_as(TaskStatus.PENDING))
            for new in new_tasks(RUN, 2)
        ]
        fresh = new_tasks(RUN, 3)[2:]
        await add_rows(engine.tasks, OTHER_RUN, [*rows, *fresh])
        await engine.work.enqueue(OTHER_RUN, [row.id for row in [*rows, *fresh]])
        await engine.pass_time(timedelta(days=1))

        taken = await claim(engine, 3, OTHER_RUN)

        assert [task.id for task in taken] == [fresh[0].id]
        await settle(engine, taken[0], scraped())
        assert await engine.work.release_lapsed(RUN, overdue=timedelta(), limit=9) == []
        assert await engine.tasks.tally(OTHER_RUN) == {
            TaskStatus.PENDING: 2,
            TaskStatus.SUCCESSFUL: 1,
        }

    async def test_inherited_rows_are_paged_and_tallied_but_not_counted(
        self, engine: Engine
    ) -> None:
        stood = [inherited_as(status) for status in (*sorted(FINAL), TaskStatus.PENDING)]
        rows = [
            NewRow(new.index, new.id, new.spec, how)
            for new, how in zip(new_tasks(RUN, 3), stood, strict=True)
        ]
        await add_rows(engine.tasks, OTHER_RUN, rows)

        for how in stood:
            page = await engine.tasks.page(OTHER_RUN, limit=9, statuses=frozenset({how.status}))
            assert [task.status for task in page.tasks] == [how.status]
        assert await engine.tasks.tally(OTHER_RUN) == {how.status: 1 for how in stood}
        assert (await engine.tasks.counts([OTHER_RUN]))[OTHER_RUN] == ZERO
        assert await engine.tasks.history(OTHER_RUN, rows[0].id) == []

    async def test_inheriting_again_never_resets_a_task(self, engine: Engine) -> None:
        [new] = await given_tasks(engine, 1)
        [task] = await claim(engine)
        await settle(engine, task, refused())
        before = await stored(engine, task)

        again = NewRow(0, new.id, new.spec, inherited_as(TaskStatus.SUCCESSFUL))
        assert await add_rows(engine.tasks, RUN, [again]) == 0

        assert await stored(engine, task) == before


class PagingContract:
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
    @pytest.mark.parametrize("statuses", FILTERS)
    async def test_pages_are_dense_in_order_and_give_each_task_once(
        self, engine: Engine, size: int, statuses: frozenset[TaskStatus] | None
    ) -> None:
        await _given_all_sorts(engine)
        wanted = [
            task for task in await rows(engine) if statuses is None or task.status in statuses
        ]

        pages = [page async for page in _pages(engine, size, statuses)]

        assert [task for page in pages for task in page.tasks] == wanted
        assert all(len(page.tasks) == size for page in pages[:-1])
        assert wanted == sorted(wanted, key=lambda task: task.index)
        assert wanted

    async def test_gaps_between_indexes_do_not_show(self, engine: Engine) -> None:
        await add_rows(engine.tasks, RUN, new_tasks_at([0, 5, 6, 900, 70_000]))

        page = await engine.tasks.page(RUN, limit=3, after=0)

        assert [task.index for task in page.tasks] == [5, 6, 900]

    async def test_tasks_added_out_of_order_are_read_in_order(self, engine: Engine) -> None:
        for index in (4, 0, 2, 3, 1):
            await add_rows(engine.tasks, RUN, new_tasks_at([index]))

        page = await rows(engine)

        assert [task.index for task in page] == [0, 1, 2, 3, 4]

    async def test_a_page_goes_on_from_above_an_index(self, engine: Engine) -> None:
        await add_rows(engine.tasks, RUN, new_tasks(RUN, 4))

        page = await engine.tasks.page(RUN, limit=9, after=1)
        beyond = await engine.tasks.page(RUN, limit=9, after=3)

        assert [task.index for task in page.tasks] == [2, 3]
        assert list(beyond.tasks) == []

    async def test_an_unknown_run_has_an_empty_page(self, engine: Engine) -> None:
        page = await engine.tasks.page(RUN, limit=9)

        assert (list(page.tasks), page.cursor) == ([], None)

    async def test_a_page_and_a_look_at_one_task_agree(self, engine: Engine) -> None:
        await _given_all_sorts(engine)
        for task in await rows(engine):
            assert await stored(engine, task) == task


class CountingContract:
    async def test_a_run_without_settled_tasks_counts_zero(self, engine: Engine) -> None:
        await add_rows(engine.tasks, RUN, new_tasks(RUN, 2))
        assert await engine.tasks.counts([RUN, OTHER_RUN]) == {RUN: ZERO, OTHER_RUN: ZERO}
        assert await engine.tasks.counts([]) == {}

    async def test_a_task_without_ended_attempts_has_no_history(self, engine: Engine) -> None:
        [task] = await given_tasks(engine)
        assert list(await engine.tasks.history(RUN, task.id)) == []
        assert list(await engine.tasks.history(OTHER_RUN, task.id)) == []

    async def test_history_is_in_the_order_attempts_ended(self, engine: Engine) -> None:
        await given_tasks(engine)
        for decision in (to_retry(code="CTX0002"), to_retry(), scraped()):
            [task] = await claim(engine)
            await settle(engine, task, decision)
            await engine.pass_time(decision.delay)

        history = await engine.tasks.history(RUN, task.id)

        assert [line.attempt for line in history] == [1, 2, 3]
        assert [line.ended_at for line in history] == sorted(line.ended_at for line in history)

    async def test_a_tally_is_what_the_rows_say(self, engine: Engine) -> None:
        await _given_all_sorts(engine)
        statuses = [task.status for task in await rows(engine)]

        tally = await engine.tasks.tally(RUN)

        assert {status: tally.get(status, 0) for status in TaskStatus} == {
            status: statuses.count(status) for status in TaskStatus
        }

    async def test_open_tasks_are_in_flight_wait_for_a_retry_or_are_due(
        self, engine: Engine
    ) -> None:
        await given_tasks(engine, 5)
        first, second, third = by_index(await claim(engine, 3))
        await settle(engine, first, to_retry(delay=SECOND))
        await settle(engine, second, scraped())

        before = await engine.tasks.open_counts([RUN, OTHER_RUN])
        await engine.pass_time(SECOND)
        after = await engine.tasks.open_counts([RUN])
        await settle(engine, third, refused())
        ended = await engine.tasks.open_counts([RUN])

        if before:  # an engine may be unable to tell
            assert before == {RUN: OpenCounts(1, 1), OTHER_RUN: OpenCounts()}
            assert [after, ended] == [{RUN: OpenCounts(1)}, {RUN: OpenCounts()}]

    async def test_the_tally_of_an_unknown_run_is_nothing(self, engine: Engine) -> None:
        assert sum((await engine.tasks.tally(OTHER_RUN)).values()) == 0

    async def test_counts_agree_with_the_tally(self, engine: Engine) -> None:
        await _given_all_sorts(engine)

        counts = (await engine.tasks.counts([RUN]))[RUN]
        tally = await engine.tasks.tally(RUN)

        assert counts.successful == tally[TaskStatus.SUCCESSFUL]
        assert counts.failed == tally[TaskStatus.FAILED]


class DiscardingContract:
    async def test_runs_that_have_rows_are_listed_in_order(self, engine: Engine) -> None:
        runs = [RunId(f"{n:026}") for n in (3, 1, 2)]
        for run_id in runs:
            await add_rows(engine.tasks, run_id, new_tasks(run_id, 1))

        assert list(await engine.tasks.runs_held(limit=9)) == sorted(runs)
        assert list(await engine.tasks.runs_held(limit=2)) == sorted(runs)[:2]
        assert list(await engine.tasks.runs_held(limit=9, after=runs[1])) == [runs[2], runs[0]]

    async def test_a_discard_takes_no_more_than_its_limit(self, engine: Engine) -> None:
        await add_rows(engine.tasks, RUN, new_tasks(RUN, 5))

        assert await engine.tasks.discard(RUN, limit=2) == 2

        assert len(await rows(engine)) == 3
        assert list(await engine.tasks.runs_held(limit=9)) == [RUN]

    async def test_a_discarded_run_leaves_nothing(self, engine: Engine) -> None:
        tasks = await _given_all_sorts(engine)

        gone = await _discard(engine)

        assert gone == len(tasks)
        assert await rows(engine) == []
        assert list(await engine.tasks.runs_held(limit=9)) == []
        for task in tasks:
            assert await engine.tasks.get(RUN, task.id) is None
            assert list(await engine.tasks.history(RUN, task.id)) == []

    async def test_a_discard_leaves_other_runs_alone(self, engine: Engine) -> None:
        await _given_all_sorts(engine)
        await given_tasks(engine, 2, OTHER_RUN)
        [done] = await claim(engine, 1, OTHER_RUN)
        await settle(engine, done, scraped())
        before = await rows(engine, OTHER_RUN)

        await _discard(engine)

        assert await rows(engine, OTHER_RUN) == before
        assert (await engine.tasks.counts([OTHER_RUN]))[OTHER_RUN] == Counts(successful=1)
        assert len(await engine.tasks.history(OTHER_RUN, done.id)) == 1

    async def test_a_claim_of_a_discarded_task_can_settle_nothing(self, engine: Engine) -> None:
        await given_tasks(engine, 2)
        [task] = await claim(engine)

        await _discard(engine)

        assert await settle(engine, task, scraped()) is False
        assert await claim(engine) == []

    async def test_discarding_an_unknown_run_finds_nothing(self, engine: Engine) -> None:
        assert await engine.tasks.discard(OTHER_RUN, limit=9) == 0


class ManyHistoriesContract:
    async def test_histories_of_many_tasks_are_those_of_each(self, engine: Engine) -> None:
        await given_tasks(engine, 6)
        await given_tasks(engine, 2, OTHER_RUN)
        await _work_on(engine, RUN, 5, to_retry(delay=timedelta()))
        await _work_on(engine, OTHER_RUN, 2, scraped())
        await engine.pass_time(timedelta(hours=1))
        await _work_on(engine, RUN, 5, scraped())
        tasks = list((await engine.tasks.page(RUN, limit=9)).tasks)

        found = await engine.tasks.histories(RUN, after=0, up_to=4)

        expected = {
            task.id: [in_brief(line) for line in lines]
            for task in tasks[1:5]
            if (lines := list(await engine.tasks.history(RUN, task.id)))
        }
        assert len(expected) >= 3
        assert {name: list(lines) for name, lines in found.items()} == expected

    async def test_a_run_without_rows_has_no_histories(self, engine: Engine) -> None:
        assert dict(await engine.tasks.histories(RunId("nobody"), after=-1, up_to=9)) == {}


class TasksContract(
    AddingContract,
    InheritingContract,
    PagingContract,
    CountingContract,
    DiscardingContract,
    HeavyRowsContract,
    ManyHistoriesContract,
    LayingOutContract,
):
    """All that readers rely on. An engine passes by providing an `engine` fixture."""


async def _given_all_sorts(engine: Engine) -> list[Task]:
    """Twelve tasks, three in each status, the statuses mixed over the indexes."""
    await given_tasks(engine, 12)
    claimed = sorted(await claim(engine, 12), key=lambda task: task.index)
    decisions = [scraped(), refused(), to_retry(), None]
    for task in claimed:
        decision = decisions[task.index % 4]
        if decision:
            await settle(engine, task, decision)
    return claimed


async def _pages(
    engine: Engine, size: int, statuses: frozenset[TaskStatus] | None
) -> AsyncIterator[TaskPage]:
    """Pages up to the last that has tasks: one that is full does not know whether more follow."""
    after: int | None = -1
    while after is not None:
        page = await engine.tasks.page(RUN, limit=size, after=after, statuses=statuses)
        if page.tasks:
            yield page
        after = page.cursor


async def _discard(engine: Engine) -> int:
    gone = 0
    while portion := await engine.tasks.discard(RUN, limit=5):
        gone += portion
    return gone


async def _work_on(engine: Engine, run_id: RunId, count: int, decision: SettleDecision) -> None:
    tasks: list[Task] = await claim(engine, count, run_id)
    for task in tasks:
        assert await settle(engine, task, decision)
