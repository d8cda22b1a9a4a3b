"""Timekeeping: repairs due times when the wall clock is set while the process runs.

Once a second the timekeeper compares wall time with monotonic time. After a step it repairs the due
times in the engines once, and the program adopts the new time:

- Set back: the program adopts the new time first. Until the repair is done, some work waits.
- Set ahead: leases are extended first, and the program adopts the new time once that is durable.
  Else every lease would lapse at that moment. A machine that was suspended looks the same and is
  treated the same, which loses nothing.
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
NOTE_EVERY = 10.0  # seconds between records of the wall time, which the next start compares

log = structlog.get_logger()


class DueTimes(Protocol):
    """The wall times in the engines at which something is due."""

    async def note(self) -> None:
        """Record the time, for the next start to compare with."""
        ...

    async def set_back(self, by: timedelta) -> None:
        """Move due times back that were set by a clock which was ahead by this much.

        Delays keep their length. Safe to repeat: at worst something is due early.
        """
        ...

    async def set_ahead(self, by: timedelta, adopt: Callable[[], None]) -> None:
        """Extend leases by this much. Once that is durable, and before any later claim or renewal,
        call `adopt`; do not call it if the write fails.
        """
        ...


@dataclass(slots=True, kw_only=True)
class Timekeeper:
    clock: SteppingClock
    due_times: DueTimes | None  # None: no engine keeps due times by our clock
    unrepaired: timedelta = timedelta()  # by how much the clock was set back, until repaired
    noted_at: float = 0.0

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                await self.step()
            except ConveyorError as error:  # such as a full disk: the next round tries again
                log.warning("clock.unrepaired", why=str(error))
            except Exception:
                log.exception("step.bug", step="timekeeper")  # the next round tries again
            await rest(stopping, EVERY)

    async def step(self) -> None:
        """Compare the clocks, and repair due times if the wall clock was set."""
        step = self.clock.step()
        if step > timedelta():
            log.warning("clock.set_ahead", seconds=round(step.total_seconds(), 3))
            if self.due_times:
                await self.due_times.set_ahead(step, self.clock.adopt)
            else:
                self.clock.adopt()
        elif step < timedelta():
            log.warning("clock.set_back", seconds=round(-step.total_seconds(), 3))
            self.clock.adopt()
            self.unrepaired -= step
        if not self.due_times:
            return
        if self.unrepaired:
            await self.due_times.set_back(self.unrepaired)
            self.unrepaired = timedelta()
        elif self.clock.monotonic() - self.noted_at >= NOTE_EVERY:
            await self.due_times.note()
            self.noted_at = self.clock.monotonic()
