"""How tasks are claimed and leased, and all that the dispatcher relies on."""

import asyncio
from datetime import timedelta

from conveyor.domain import task as task_rules
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.task import MOST_LOST, Task, TaskStatus
from conveyor.ports.work import Work
from conveyor.testing.contracts.engine import (
    SECOND,
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
from conveyor.testing.contracts.failure_groups import FailureGroupsContract
from conveyor.testing.contracts.settling import AckingContract, SettlingContract
from conveyor.testing.factories import (
    OTHER_RUN,
    RUN,
    add_rows,
    held,
    ids_of,
    new_tasks,
    released,
    scraped,
    settlement,
    uncharged,
)

NO_TIME = timedelta()


class ClaimingContract:
    """How tasks are handed out."""

    async def test_a_claim_does_what_the_domain_says(self, engine: Engine) -> None:
        [before] = await given_tasks(engine)
        await engine.pass_time(SECOND)

        [task] = await claim(engine)

        assert task == task_rules.claim(
            before, engine.clock.now(), engine.lease, holder=engine.holder
        )
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
        await engine.pass_time(5 * SECOND)

        given = [(await claim(engine))[0].index for _ in delays]

        assert given == [3, 1, 2, 0] if engine.ordered else sorted(given) == [0, 1, 2, 3]

    async def test_a_lapsed_claim_takes_its_turn_by_when_it_lapsed(self, engine: Engine) -> None:
        await given_tasks(engine, 2)
        first, second = by_index(await claim(engine, 2))
        await settle(engine, first, uncharged(wait=engine.lease + SECOND))
        await engine.pass_time(engine.lease + 2 * SECOND)

        given = ids_of([*await claim(engine), *await claim(engine)])

        expected = [second.id, first.id]
        assert given == expected if engine.ordered else sorted(given) == sorted(expected)

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
        await add_rows(engine.tasks, RUN, more)
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
        await engine.pass_time(engine.lease)

        assert await claim(engine) == []

    async def test_an_unknown_run_can_be_closed_and_gives_nothing(self, engine: Engine) -> None:
        await engine.work.close(OTHER_RUN)
        assert await claim(engine, run_id=OTHER_RUN) == []


class LeasingContract:
    async def test_a_claim_of_another_process_can_be_neither_renewed_nor_settled(
        self, engine: Engine
    ) -> None:
        assert engine.other is not None
        task = await given_claim(engine)
        before = await all_of(engine, task)

        assert list(await engine.other.renew([held(task)])) == [held(task)]
        assert list(await engine.other.settle([settlement(task, scraped())])) == [False]

        assert await all_of(engine, task) == before
        assert await settle(engine, task, scraped())

    async def test_a_claim_that_was_taken_over_under_its_own_number_is_lost(
        self, engine: Engine
    ) -> None:
        """As after a restore of the rows: two processes hold the same number."""
        assert engine.other is not None
        task = await given_claim(engine)
        await engine.pass_time(engine.lease)
        await engine.work.release_lapsed(RUN, overdue=timedelta(), limit=9)
        [again] = await _claimed_by(engine.other)

        assert list(await engine.work.renew([held(again)])) == [held(again)]
        assert await settle(engine, again, scraped()) is False
        assert await settle(engine, task, scraped()) is False

    """How claims last, lapse and are lost."""

    async def test_a_claim_lasts_as_long_as_its_lease(self, engine: Engine) -> None:
        await given_claim(engine)
        await engine.pass_time(engine.lease - engine.moment)
        assert await claim(engine) == []

    async def test_a_lapsed_claim_is_taken_over_and_its_worker_counted_lost(
        self, engine: Engine
    ) -> None:
        first = await given_claim(engine)
        await engine.pass_time(engine.lease)
        now = engine.clock.now()

        [second] = await claim(engine)

        assert second == task_rules.claim(first, now, engine.lease, holder=engine.holder)
        assert await stored(engine, first) == second
        assert await engine.tasks.history(RUN, first.id) == [task_rules.lost_line(first, now)]
        assert await counts_of(engine) == ZERO

    async def test_a_lapsed_claim_that_nobody_took_over_may_settle(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await engine.pass_time(2 * engine.lease)

        assert await settle(engine, task, scraped()) is True
        assert await claim(engine) == []

    async def test_a_renewed_claim_lasts_a_lease_from_then_on(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await engine.pass_time(engine.lease / 2)
        now = engine.clock.now()

        assert list(await engine.work.renew([held(task)])) == []

        assert await stored(engine, task) == task_rules.renew(
            task, task.claim_no, now, engine.lease, holder=engine.holder
        )
        await engine.pass_time(engine.lease - engine.moment)
        assert await claim(engine) == []
        await engine.pass_time(engine.moment)
        assert [again.lost for again in await claim(engine)] == [1]

    async def test_a_claim_renewed_again_and_again_is_kept(self, engine: Engine) -> None:
        task = await given_claim(engine)
        for _ in range(10):
            await engine.pass_time(engine.lease * 0.9)
            assert list(await engine.work.renew([held(task)])) == []
            assert await claim(engine) == []

        assert await settle(engine, task, scraped()) is True

    async def test_renewing_gives_back_the_claims_that_fell(self, engine: Engine) -> None:
        await given_tasks(engine, 3)
        fallen, ended, standing = by_index(await claim(engine, 3))
        await settle(engine, ended, scraped())
        await engine.work.renew([held(standing)])
        await engine.pass_time(engine.lease / 2)
        await engine.work.renew([held(standing)])
        await engine.pass_time(engine.lease / 2)
        assert ids_of(await claim(engine)) == [fallen.id]

        lost = await engine.work.renew([held(fallen), held(ended), held(standing)])

        assert {each.task_id for each in lost} == {fallen.id, ended.id}

    async def test_renewing_a_fallen_claim_does_not_lengthen_its_successor(
        self, engine: Engine
    ) -> None:
        stale = await given_claim(engine)
        await engine.pass_time(engine.lease)
        [successor] = await claim(engine)
        await engine.pass_time(SECOND)

        assert list(await engine.work.renew([held(stale)])) == [held(stale)]
        assert await stored(engine, successor) == successor

    async def test_the_last_worker_a_task_may_lose_fails_it(self, engine: Engine) -> None:
        await given_tasks(engine)
        last = await let_lapse(engine, MOST_LOST)
        now = engine.clock.now()

        [failed] = await claim_final(engine)

        assert failed == task_rules.claim(last, now, engine.lease, holder=engine.holder)
        assert await stored(engine, last) == failed
        assert (failed.status, failed.problem) == (TaskStatus.FAILED, task_rules.WORKER_LOST)
        history = await engine.tasks.history(RUN, last.id)
        assert len(history) == MOST_LOST
        assert history[-1] == task_rules.lost_line(last, now)
        assert await counts_of(engine) == Counts(other=1)

    async def test_a_task_failed_by_a_claim_is_counted_once(self, engine: Engine) -> None:
        await given_tasks(engine)
        last = await let_lapse(engine, MOST_LOST)
        await claim(engine)
        await engine.pass_time(engine.lease)

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
    """How the sweeper releases the claims of dead workers."""

    async def test_a_release_does_what_the_domain_says(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await engine.pass_time(engine.lease + SECOND)
        now = engine.clock.now()

        assert list(await engine.work.release_lapsed(RUN, overdue=SECOND, limit=10)) == [
            released(task)
        ]

        assert await stored(engine, task) == task_rules.release(task, now)
        assert await engine.tasks.history(RUN, task.id) == [task_rules.lost_line(task, now)]
        assert await counts_of(engine) == ZERO

    async def test_what_was_released_is_up_for_claiming_at_once(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await engine.pass_time(engine.lease)
        await engine.work.release_lapsed(RUN, overdue=NO_TIME, limit=10)
        freed = await stored(engine, task)

        [again] = await claim(engine)

        assert again == task_rules.claim(
            freed, engine.clock.now(), engine.lease, holder=engine.holder
        )
        assert again.lost == 1

    async def test_a_release_leaves_alone_what_is_not_overdue(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await engine.pass_time(engine.lease + SECOND - engine.moment)

        assert list(await engine.work.release_lapsed(RUN, overdue=SECOND, limit=10)) == []
        assert await stored(engine, task) == task

    async def test_leases_that_still_run_end_when_their_holders_are_known_to_be_dead(
        self, engine: Engine
    ) -> None:
        task = await given_claim(engine)
        ever = timedelta(days=36_500)

        assert list(await engine.work.release_lapsed(RUN, overdue=-ever, limit=10)) == [
            released(task)
        ]

        assert await stored(engine, task) == task_rules.release(task, engine.clock.now())

    async def test_a_release_leaves_alone_what_nobody_holds(self, engine: Engine) -> None:
        await given_tasks(engine, 3)
        done, waiting = await claim(engine, 2)
        await settle(engine, done, scraped())
        await settle(engine, waiting, uncharged())
        await engine.pass_time(engine.lease)

        assert list(await engine.work.release_lapsed(RUN, overdue=NO_TIME, limit=10)) == []

    async def test_releases_in_portions_reach_every_lapsed_task(self, engine: Engine) -> None:
        await given_tasks(engine, 5)
        claimed = await claim(engine, 5)
        await engine.pass_time(engine.lease)

        portions = [await engine.work.release_lapsed(RUN, overdue=NO_TIME, limit=2) for _ in "1234"]

        assert [len(portion) for portion in portions] == [2, 2, 1, 0]
        assert {each for portion in portions for each in portion} == set(map(released, claimed))

    async def test_a_release_frees_tasks_of_closed_runs_too(self, engine: Engine) -> None:
        task = await given_claim(engine)
        await engine.work.close(RUN)
        await engine.pass_time(engine.lease)
        now = engine.clock.now()

        assert list(await engine.work.release_lapsed(RUN, overdue=NO_TIME, limit=10)) == [
            released(task)
        ]

        assert await stored(engine, task) == task_rules.release(task, now)
        assert await claim(engine) == []

    async def test_a_released_claim_can_neither_settle_nor_renew(self, engine: Engine) -> None:
        stale = await given_claim(engine)
        await engine.pass_time(engine.lease)
        await engine.work.release_lapsed(RUN, overdue=NO_TIME, limit=10)
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

        lapsed = await engine.work.release_lapsed(RUN, overdue=NO_TIME, limit=10)

        assert list(lapsed) == [released(last, failed=True)]

        assert await stored(engine, last) == task_rules.release(last, now)
        assert (await stored(engine, last)).status is TaskStatus.FAILED
        assert await counts_of(engine) == Counts(other=1)
        assert await claim(engine) == []


class WorkContract(
    ClaimingContract,
    SettlingContract,
    FailureGroupsContract,
    AckingContract,
    LeasingContract,
    ReleasingContract,
):
    """All that the dispatcher relies on. An engine passes by providing an `engine` fixture."""


async def _claimed_by(work: Work) -> list[Task]:
    """The task that another process claims; a queue may need several calls."""
    for _ in range(TRIES):
        if taken := await work.claim({RUN: 1}):
            return list(taken)
    return []
