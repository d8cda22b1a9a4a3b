"""How claims last, lapse and are lost. The domain's functions are the oracle."""

from datetime import timedelta

from conveyor.domain import task as life
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.task import MOST_LOST, TaskStatus
from conveyor.testing.contracts.engine import (
    SECOND,
    TICK,
    TRIES,
    Engine,
    all_of,
    by_index,
    claim,
    claim_final,
    counts_of,
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
    scraped,
    uncharged,
)

NO_TIME = timedelta()


class LeasingContract:
    """How claims last, lapse and are lost."""

    async def test_a_claim_lasts_as_long_as_its_lease(self, engine: Engine) -> None:
        await given_claim(engine)
        engine.clock.advance(engine.lease - TICK)
        assert await claim(engine) == []

    async def test_a_lapsed_claim_is_taken_over_and_its_worker_counted_lost(
        self, engine: Engine
    ) -> None:
        first = await given_claim(engine)
        engine.clock.advance(engine.lease)
        now = engine.clock.now()

        [second] = await claim(engine)

        assert second == life.claim(first, now, engine.lease)
        assert await stored(engine, first) == second
        assert await engine.tasks.history(RUN, first.id) == [life.lost_line(first, now)]
        assert await counts_of(engine) == ZERO

    async def test_a_lapsed_claim_that_nobody_took_over_may_settle(self, engine: Engine) -> None:
        task = await given_claim(engine)
        engine.clock.advance(2 * engine.lease)

        assert await settle(engine, task, scraped()) is True
        assert await claim(engine) == []

    async def test_a_renewed_claim_lasts_a_lease_from_then_on(self, engine: Engine) -> None:
        task = await given_claim(engine)
        engine.clock.advance(engine.lease / 2)
        now = engine.clock.now()

        assert list(await engine.work.renew([held(task)])) == []

        assert await stored(engine, task) == life.renew(task, task.claim_no, now, engine.lease)
        engine.clock.advance(engine.lease - TICK)
        assert await claim(engine) == []
        engine.clock.advance(TICK)
        assert [again.lost for again in await claim(engine)] == [1]

    async def test_a_claim_renewed_again_and_again_is_kept(self, engine: Engine) -> None:
        task = await given_claim(engine)
        for _ in range(10):
            engine.clock.advance(engine.lease * 0.9)
            assert list(await engine.work.renew([held(task)])) == []
            assert await claim(engine) == []

        assert await settle(engine, task, scraped()) is True

    async def test_renewing_gives_back_the_claims_that_fell(self, engine: Engine) -> None:
        await given_tasks(engine, 3)
        fallen, ended, standing = by_index(await claim(engine, 3))
        await settle(engine, ended, scraped())
        await engine.work.renew([held(standing)])
        engine.clock.advance(engine.lease / 2)
        await engine.work.renew([held(standing)])
        engine.clock.advance(engine.lease / 2)
        assert ids_of(await claim(engine)) == [fallen.id]

        lost = await engine.work.renew([held(fallen), held(ended), held(standing)])

        assert {each.task_id for each in lost} == {fallen.id, ended.id}

    async def test_renewing_a_fallen_claim_does_not_lengthen_its_successor(
        self, engine: Engine
    ) -> None:
        stale = await given_claim(engine)
        engine.clock.advance(engine.lease)
        [successor] = await claim(engine)
        engine.clock.advance(SECOND)

        assert list(await engine.work.renew([held(stale)])) == [held(stale)]
        assert await stored(engine, successor) == successor

    async def test_the_last_worker_a_task_may_lose_fails_it(self, engine: Engine) -> None:
        await given_tasks(engine)
        last = await let_lapse(engine, MOST_LOST)
        now = engine.clock.now()

        [failed] = await claim_final(engine)

        assert failed == life.claim(last, now, engine.lease)
        assert await stored(engine, last) == failed
        assert (failed.status, failed.problem) == (TaskStatus.FAILED, life.WORKER_LOST)
        history = await engine.tasks.history(RUN, last.id)
        assert len(history) == MOST_LOST
        assert history[-1] == life.lost_line(last, now)
        assert await counts_of(engine) == Counts(other=1)

    async def test_a_task_failed_by_a_claim_is_counted_once(self, engine: Engine) -> None:
        await given_tasks(engine)
        last = await let_lapse(engine, MOST_LOST)
        await claim(engine)
        engine.clock.advance(engine.lease)

        assert await claim(engine) == []
        assert await settle(engine, last, scraped()) is False
        assert await counts_of(engine) == Counts(other=1)

    async def test_a_task_failed_by_a_claim_takes_a_place_in_what_was_wanted(
        self, engine: Engine
    ) -> None:
        await given_tasks(engine)
        doomed = await let_lapse(engine, MOST_LOST)
        _, fresh = await given_tasks(engine, 2)

        given = [task for _ in range(TRIES) for task in await engine.work.claim({RUN: 1})]

        assert sorted({task.index: task.is_final for task in given}.items()) == [
            (doomed.index, True),
            (fresh.index, False),
        ]
        assert not engine.ordered or ids_of(given) == [doomed.id, fresh.id]

    async def test_lost_workers_leave_attempts_uncharged(self, engine: Engine) -> None:
        await given_tasks(engine)
        await let_lapse(engine, 2)
        [task] = await claim(engine)
        await settle(engine, task, scraped())

        done = await stored(engine, task)
        assert (done.attempts, done.lost, done.claim_no) == (1, 2, 3)
        assert [line.attempt for line in await engine.tasks.history(RUN, task.id)] == [1, 1, 1]


class ReleasingContract:
    """How the sweeper frees what dead workers held."""

    async def test_a_release_does_what_the_domain_says(self, engine: Engine) -> None:
        task = await given_claim(engine)
        engine.clock.advance(engine.lease + SECOND)
        now = engine.clock.now()

        assert list(await engine.work.release_lapsed(overdue=SECOND, limit=10)) == [held(task)]

        assert await stored(engine, task) == life.release(task, now)
        assert await engine.tasks.history(RUN, task.id) == [life.lost_line(task, now)]
        assert await counts_of(engine) == ZERO

    async def test_what_was_released_is_up_for_claiming_at_once(self, engine: Engine) -> None:
        task = await given_claim(engine)
        engine.clock.advance(engine.lease)
        await engine.work.release_lapsed(overdue=NO_TIME, limit=10)
        released = await stored(engine, task)

        [again] = await claim(engine)

        assert again == life.claim(released, engine.clock.now(), engine.lease)
        assert again.lost == 1

    async def test_a_release_leaves_alone_what_is_not_overdue(self, engine: Engine) -> None:
        task = await given_claim(engine)
        engine.clock.advance(engine.lease + SECOND - TICK)

        assert list(await engine.work.release_lapsed(overdue=SECOND, limit=10)) == []
        assert await stored(engine, task) == task

    async def test_leases_that_still_run_end_when_their_holders_are_known_to_be_dead(
        self, engine: Engine
    ) -> None:
        task = await given_claim(engine)
        ever = timedelta(days=36_500)

        assert list(await engine.work.release_lapsed(overdue=-ever, limit=10)) == [held(task)]

        assert await stored(engine, task) == life.release(task, engine.clock.now())

    async def test_a_release_leaves_alone_what_nobody_holds(self, engine: Engine) -> None:
        await given_tasks(engine, 3)
        done, waiting = await claim(engine, 2)
        await settle(engine, done, scraped())
        await settle(engine, waiting, uncharged())
        engine.clock.advance(engine.lease)

        assert list(await engine.work.release_lapsed(overdue=NO_TIME, limit=10)) == []

    async def test_releases_in_portions_reach_every_lapsed_task(self, engine: Engine) -> None:
        await given_tasks(engine, 3, RUN)
        await given_tasks(engine, 2, OTHER_RUN)
        claimed = [*await claim(engine, 3, RUN), *await claim(engine, 2, OTHER_RUN)]
        engine.clock.advance(engine.lease)

        portions = [await engine.work.release_lapsed(overdue=NO_TIME, limit=2) for _ in "1234"]

        assert [len(portion) for portion in portions] == [2, 2, 1, 0]
        assert {each for portion in portions for each in portion} == set(map(held, claimed))

    async def test_a_release_frees_tasks_of_closed_runs_too(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await engine.work.close(RUN)
        engine.clock.advance(engine.lease)
        now = engine.clock.now()

        assert list(await engine.work.release_lapsed(overdue=NO_TIME, limit=10)) == [held(task)]

        assert await stored(engine, task) == life.release(task, now)
        assert await claim(engine) == []

    async def test_a_released_claim_can_neither_settle_nor_renew(self, engine: Engine) -> None:
        stale = await given_claim(engine)
        engine.clock.advance(engine.lease)
        await engine.work.release_lapsed(overdue=NO_TIME, limit=10)
        before = await all_of(engine, stale)

        assert await settle(engine, stale, scraped()) is False
        assert list(await engine.work.renew([held(stale)])) == [held(stale)]
        assert await all_of(engine, stale) == before

    async def test_the_last_worker_a_task_may_lose_fails_it_when_released(
        self, engine: Engine
    ) -> None:
        await given_tasks(engine)
        last = await let_lapse(engine, MOST_LOST)
        now = engine.clock.now()

        assert list(await engine.work.release_lapsed(overdue=NO_TIME, limit=10)) == [held(last)]

        assert await stored(engine, last) == life.release(last, now)
        assert (await stored(engine, last)).status is TaskStatus.FAILED
        assert await counts_of(engine) == Counts(other=1)
        assert await claim(engine) == []
