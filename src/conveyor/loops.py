"""Loops: a step is repeated until the process stops. They know steps only as callables."""

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
    """Run a step again and again until `stopping`; rest for `idle` when it found nothing to do."""
    while not stopping.is_set():
        try:
            worked = await step()
        except Unavailable as error:
            log.warning("step.unavailable", step=name, why=str(error))
            worked = 0
        except Exception:
            # The other steps go on, and so does this one: what it was about is still on record.
            log.exception("step.bug", step=name)
            worked = 0
        if not worked:
            await rest(stopping, idle)


async def rest(stopping: asyncio.Event, idle: timedelta) -> None:
    """Wait for so long, or until `stopping`."""
    try:
        async with asyncio.timeout(idle.total_seconds()):
            await stopping.wait()
    except TimeoutError:
        return
