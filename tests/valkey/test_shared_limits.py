"""Dispatchers of several processes share limits through a server, each by its own connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from conveyor.domain.breaker import HealthSignal, gateway_key_digest
from conveyor.domain.failure import FailureReason
from conveyor.domain.task import AttemptFailed, Task
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.dispatch.permits import PROBE, key_permit_name
from conveyor.steps.shared.attempt import Assignment, CallResult, Fetched
from tests.harness.dispatchers import a_dispatcher, quick, running
from tests.harness.memory_service import KEY, House, a_house, until
from tests.harness.valkey import Valkey, a_prefix, coordination_at

LIMIT = 4
PAGES = 80


class CountingGateway:
    """Counts the calls under way; advertises a limit and, while it is down, cannot be reached."""

    def __init__(self) -> None:
        self.under_way = self.calls = 0
        self.most_since_known = 0
        self.is_known = self.is_down = False

    async def attempt(self, _task: Task, _assignment: Assignment) -> CallResult:
        self.calls += 1
        self.under_way += 1
        if self.is_known:
            self.most_since_known = max(self.most_since_known, self.under_way)
        try:
            await asyncio.sleep(0.01)
        finally:
            self.under_way -= 1
        if self.is_down:
            return AttemptFailed(
                "{}", FailureReason.OTHER, retryable=True, signal=HealthSignal.UNREACHABLE
            )
        return Fetched(content=b"page", format="html", limit=LIMIT)


@asynccontextmanager
async def processes(
    house: House, valkey: Valkey, gateway: CountingGateway
) -> AsyncIterator[list[Dispatcher]]:
    url = f"{valkey.url}?prefix={a_prefix()}"
    async with coordination_at(url) as one, coordination_at(url) as other:
        yield [
            a_dispatcher(
                replace(house, coordination=coordination),
                gateway.attempt,
                quick(renewal=timedelta(seconds=5)),
                shared_as=name,
            )
            for name, coordination in (("one", one), ("other", other))
        ]


async def test_two_processes_together_keep_the_limit_of_a_key(valkey: Valkey) -> None:
    house, gateway = a_house(), CountingGateway()
    _, run_id = await house.submit(PAGES, max_inflight=50)
    await house.handle_messages()  # its rows
    async with processes(house, valkey, gateway) as dispatchers:
        async with running(*dispatchers):
            await until(lambda: all(_limits(one) == LIMIT for one in dispatchers))
            await until(lambda: gateway.under_way <= LIMIT)
            gateway.is_known = True
            async with asyncio.timeout(60):
                while await house.done(run_id) < PAGES:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.01)
        assert 0 < gateway.most_since_known <= LIMIT
        [coordination, _] = [one.permits.coordination for one in dispatchers]
        assert await coordination.held(key_permit_name(gateway_key_digest(KEY))) == 0


def _limits(dispatcher: Dispatcher) -> float:
    return max(
        (state.limiter.limit for state in dispatcher.discovery.key_states.values()), default=0
    )


@pytest.mark.long  # waits for probes
async def test_an_outage_of_the_gateway_stops_and_resumes_two_processes_together(
    valkey: Valkey,
) -> None:
    house, gateway = a_house(), CountingGateway()
    gateway.is_down = True
    _, run_id = await house.submit(PAGES, max_inflight=50)
    await house.handle_messages()  # its rows
    async with processes(house, valkey, gateway) as dispatchers:
        async with running(*dispatchers):
            await until(lambda: all(one.health.is_open for one in dispatchers))
            shown = [one.waiting(run_id) for one in dispatchers]
            assert shown[0]
            assert shown[1]
            assert shown[0].since == shown[1].since
            await until(lambda: not gateway.under_way)
            calls = gateway.calls
            await asyncio.sleep(3.5)
            assert 1 <= gateway.calls - calls <= 3, "probes of one process, after 1 and 2 s"
            gateway.is_down = False
            house.clock.advance(timedelta(seconds=10))  # tasks that went back are due
            await until(lambda: not any(one.health.is_open for one in dispatchers))
            async with asyncio.timeout(60):
                while await house.done(run_id) < PAGES:
                    house.clock.advance(timedelta(seconds=1))
                    await asyncio.sleep(0.05)
        assert await dispatchers[0].permits.coordination.held(PROBE) == 0
