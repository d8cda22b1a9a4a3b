"""Time that passes as fast as it can: hours of waiting in seconds, the same in every run.

For whatever waits by the event loop alone. Nothing may wait for a thread, a socket or a process:
to this loop such a wait takes no time at all.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

from conveyor.testing.clock import NOON

T = TypeVar("T")

A_ROUND = 1e-6  # seconds that one round of the loop takes at least


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run it to its end, on a loop that never waits."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)


class LapseClock:
    """A `Clock` that shows what the running loop takes the time to be."""

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.passed


class _Skipping(selectors.SelectSelector):
    """Instead of waiting for a while, it says that the while has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0.0)
        if timeout is None and not ready:
            raise RuntimeError("everything waits, and nothing is to come")
        # Even what waits for nothing takes its time, or two that wait for each other's moment to
        # be over would do so for ever.
        self.passed += max(timeout or 0.0, A_ROUND)
        return ready
