"""Results that may be the gateway's fault go back uncharged, as late as the gateway asks."""

import asyncio
from datetime import timedelta
from unittest.mock import Mock

import pytest

from conveyor.domain.breaker import HealthSignal
from conveyor.domain.failure import FailureReason
from conveyor.domain.task import AttemptFailed, Interrupted
from conveyor.steps.dispatch.active_run import ActiveRun, InFlight
from conveyor.steps.dispatch.gateway_health import RETRY_WAIT, GatewayHealth, never_answers
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import a_task


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
