"""How claims end, and that an ack takes no task from its next worker. The domain's functions are the oracle."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

from conveyor.domain import task as task_rules
from conveyor.domain.counts import ZERO, Counts, Spend, total
from conveyor.domain.failure import FailureReason
from conveyor.domain.task import MOST_LOST, SettleDecision, TaskStatus
from conveyor.errors import IllegalMove
from conveyor.ports.work import Held
from conveyor.testing.contracts.engine import (
    SECOND,
    Engine,
    ack,
    all_of,
    by_index,
    claim,
    claim_final,
    counts_of,
    failures_of,
    given_claim,
    given_tasks,
    let_lapse,
    settle,
    stored,
)
from conveyor.testing.factories import (
    OTHER_RUN,
    RUN,
    held,
    ids_of,
    new_tasks,
    refused,
    scraped,
    settlement,
    to_retry,
    uncharged,
)

HOUR = timedelta(hours=1)  # longer than the lease of any engine under test
DECISIONS = [
    scraped(spend=Spend(5, 70)),
    refused(reason=FailureReason.BLOCKED),
    refused(reason=FailureReason.TIMEOUT, spend=Spend(1, 2)),
    to_retry(delay=3 * SECOND, spend=Spend(2, 30)),
    uncharged(wait=20 * SECOND),
    uncharged(spend=Spend(1, 5)),
    uncharged(),
]


class SettlingContract:
    """How claims end."""

    @pytest.mark.parametrize("decision", DECISIONS)
    async def test_a_settle_does_what_the_domain_says(
        self, engine: Engine, decision: SettleDecision
    ) -> None:
        task = await given_claim(engine)
        await engine.pass_time(SECOND)
        now = engine.clock.now()

        assert await settle(engine, task, decision) is True

        line = task_rules.line(task, decision, now)
        assert await stored(engine, task) == task_rules.settle(
            task, task.claim_no, decision, now, holder=engine.holder
        )
        assert await engine.tasks.history(RUN, task.id) == ([line] if line else [])
        assert await counts_of(engine) == task_rules.counted(decision)
        assert await failures_of(engine) == ({decision.failure: 1} if decision.failure else {})

    async def test_a_task_tells_what_all_its_calls_cost(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await settle(engine, task, to_retry(delay=timedelta(), spend=Spend(2, 30)))
        [again] = await claim(engine)
        await settle(engine, again, uncharged(spend=Spend(1, 5)))
        await let_lapse(engine, 1)
        [last] = await claim(engine)
        await settle(engine, last, refused(spend=Spend(4, 500)))

        ended = await stored(engine, task)
        assert (again.spend, last.spend, ended.spend) == (Spend(2, 30), Spend(3, 35), Spend(7, 535))
        assert (await counts_of(engine)).spend == ended.spend

    async def test_a_repeated_settle_changes_nothing(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await settle(engine, task, scraped(spend=Spend(1, 1)))
        before = await all_of(engine, task)
        await engine.pass_time(SECOND)

        assert await settle(engine, task, scraped(spend=Spend(1, 1))) is False
        assert await all_of(engine, task) == before

    async def test_a_claim_taken_over_can_settle_nothing(self, engine: Engine) -> None:
        stale = await given_claim(engine)
        await engine.pass_time(engine.lease)
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
        assert sum((await failures_of(engine)).values()) == 1

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

        assert await counts_of(engine) == total(map(task_rules.counted, DECISIONS))

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

    @pytest.mark.parametrize("delay", [SECOND, 3 * HOUR], ids=["short", "longer-than-a-lease"])
    async def test_a_retry_waits_out_its_delay(self, engine: Engine, delay: timedelta) -> None:
        task = await given_claim(engine)
        await settle(engine, task, to_retry(delay=delay))

        await engine.pass_time(delay - engine.moment)
        assert await claim(engine) == []

        await engine.pass_time(engine.moment)
        [again] = await claim(engine)
        assert (again.id, again.claim_no, again.attempts) == (task.id, 2, 1)

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

        await engine.pass_time(SECOND + engine.longest_hiding)

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

        await engine.pass_time(100 * engine.lease)
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
        assert await stored(engine, task) == task_rules.settle(
            task, task.claim_no, decision, now, holder=engine.holder
        )
        assert await counts_of(engine) == task_rules.counted(decision)


class AckingContract:
    """How engines delete the messages of final tasks."""

    @pytest.mark.parametrize("decision", [scraped(), refused()])
    async def test_a_final_task_comes_round_until_it_is_acked_if_its_engine_has_messages(
        self, engine: Engine, decision: SettleDecision
    ) -> None:
        task = await given_claim(engine)
        await settle(engine, task, decision)
        again = task_rules.as_redelivered(await stored(engine, task))
        expected = [again] if engine.hinted else []

        for _ in range(3):
            await engine.pass_time(engine.lease)
            assert await claim_final(engine) == expected

    async def test_a_task_failed_by_its_release_comes_round_if_its_engine_has_messages(
        self, engine: Engine
    ) -> None:
        await given_tasks(engine)
        last = await let_lapse(engine, MOST_LOST)
        await engine.work.release_lapsed(RUN, overdue=timedelta(), limit=10)

        failed = await stored(engine, last)

        assert failed.status is TaskStatus.FAILED
        again = task_rules.as_redelivered(failed)
        assert await claim_final(engine) == ([again] if engine.hinted else [])

    async def test_a_task_failed_by_a_claim_is_given_again_at_most_as_it_stands(
        self, engine: Engine
    ) -> None:
        await given_tasks(engine)
        await let_lapse(engine, MOST_LOST)
        [failed] = await claim_final(engine)
        before = await all_of(engine, failed)

        await engine.pass_time(engine.lease)

        again = task_rules.as_redelivered(failed)
        assert await claim_final(engine) == ([again] if engine.hinted else [])
        assert await all_of(engine, failed) == before

    async def test_an_ack_changes_no_row_no_history_and_no_count(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await settle(engine, task, scraped())
        before = await all_of(engine, task)

        await ack(engine, [task])
        await ack(engine, [task, task])

        assert await all_of(engine, task) == before

    async def test_acking_nothing_or_what_never_was_does_no_harm(self, engine: Engine) -> None:
        task = await given_claim(engine)
        [unknown] = new_tasks(RUN, 1, first=7)
        strangers = [
            Held(RUN, unknown.id, 1),
            Held(OTHER_RUN, task.id, task.claim_no),
            held(msgspec.structs.replace(task, claim_no=7)),
        ]

        await engine.work.ack([])
        await engine.work.ack(strangers)

        await engine.pass_time(engine.lease)
        assert ids_of(await claim(engine)) == [task.id]

    async def test_an_ack_does_not_end_a_claim_that_stands(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await ack(engine, [task])
        assert await stored(engine, task) == task

        await engine.pass_time(engine.lease)

        assert ids_of(await claim(engine)) == [task.id]

    @pytest.mark.parametrize("decision", [to_retry(delay=SECOND), uncharged(wait=SECOND)])
    async def test_a_task_that_is_to_be_tried_again_outlives_an_ack(
        self, engine: Engine, decision: SettleDecision
    ) -> None:
        """A worker may ack all that it settled, and need not select the final ones."""
        task = await given_claim(engine)
        await settle(engine, task, decision)
        await ack(engine, [task])

        await engine.pass_time(SECOND + engine.longest_hiding)

        assert ids_of(await claim(engine)) == [task.id]

    async def test_a_task_that_was_taken_over_outlives_the_ack_of_its_old_claim(
        self, engine: Engine
    ) -> None:
        stale = await given_claim(engine)
        await engine.pass_time(engine.lease)
        await claim(engine)
        assert await settle(engine, stale, scraped()) is False

        await ack(engine, [stale])

        await engine.pass_time(engine.lease)
        assert ids_of(await claim(engine)) == [stale.id]

    async def test_a_final_task_of_a_closed_run_may_be_acked(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await settle(engine, task, scraped())
        await engine.work.close(RUN)

        await ack(engine, [task])

        assert (await stored(engine, task)).is_final
