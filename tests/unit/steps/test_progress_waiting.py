"""What a run waits for reads the same at every moment, as long as nothing about it changes."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest

from conveyor.adapters.system.clock import SteadyClock
from conveyor.domain.breaker import HealthSignal, gateway_key_digest
from conveyor.domain.failure import AccountReason, FailureReason
from conveyor.domain.ids import ApiKeyId
from conveyor.domain.progress import WaitReason
from conveyor.domain.task import AttemptFailed, Task
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.dispatch.run_waits import RunWaits
from conveyor.steps.progress import ProgressFeed
from conveyor.steps.shared.attempt import Assignment, CallResult
from tests.harness.dispatchers import a_dispatcher, running
from tests.harness.memory_service import CALLER, KEY, House, a_house, until

LONG = 3600.0  # seconds
Prepare = Callable[[Dispatcher], None]


async def _unreachable(_task: Task, _: Assignment) -> CallResult:
    return AttemptFailed("{}", FailureReason.OTHER, retryable=True, signal=HealthSignal.UNREACHABLE)


def _with_gateway_away(dispatcher: Dispatcher) -> None:
    """Its first call opens the breaker."""


def _with_refused_key(dispatcher: Dispatcher) -> None:
    clock = dispatcher.clock
    reason = AccountReason.INSUFFICIENT_CREDITS
    dispatcher.refused_keys.refuse(
        gateway_key_digest(KEY), reason, "no credits", clock.monotonic(), clock.now()
    )


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (_with_gateway_away, WaitReason.GATEWAY_UNAVAILABLE),
        (_with_refused_key, WaitReason.API_KEY_REFUSED),
    ],
)
async def test_a_wait_that_does_not_change_is_one_event(
    prepare: Prepare, reason: WaitReason
) -> None:
    house, clock = a_house(), SteadyClock()
    job_id, run_id = await house.submit(3)
    dispatcher = a_dispatcher(house, _unreachable)
    dispatcher.clock = dispatcher.health.clock = dispatcher.discovery.clock = clock
    prepare(dispatcher)
    watch = _watch(house, dispatcher)

    async with running(dispatcher):
        await until(lambda: dispatcher.waiting(run_id))
        dispatcher.health.breaker.next_probe_at += LONG  # nothing changes from here on
        await until(lambda: not dispatcher.inflight)
        first = dispatcher.waiting(run_id)
        assert first is not None
        assert (first.reason, first.next_attempt_at is None) == (reason, False)
        async with aclosing(await watch.listen(CALLER, job_id, None, seen=None)) as news:
            await anext(news)
            for _ in range(20):
                await asyncio.sleep(0.001)
                assert dispatcher.waiting(run_id) == first
                await watch.step()
            assert watch.followed[run_id].number == 1


def _watch(house: House, dispatcher: Dispatcher) -> ProgressFeed:
    return ProgressFeed(
        metadata=house.metadata,
        tasks=house.tasks,
        clock=dispatcher.clock,
        render=lambda progress: str(progress.waiting).encode(),
        count=lambda _: None,
        is_good=_every_key,
        waits=RunWaits(dispatcher=dispatcher, encryption=house.encryption).find,
    )


async def _every_key(_: ApiKeyId) -> bool:
    return True
