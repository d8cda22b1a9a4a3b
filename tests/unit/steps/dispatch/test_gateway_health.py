"""Results that may be the gateway's fault go back uncharged, as late as the gateway asks."""

import asyncio
import math
from datetime import timedelta
from unittest.mock import Mock

import pytest

from conveyor.domain.breaker import HealthSignal
from conveyor.domain.failure import FailureReason
from conveyor.domain.task import AttemptFailed, Interrupted
from conveyor.steps.dispatch.active_run import ActiveRun, InFlight
from conveyor.steps.dispatch.gateway_health import (
    CHECK_EVERY,
    RETRY_WAIT,
    GatewayHealth,
    never_answers,
)
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import RUN, a_task


@pytest.mark.parametrize(
    ("asked", "wait"),
    [(timedelta(), RETRY_WAIT), (timedelta(seconds=30), timedelta(seconds=30))],
)
def test_a_task_goes_back_for_as_long_as_the_gateway_asks(
    asked: timedelta, wait: timedelta
) -> None:
    clock = FakeClock()
    health = GatewayHealth(clock=clock, check_gateway=never_answers, on_open=lambda: None)
    entry = InFlight(a_task(), Mock(spec=ActiveRun), Mock(spec=asyncio.TaskGroup))
    refused = AttemptFailed(
        "{}", FailureReason.OTHER, retryable=True, wait=asked, signal=HealthSignal.UNREACHABLE
    )

    assert health.observe(entry, refused, clock.monotonic()) == [(entry, Interrupted(wait))]
    assert health.is_open


def _resting(until: float, caller: str = "one") -> ActiveRun:
    return Mock(
        is_open=True,
        idle_until=until,
        permits_wait_until=0.0,
        key_state=Mock(limiter=Mock(closed_until=0.0)),
        run=Mock(caller=caller),
    )


def test_the_next_probe_is_waited_for_as_long_as_no_run_may_be_probed() -> None:
    health = GatewayHealth(clock=FakeClock(), check_gateway=never_answers, on_open=lambda: None)
    health.breaker.open(0.0, HealthSignal.BROKEN)
    health.breaker.probe(1.0, "one", "host")
    health.breaker.probe(3.0, "one", "host")

    assert health.next_probe_at([], 3.5) == math.inf
    assert health.next_probe_at([_resting(3.6)], 3.5) == 7.0
    assert health.next_probe_at([_resting(9.0)], 3.5) == 9.0
    assert health.next_probe_at([_resting(0.0), _resting(0.0, "new")], 3.5) == 4.0
    # One is due, and no run had a task for it.
    soon = 7.0 + CHECK_EVERY.total_seconds()
    assert health.next_probe_at([_resting(7.01), _resting(7.02)], 7.0) == soon
    health.probing = RUN
    assert health.next_probe_at([_resting(0.0)], 8.0) == math.inf
