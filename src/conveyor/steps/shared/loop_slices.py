"""Long computations on the event loop, in slices that let other work run.

A thread would not do. The interpreter runs one thread at a time and changes over every 5 ms, and
the loop gives it up at each read and write of a socket: beside a thread that computes, each of
those would wait 5 ms. Slices on the loop delay a whole round of it once.
"""

import asyncio
from dataclasses import dataclass, field

from conveyor.domain.json_slices import Result, Steps
from conveyor.ports.clock import Clock

SLICE = 0.003  # seconds
IDLE = 0.0005  # seconds of a round of the loop in which nobody else had anything to do


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSlices:
    """Shared by all who compute at length. They take turns, so that all of them together hold the
    loop for one slice at a time; in between, others get as much time as the slice took, if they
    have use for it.
    """

    clock: Clock
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, steps: Steps[Result]) -> Result:
        """Carry out a computation. What is done within its first slice waits for nobody."""
        try:
            took = self._advance(steps)
            while True:
                async with self.turn:
                    await self._give_way(took)
                    took = self._advance(steps)
        except StopIteration as done:
            result: Result = done.value
            return result

    def _advance(self, steps: Steps[Result]) -> float:
        """Go on for a slice of time, and say how long it was; `StopIteration` at the end."""
        began = self.clock.monotonic()
        while (took := self.clock.monotonic() - began) < SLICE:
            next(steps)
        return took

    async def _give_way(self, due: float) -> None:
        while due > 0:
            began = self.clock.monotonic()
            await asyncio.sleep(0)
            took = self.clock.monotonic() - began
            due -= took if took > IDLE else due
