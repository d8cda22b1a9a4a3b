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
    wakeup: "Wakeup | None" = None,
) -> None:
    """Repeat a step until `stopping`; wait for `idle` after a repetition that found nothing to do.

    `wakeup` ends the wait early.
    """
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
        if not worked and wakeup:
            await wakeup.wait(idle)
        elif not worked:
            await rest(stopping, idle)


async def rest(stopping: asyncio.Event, idle: timedelta) -> None:
    """Wait for `idle`, or until `stopping`."""
    try:
        async with asyncio.timeout(idle.total_seconds()):
            await stopping.wait()
    except TimeoutError:
        return


class Wakeup:
    """Wakes loops that have nothing to do: one of them for each thing to do, or all."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(0)
        self._waiting = 0

    def wake_one(self) -> None:
        """Wake a loop. If none waits, the next one that would wait does not."""
        if self._turns.locked():
            self._turns.release()

    def wake_all(self) -> None:
        for _ in range(max(self._waiting, 1)):
            self.wake_one()

    async def wait(self, idle: timedelta) -> None:
        """Wait for `idle`, or until woken."""
        self._waiting += 1
        try:
            async with asyncio.timeout(idle.total_seconds()):
                await self._turns.acquire()
        except TimeoutError:
            return
        finally:
            self._waiting -= 1
