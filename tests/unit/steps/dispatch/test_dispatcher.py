"""The dispatcher: never too much at once, nothing lost, nothing charged that was not an attempt."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.domain.counts import Spend
from conveyor.domain.failure import AccountReason
from conveyor.domain.ids import CallerId, RunId
from conveyor.domain.progress import WaitReason
from conveyor.domain.run import PauseState, RunStatus
from conveyor.domain.submission import Limits
from conveyor.domain.task import (
    MOST_LOST,
    AccountBlocked,
    Interrupted,
    Task,
    TaskStatus,
    Throttled,
)
from conveyor.errors import StorageFull, Unavailable
from conveyor.ports.work import Held, PartlyRenewed
from conveyor.steps import settle
from conveyor.steps.dispatch import storage_pause
from conveyor.steps.dispatch.gateway_keys import GatewayKeyState
from conveyor.steps.dispatch.permits import host_permit_name, permit_name
from conveyor.steps.shared.attempt import Assignment, CallResult, Fetched
from conveyor.testing.factories import a_run, scraped, settlement
from tests.harness.dispatchers import Attempt, a_dispatcher, quick, running, waking
from tests.harness.memory_service import (
    A_PAGE,
    CALLER,
    KEY,
    LEASE,
    SOON,
    STRANGER,
    House,
    ScriptedAttempts,
    a_call,
    a_house,
    away,
    held,
    ids_as_answer,
    ids_in,
    until,
)
from tests.harness.permits import permits_held

AGES = timedelta(hours=1)
AT_ANY_AGE = timedelta(microseconds=1)
SPEND = Spend(credits=5, nanos=700)


async def test_every_task_of_a_run_is_done_and_the_run_completes() -> None:
    house, gateway = a_house(), ScriptedAttempts()
    _, run_id = await house.submit(9)

    async with running(a_dispatcher(house, gateway.attempt)):
        await _completed(house, run_id)

    assert len(gateway.started) == 9
    await house.check_counts(run_id)
    assert await permits_held(house.coordination, (await house.run(run_id)).job_id) == 0


async def test_no_more_of_a_job_are_in_flight_than_it_allows_though_two_dispatchers_serve_it() -> (
    None
):
    house = a_house(limits=Limits())
    one, other, both = ScriptedAttempts(), ScriptedAttempts(), ScriptedAttempts(is_open=False)

    def through(gateway: ScriptedAttempts) -> Attempt:
        async def attempt(task: Task, assignment: Assignment) -> CallResult:
            await gateway.attempt(task, assignment)
            return await both.attempt(task, assignment)

        return attempt

    _, run_id = await house.submit(200, max_inflight=3)
    dispatchers = [
        a_dispatcher(house, through(gateway), quick(concurrency=2)) for gateway in (one, other)
    ]
    async with running(*dispatchers):
        await until(lambda: one.started and other.started and len(both.started) == 3)
        both.gate.set()
        await _completed(house, run_id)

    assert both.most[run_id] == 3
    assert len(both.started) == 200
    await house.check_counts(run_id)


async def test_what_one_dispatcher_holds_the_other_may_not_take() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    job_id, run_id = await house.submit(9, max_inflight=4)
    dispatchers = [a_dispatcher(house, gateway.attempt) for _ in range(2)]

    async with running(*dispatchers):
        await until(lambda: len(gateway.started) == 4)
        await _rounds(house)
        assert len(gateway.started) == await permits_held(house.coordination, job_id) == 4
        gateway.gate.set()
        await _completed(house, run_id)

    assert gateway.most[run_id] == 4


async def test_a_process_has_no_more_in_flight_over_all_its_runs_than_its_concurrency() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    runs = [(await house.submit(9))[1] for _ in range(3)]

    # One place in five is kept for callers that come late.
    async with running(a_dispatcher(house, gateway.attempt, quick(concurrency=5))):
        await until(lambda: len(gateway.started) == 4)
        await _rounds(house)
        assert gateway.inflight.total() == 4
        gateway.gate.set()
        for run_id in runs:
            await _completed(house, run_id)


async def test_places_are_shared_fairly_between_callers_however_many_runs_each_has() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    greedy = [(await house.submit(9))[1] for _ in range(5)]
    modest = await _submit_as(house, STRANGER, 9)

    async with running(a_dispatcher(house, gateway.attempt, quick(concurrency=8))):
        await until(lambda: len(gateway.started) == 8)
        assert gateway.inflight[modest] == 4
        assert sum(gateway.inflight[run_id] for run_id in greedy) == 4
        gateway.gate.set()
        for run_id in (*greedy, modest):
            await _completed(house, run_id)


async def test_as_one_task_ends_the_next_begins_without_waiting_for_the_slowest() -> None:
    house, gateway, slow = a_house(), ScriptedAttempts(), asyncio.Event()

    async def attempt(task: Task, assignment: Assignment) -> CallResult:
        if task.index == 0:
            await slow.wait()
        return await gateway.attempt(task, assignment)

    _, run_id = await house.submit(9, max_inflight=2)
    async with running(a_dispatcher(house, attempt)):
        await until(lambda: len(gateway.started) == 8)
        slow.set()
        await _completed(house, run_id)


async def test_a_run_that_was_throttled_cools_down_even_when_somebody_wakes_the_dispatcher() -> (
    None
):
    house = a_house()
    tried: Counter[RunId] = Counter()

    async def attempt(task: Task, _: Assignment) -> CallResult:
        tried[task.run_id] += 1
        return Throttled(AGES) if task.run_id == throttled else A_PAGE

    _, throttled = await house.submit(5, max_inflight=1)
    dispatcher = a_dispatcher(house, attempt)
    async with running(dispatcher):
        await until(lambda: tried[throttled] == 1 and not dispatcher.inflight)
        for _ in range(3):
            dispatcher.wake(throttled)
            other = await _submit_with_key(house, "another-key", 1)
            await _completed(house, other)

    assert tried[throttled] == 1
    assert [task.attempts for task in await house.rows(throttled)] == [0] * 5


async def test_a_run_goes_on_after_its_cool_down_and_the_wait_is_not_an_attempt() -> None:
    house = a_house()
    tried: list[int] = []

    async def attempt(task: Task, _: Assignment) -> CallResult:
        tried.append(task.index)
        return Throttled(timedelta(milliseconds=20)) if len(tried) == 1 else A_PAGE

    _, run_id = await house.submit(1)
    dispatcher = a_dispatcher(house, attempt)
    async with running(dispatcher):
        await until(lambda: tried and not dispatcher.inflight)
        house.clock.advance(timedelta(seconds=1))
        await _completed(house, run_id)

    [task] = await house.rows(run_id)
    assert (len(tried), task.attempts, task.lost) == (2, 1, 0)


async def test_a_run_whose_account_is_blocked_fails_and_its_tasks_are_not_burnt() -> None:
    house, tried = a_house(), list[Task]()

    async def attempt(task: Task, _: Assignment) -> CallResult:
        tried.append(task)
        return AccountBlocked(AccountReason.INSUFFICIENT_CREDITS, "no credits left")

    _, blocked = await house.submit(9, max_inflight=2)
    dispatcher = a_dispatcher(house, attempt)
    async with running(dispatcher):
        await until(lambda: tried)
        await until(lambda: not dispatcher.runs)

    run = await house.run(blocked)
    assert run.status is RunStatus.FAILED
    assert run.failure_reason is AccountReason.INSUFFICIENT_CREDITS
    assert len(tried) == 2
    rows = await house.rows(blocked)
    assert {(task.status, task.attempts) for task in rows} == {(TaskStatus.PENDING, 0)}


async def test_a_stopped_run_gives_nothing_more_and_what_is_in_flight_counts() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    job_id, run_id = await house.submit(9, max_inflight=4)
    dispatcher = a_dispatcher(house, gateway.attempt)

    async with running(dispatcher):
        await until(lambda: len(gateway.started) == 4)
        await house.lifecycle.stop(CALLER, job_id)
        await until(lambda: dispatcher.runs[run_id].is_gone)
        gateway.gate.set()
        await until(lambda: not dispatcher.runs)

    assert len(gateway.started) == 4
    assert await house.done(run_id) == 4


async def test_a_run_made_by_another_process_is_found_however_busy_the_dispatcher_is() -> None:
    house = a_house(limits=Limits())
    busy = True

    async def attempt(task: Task, _: Assignment) -> CallResult:
        await asyncio.sleep(0)
        return Interrupted() if task.run_id == endless and busy else A_PAGE

    _, endless = await house.submit(9)
    async with running(a_dispatcher(house, attempt, quick(resync=AGES))):
        await _rounds(house)
        _, other = await house.submit(3)
        await _completed(house, other)
        busy = False
        await _completed(house, endless)


async def test_a_new_run_is_taken_up_at_once_when_the_dispatcher_is_woken() -> None:
    house, gateway = a_house(), ScriptedAttempts()
    dispatcher = a_dispatcher(house, gateway.attempt, quick(refresh=AGES, resync=AGES))

    async with running(dispatcher):
        await until(lambda: house.trace.of("metadata.live_runs"))
        _, run_id = await house.submit(3)
        dispatcher.wake(run_id)
        await _completed(house, run_id)
        dispatcher.wake(run_id)
        await until(lambda: not dispatcher.runs)


async def test_a_run_with_new_tasks_is_looked_at_at_once_when_the_dispatcher_is_woken() -> None:
    house, gateway = a_house(), ScriptedAttempts()
    job_id, run_id = await house.submit(1, status="open")
    dispatcher = a_dispatcher(
        house,
        gateway.attempt,
        quick(refresh=AGES, resync=AGES, shortest_idle=AGES, longest_idle=AGES),
    )

    async with running(dispatcher):
        await until(lambda: gateway.started and not dispatcher.inflight)
        await house.add_tasks.add(a_call(2, first=1), job_id, _no_words)
        dispatcher.wake(run_id)
        await until(lambda: len(gateway.started) == 3)


async def test_waking_for_a_run_that_is_not_there_does_nothing() -> None:
    house, gateway = a_house(), ScriptedAttempts()
    dispatcher = a_dispatcher(house, gateway.attempt)
    await house.metadata.commit(a_run())

    for run_id in (a_run().id, RunId(house.ids.new())):
        await dispatcher.discovery.look_at(run_id)

    assert not dispatcher.runs


async def test_a_run_whose_key_cannot_be_opened_is_left_alone() -> None:
    house, gateway = a_house(), ScriptedAttempts()
    dispatcher = a_dispatcher(house, gateway.attempt)
    dispatcher.discovery.encryption = AesKeyRing(b"another key of thirty-two bytes!")
    _, run_id = await house.submit(3)

    async with running(dispatcher):
        await _rounds(house)

    assert not gateway.started
    assert (await house.run(run_id)).status is RunStatus.RUNNING


async def test_a_lease_is_renewed_once_it_is_old_enough() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    _, run_id = await house.submit(1)

    dispatcher = a_dispatcher(
        house, gateway.attempt, quick(renew_from=LEASE / 2), clock=house.clock
    )
    async with running(dispatcher):
        await until(lambda: gateway.started)
        house.clock.advance(LEASE / 2 - timedelta(seconds=1))
        await _calls(house, "coordination.renew", 2)
        assert house.trace.of("work.renew") == []

        house.clock.advance(timedelta(seconds=1))
        await _calls(house, "work.renew", 1)
        await _calls(house, "coordination.renew", 2)
        assert len(house.trace.of("work.renew")) == 1
        gateway.gate.set()
        await _completed(house, run_id)


@pytest.mark.parametrize(
    ("call", "is_renewed"), [("bodies.put_many", True), ("work.settle", False)]
)
async def test_a_lease_is_renewed_while_bodies_are_stored_and_not_during_a_settle(
    call: str, is_renewed: bool
) -> None:
    house, stored = a_house(), asyncio.Event()
    _, run_id = await house.submit(1)
    house.trace.before(call, 1, stored.wait)

    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(renew_from=AT_ANY_AGE))
    async with running(dispatcher):
        await until(lambda: house.trace.of(call))
        renewals = len(house.trace.of("work.renew"))
        await dispatcher.renew()
        assert (len(house.trace.of("work.renew")) > renewals) is is_renewed
        stored.set()
        await _completed(house, run_id)


async def test_a_lease_is_renewed_while_a_settle_is_repeated() -> None:
    house = a_house()
    await house.submit(1)
    dispatcher = a_dispatcher(house, ScriptedAttempts().attempt, quick(renew_from=AT_ANY_AGE))

    async with running(dispatcher):
        with away(house.trace, "work.settle", Unavailable("away")):
            await _calls(house, "work.settle", 2)
            await _calls(house, "work.renew", 1)


async def test_the_leases_of_a_task_that_takes_long_are_renewed() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    job_id, run_id = await house.submit(1, max_inflight=2)

    async with running(a_dispatcher(house, gateway.attempt)):
        await until(lambda: gateway.started)
        for _ in range(6):
            house.clock.advance(LEASE * 0.6)
            await _calls(house, "work.renew", 2)
            await _calls(house, "coordination.renew", 1)
            assert await permits_held(house.coordination, job_id) == 1
        gateway.gate.set()
        await _completed(house, run_id)

    [task] = await house.rows(run_id)
    assert (task.claim_no, task.lost, len(gateway.started)) == (1, 0, 1)


async def test_an_attempt_whose_lease_went_to_another_worker_is_cancelled() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    _, run_id = await house.submit(1, max_inflight=1)
    dispatcher = a_dispatcher(house, gateway.attempt)

    async with running(dispatcher):
        await until(lambda: gateway.started)
        house.clock.advance(LEASE)
        [taken] = await house.work.claim({run_id: 1})
        await until(lambda: gateway.cancelled and not dispatcher.inflight)
        assert list(await house.work.renew([held(taken)])) == []
        assert await house.work.settle([settlement(taken, scraped())]) == [True]
        assert await house.complete.check_completion(run_id)

    assert await house.done(run_id) == 1


async def test_a_dispatcher_that_slept_through_its_own_lease_takes_its_task_anew() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    job_id, run_id = await house.submit(1, max_inflight=2)
    dispatcher = a_dispatcher(house, gateway.attempt, quick(renewal=AGES))

    async with running(dispatcher):
        await until(lambda: gateway.started)
        house.clock.advance(LEASE)
        await until(lambda: len(gateway.started) == 2 and gateway.cancelled)
        assert gateway.cancelled == gateway.started[:1]
        gateway.gate.set()
        await _completed(house, run_id)
        await until(lambda: not dispatcher.inflight)

    [task] = await house.rows(run_id)
    assert (task.claim_no, task.lost, task.status) == (2, 1, TaskStatus.SUCCESSFUL)
    assert await permits_held(house.coordination, job_id) == 0


async def test_a_lease_that_could_not_be_renewed_is_tried_again_without_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    await house.submit(3, max_inflight=3)
    dispatcher = a_dispatcher(
        house, gateway.attempt, quick(renewal=AGES, renew_from=LEASE / 2), clock=house.clock
    )
    asked = list[Sequence[Held]]()

    async def renew_two(given: Sequence[Held]) -> Sequence[Held]:
        asked.append(given)
        if len(given) == 1:
            return []
        raise PartlyRenewed("throttled", fallen=given[:1], unknown=given[1:2])

    async with running(dispatcher):
        await until(lambda: len(gateway.started) == 3)
        with monkeypatch.context() as patched:
            patched.setattr(dispatcher.work, "renew", renew_two)
            house.clock.advance(LEASE / 2)
            with pytest.raises(PartlyRenewed):
                await dispatcher.renew()
            await dispatcher.renew()
        await until(lambda: gateway.cancelled)
        gateway.gate.set()

    [first, second] = asked
    assert (len(first), list(second)) == (3, [first[1]])
    assert [task.id for task in gateway.cancelled] == [first[0].task_id]


async def test_a_permit_released_during_a_renewal_is_not_taken_anew() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    job_id, run_id = await house.submit(1)
    dispatcher = a_dispatcher(house, gateway.attempt)
    began_at = dispatcher.permits.renewed_at

    async def end_the_flight() -> None:
        gateway.gate.set()
        await until(lambda: not dispatcher.inflight)

    house.trace.after("work.renew", 1, end_the_flight)
    async with running(dispatcher):
        await _completed(house, run_id)
        await until(lambda: dispatcher.permits.renewed_at > began_at)
    assert await permits_held(house.coordination, job_id) == 0


async def test_a_claim_that_settled_during_a_renewal_is_not_taken_for_lost() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    _, run_id = await house.submit(1)
    dispatcher = a_dispatcher(house, gateway.attempt)

    async def end_the_flight() -> None:
        gateway.gate.set()
        await until(lambda: not dispatcher.inflight)

    house.trace.before("work.renew", 1, end_the_flight)
    async with running(dispatcher):
        await _completed(house, run_id)

    assert not gateway.cancelled
    await house.check_counts(run_id)


async def test_a_stop_lets_running_tasks_end_within_the_grace() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    _, run_id = await house.submit(9, max_inflight=3)

    async with running(a_dispatcher(house, gateway.attempt)):
        await until(lambda: len(gateway.started) == 3)
        asyncio.get_running_loop().call_later(0.01, gateway.gate.set)

    assert not gateway.cancelled
    assert await house.done(run_id) == 3


async def test_a_stop_hands_back_uncharged_what_does_not_end_within_the_grace() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    job_id, run_id = await house.submit(3)
    grace = timedelta(milliseconds=20)

    async with running(a_dispatcher(house, gateway.attempt, quick(grace=grace))):
        await until(lambda: len(gateway.started) == 3)

    assert len(gateway.cancelled) == 3
    rows = await house.rows(run_id)
    assert {(task.status, task.attempts, task.lost) for task in rows} == {
        (TaskStatus.PENDING, 0, 0)
    }
    assert await permits_held(house.coordination, job_id) == 0
    assert len(await house.work.claim({run_id: 9})) == 3


async def test_a_stop_in_the_middle_of_a_claim_strands_no_task() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    _, run_id = await house.submit(3)
    claimed, answered = asyncio.Event(), asyncio.Event()

    async def answer_late() -> None:
        claimed.set()
        await answered.wait()

    house.trace.after("work.claim", 1, answer_late)
    async with running(
        a_dispatcher(house, gateway.attempt, quick(grace=timedelta(milliseconds=20)))
    ):
        await claimed.wait()
        asyncio.get_running_loop().call_later(0.01, answered.set)

    rows = await house.rows(run_id)
    assert {(task.status, task.lost) for task in rows} == {(TaskStatus.PENDING, 0)}


async def test_a_stop_waits_until_the_permits_of_the_last_tasks_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    job_id, _ = await house.submit(1, max_per_host=1)
    dispatcher = a_dispatcher(house, gateway.attempt, shared_as="one")
    answered = asyncio.Event()
    release = house.coordination.release

    async def answer_late(permits: Mapping[str, Sequence[str]]) -> None:
        await answered.wait()
        await release(permits)

    async with running(dispatcher):
        await until(lambda: gateway.started)
        [entry] = dispatcher.inflight.values()
        monkeypatch.setattr(house.coordination, "release", answer_late)
        gateway.gate.set()
        await until(lambda: not dispatcher.inflight)
        asyncio.get_running_loop().call_later(0.01, answered.set)

    assert entry.host_permit
    name = host_permit_name(job_id, entry.task.spec.host)
    assert await house.coordination.held(name) == 0


async def test_a_stop_does_not_wait_for_ever_for_an_engine_that_is_away() -> None:
    house, gateway = a_house(), ScriptedAttempts()
    _, run_id = await house.submit(1)
    dispatcher = a_dispatcher(house, gateway.attempt, quick(grace=timedelta()))

    with away(house.trace, "work.settle", Unavailable("work away")):
        async with running(dispatcher):
            await until(lambda: gateway.started)

    assert len(dispatcher.inflight) == 1
    assert await house.done(run_id) == 0


@pytest.mark.parametrize(
    "call",
    [
        "metadata.changed_runs",
        "metadata.live_runs",
        "metadata.get(Run)",
        "work.claim",
        "work.renew",
        "work.settle",
        "work.ack",
        "tasks.counts",
        "bodies.put_many",
        "coordination.reserve",
        "coordination.renew",
        "coordination.release",
    ],
)
async def test_an_engine_that_is_away_for_a_while_is_survived(call: str) -> None:
    house, gateway = a_house(), ScriptedAttempts()
    _, run_id = await house.submit(9, max_inflight=3)
    dispatcher = a_dispatcher(house, gateway.attempt)

    async with running(dispatcher):
        with away(house.trace, call, Unavailable(f"{call} away")):
            dispatcher.wake(run_id)
            gateway.gate.clear()
            await _calls(house, "metadata.changed_runs", 3)
            gateway.gate.set()
            await _calls(house, "metadata.changed_runs", 3)
        dispatcher.storage.learn(
            stored=True
        )  # the pause after a body without room is not tested here
        house.clock.advance(LEASE)
        await _completed(house, run_id)

    await house.check_counts(run_id)


async def test_a_bug_that_one_page_brings_out_ends_that_page_and_no_other() -> None:
    house = a_house()
    _, run_id = await house.submit(3, retries=0)

    async def attempt(task: Task, assignment: Assignment) -> CallResult:
        if task.index == 1:
            raise ZeroDivisionError
        return A_PAGE

    async with running(a_dispatcher(house, attempt)):
        await _completed(house, run_id)

    good, bad, too = await house.rows(run_id)
    assert (good.status, too.status) == (TaskStatus.SUCCESSFUL, TaskStatus.SUCCESSFUL)
    assert (bad.status, bad.attempts, bad.lost) == (TaskStatus.FAILED, 1, 0)
    assert '"internal"' in (bad.problem or "")


async def test_a_caller_that_comes_late_finds_a_place_however_much_another_holds() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    greedy = [(await house.submit(9))[1] for _ in range(3)]

    dispatcher = a_dispatcher(house, gateway.attempt, quick(concurrency=10))
    async with running(dispatcher):
        await until(lambda: len(gateway.started) == 8)
        modest = await _submit_as(house, STRANGER, 9)
        dispatcher.wake(modest)
        await until(lambda: gateway.inflight[modest] == 2)
        assert sum(gateway.inflight[run_id] for run_id in greedy) == 8
        gateway.gate.set()
        for run_id in (*greedy, modest):
            await _completed(house, run_id)


async def test_a_key_that_is_refused_is_driven_less_hard_and_comes_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("conveyor.domain.concurrency.BURST", 0.0)
    house, most, under_way = a_house(), 0, 0
    keys: dict[str, GatewayKeyState] = {}
    _, run_id = await house.submit(9)

    async def attempt(task: Task, assignment: Assignment) -> CallResult:
        nonlocal most, under_way
        under_way += 1
        keys.update(dispatcher.discovery.key_states)  # after its last run a key is soon dropped
        try:
            await asyncio.sleep(0)
            most = max(most, under_way)
            return Throttled(timedelta()) if under_way > 2 else A_PAGE
        finally:
            under_way -= 1

    dispatcher = a_dispatcher(house, attempt)
    async with running(dispatcher):
        await _completed(house, run_id)
        [key] = keys.values()
        assert key.limiter.limit < most

    assert {task.attempts for task in await house.rows(run_id)} == {1}


async def test_without_room_for_results_no_more_pages_are_asked_for() -> None:
    house, gateway = a_house(), ScriptedAttempts()
    job_id, _ = await house.submit(9, max_inflight=2)
    dispatcher = a_dispatcher(house, gateway.attempt)
    with away(house.trace, "bodies.put_many", StorageFull("no room")):
        async with running(dispatcher):
            await until(lambda: dispatcher.storage.is_probing)
            await until(lambda: not dispatcher.inflight)
            asked = len(gateway.started)
            await _rounds(house)
            assert len(gateway.started) == asked < 9
            # A process whose storage works has all of them.
            assert await house.coordination.held(permit_name(job_id)) == 0


async def test_a_single_page_is_tried_until_one_can_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = timedelta(milliseconds=50)  # by the real clock too, which wakes the dispatcher
    for module in (settle, storage_pause):
        monkeypatch.setattr(module, "STORAGE_FULL_WAIT", wait)
    house, gateway = a_house(), ScriptedAttempts()
    _, run_id = await house.submit(9, max_inflight=4)
    dispatcher = a_dispatcher(house, gateway.attempt, quick(prefetch=LEASE))
    async with running(dispatcher):
        with away(house.trace, "bodies.put_many", StorageFull("no room")):
            await until(lambda: dispatcher.storage.is_probing)
            for _ in range(3):
                await until(lambda: not dispatcher.inflight)
                asked = len(gateway.started)
                house.clock.advance(wait)
                while len(gateway.started) == asked:
                    # A second page may be tried if a claim lasts longer than the wait.
                    if not any(run.claims for run in dispatcher.runs.values()):
                        house.clock.advance(timedelta(milliseconds=1))
                    await asyncio.sleep(0.001)
                await until(lambda: not dispatcher.inflight)
                assert len(gateway.started) == asked + 1
            waiting = dispatcher.waiting(run_id)
            assert waiting is not None
            assert waiting.reason is WaitReason.STORAGE_FULL
        for _ in range(3):  # for the trial, for the tasks that went back, and for those gathered
            house.clock.advance(wait)
            await _rounds(house)
        await _completed(house, run_id)
        assert dispatcher.waiting(run_id) is None
    await house.check_counts(run_id)


async def test_a_task_that_turns_out_final_when_claimed_leads_to_the_completion_check() -> None:
    house, gateway = a_house(), ScriptedAttempts()
    _, run_id = await house.submit(1)
    await _lose_workers(house, run_id)

    async with running(a_dispatcher(house, gateway.attempt)):
        await _completed(house, run_id)
        await until(lambda: house.trace.of("work.ack"))

    assert not gateway.started
    [task] = await house.rows(run_id)
    assert (task.status, task.lost) == (TaskStatus.FAILED, MOST_LOST)


async def test_the_others_of_a_claim_are_started_though_the_check_of_a_final_one_fails() -> None:
    house, gateway = a_house(), ScriptedAttempts()
    _, run_id = await house.submit(1, status="open")
    await _lose_workers(house, run_id)
    [first] = await house.rows(run_id)
    job = await house.job((await house.run(run_id)).job_id)
    await house.add_tasks.add(a_call(1, first=1), job.id, _no_words)
    house.trace.forget()
    house.trace.before("tasks.counts", 1, _be_away)

    async with running(a_dispatcher(house, gateway.attempt)):
        await until(lambda: gateway.started)
        await house.lifecycle.close(CALLER, job.id)
        await _completed(house, run_id)

    [started] = gateway.started
    assert (started.index, started.claim_no) == (1, 1)
    assert first.index == 0
    await house.check_counts(run_id)


async def _completed(house: House, run_id: RunId) -> None:
    async with asyncio.timeout(SOON):
        while (await house.run(run_id)).is_live:  # noqa: ASYNC110 - the engine has no event
            await asyncio.sleep(0.001)
    assert (await house.run(run_id)).status is RunStatus.COMPLETED


async def _rounds(house: House) -> None:
    """Long enough for a dispatcher to have taken more, had it wanted to."""
    await _calls(house, "metadata.changed_runs", 4)


async def _calls(house: House, name: str, more: int) -> None:
    seen = len(house.trace.of(name))
    await until(lambda: len(house.trace.of(name)) >= seen + more)


async def test_a_key_that_was_throttled_is_left_alone_by_all_its_runs() -> None:
    house, tried = a_house(), list[RunId]()
    _, first = await house.submit(1)
    _, second = await house.submit(1)

    async def attempt(task: Task, _: Assignment) -> CallResult:
        tried.append(task.run_id)
        return Throttled(AGES)

    async with running(a_dispatcher(house, attempt, quick(concurrency=1))):
        await until(lambda: tried)
        await _rounds(house)

    assert len(tried) == 1
    assert {first, second} > set(tried)


async def test_a_key_that_is_left_alone_keeps_no_permits_from_others() -> None:
    house, gate = a_house(), asyncio.Event()
    refused: list[Task] = []

    async def attempt(task: Task, _: Assignment) -> CallResult:
        if task.index >= 2:
            await gate.wait()
            return Throttled(AGES)
        refused.append(task)
        return Throttled(timedelta(seconds=4))

    job_id, _ = await house.submit(5, max_inflight=5)
    dispatcher = a_dispatcher(house, attempt)
    async with running(dispatcher):
        await until(lambda: len(refused) == 2 and len(dispatcher.inflight) == 3)
        assert await permits_held(house.coordination, job_id) == 5  # two of them for next pages
        gate.set()
        await until(lambda: not dispatcher.inflight)
        async with asyncio.timeout(SOON):
            while await permits_held(house.coordination, job_id):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.001)


async def test_an_account_that_is_refused_fails_all_runs_of_its_key_together() -> None:
    house, tried = a_house(), list[RunId]()
    runs = [(await house.submit(5))[1] for _ in range(3)]

    async def attempt(task: Task, _: Assignment) -> CallResult:
        tried.append(task.run_id)
        return AccountBlocked(AccountReason.INSUFFICIENT_CREDITS, "no credits left")

    dispatcher = a_dispatcher(house, attempt, quick(concurrency=1))
    async with running(dispatcher):
        await until(lambda: tried)
        await until(lambda: not dispatcher.runs)

    assert len(tried) == 1
    ends = {
        (run.status, run.failure_reason) for run in [await house.run(run_id) for run_id in runs]
    }
    assert ends == {(RunStatus.FAILED, AccountReason.INSUFFICIENT_CREDITS)}


@pytest.mark.parametrize("is_probed", [False, True], ids=["by a task", "by a probe of the key"])
async def test_a_late_refusal_of_an_account_that_has_paid_since_fails_no_run(
    *, is_probed: bool
) -> None:
    house, paid, gates = a_house(), asyncio.Event(), dict[RunId, asyncio.Event]()
    tried: Counter[RunId] = Counter()
    _, old = await house.submit(1)

    async def attempt(task: Task, _: Assignment) -> CallResult:
        tried[task.run_id] += 1
        if task.run_id == old and tried[old] == 1:
            await paid.wait()  # begun before the payment, answered after it
            return AccountBlocked(AccountReason.INSUFFICIENT_CREDITS, "no credits left", SPEND)
        if task.run_id in gates:
            await gates[task.run_id].wait()
        return A_PAGE

    dispatcher = a_dispatcher(house, attempt)
    async with running(dispatcher):
        await until(lambda: tried[old])
        if is_probed:
            dispatcher.discovery.reopen(dispatcher.runs[old].key_state.digest)
        else:
            _, served = await house.submit(1)
            dispatcher.wake(served)
            await _completed(house, served)
        _, waiting = await house.submit(1)
        gates[waiting] = asyncio.Event()
        dispatcher.wake(waiting)
        await until(lambda: tried[waiting])
        paid.set()
        await until(lambda: tried[old] == 2)
        gates[waiting].set()
        await _completed(house, old)
        await _completed(house, waiting)
        assert not dispatcher.refused_keys.known

    [row] = await house.rows(old)
    assert (row.status, row.attempts) == (TaskStatus.SUCCESSFUL, 1)
    spent = (await house.tasks.counts([old]))[old].spend
    assert spent.credits == SPEND.credits + A_PAGE.spend.credits


async def test_a_refusal_of_an_account_counts_though_an_older_call_is_served_before_it() -> None:
    house = a_house()
    (_, first), (_, second) = await house.submit(1), await house.submit(1)
    gates = {first: asyncio.Event(), second: asyncio.Event()}
    started = list[RunId]()

    async def attempt(task: Task, _: Assignment) -> CallResult:
        started.append(task.run_id)
        await gates[task.run_id].wait()
        if task.run_id == started[0]:
            return A_PAGE
        return AccountBlocked(AccountReason.INSUFFICIENT_CREDITS, "no credits left")

    dispatcher = a_dispatcher(house, attempt)
    async with running(dispatcher):
        await until(lambda: len(started) == 2)
        older, younger = started
        gates[older].set()
        await _completed(house, older)
        gates[younger].set()
        await until(lambda: dispatcher.refused_keys.known)
        await until(lambda: not dispatcher.runs)
    assert (await house.run(younger)).status is RunStatus.FAILED


async def test_what_is_kept_of_a_key_names_no_key_and_goes_when_no_run_uses_it() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    _, run_id = await house.submit(3)
    dispatcher = a_dispatcher(house, gateway.attempt)
    async with running(dispatcher):
        await until(lambda: dispatcher.discovery.key_states)
        assert KEY not in str(list(dispatcher.discovery.key_states))
        gateway.gate.set()
        await _completed(house, run_id)
        await until(lambda: not dispatcher.discovery.key_states)


async def test_a_limit_that_the_gateway_tells_is_kept() -> None:
    house, most, under_way = a_house(), 0, 0
    _, run_id = await house.submit(40)
    await house.handle_messages()

    async def attempt(task: Task, _: Assignment) -> CallResult:
        nonlocal most, under_way
        under_way += 1
        await asyncio.sleep(0)
        most = max(most, under_way) if task.index > 20 else most
        under_way -= 1
        return Fetched(content=b"page", format="html", limit=3)

    async with running(a_dispatcher(house, attempt)):
        await _completed(house, run_id)
    assert 0 < most <= 3


async def test_a_host_is_not_asked_for_more_pages_at_once_than_its_job_allows() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    hosts = ["a.example"] * 6 + ["b.example"] * 3
    tasks = [{"url": f"https://{host}/{number}"} for number, host in enumerate(hosts)]
    _, run_id = await house.submit(0, tasks=tasks, max_per_host=2)
    dispatcher = a_dispatcher(house, gateway.attempt)
    async with running(dispatcher):
        await until(lambda: len(gateway.started) == 4)
        await _rounds(house)
        begun = Counter(str(task.spec.url)[8:17] for task in gateway.started)
        assert begun == {"a.example": 2, "b.example": 2}
        gateway.gate.set()
        await _completed(house, run_id)
    assert sorted(task.index for task in gateway.started) == list(range(9))


async def test_pages_that_wait_for_their_host_are_handed_back_when_the_run_or_the_program_ends() -> (
    None
):
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    job_id, stopped = await house.submit(5, max_per_host=1)
    dispatcher = a_dispatcher(house, gateway.attempt)
    async with running(dispatcher):
        await until(lambda: len(gateway.started) == 1 and len(dispatcher.inflight) == 5)
        await house.lifecycle.stop(CALLER, job_id)
        dispatcher.wake(stopped)
        await until(lambda: len(dispatcher.inflight) == 1)
        _, going = await house.submit(5, max_per_host=1)
        dispatcher.wake(going)
        await until(lambda: len(gateway.started) == 2 and len(dispatcher.inflight) == 6)
    assert not dispatcher.inflight
    rows = [*await house.rows(stopped), *await house.rows(going)]
    assert {row.status for row in rows} == {TaskStatus.PENDING}
    assert {row.attempts for row in rows} == {0}


async def _submit_with_key(house: House, key: str, count: int) -> RunId:
    call = replace(a_call(count), gateway_key=key)
    return ids_in(await house.submit_job.submit(call, ids_as_answer))[1]


async def _submit_as(house: House, caller: CallerId, count: int) -> RunId:
    answer = await house.submit_job.submit(a_call(count, caller=caller), ids_as_answer)
    return ids_in(answer)[1]


async def _lose_workers(house: House, run_id: RunId) -> None:
    """Claims that lapse, all but the last that a task can bear."""
    for _ in range(MOST_LOST):
        [task] = await house.work.claim({run_id: 1})
        assert not task.is_final
        house.clock.advance(LEASE)


async def _no_words(*_: object) -> bytes:
    return b""


async def _be_away() -> None:
    raise Unavailable("away")


async def test_a_paused_run_gives_nothing_until_it_is_resumed() -> None:
    house, gateway = a_house(), ScriptedAttempts()
    job_id, run_id = await house.submit(3)
    dispatcher = a_dispatcher(house, gateway.attempt)
    pausing = dataclasses.replace(house.lifecycle, notifier=waking(dispatcher))
    await pausing.set_pause(CALLER, job_id, PauseState.PAUSED)

    async with running(dispatcher):
        await until(lambda: run_id in dispatcher.runs)
        assert not house.trace.of("work.claim")
        assert not gateway.started
        await pausing.set_pause(CALLER, job_id, PauseState.ACTIVE)
        await _completed(house, run_id)

    assert len(gateway.started) == 3


async def test_a_pause_lets_what_is_running_finish() -> None:
    house, gateway = a_house(), ScriptedAttempts(is_open=False)
    job_id, run_id = await house.submit(3, max_inflight=2)
    dispatcher = a_dispatcher(house, gateway.attempt)
    pausing = dataclasses.replace(house.lifecycle, notifier=waking(dispatcher))

    async with running(dispatcher):
        await until(lambda: len(gateway.started) == 2)
        await pausing.set_pause(CALLER, job_id, PauseState.PAUSED)
        await until(lambda: dispatcher.runs[run_id].run.is_paused)
        gateway.gate.set()
        await until(lambda: not dispatcher.inflight)
        assert await house.done(run_id) == 2

    assert len(gateway.started) == 2
