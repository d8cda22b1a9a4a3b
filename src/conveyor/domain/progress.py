"""How far a run is, how fast it goes, when it may be done, and what it waits for."""

import math
from datetime import datetime
from enum import StrEnum

import msgspec

from conveyor.domain import run as run_rules
from conveyor.domain.counts import Counts, OpenCounts
from conveyor.domain.run import IngestStatus, Run, RunStatus

WINDOW = 10.0  # seconds over which the rate is measured


class WaitReason(StrEnum):
    GATEWAY_UNAVAILABLE = "gateway_unavailable"
    API_KEY_REFUSED = "api_key_refused"
    STORAGE_FULL = "storage_full"
    KEY_UNREADABLE = "key_unreadable"


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run waits for. Its tasks are not charged meanwhile."""

    reason: WaitReason
    since: datetime
    detail: str
    next_attempt_at: datetime | None = None  # unknown when there is no task to try with


def storage_wait(since: datetime, next_attempt_at: datetime | None) -> Waiting:
    return Waiting(
        reason=WaitReason.STORAGE_FULL,
        since=since,
        next_attempt_at=next_attempt_at,
        detail="Pages cannot be stored: the operator must make room or repair the storage.",
    )


def unreadable_key_wait(run: Run) -> Waiting:
    return Waiting(
        reason=WaitReason.KEY_UNREADABLE,
        since=run.updated_at,  # nothing of the run can have changed since
        detail="The gateway key of the job cannot be decrypted: the operator must put back the "
        "encryption key that the job was submitted under.",
    )


class ProgressReading(msgspec.Struct, frozen=True):
    """How many tasks were done at a moment."""

    at: float  # monotonic time in seconds
    done: int


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it was read, with figures that need more than one reading."""

    run: Run
    settled: Counts
    rate: float | None = None  # tasks a second; None after a first reading
    eta: int | None = None  # seconds; None when it is unknown
    waiting: Waiting | None = None
    open_counts: OpenCounts | None = None  # None: the engine cannot tell, or the run has ended

    @property
    def mark(self) -> str:
        """Identify this reading. It is derived from the rows alone, so it is equal in all processes."""
        run, counts = self.run, run_rules.counts(self.run, self.settled)
        return f"{run.id}-{run.version}-{counts.done}-{counts.credits}-{counts.nanos}"

    @property
    def is_last(self) -> bool:
        return not self.run.is_live

    def differs_from(self, earlier: "RunProgress") -> bool:
        """Whether listeners must get it: other figures, a run that stalled, or another wait."""
        return (
            self.mark != earlier.mark
            or bool(self.rate) != bool(earlier.rate)
            or self.waiting != earlier.waiting
            or self.open_counts != earlier.open_counts
        )


def slid(window: tuple[ProgressReading, ...], new: ProgressReading) -> tuple[ProgressReading, ...]:
    """The window with one more reading, without those that are no longer needed.

    The oldest that stays is the latest one that is at least `WINDOW` old, so that the rate is
    always measured over the whole window.
    """
    begins = new.at - WINDOW
    too_old = [reading for reading in window if reading.at <= begins]
    return (*window[max(len(too_old) - 1, 0) :], new)


def rate(window: tuple[ProgressReading, ...]) -> float | None:
    """Tasks done a second between the first and the last reading."""
    taken = window[-1].at - window[0].at
    return round((window[-1].done - window[0].done) / taken, 2) if taken > 0 else None


def eta(run: Run, settled: Counts, speed: float | None) -> int | None:
    """Seconds until all tasks are done at this speed; None while that cannot be known."""
    all_known = run.last_batch_received and run.ingest_status is not IngestStatus.PENDING
    if not (speed and all_known and run.is_live) or run.is_paused:
        return None
    left = run.total - run.inherited.idle - run_rules.counts(run, settled).done
    return math.ceil(left / speed)


def gone(run: Run) -> Run:
    """A run whose row was removed, shown to its listeners as deleted."""
    return msgspec.structs.replace(run, status=RunStatus.DELETED, version=run.version + 1)
