"""Dispatchers over the memory engines, with short intervals, for tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace as remade
from datetime import timedelta
from random import Random

from conveyor.domain.task import Task
from conveyor.ports.clock import Clock
from conveyor.steps.dispatch.config import DispatchConfig
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.dispatch.gateway_health import never_answers
from conveyor.steps.shared.attempt import Assignment, CallResult
from conveyor.steps.shared.notifier import Notifier, Topic
from tests.harness.memory_service import House, RealRounds

Attempt = Callable[[Task, Assignment], Awaitable[CallResult]]


def quick(**changes: object) -> DispatchConfig:
    config = {
        "refresh": timedelta(milliseconds=10),
        "resync": timedelta(milliseconds=20),
        "renewal": timedelta(milliseconds=5),
        "shortest_idle": timedelta(milliseconds=1),
        "longest_idle": timedelta(milliseconds=4),
        "unavailable_wait": timedelta(milliseconds=2),
        "grace": timedelta(seconds=5),
    }
    return DispatchConfig(**{**config, **changes})  # type: ignore[arg-type]


def a_dispatcher(
    house: House,
    attempt: Attempt,
    config: DispatchConfig | None = None,
    *,
    shared_as: str = "",
    check_gateway: Callable[[], Awaitable[bool]] = never_answers,
    clock: Clock | None = None,
) -> Dispatcher:
    """A dispatcher over the house's engines; with a name, one of several that share limits."""
    settle = remade(
        house.settle,
        same_key=lambda run_id: dispatcher.discovery.sharing_key(run_id),  # noqa: PLW0108 - made below
    )
    dispatcher = Dispatcher(
        metadata=house.metadata,
        work=house.work,
        coordination=house.coordination,
        encryption=house.encryption,
        clock=clock or RealRounds(house.clock),
        attempt=attempt,
        settle=settle.settle,
        settle_final=settle.settle_final,
        config=config or quick(),
        rng=Random(7),
        shared_as=shared_as,
        check_gateway=check_gateway,
    )
    return dispatcher


def waking(dispatcher: Dispatcher) -> Notifier:
    """A notifier that wakes a dispatcher for each run."""
    notifier = Notifier()
    notifier.on(Topic.RUNS, dispatcher.discovery.notified)
    return notifier


@asynccontextmanager
async def running(*dispatchers: Dispatcher) -> AsyncIterator[None]:
    """Dispatchers at work; told to stop, and waited for, at the end."""
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for dispatcher in dispatchers:
            group.create_task(dispatcher.run(stopping))
        try:
            yield
        finally:
            stopping.set()
