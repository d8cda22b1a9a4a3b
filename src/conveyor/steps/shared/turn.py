"""A turn: the time for which a control message is worked on before the next message."""

from datetime import timedelta

from conveyor.ports.clock import Clock

TURN = timedelta(seconds=2)


class Turn:
    """A time limit on the work for one message; without a clock there is none."""

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
        """Start the work proper, after finding where to continue.

        The turn then lasts at least as long as the search took. Over all turns together, searching
        so takes no longer than working, however short turns are.
        """
        if self._clock and not self._is_at_work:
            self._is_at_work = True
            now = self._clock.monotonic()
            self._until = now + max(self._lasting, now - self._began)


ENDLESS = Turn()
