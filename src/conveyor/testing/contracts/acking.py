"""What is left to do for final tasks, and that an ack never takes a task from its next worker."""

from datetime import timedelta

import msgspec
import pytest

from conveyor.domain.task import MOST_LOST, SettleDecision, TaskStatus
from conveyor.ports.work import Held
from conveyor.testing.contracts.engine import (
    SECOND,
    Engine,
    ack,
    all_of,
    claim,
    claim_final,
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
    to_retry,
    uncharged,
)


class AckingContract:
    """How engines let go of final tasks."""

    @pytest.mark.parametrize("decision", [scraped(), refused()])
    async def test_a_final_task_comes_round_until_it_is_acked_if_its_engine_has_messages(
        self, engine: Engine, decision: SettleDecision
    ) -> None:
        task = await given_claim(engine)
        await settle(engine, task, decision)
        expected = [await stored(engine, task)] if engine.hinted else []

        for _ in range(3):
            engine.clock.advance(engine.lease)
            assert await claim_final(engine) == expected

    async def test_a_task_failed_by_its_release_comes_round_if_its_engine_has_messages(
        self, engine: Engine
    ) -> None:
        await given_tasks(engine)
        last = await let_lapse(engine, MOST_LOST)
        await engine.work.release_lapsed(overdue=timedelta(), limit=10)

        failed = await stored(engine, last)

        assert failed.status is TaskStatus.FAILED
        assert await claim_final(engine) == ([failed] if engine.hinted else [])

    async def test_a_task_failed_by_a_claim_is_given_again_at_most_as_it_stands(
        self, engine: Engine
    ) -> None:
        await given_tasks(engine)
        await let_lapse(engine, MOST_LOST)
        [failed] = await claim_final(engine)
        before = await all_of(engine, failed)

        engine.clock.advance(engine.lease)

        assert await claim_final(engine) == ([failed] if engine.hinted else [])
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

        engine.clock.advance(engine.lease)
        assert ids_of(await claim(engine)) == [task.id]

    async def test_an_ack_does_not_end_a_claim_that_stands(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await ack(engine, [task])
        assert await stored(engine, task) == task

        engine.clock.advance(engine.lease)

        assert ids_of(await claim(engine)) == [task.id]

    @pytest.mark.parametrize("decision", [to_retry(delay=SECOND), uncharged(wait=SECOND)])
    async def test_a_task_that_is_to_be_tried_again_outlives_an_ack(
        self, engine: Engine, decision: SettleDecision
    ) -> None:
        """Whoever acks all that it settled need not sort out what is final."""
        task = await given_claim(engine)
        await settle(engine, task, decision)
        await ack(engine, [task])

        engine.clock.advance(SECOND)

        assert ids_of(await claim(engine)) == [task.id]

    async def test_a_task_that_was_taken_over_outlives_the_ack_of_its_old_claim(
        self, engine: Engine
    ) -> None:
        stale = await given_claim(engine)
        engine.clock.advance(engine.lease)
        await claim(engine)
        assert await settle(engine, stale, scraped()) is False

        await ack(engine, [stale])

        engine.clock.advance(engine.lease)
        assert ids_of(await claim(engine)) == [stale.id]

    async def test_a_final_task_of_a_closed_run_may_be_acked(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await settle(engine, task, scraped())
        await engine.work.close(RUN)

        await ack(engine, [task])

        assert (await stored(engine, task)).is_final
