"""The backlog counts tasks that may run now, and one process publishes it."""

from datetime import timedelta

from conveyor.domain.run import PauseState
from conveyor.steps.sweep.backlog import Backlog, MeasureBacklog
from conveyor.steps.sweep.permit import SweeperPermit
from conveyor.testing.factories import scraped, settlement
from tests.harness.memory_service import CALLER, House, a_house

LEASE = timedelta(seconds=30)


async def test_a_run_counts_no_more_tasks_than_its_job_lets_run_at_once() -> None:
    house = a_house()
    await house.submit(20, max_inflight=7)
    await house.submit(3, max_inflight=7)

    assert await _measuring(house).measure() == Backlog(23, 10, 2)
    assert Backlog(23, 10, 2).per_worker == 5.0


async def test_tasks_in_flight_count_until_they_are_settled() -> None:
    house = a_house()
    _, run_id = await house.submit(5, max_inflight=7)
    tasks = await house.work.claim({run_id: 2})
    assert (await _measuring(house).measure()).runnable_tasks == 5

    await house.work.settle([settlement(task, scraped()) for task in tasks])

    assert (await _measuring(house).measure()).runnable_tasks == 3


async def test_paused_and_stopped_runs_do_not_count() -> None:
    house = a_house()
    (paused, _), (stopped, _) = [await house.submit(3) for _ in range(2)]
    await house.lifecycle.set_pause(CALLER, paused, PauseState.PAUSED)
    await house.lifecycle.stop(CALLER, stopped)

    assert await _measuring(house).measure() == Backlog(0, 0, 2)


async def test_only_the_holder_of_the_sweepers_permit_publishes() -> None:
    house = a_house()
    published = list[Backlog]()
    permits = [
        SweeperPermit(coordination=house.coordination, clock=house.clock, lease=LEASE)
        for _ in range(2)
    ]
    measuring = [_measuring(house, published, permit) for permit in permits]

    for one in measuring:
        await one.step()
    assert published == []

    assert await permits[0].take()
    for one in measuring:
        await one.step()
    assert published == [Backlog(0, 0, 2)]

    house.clock.advance(LEASE)  # it was not renewed
    await measuring[0].step()
    assert len(published) == 1


async def test_a_process_that_is_alone_needs_no_permit() -> None:
    published = list[Backlog]()
    await _measuring(a_house(), published).step()
    assert published == [Backlog(0, 0, 2)]


def test_without_a_worker_the_backlog_counts_as_that_of_one() -> None:
    assert Backlog(5, 4, 0).per_worker == 4.0


def _measuring(
    house: House, published: list[Backlog] | None = None, permit: SweeperPermit | None = None
) -> MeasureBacklog:
    published = [] if published is None else published
    return MeasureBacklog(
        metadata=house.metadata,
        tasks=house.tasks,
        permit=permit,
        workers=lambda: 2,
        publish=published.append,
    )
