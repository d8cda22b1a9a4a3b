"""The pause of dispatch while results cannot be stored: no disk space, or no storage.

A page that cannot be stored is paid for and lost. So after one of them no page is fetched for 5 s,
then one page every 5 s until one is stored.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from conveyor.domain.progress import Waiting, storage_wait
from conveyor.domain.shared_limits import StorageRecord
from conveyor.ports.clock import Clock
from conveyor.steps.shared.attempt import STORAGE_FULL_WAIT


@dataclass(slots=True, kw_only=True)
class StoragePause:
    clock: Clock
    since: datetime | None = None  # when a page could not be stored; none was stored since
    since_monotonic: float = 0.0
    closed_until: float = 0.0

    @property
    def is_closed(self) -> bool:
        """Whether no page at all may be fetched."""
        return self.closed_until > self.clock.monotonic()

    @property
    def is_probing(self) -> bool:
        """Whether only single pages may be fetched, to see whether they can be stored."""
        return self.since is not None

    def learn(self, *, stored: bool | None) -> None:
        """Record whether all pages of a group could be stored; None if it had no page."""
        if stored:
            self.since, self.closed_until = None, 0.0
        elif stored is False:
            if self.since is None:
                self.since, self.since_monotonic = self.clock.now(), self.clock.monotonic()
            self.close()

    def close(self) -> None:
        self.closed_until = self.clock.monotonic() + STORAGE_FULL_WAIT.total_seconds()

    def reopen(self) -> None:
        """End the wait: no task was due, so no page was tried."""
        self.closed_until = 0.0

    def waiting(self) -> Waiting | None:
        """What callers see until a page was stored."""
        if self.since is None:
            return None
        # Computed from `since`, so that listeners see the same value at every reading.
        next_attempt_at = self.since + timedelta(seconds=self.closed_until - self.since_monotonic)
        return storage_wait(self.since, next_attempt_at if self.is_closed else None)

    def record(self, version: tuple[int, str]) -> StorageRecord:
        """Describe the state for other processes."""
        return StorageRecord(
            number=version[0],
            writer=version[1],
            at=self.clock.now(),
            since=self.since,
            closed_for=max(self.closed_until - self.clock.monotonic(), 0.0),
        )
