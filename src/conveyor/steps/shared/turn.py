"""A turn: how long a message of the control queue is worked on before others have their turn.

A value that stations share; no station itself.
"""

from datetime import timedelta

from conveyor.ports.clock import Clock

TURN = timedelta(seconds=2)


class Turn:
    """Without a clock it never ends."""

    def __init__(self, clock: Clock | None = None, lasting: timedelta = TURN) -> None:
        self._clock = clock
        self._lasting = lasting.total_seconds()
        self._began = clock.monotonic() if clock else 0.0
        self._until = self._began + self._lasting
        self._is_at_work = False

    @property
    def is_over(self) -> bool:
        return self._clock is not None and self._clock.monotonic() >= self._until

    def begin(self) -> None:
        """Progress begins only now, after finding the place to go on, which took time.

        The turn lasts at least as long again. So finding the place, over all turns together, takes
        no longer than the work itself, however short turns are.
        """
        if self._clock and not self._is_at_work:
            self._is_at_work = True
            now = self._clock.monotonic()
            self._until = now + max(self._lasting, now - self._began)


ENDLESS = Turn()
