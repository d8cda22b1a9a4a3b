"""How often messages are received when many processes serve one queue, in simulated time.

A queue moves a message to the dead letters after too many receives. Up to 50 processes contend for
few places here, for up to a quarter of an hour, and that must not happen.
"""

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from conveyor.adapters.memory.queues import Habits
from conveyor.domain.ids import RunId
from conveyor.domain.run import Run
from conveyor.steps.dispatch.permits import permit_name
from conveyor.testing.factories import JOB, RUN, new_tasks
from tests.harness import time_lapse
from tests.harness.fleet import Fleet
from tests.harness.permits import reserve
from tests.seed import sampled

BY_DEFAULT = 10  # receives after which SQS gives a message up, unless it is told otherwise
LONG = timedelta(minutes=15)
GOAL = 1.05  # receives a message


@pytest.fixture(autouse=True)
def _no_lines_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


@pytest.mark.parametrize("seed", sampled([1, 2, 3], 1, of="receives"))
@pytest.mark.parametrize("slowest", [0.15, 1.5])
def test_each_message_is_received_about_once_though_fifty_workers_want_five_places(
    seed: int, slowest: float
) -> None:
    async def story() -> None:
        fleet = Fleet(cap=5, processes=50, seed=seed, most_receives=BY_DEFAULT)
        fleet.gateway.fastest, fleet.gateway.slowest = slowest / 3, slowest
        await fleet.submit(500)
        async with fleet.at_work():
            took = await fleet.drained()

        assert fleet.receives_a_message() <= GOAL
        assert fleet.queues.asked <= 500, "calls that gave nothing too"
        assert (fleet.done(), fleet.queues.dead(RUN)) == (500, [])
        assert fleet.gateway.most == 5, "the places were used, and no more of them"
        assert took <= 500 / 5 * (slowest * 2 / 3 + 0.15)

    time_lapse.run(story())


@pytest.mark.parametrize("seed", sampled([1, 2, 3], 1, of="receives of an account"))
def test_an_account_that_allows_less_than_the_job_does_not_change_that(seed: int) -> None:
    async def story() -> None:
        fleet = Fleet(cap=5, processes=50, seed=seed, most_receives=BY_DEFAULT)
        fleet.gateway.limit = 3
        await fleet.submit(500)
        async with fleet.at_work():
            await fleet.drained()

        assert fleet.gateway.refused > 0
        assert fleet.receives_a_message() <= GOAL
        assert (fleet.done(), fleet.queues.dead(RUN)) == (500, [])
        assert fleet.gateway.most == 3

    time_lapse.run(story())


def test_a_rare_double_or_late_delivery_costs_what_it_is() -> None:
    async def story() -> None:
        habits = Habits(doubled=0.01, late=0.05, empty=0.05, undead=0.01)
        fleet = Fleet(cap=5, processes=50, habits=habits, most_receives=BY_DEFAULT)
        await fleet.submit(500)
        async with fleet.at_work():
            await fleet.drained()

        assert fleet.receives_a_message() <= GOAL
        assert (fleet.done(), fleet.queues.dead(RUN)) == (500, [])

    time_lapse.run(story())


def test_while_others_hold_all_permits_nothing_is_received() -> None:
    async def story() -> None:
        fleet = Fleet(cap=5, processes=10, most_receives=BY_DEFAULT)
        await fleet.submit(100)
        permits = await reserve(fleet.coordination, JOB, want=5, cap=5)
        async with fleet.at_work():
            for _ in range(int(LONG.total_seconds() / 10)):
                await asyncio.sleep(10)
                await fleet.coordination.renew({permit_name(JOB): permits})
            assert (fleet.queues.asked, fleet.done()) == (0, 0)
            assert fleet.coordination.asked / LONG.total_seconds() <= 10 / 5 * 1.2
            await fleet.coordination.release({permit_name(JOB): permits})
            await fleet.drained(within=timedelta(minutes=2))

        assert fleet.receives_a_message() <= GOAL
        assert (fleet.done(), fleet.queues.dead(RUN)) == (100, [])

    time_lapse.run(story())


def test_workers_that_an_account_has_no_room_for_stop_receiving() -> None:
    """Twenty permits for an account of three: most workers hold one that is good for nothing."""

    async def story() -> None:
        fleet = Fleet(cap=20, processes=50, places=2, most_receives=BY_DEFAULT)
        fleet.gateway.limit = 3
        await fleet.submit(1_000)
        async with fleet.at_work():
            await fleet.drained()

        assert fleet.receives_a_message() <= 2
        assert fleet.gateway.refused / fleet.clock.monotonic() <= 3, "a second, of 50 workers"
        assert (fleet.done(), fleet.queues.dead(RUN)) == (1_000, [])

    time_lapse.run(story())


def test_no_healthy_task_is_given_up_though_the_account_is_used_up_for_long() -> None:
    async def story() -> None:
        fleet = Fleet(cap=5, processes=20, most_receives=2 * BY_DEFAULT)
        fleet.gateway.limit = 0
        await fleet.submit(10)
        async with fleet.at_work():
            await asyncio.sleep(LONG.total_seconds())
            assert fleet.gateway.refused > 0
            fleet.gateway.limit = 5
            await fleet.drained(within=timedelta(minutes=10))

        assert max(fleet.queues.received.values()) <= 11
        assert (fleet.done(), fleet.queues.dead(RUN)) == (10, [])
        assert {task.attempts for task in fleet.rows.of_run(RUN)} == {1}, "no bounce is an attempt"

    time_lapse.run(story())


def test_no_healthy_task_is_given_up_though_the_rows_are_away_for_long() -> None:
    async def story() -> None:
        fleet = Fleet(cap=50, processes=10, most_receives=2 * BY_DEFAULT)
        fleet.rows_away = True
        await fleet.submit(50)
        async with fleet.at_work():
            await asyncio.sleep(LONG.total_seconds())
            fleet.rows_away = False
            await fleet.drained(within=timedelta(minutes=10))

        assert max(fleet.queues.received.values()) <= 11
        assert (fleet.done(), fleet.queues.dead(RUN)) == (50, [])

    time_lapse.run(story())


def test_a_receive_waits_a_moment_so_that_it_brings_many() -> None:
    async def story() -> None:
        fleet = Fleet(cap=100, processes=1, places=500)
        await fleet.submit(2_000)
        async with fleet.at_work():
            took = await fleet.drained()

        assert fleet.queues.asked <= 2_000 / 5
        assert took <= 2_000 / 100 * 1.25

    time_lapse.run(story())


@pytest.mark.parametrize(
    "scene",
    sampled(
        [(0.05, False, 0.35), (1.0, False, 0.35), (5.0, False, 0.5), (1.0, True, 0.55)],
        2,
        of="requests",
    ),
)
def test_a_task_costs_a_third_of_a_request(scene: tuple[float, bool, float]) -> None:
    page, retry, most = scene

    async def story() -> None:
        fleet = Fleet(cap=100, processes=2, places=500, groups=True)
        fleet.gateway.fastest, fleet.gateway.slowest = page * 0.7, page * 1.3
        fleet.gateway.fails_first = retry
        await fleet.submit(1_000)
        async with fleet.at_work():
            await fleet.drained()

        assert fleet.queues.requests.total() / 1_000 <= most, fleet.queues.requests
        assert fleet.receives_a_message() <= GOAL * (1 + retry)
        assert (fleet.done(), fleet.queues.dead(RUN)) == (1_000, [])

    time_lapse.run(story())


def test_jobs_at_their_caps_receive_each_message_once_in_shared_calls() -> None:
    async def story() -> None:
        fleet = Fleet(cap=5, processes=2, groups=True, most_receives=BY_DEFAULT)
        await fleet.submit(40, jobs=10)
        async with fleet.at_work():
            took = await fleet.drained()

        assert fleet.receives_a_message() <= GOAL
        assert fleet.queues.requests.total() / 400 <= 0.6, fleet.queues.requests
        assert fleet.done() == 400
        assert took <= 40 / 5 * 1.8

    time_lapse.run(story())


@pytest.mark.parametrize("seed", sampled([1, 2, 3], 1, of="grouped receives"))
def test_shared_calls_do_not_raise_the_receives_of_many_workers(seed: int) -> None:
    async def story() -> None:
        fleet = Fleet(cap=5, processes=50, seed=seed, most_receives=BY_DEFAULT, groups=True)
        await fleet.submit(500)
        async with fleet.at_work():
            took = await fleet.drained()

        assert fleet.receives_a_message() <= GOAL
        assert (fleet.done(), fleet.queues.dead(RUN)) == (500, [])
        assert took <= 500 / 5 * 1.15

    time_lapse.run(story())


def test_a_run_with_nothing_to_do_is_asked_every_five_seconds_by_each_process() -> None:
    async def story() -> None:
        fleet = Fleet(cap=100, processes=10, is_closed=False)
        await fleet.submit(1)
        async with fleet.at_work():
            await asyncio.sleep(60)
            asked = fleet.queues.asked
            await asyncio.sleep(300)
            assert (fleet.queues.asked - asked) / 300 <= 10 / 5 * 1.1

    time_lapse.run(story())


def test_a_run_that_is_idle_for_long_is_hardly_asked_and_comes_back_with_new_tasks() -> None:
    async def story() -> None:
        fleet = Fleet(cap=100, processes=5, is_closed=False)
        await fleet.submit(1)
        async with fleet.at_work() as dispatchers:
            await asyncio.sleep(15 * 60)
            assert not any(dispatcher.runs for dispatcher in dispatchers)
            asked = fleet.queues.asked
            await asyncio.sleep(60 * 60)
            assert 0 < (fleet.queues.asked - asked) / 5 <= 6 * 15, "at each resync, some times"

            run = await fleet.metadata.get(Run, RUN)
            assert run is not None
            await fleet.metadata.commit(replace(run, total=2, next_index=2))
            await fleet.add(new_tasks(RUN, 1, first=1))
            await asyncio.sleep(20)

            assert fleet.done() == 2, "nobody was notified"

    time_lapse.run(story())


@pytest.mark.long
def test_of_two_hundred_runs_on_one_worker_none_is_starved() -> None:
    async def story() -> None:
        fleet = Fleet(cap=5, processes=1, places=100, groups=True)
        fleet.gateway.advertises, fleet.gateway.limit = True, 100
        await fleet.submit(10, jobs=200)
        first: dict[RunId, float] = {}
        async with fleet.at_work():
            while len(first) < len(fleet.runs):
                await asyncio.sleep(0.5)
                for run_id in fleet.runs:
                    if run_id not in first and fleet.rows.counts(run_id).done:
                        first[run_id] = fleet.clock.monotonic()
            took = await fleet.drained()

        assert max(first.values()) <= took * 0.75
        assert fleet.receives_a_message() <= GOAL
        assert fleet.done() == 2_000

    time_lapse.run(story())


@pytest.mark.parametrize("page", [1.0, 5.0])
def test_a_retry_costs_few_requests_more(page: float) -> None:
    """Over queues that charge for requests, such as SQS."""

    async def story() -> None:
        costs = list[float]()
        for fails_first in (False, True):
            fleet = Fleet(
                cap=100,
                processes=1,
                places=500,
                groups=True,
                lease=timedelta(seconds=90),
                visibility=timedelta(seconds=100),
            )
            fleet.gateway.fastest, fleet.gateway.slowest = page * 0.7, page * 1.3
            fleet.gateway.fails_first = fails_first
            await fleet.submit(500)
            async with fleet.at_work():
                await fleet.drained()
            assert (fleet.done(), fleet.queues.dead(RUN)) == (500, [])
            costs.append(fleet.queues.requests.total() / 500)
        assert costs[0] <= 0.35
        assert costs[1] - costs[0] <= 0.2

    time_lapse.run(story())
