"""Callers see what their runs wait for in a process that serves none of them."""

from unittest.mock import patch

import pytest
from msgspec.structs import replace

from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.domain.breaker import HealthSignal
from conveyor.domain.failure import AccountReason
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.progress import Waiting, WaitReason
from conveyor.domain.run import PauseState
from conveyor.domain.task import AccountBlocked, Task
from conveyor.errors import StorageFull, Unavailable
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.dispatch.run_waits import RunWaits
from conveyor.steps.dispatch.shared_limits import FOLLOWED_FOR, GATEWAY, STORAGE
from conveyor.steps.shared.attempt import STORAGE_FULL_WAIT, Assignment, CallResult
from tests.harness.dispatchers import a_dispatcher
from tests.harness.memory_service import A_PAGE, CALLER, House, a_house, away


async def _fetch(_task: Task, _assignment: Assignment) -> CallResult:
    return A_PAGE


def _processes(house: House) -> tuple[Dispatcher, Dispatcher, RunWaits]:
    """A worker, and an api process with what it shows."""
    worker, api = (a_dispatcher(house, _fetch, shared_as=name) for name in ("worker", "api"))
    return worker, api, RunWaits(dispatcher=api, encryption=house.encryption)


async def _shown(house: House, waits: RunWaits, job_id: JobId, run_id: RunId) -> Waiting | None:
    """What a poll shows, with the records that every process reads each second."""
    assert waits.dispatcher.shared_limits
    await waits.dispatcher.shared_limits.look([GATEWAY, STORAGE])
    return (await waits.find([(await house.job(job_id), await house.run(run_id))])).get(run_id)


async def _exchange(dispatcher: Dispatcher) -> None:
    assert dispatcher.shared_limits
    await dispatcher.shared_limits.exchange()


async def _refuse_key(worker: Dispatcher) -> None:
    await worker.discovery.refresh()
    [state] = worker.discovery.key_states.values()
    now = worker.clock.monotonic()
    state.learn(AccountBlocked(AccountReason.INSUFFICIENT_CREDITS, "Pay first."), now, now)
    await _exchange(worker)


async def test_a_run_whose_key_another_process_found_refused_waits_for_it() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    worker, _, waits = _processes(house)
    assert await _shown(house, waits, job_id, run_id) is None

    await _refuse_key(worker)

    fresh = RunWaits(dispatcher=_processes(house)[1], encryption=house.encryption)
    shown = await _shown(house, fresh, job_id, run_id)
    assert shown, "at the first poll of a process"
    assert (shown.reason, shown.detail) == (WaitReason.API_KEY_REFUSED, "Pay first.")
    assert shown.next_attempt_at, "after the cool-down"
    assert await _shown(house, fresh, job_id, run_id) == shown
    assert waits.dispatcher.shared_limits
    waits.dispatcher.shared_limits.unread |= set(waits.dispatcher.shared_limits.followed)
    await _exchange(waits.dispatcher)  # as after a notification
    assert await _shown(house, waits, job_id, run_id) == shown


async def test_polls_of_a_run_read_the_record_of_its_key_once() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    _, api, waits = _processes(house)
    polled = [(await house.job(job_id), await house.run(run_id))]
    await waits.find(polled)
    calls = len(house.trace.calls)

    for _ in range(10):
        await waits.find(polled)

    assert len(house.trace.calls) == calls
    assert api.shared_limits
    [(name, until)] = api.shared_limits.followed.items()
    assert until <= api.clock.monotonic() + FOLLOWED_FOR
    api.shared_limits.followed[name] = api.clock.monotonic()  # that time has passed
    await api.shared_limits._tick()
    assert not api.shared_limits.followed


async def test_a_run_waits_for_storage_that_another_process_found_full() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    worker, _, waits = _processes(house)
    with away(house.trace, "bodies.put_many", StorageFull("no room")):
        await worker.round()
    await _exchange(worker)

    shown = await _shown(house, waits, job_id, run_id)

    assert shown
    assert shown.reason is WaitReason.STORAGE_FULL
    served = worker.waiting(run_id)
    assert served
    assert (shown.since, shown.detail) == (served.since, served.detail)


async def test_a_page_that_another_worker_could_store_ends_the_wait_for_storage() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    worker, _, waits = _processes(house)
    other = a_dispatcher(house, _fetch, shared_as="other")
    with away(house.trace, "bodies.put_many", StorageFull("no room")):
        await worker.round()
    await _exchange(worker)
    assert await _shown(house, waits, job_id, run_id)

    house.clock.advance(STORAGE_FULL_WAIT)
    assert other.shared_limits
    await other.shared_limits.look([STORAGE])
    await other.round()
    await _exchange(other)

    assert await _shown(house, waits, job_id, run_id) is None


@pytest.mark.parametrize("cause", ["gateway", "key", "storage"])
async def test_a_paused_run_waits_for_nothing(cause: str) -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    worker, _, waits = _processes(house)
    match cause:
        case "gateway":
            worker.health.breaker.open(worker.clock.monotonic(), HealthSignal.UNREACHABLE)
            worker.health._opened()
        case "key":
            await _refuse_key(worker)
        case _:
            worker.storage.learn(stored=False)
            assert worker.shared_limits
            worker.shared_limits.tried_storage(stored=False)
    await _exchange(worker)
    assert await _shown(house, waits, job_id, run_id)

    await house.lifecycle.set_pause(CALLER, job_id, PauseState.PAUSED)

    assert await _shown(house, waits, job_id, run_id) is None


@pytest.mark.parametrize("shared_as", ["", "api"])
async def test_a_run_whose_key_cannot_be_decrypted_waits_for_the_encryption_key(
    shared_as: str,
) -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    house.encryption = AesKeyRing(bytes([1] * 32))  # as after a restore without the file
    dispatcher = a_dispatcher(house, _fetch, shared_as=shared_as)
    waits = RunWaits(dispatcher=dispatcher, encryption=house.encryption)
    await dispatcher.discovery.refresh()
    job, run = await house.job(job_id), await house.run(run_id)

    [shown] = (await waits.find([(job, run)])).values()

    assert (shown.reason, shown.since) == (WaitReason.KEY_UNREADABLE, run.updated_at)
    paused = replace(run, pause_state=PauseState.PAUSED)
    assert not await waits.find([(job, paused)])


async def test_encryption_keys_that_are_away_for_a_moment_are_no_reason_to_wait() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    _, _, waits = _processes(house)
    with patch.object(AesKeyRing, "decrypt", side_effect=Unavailable("the store does not answer")):
        assert await _shown(house, waits, job_id, run_id) is None
