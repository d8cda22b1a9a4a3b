"""Overdue leases and histories, read without changing a task."""

from datetime import timedelta

from conveyor.domain.ids import RunId
from conveyor.domain.task import SettleDecision, Task, TaskStatus, in_brief
from conveyor.testing.contracts.engine import Engine, claim, given_tasks, settle, stored
from conveyor.testing.factories import OTHER_RUN, RUN, a_stored_body, held

OVERDUE = timedelta(seconds=30)
A_MOMENT = timedelta(milliseconds=1)
DONE = SettleDecision(status=TaskStatus.SUCCESSFUL, charged=True, result=a_stored_body())
AGAIN = SettleDecision(status=TaskStatus.PENDING, charged=True, problem="{}")


class LapsedContract:
    async def test_a_lease_that_is_overdue_is_shown_and_left_alone(self, engine: Engine) -> None:
        await given_tasks(engine, 2)
        [task] = await claim(engine)
        engine.clock.advance(engine.lease + OVERDUE - A_MOMENT)
        assert list(await engine.tasks.lapsed(overdue=OVERDUE, limit=9)) == []
        engine.clock.advance(A_MOMENT)

        shown = list(await engine.tasks.lapsed(overdue=OVERDUE, limit=9))

        assert shown == [held(task)]
        assert (await stored(engine, task)).status is TaskStatus.PROCESSING
        assert list(await engine.work.release_lapsed(overdue=OVERDUE, limit=9)) == shown
        assert list(await engine.tasks.lapsed(overdue=OVERDUE, limit=9)) == []

    async def test_no_more_leases_are_shown_than_asked_for(self, engine: Engine) -> None:
        await given_tasks(engine, 3)
        await claim(engine, 3)
        engine.clock.advance(engine.lease)

        assert len(await engine.tasks.lapsed(overdue=timedelta(), limit=2)) == 2

    async def test_histories_of_many_tasks_are_those_of_each(self, engine: Engine) -> None:
        await given_tasks(engine, 6)
        await given_tasks(engine, 2, OTHER_RUN)
        await _work_on(engine, RUN, 5, AGAIN)
        await _work_on(engine, OTHER_RUN, 2, DONE)
        engine.clock.advance(timedelta(hours=1))
        await _work_on(engine, RUN, 5, DONE)
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


async def _work_on(engine: Engine, run_id: RunId, count: int, decision: SettleDecision) -> None:
    tasks: list[Task] = await claim(engine, count, run_id)
    for task in tasks:
        assert await settle(engine, task, decision)
