"""Several processes keep one limit of a gateway key and one state of the gateway, in simulated time."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from conveyor.domain.concurrency import FIRST_LIMIT
from conveyor.domain.progress import WaitReason
from conveyor.domain.task import Task
from conveyor.errors import Unavailable
from conveyor.ports.coordination import PermitRequest
from conveyor.steps.dispatch.config import DispatchConfig
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.dispatch.permits import PROBE, key_permit_name
from conveyor.steps.dispatch.shared_limits import GATEWAY, TOPIC
from conveyor.steps.shared.attempt import Assignment, CallResult
from conveyor.testing.factories import RUN
from tests.harness import time_lapse
from tests.harness.fleet import OUT_OF_REACH, Fleet

SHARED_WITHIN = 1.5  # seconds
LONGEST_TURNS = 60.0  # seconds; each turn is one of five, and chance decides who is next


@pytest.fixture(autouse=True)
def _no_lines_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


def a_fleet(**changes: object) -> Fleet:
    settings = {
        "processes": 4,
        "cap": 200,
        "config": lambda places: DispatchConfig(concurrency=places),
        "most_receives": 1_000,
        "shares_limits": True,
    }
    return Fleet(**{**settings, **changes})  # type: ignore[arg-type]


async def until(holds: Callable[[], bool], within: float = 60.0) -> None:
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


# Gateway keys.


@pytest.mark.parametrize("advertises", [True, False])
def test_all_processes_together_call_as_often_as_the_account_allows(advertises: bool) -> None:
    async def story() -> None:
        fleet = a_fleet()
        fleet.gateway.limit, fleet.gateway.advertises = 10, advertises
        await fleet.submit(600)
        async with fleet.at_work():
            took = await fleet.drained()

        # The first calls are made before anything is known; then hardly any is too many.
        assert fleet.gateway.refused <= FIRST_LIMIT
        assert took <= 600 / 10 * 1.0 + 10
        assert fleet.done() == 600
        assert not fleet.coordination._permits, "all permits were released"

    time_lapse.run(story())


def test_more_processes_than_the_account_allows_calls_share_them_without_refusals() -> None:
    async def story() -> None:
        fleet = a_fleet(processes=10)
        fleet.gateway.limit, fleet.gateway.advertises = 3, True
        await fleet.submit(100)
        async with fleet.at_work():
            await fleet.drained()

        assert fleet.gateway.refused <= FIRST_LIMIT - 3

    time_lapse.run(story())


def test_what_one_process_learned_lets_all_of_them_use_their_places() -> None:
    async def story() -> None:
        fleet = a_fleet()
        await fleet.submit(600)
        async with fleet.at_work():
            took = await fleet.drained()

        assert fleet.gateway.most >= 150, "of 4 times 40 places for one caller"
        assert took <= 12

    time_lapse.run(story())


def test_calls_that_follow_each_other_reserve_nothing_more_than_without_shared_limits() -> None:
    async def reserves(*, shared: bool) -> int:
        fleet = a_fleet(processes=1, shares_limits=shared)
        await fleet.submit(600)
        async with fleet.at_work():
            await fleet.drained()
        return fleet.coordination.asked

    alone, shared = (time_lapse.run(reserves(shared=each)) for each in (False, True))
    assert shared <= alone + 5


def test_a_key_that_is_refused_in_one_process_is_called_in_none() -> None:
    async def story() -> None:
        fleet = a_fleet(is_closed=False)
        fleet.gateway.fastest = fleet.gateway.slowest = 5.0
        await fleet.submit(2_000)
        async with fleet.at_work() as dispatchers:
            first, second = dispatchers[:2]
            await until(lambda: all(one.inflight for one in dispatchers))
            [digest] = first.discovery.key_states
            fleet.gateway.is_unpaid = True
            await until(lambda: bool(first.refused_keys.known), within=10)
            await asyncio.sleep(SHARED_WITHIN)
            assert all(one.refused_keys.get(digest) for one in dispatchers)
            calls = fleet.gateway.calls
            await asyncio.sleep(10)
            assert fleet.gateway.calls == calls

            fleet.gateway.is_unpaid = False
            second.discovery.keys_served([digest])
            assert second.shared_limits
            await second.shared_limits.share_key(digest)
            await asyncio.sleep(SHARED_WITHIN)
            assert not any(one.refused_keys.known for one in dispatchers)

    time_lapse.run(story())


def test_calls_elsewhere_are_counted_although_notifications_arrive_all_the_time() -> None:
    async def story() -> None:
        fleet = a_fleet(processes=1, is_closed=False)
        fleet.gateway.fastest = fleet.gateway.slowest = 100.0
        await fleet.submit(4)
        async with fleet.at_work() as [worker]:
            await until(lambda: len(worker.inflight) == 4)
            [state] = worker.discovery.key_states.values()
            name = key_permit_name(state.digest)
            await fleet.coordination.reserve({name: PermitRequest(3, 1_000)})
            for _ in range(5):
                await fleet.coordination.notify(TOPIC, [GATEWAY])
                await asyncio.sleep(0.5)
            assert state.limiter.elsewhere == 3

    time_lapse.run(story())


def test_a_bug_in_counting_calls_elsewhere_does_not_end_the_dispatcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        fleet = a_fleet(processes=1)

        async def held(name: str) -> int:
            raise RuntimeError(name)

        monkeypatch.setattr(fleet.coordination, "held", held)
        fleet.gateway.fastest = fleet.gateway.slowest = 5.0
        await fleet.submit(200)
        async with fleet.at_work():
            await fleet.drained()

        assert fleet.done() == 200

    time_lapse.run(story())


# Hosts.


@pytest.mark.parametrize("hosts", [1, 5])
def test_all_processes_together_call_a_host_at_most_as_often_as_the_job_allows(hosts: int) -> None:
    async def story() -> None:
        fleet = a_fleet(per_host=3, hosts=hosts, cap=40)
        await fleet.submit(120)
        async with fleet.at_work():
            took = await fleet.drained()

        assert set(fleet.gateway.most_of_host.values()) == {3}
        assert took <= 120 / 3 / hosts * 1.5 + 5
        assert not fleet.coordination._permits, "all permits were released"

    time_lapse.run(story())


def test_no_task_that_waits_for_its_host_starts_while_coordination_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        fleet = a_fleet(processes=1, per_host=1, cap=20)
        await fleet.submit(20)

        async def away(*_: object) -> None:
            raise Unavailable("away")

        async with fleet.at_work() as [worker]:
            await until(lambda: fleet.gateway.calls == 3)
            with monkeypatch.context() as patch:
                for name in ("reserve", "renew", "release", "recall"):
                    patch.setattr(fleet.coordination, name, away)
                await until(lambda: worker.permits.is_unavailable)
                calls = fleet.gateway.calls
                await asyncio.sleep(10)
                assert fleet.gateway.calls == calls
            await fleet.drained()

        assert fleet.gateway.most_of_host == {"host-0.com": 1}
        assert not fleet.coordination._permits, "all permits were released"

    time_lapse.run(story())


def test_tasks_that_wait_for_their_host_leave_the_permits_of_the_key_to_other_jobs() -> None:
    async def story() -> None:
        fleet = a_fleet(processes=2, per_host=1, cap=50)
        fleet.gateway.limit, fleet.gateway.advertises = 10, True
        await fleet.submit(100)
        async with fleet.at_work() as dispatchers:
            await until(lambda: sum(len(one.inflight) for one in dispatchers) == 50)
            await asyncio.sleep(SHARED_WITHIN)
            [digest] = dispatchers[0].discovery.key_states
            assert await fleet.coordination.held(key_permit_name(digest)) == 1
            took = await fleet.drained()

        assert took <= 100 * 1.2
        assert not fleet.coordination._permits, "all permits were released"

    time_lapse.run(story())


def test_a_process_whose_tasks_wait_for_a_host_gets_its_turn() -> None:
    async def story() -> None:
        fleet = a_fleet(processes=2, per_host=1, cap=60)
        await fleet.submit(150)
        async with fleet.at_work() as dispatchers:
            calls = [_counted(dispatcher, fleet) for dispatcher in dispatchers]
            took = await fleet.drained()

        assert took <= 150 * 1.2
        for times in calls:
            longest = max(later - earlier for earlier, later in pairwise([0.0, *times]))
            assert longest <= LONGEST_TURNS, [len(each) for each in calls]
        assert not fleet.coordination._permits, "all permits were released"

    time_lapse.run(story())


def _counted(dispatcher: Dispatcher, fleet: Fleet) -> list[float]:
    """When the calls of a process begin."""
    times, attempt = list[float](), dispatcher.fetcher.attempt

    async def counted(task: Task, assignment: Assignment) -> CallResult:
        times.append(fleet.clock.monotonic())
        return await attempt(task, assignment)

    dispatcher.fetcher.attempt = counted
    return times


# The gateway.


def test_one_process_probes_an_unavailable_gateway_for_all_and_all_resume_together() -> None:
    async def story() -> None:
        fleet = a_fleet()
        await fleet.submit(2_000)
        async with fleet.at_work() as dispatchers:
            await until(lambda: all(one.inflight for one in dispatchers))
            fleet.gateway.is_down = True
            await until(lambda: any(one.health.is_open for one in dispatchers))
            await asyncio.sleep(SHARED_WITHIN)
            assert all(one.health.is_open for one in dispatchers)

            await asyncio.sleep(5)  # calls that were under way have ended
            calls = fleet.gateway.calls
            assert len({_shown(one) for one in dispatchers}) == 1
            await asyncio.sleep(110)
            probes = fleet.gateway.calls - calls
            assert 3 <= probes <= 6, "after 8, 16, 30, 30 … seconds, whatever the processes"

            fleet.gateway.is_down = False
            await until(lambda: not any(one.health.is_open for one in dispatchers), within=35)
            await until(lambda: all(one.inflight for one in dispatchers), within=SHARED_WITHIN)
            await fleet.drained()
        assert fleet.done() == 2_000
        assert await fleet.coordination.held(PROBE) == 0

    time_lapse.run(story())


def _shown(dispatcher: Dispatcher) -> object:
    waiting = dispatcher.waiting(RUN) or dispatcher.health.waiting()
    assert waiting is not None
    assert waiting.reason is WaitReason.GATEWAY_UNAVAILABLE
    when = waiting.next_attempt_at
    return waiting.since, waiting.detail, when and when.replace(microsecond=0)


def test_a_process_without_a_dispatcher_shows_that_the_gateway_is_unavailable() -> None:
    async def story() -> None:
        fleet = a_fleet(processes=1)
        await fleet.submit(2_000)
        api = fleet._dispatcher(9)
        assert api.shared_limits is not None
        async with fleet.at_work() as [worker], asyncio.TaskGroup() as group:
            sharing = group.create_task(api.shared_limits.run())
            await until(lambda: bool(worker.inflight))
            assert api.health.waiting() is None
            fleet.gateway.is_down = True
            await until(lambda: worker.health.is_open)
            await asyncio.sleep(SHARED_WITHIN)
            assert _shown(api) == _shown(worker)
            fleet.gateway.is_down = False
            await until(lambda: not worker.health.is_open)
            await asyncio.sleep(SHARED_WITHIN)
            assert api.health.waiting() is None
            sharing.cancel()

    time_lapse.run(story())


def test_a_process_that_starts_during_an_outage_probes_when_the_others_do() -> None:
    async def story() -> None:
        fleet = a_fleet(processes=1)
        await fleet.submit(2_000)
        async with fleet.at_work() as [worker]:
            await until(lambda: bool(worker.inflight))
            fleet.gateway.is_down = True
            await asyncio.sleep(60)
            late, stopping, calls = fleet._dispatcher(9), asyncio.Event(), fleet.gateway.calls
            async with asyncio.TaskGroup() as group:
                group.create_task(late.run(stopping))
                await asyncio.sleep(40)
                assert fleet.gateway.calls - calls <= 2
                assert late.health.is_open
                stopping.set()
            fleet.gateway.is_down = False
            await fleet.drained()

    time_lapse.run(story())


@pytest.mark.long
def test_a_process_that_alone_cannot_reach_the_gateway_does_not_stop_the_others() -> None:
    async def story() -> None:
        fleet = a_fleet(processes=3)
        await fleet.submit(6_000)

        async def no_route(task: Task, assignment: Assignment) -> CallResult:
            await asyncio.sleep(0.05)
            return OUT_OF_REACH

        async with fleet.at_work() as dispatchers:
            await until(lambda: all(one.inflight for one in dispatchers))
            cut_off, *others = dispatchers
            cut_off.fetcher.attempt = no_route
            await until(lambda: cut_off.health.is_open)
            await asyncio.sleep(5)
            for _ in range(300):
                await asyncio.sleep(0.1)
                assert not any(one.health.is_open for one in others)
            assert cut_off.health.is_open

            cut_off.fetcher.attempt = fleet.gateway.attempt
            await until(lambda: not cut_off.health.is_open, within=35)
            fleet.gateway.is_down = True
            await asyncio.sleep(5)
            assert all(one.health.is_open for one in dispatchers)
            assert len({_shown(one) for one in dispatchers}) == 1

    time_lapse.run(story())
