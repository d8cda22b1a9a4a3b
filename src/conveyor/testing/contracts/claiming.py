"""How tasks are handed out. The domain's functions are the oracle."""

import asyncio

from conveyor.domain import task as life
from conveyor.testing.contracts.engine import (
    SECOND,
    Engine,
    by_index,
    claim,
    given_claim,
    given_tasks,
    settle,
    stored,
)
from conveyor.testing.factories import (
    OTHER_RUN,
    RUN,
    ids_of,
    new_tasks,
    uncharged,
)


class ClaimingContract:
    """How tasks are handed out."""

    async def test_a_claim_does_what_the_domain_says(self, engine: Engine) -> None:
        [before] = await given_tasks(engine)
        engine.clock.advance(SECOND)

        [task] = await claim(engine)

        assert task == life.claim(before, engine.clock.now(), engine.lease)
        assert await stored(engine, task) == task

    async def test_nobody_gets_what_another_holds(self, engine: Engine) -> None:
        await given_claim(engine)
        assert await claim(engine) == []

    async def test_callers_at_the_same_time_share_nothing(self, engine: Engine) -> None:
        tasks = await given_tasks(engine, 30)

        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(claim(engine, 10)) for _ in range(5)]
        given = [task.id for caller in callers for task in caller.result()]

        assert sorted(given) == ids_of(tasks)

    async def test_no_more_is_given_than_is_wanted(self, engine: Engine) -> None:
        await given_tasks(engine, 5)
        assert len(await engine.work.claim({RUN: 2})) <= 2
        assert await engine.work.claim({RUN: 0}) == []

    async def test_one_call_takes_from_many_runs(self, engine: Engine) -> None:
        await given_tasks(engine, 2, RUN)
        await given_tasks(engine, 3, OTHER_RUN)

        given = [
            task for _ in range(60) for task in await engine.work.claim({RUN: 2, OTHER_RUN: 3})
        ]

        assert sorted(task.run_id for task in given) == [RUN] * 2 + [OTHER_RUN] * 3

    async def test_runs_that_were_not_asked_for_are_left_alone(self, engine: Engine) -> None:
        await given_tasks(engine, 2, RUN)
        [other] = await given_tasks(engine, 1, OTHER_RUN)

        await claim(engine, 2, RUN)

        assert await stored(engine, other) == other

    async def test_the_longest_due_comes_first(self, engine: Engine) -> None:
        await given_tasks(engine, 4)
        delays = [4 * SECOND, 2 * SECOND, 3 * SECOND, 1 * SECOND]
        for task, delay in zip(by_index(await claim(engine, 4)), delays, strict=True):
            await settle(engine, task, uncharged(wait=delay))
        engine.clock.advance(5 * SECOND)

        given = [(await claim(engine))[0].index for _ in delays]

        assert given == [3, 1, 2, 0] if engine.ordered else sorted(given) == [0, 1, 2, 3]

    async def test_a_lapsed_claim_takes_its_turn_by_when_it_lapsed(self, engine: Engine) -> None:
        await given_tasks(engine, 2)
        first, second = by_index(await claim(engine, 2))
        await settle(engine, first, uncharged(wait=engine.lease + SECOND))
        engine.clock.advance(engine.lease + 2 * SECOND)

        given = ids_of([*await claim(engine), *await claim(engine)])

        expected = [second.id, first.id]
        assert given == expected if engine.ordered else sorted(given) == sorted(expected)

    async def test_a_run_may_be_opened_again(self, engine: Engine) -> None:
        [task] = await given_tasks(engine)
        await engine.work.close(RUN)
        await engine.work.open(RUN)
        await engine.work.enqueue(RUN, [task.id])

        assert ids_of(await claim(engine)) == [task.id]

    async def test_opening_an_open_run_changes_nothing(self, engine: Engine) -> None:
        await given_tasks(engine, 2)
        await engine.work.open(RUN)
        [first] = await claim(engine)
        await engine.work.open(RUN)

        [second] = await claim(engine)

        assert second.id != first.id
        assert await claim(engine) == []

    async def test_offering_again_hands_nothing_out_twice(self, engine: Engine) -> None:
        tasks = await given_tasks(engine, 3)
        await engine.work.enqueue(RUN, ids_of(tasks))
        given = await claim(engine, 3)
        await engine.work.enqueue(RUN, ids_of(tasks))

        assert sorted(ids_of(given)) == ids_of(tasks)
        assert await claim(engine) == []

    async def test_tasks_added_to_an_open_run_are_handed_out(self, engine: Engine) -> None:
        await given_claim(engine)
        more = new_tasks(RUN, 2, first=1)
        await engine.tasks.add(RUN, more)
        await engine.work.enqueue(RUN, ids_of(more))

        assert sorted(ids_of(await claim(engine, 5))) == ids_of(more)

    async def test_a_closed_run_gives_nothing(self, engine: Engine) -> None:
        [task] = await given_tasks(engine)
        await engine.work.close(RUN)
        await engine.work.close(RUN)

        assert await claim(engine) == []
        assert await stored(engine, task) == task

    async def test_a_closed_run_gives_nothing_that_lapsed_or_was_offered(
        self, engine: Engine
    ) -> None:
        task = await given_claim(engine)
        await engine.work.close(RUN)
        await engine.work.enqueue(RUN, [task.id])
        engine.clock.advance(engine.lease)

        assert await claim(engine) == []

    async def test_an_unknown_run_can_be_closed_and_gives_nothing(self, engine: Engine) -> None:
        await engine.work.close(OTHER_RUN)
        assert await claim(engine, run_id=OTHER_RUN) == []
