"""How claims end. The domain's functions are the oracle."""

import asyncio

import msgspec
import pytest

from conveyor.domain import task as life
from conveyor.domain.counts import ZERO, Counts, Spend, total
from conveyor.domain.failure import FailureReason
from conveyor.domain.task import SettleDecision, TaskStatus
from conveyor.errors import IllegalMove
from conveyor.testing.contracts.engine import (
    SECOND,
    TICK,
    Engine,
    all_of,
    by_index,
    claim,
    counts_of,
    given_claim,
    given_tasks,
    settle,
    stored,
)
from conveyor.testing.factories import (
    OTHER_RUN,
    RUN,
    ids_of,
    refused,
    scraped,
    settlement,
    to_retry,
    uncharged,
)

DECISIONS = [
    scraped(spend=Spend(5, 70)),
    refused(reason=FailureReason.BLOCKED),
    refused(reason=FailureReason.TIMEOUT, spend=Spend(1, 2)),
    to_retry(delay=3 * SECOND, spend=Spend(2, 30)),
    uncharged(wait=20 * SECOND),
    uncharged(),
]


class SettlingContract:
    """How claims end."""

    @pytest.mark.parametrize("decision", DECISIONS)
    async def test_a_settle_does_what_the_domain_says(
        self, engine: Engine, decision: SettleDecision
    ) -> None:
        task = await given_claim(engine)
        engine.clock.advance(SECOND)
        now = engine.clock.now()

        assert await settle(engine, task, decision) is True

        line = life.line(task, decision, now)
        assert await stored(engine, task) == life.settle(task, task.claim_no, decision, now)
        assert await engine.tasks.history(RUN, task.id) == ([line] if line else [])
        assert await counts_of(engine) == life.counted(decision)

    async def test_a_repeated_settle_changes_nothing(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await settle(engine, task, scraped(spend=Spend(1, 1)))
        before = await all_of(engine, task)
        engine.clock.advance(SECOND)

        assert await settle(engine, task, scraped(spend=Spend(1, 1))) is False
        assert await all_of(engine, task) == before

    async def test_a_claim_taken_over_can_settle_nothing(self, engine: Engine) -> None:
        stale = await given_claim(engine)
        engine.clock.advance(engine.lease)
        await claim(engine)
        before = await all_of(engine, stale)

        assert await settle(engine, stale, scraped()) is False
        assert await all_of(engine, stale) == before

    async def test_a_claim_that_ended_in_a_retry_can_settle_nothing_more(
        self, engine: Engine
    ) -> None:
        task = await given_claim(engine)
        await settle(engine, task, to_retry())
        before = await all_of(engine, task)

        assert await settle(engine, task, refused()) is False
        assert await all_of(engine, task) == before

    async def test_a_stale_settle_does_not_hold_back_its_neighbours(self, engine: Engine) -> None:
        await given_tasks(engine, 3)
        first, second, third = by_index(await claim(engine, 3))
        await settle(engine, second, scraped())

        settled = await engine.work.settle(
            [
                settlement(first, scraped()),
                settlement(second, refused()),
                settlement(third, refused()),
            ]
        )

        assert list(settled) == [True, False, True]
        assert await counts_of(engine) == Counts(successful=2, bad_target=1)

    async def test_a_settle_of_what_never_was_is_false(self, engine: Engine) -> None:
        task = await given_claim(engine)
        elsewhere = msgspec.structs.replace(task, run_id=OTHER_RUN)
        assert await settle(engine, elsewhere, scraped()) is False

    async def test_each_run_counts_its_own(self, engine: Engine) -> None:
        await given_tasks(engine, 2, RUN)
        await given_tasks(engine, 1, OTHER_RUN)
        mine, [other] = await claim(engine, 2, RUN), await claim(engine, 1, OTHER_RUN)

        await engine.work.settle(
            [settlement(task, scraped(spend=Spend(1, 10))) for task in mine]
            + [settlement(other, refused(spend=Spend(3, 30)))]
        )

        counts = await engine.tasks.counts([RUN, OTHER_RUN])
        assert counts[RUN] == Counts(successful=2, credits=2, nanos=20)
        assert counts[OTHER_RUN] == Counts(bad_target=1, credits=3, nanos=30)

    async def test_counts_are_the_sum_of_all_decisions(self, engine: Engine) -> None:
        await given_tasks(engine, len(DECISIONS))
        claimed = await claim(engine, len(DECISIONS))

        await engine.work.settle(
            [settlement(task, decision) for task, decision in zip(claimed, DECISIONS, strict=True)]
        )

        assert await counts_of(engine) == total(map(life.counted, DECISIONS))

    async def test_settles_at_the_same_time_all_count(self, engine: Engine) -> None:
        await given_tasks(engine, 20)
        claimed = await claim(engine, 20)

        async with asyncio.TaskGroup() as group:
            for task in claimed:
                group.create_task(settle(engine, task, scraped(spend=Spend(1, 2))))

        assert await counts_of(engine) == Counts(successful=20, credits=20, nanos=40)

    async def test_of_settles_at_the_same_time_one_takes_effect(self, engine: Engine) -> None:
        task = await given_claim(engine)

        async with asyncio.TaskGroup() as group:
            tries = [group.create_task(settle(engine, task, scraped())) for _ in range(5)]

        assert sorted(each.result() for each in tries) == [False] * 4 + [True]
        assert await counts_of(engine) == Counts(successful=1)

    async def test_a_retry_waits_out_its_delay(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await settle(engine, task, to_retry(delay=SECOND))

        engine.clock.advance(SECOND - TICK)
        assert await claim(engine) == []

        engine.clock.advance(TICK)
        [again] = await claim(engine)
        assert (again.id, again.claim_no, again.attempts) == (task.id, 2, 1)

    async def test_a_retry_may_wait_for_longer_than_a_lease(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await settle(engine, task, to_retry(delay=3 * engine.lease))

        engine.clock.advance(3 * engine.lease - TICK)
        assert await claim(engine) == []

        engine.clock.advance(TICK)
        assert ids_of(await claim(engine)) == [task.id]

    async def test_an_interrupted_task_is_up_again_at_once_and_uncharged(
        self, engine: Engine
    ) -> None:
        task = await given_claim(engine)
        await settle(engine, task, uncharged())

        [again] = await claim(engine)

        assert (again.id, again.attempts, again.lost) == (task.id, 0, 0)
        assert await engine.tasks.history(RUN, task.id) == []
        assert await counts_of(engine) == ZERO

    async def test_a_throttled_task_waits_uncharged(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await settle(engine, task, uncharged(wait=SECOND))
        assert await claim(engine) == []

        engine.clock.advance(SECOND)

        assert [again.attempts for again in await claim(engine)] == [0]

    async def test_a_decision_that_ends_nothing_is_refused_and_changes_nothing(
        self, engine: Engine
    ) -> None:
        task = await given_claim(engine)
        before = await all_of(engine, task)

        with pytest.raises(IllegalMove):
            await settle(engine, task, SettleDecision(status=TaskStatus.PROCESSING, charged=True))

        assert await all_of(engine, task) == before
        assert await settle(engine, task, scraped()) is True

    async def test_a_final_task_is_never_to_be_done_again(self, engine: Engine) -> None:
        await given_tasks(engine, 2)
        first, second = await claim(engine, 2)
        await settle(engine, first, scraped())
        await settle(engine, second, refused())

        engine.clock.advance(100 * engine.lease)
        await engine.work.enqueue(RUN, ids_of([first, second]))

        assert await claim(engine) == []

    @pytest.mark.parametrize("decision", DECISIONS)
    async def test_a_claim_may_settle_after_its_run_was_closed(
        self, engine: Engine, decision: SettleDecision
    ) -> None:
        task = await given_claim(engine)
        await engine.work.close(RUN)
        now = engine.clock.now()

        assert await settle(engine, task, decision) is True
        assert await stored(engine, task) == life.settle(task, task.claim_no, decision, now)
        assert await counts_of(engine) == life.counted(decision)
