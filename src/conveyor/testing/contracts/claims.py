"""What claims of named tasks must do, on engines that have them."""

from datetime import timedelta

import pytest

from conveyor.domain import task as task_rules
from conveyor.domain.counts import Counts, Spend
from conveyor.domain.task import MOST_LOST, Task, TaskStatus
from conveyor.ports.claims import Claims
from conveyor.testing.contracts.engine import Engine, by_index, given_tasks, stored
from conveyor.testing.factories import (
    OTHER_RUN,
    RUN,
    held,
    ids_of,
    new_tasks,
    released,
    scraped,
    settlement,
    to_retry,
)


class ClaimsContract:
    """An engine passes by providing an `engine` fixture with claims."""

    @pytest.fixture
    def claims(self, engine: Engine) -> Claims:
        assert engine.claims is not None, "this engine has no claims: leave it out"
        return engine.claims

    async def test_taking_does_what_the_domain_says(self, engine: Engine, claims: Claims) -> None:
        first, second, _ = await given_tasks(engine, 3)
        now = engine.clock.now()

        taken = await claims.take(RUN, [second.id, first.id])

        expected = [
            task_rules.claim(task, now, engine.lease, holder=engine.holder)
            for task in (first, second)
        ]
        assert sorted(taken, key=lambda task: task.index) == expected
        assert [await stored(engine, task) for task in expected] == expected

    async def test_what_is_not_due_is_returned_as_it_stands(
        self, engine: Engine, claims: Claims
    ) -> None:
        [task] = await given_tasks(engine)
        [taken] = await claims.take(RUN, [task.id])
        await engine.pass_time(engine.lease - engine.moment)

        assert list(await claims.take(RUN, [task.id])) == [taken]
        assert await stored(engine, task) == taken

    async def test_every_named_task_is_returned_in_its_state(
        self, engine: Engine, claims: Claims
    ) -> None:
        waiting, running, done = await given_tasks(engine, 3)
        await claims.take(RUN, [running.id])
        [retried] = await claims.take(RUN, [waiting.id])
        [finished] = await claims.take(RUN, [done.id])
        retry, final = to_retry(delay=2 * engine.lease), scraped()
        await claims.settle([settlement(retried, retry), settlement(finished, final)])
        [unknown] = new_tasks(RUN, 1, first=7)

        seen = await claims.take(RUN, [*ids_of([waiting, running, done]), unknown.id])

        assert {task.id: task.status for task in seen} == {
            waiting.id: TaskStatus.PENDING,
            running.id: TaskStatus.PROCESSING,
            done.id: TaskStatus.SUCCESSFUL,
        }
        assert by_index(seen) == [await stored(engine, task) for task in by_index(seen)]
        assert list(await claims.take(OTHER_RUN, [done.id])) == []

    async def test_a_take_whose_answer_was_lost_is_seen_by_the_next(
        self, engine: Engine, claims: Claims
    ) -> None:
        [task] = await given_tasks(engine)
        [lost] = await claims.take(RUN, [task.id])

        [again] = await claims.take(RUN, [task.id])

        assert again == lost
        assert (again.holder, again.claim_no) == (engine.holder, 1)

    async def test_the_stamp_of_a_run_never_changes(self, engine: Engine, claims: Claims) -> None:
        [task] = await given_tasks(engine)
        stamp = await claims.stamp(RUN)
        assert stamp

        [taken] = await claims.take(RUN, [task.id], stamp=stamp)

        assert taken.claim_no == 1
        assert await claims.stamp(RUN) == stamp

    async def test_a_lapsed_claim_is_taken_over(self, engine: Engine, claims: Claims) -> None:
        [task] = await given_tasks(engine)
        [first] = await claims.take(RUN, [task.id])
        await engine.pass_time(engine.lease)
        now = engine.clock.now()

        [second] = await claims.take(RUN, [task.id])

        assert second == task_rules.claim(first, now, engine.lease, holder=engine.holder)
        assert await engine.tasks.history(RUN, task.id) == [task_rules.lost_line(first, now)]

    async def test_a_task_failed_by_the_taking_is_given_as_failed(
        self, engine: Engine, claims: Claims
    ) -> None:
        last = await _lost_for_the_last_time(engine, claims)

        [failed] = await claims.take(RUN, [last.id])

        assert failed == task_rules.claim(
            last, engine.clock.now(), engine.lease, holder=engine.holder
        )
        assert failed.status is TaskStatus.FAILED
        assert (await engine.tasks.counts([RUN]))[RUN] == Counts(other=1)

    async def test_renewing_gives_back_the_claims_that_fell(
        self, engine: Engine, claims: Claims
    ) -> None:
        tasks = await given_tasks(engine, 2)
        standing, ended = await claims.take(RUN, ids_of(tasks))
        await claims.settle([settlement(ended, scraped())])
        await engine.pass_time(engine.lease / 2)
        now = engine.clock.now()

        assert list(await claims.renew([held(standing), held(ended)])) == [held(ended)]
        assert await stored(engine, standing) == task_rules.renew(
            standing, standing.claim_no, now, engine.lease, holder=engine.holder
        )

    async def test_a_settle_is_fenced_and_counted_once(
        self, engine: Engine, claims: Claims
    ) -> None:
        [task] = await given_tasks(engine)
        [stale] = await claims.take(RUN, [task.id])
        await engine.pass_time(engine.lease)
        [taken] = await claims.take(RUN, [task.id])
        paid = scraped(spend=Spend(1, 2))

        assert list(await claims.settle([settlement(stale, paid)])) == [False]
        assert list(await claims.settle([settlement(taken, paid)])) == [True]
        assert list(await claims.settle([settlement(taken, paid)])) == [False]
        assert (await engine.tasks.counts([RUN]))[RUN] == task_rules.counted(paid)

    async def test_a_release_names_what_it_freed(self, engine: Engine, claims: Claims) -> None:
        mine, other = [*await given_tasks(engine), *await given_tasks(engine, 1, OTHER_RUN)]
        [taken] = await claims.take(RUN, [mine.id])
        [elsewhere] = await claims.take(OTHER_RUN, [other.id])
        await engine.pass_time(engine.lease)
        now = engine.clock.now()

        freed = await claims.release_lapsed(RUN, overdue=timedelta(), limit=10)

        assert list(freed) == [released(taken)]
        assert await stored(engine, mine) == task_rules.release(taken, now)
        assert await stored(engine, other) == elsewhere

    async def test_a_release_names_what_it_failed_too(self, engine: Engine, claims: Claims) -> None:
        last = await _lost_for_the_last_time(engine, claims)

        freed = await claims.release_lapsed(RUN, overdue=timedelta(), limit=10)

        assert list(freed) == [released(last, failed=True)]
        assert await stored(engine, last) == task_rules.release(last, engine.clock.now())


async def _lost_for_the_last_time(engine: Engine, claims: Claims) -> Task:
    [task] = await given_tasks(engine)
    for _ in range(MOST_LOST):
        [task] = await claims.take(RUN, [task.id])
        await engine.pass_time(engine.lease)
    return task
