"""Keeping time: what a process does when its wall clock is set while it runs.

Once a second wall time is compared with monotonic time. After a step the due times in the engines
are repaired once, together with the change of what the program takes for the time:

- back: the program takes over the new time first. Until the repair is whole, some work waits.
- ahead: leases are extended in the same write in which the program takes over the new time.
  (A machine that was asleep looks the same, and is treated the same: nothing is lost by it.)
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import structlog

from conveyor.errors import ConveyorError
from conveyor.loops import rest
from conveyor.ports.clock import SteppingClock

EVERY = timedelta(seconds=1)
NOTE_EVERY = 10.0  # seconds: what is seen of the wall time at the next start

log = structlog.get_logger()


class DueTimes(Protocol):
    """Wall times at which something in the engines comes up."""

    async def note(self) -> None:
        """Record the time, for the next start to compare with."""
        ...

    async def set_back(self, by: timedelta) -> None:
        """Bring due times forward that were made by a clock so much ahead of the present one.

        The length of delays is kept. Safe to repeat: at worst something comes up early.
        """
        ...

    async def set_ahead(self, by: timedelta, adopt: Callable[[], None]) -> None:
        """Extend leases by so much, and call `adopt` in the same moment."""
        ...


@dataclass(slots=True, kw_only=True)
class Timekeeper:
    clock: SteppingClock
    due_times: DueTimes
    unrepaired: timedelta = timedelta()  # set back, and not repaired yet
    noted_at: float = 0.0

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                await self.step()
            except ConveyorError as error:  # the disk is full or away: it is tried again
                log.warning("clock.unrepaired", why=str(error))
            except Exception:
                log.exception("step.bug", step="timekeeper")  # the repair is tried again
            await rest(stopping, EVERY)

    async def step(self) -> None:
        """Compare the clocks, and repair due times if the wall clock was set."""
        step = self.clock.step()
        if step > timedelta():
            log.warning("clock.set_ahead", seconds=round(step.total_seconds(), 3))
            await self.due_times.set_ahead(step, self.clock.adopt)
        elif step < timedelta():
            log.warning("clock.set_back", seconds=round(-step.total_seconds(), 3))
            self.clock.adopt()
            self.unrepaired -= step
        if self.unrepaired:
            await self.due_times.set_back(self.unrepaired)
            self.unrepaired = timedelta()
        elif self.clock.monotonic() - self.noted_at >= NOTE_EVERY:
            await self.due_times.note()
            self.noted_at = self.clock.monotonic()
