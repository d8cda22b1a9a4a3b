"""Loops: repeat a step until the process stops. They know steps only as callables."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from conveyor.errors import Unavailable

log = structlog.get_logger()


async def repeat(
    step: Callable[[], Awaitable[int | None]],
    stopping: asyncio.Event,
    *,
    idle: timedelta,
    name: str,
) -> None:
    """Repeat a step until `stopping`; wait for `idle` after a repetition that found nothing to do."""
    while not stopping.is_set():
        try:
            worked = await step()
        except Unavailable as error:
            log.warning("step.unavailable", step=name, why=str(error))
            worked = 0
        except Exception:
            # Neither this loop nor the others may end: the work that failed is still stored, and the
            # step finds it again.
            log.exception("step.bug", step=name)
            worked = 0
        if not worked:
            await rest(stopping, idle)


async def rest(stopping: asyncio.Event, idle: timedelta) -> None:
    """Wait for `idle`, or until `stopping`."""
    try:
        async with asyncio.timeout(idle.total_seconds()):
            await stopping.wait()
    except TimeoutError:
        return
