"""Whether there is room for results, as the pages that were stored tell it.

Not a station of its own: dispatch works by it. A page that found no room was paid for in vain, so
no more are asked for in the next 5 s, and then a single one every 5 s until one was stored.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from conveyor.domain.waiting import Waiting, WaitReason
from conveyor.ports.clock import Clock
from conveyor.steps.attempt import NO_ROOM_WAIT


@dataclass(slots=True, kw_only=True)
class ResultsRoom:
    clock: Clock
    since: datetime | None = None  # when a page first found no room; none was stored since
    since_monotonic: float = 0.0
    closed_until: float = 0.0

    @property
    def is_closed(self) -> bool:
        return self.closed_until > self.clock.monotonic()

    @property
    def is_doubtful(self) -> bool:
        """Whether to ask for a single page only, to see whether it can be stored."""
        return self.since is not None

    def learn(self, *, stored: bool | None) -> None:
        """Take up whether there was room for all pages of a group; None if it had no page."""
        if stored:
            self.since, self.closed_until = None, 0.0
        elif stored is False:
            if self.since is None:
                self.since, self.since_monotonic = self.clock.now(), self.clock.monotonic()
            self.close()

    def close(self) -> None:
        self.closed_until = self.clock.monotonic() + NO_ROOM_WAIT.total_seconds()

    def waiting(self) -> Waiting | None:
        """What is told to callers until a page was stored."""
        if self.since is None:
            return None
        # Both dates follow from the first, so that they are the same at every reading.
        next_attempt_at = self.since + timedelta(seconds=self.closed_until - self.since_monotonic)
        return Waiting(
            reason=WaitReason.STORAGE_FULL,
            since=self.since,
            next_attempt_at=next_attempt_at if self.is_closed else None,
            detail="There is no room to store pages: the operator of this service has to make some.",
        )
