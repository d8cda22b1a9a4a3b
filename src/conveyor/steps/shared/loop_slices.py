"""Long computations on the event loop, in slices that let other work run.

A thread would be worse: the interpreter runs one thread at a time and switches every 5 ms. The event
loop releases the interpreter at each read and write of a socket, and would wait up to 5 ms to get it
back each time. A slice on the loop delays one iteration once.
"""

import asyncio
from dataclasses import dataclass, field

from conveyor.domain.json_bodies import Result, Steps
from conveyor.ports.clock import Clock

SLICE = 0.003  # seconds
IDLE = 0.0005  # seconds of an iteration of the loop without other work


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSlices:
    """Runs long computations, one slice at a time for all of them together.

    Between two slices other work gets as much time as the slice took, if there is any.
    """

    clock: Clock
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, steps: Steps[Result]) -> Result:
        """Run a computation; one that ends within its first slice does not wait."""
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
        """Advance for one slice and return how long it took; `StopIteration` at the end."""
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
