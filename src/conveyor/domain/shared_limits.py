"""What processes tell each other about gateway keys, the gateway and the storage of pages.

Records are read by all processes. Of two records of one name the one with the higher version is valid,
whatever the clocks say; a process that learns something writes it under the next version. The dates in
a record are used only for its age, which is at least zero: clocks may differ by seconds.
"""

import math
from datetime import datetime, timedelta

import msgspec

from conveyor.domain.breaker import Breaker, HealthSignal, RefusedGatewayKey
from conveyor.domain.concurrency import ACCOUNT_COOL_DOWN, PROBE_AFTER, ConcurrencyLimiter
from conveyor.domain.failure import AccountReason
from conveyor.domain.progress import Waiting, WaitReason, storage_wait

# Highest limit of a key over all processes, whose places are not known to each other.
CEILING = 1_000_000


class SharedRecord(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    writer: str  # of two records with one number, that of the greater writer is valid
    at: datetime

    @property
    def version(self) -> tuple[int, str]:
        return self.number, self.writer

    def left(self, seconds: float, now: datetime) -> float:
        """How much is left of a wait that began when the record was written."""
        return max(seconds - max((now - self.at).total_seconds(), 0.0), 0.0)

    def end_of(self, seconds: float, now: datetime) -> datetime | None:
        """When that wait ends; None if it has. The same at every reading of the record."""
        end = self.at + timedelta(seconds=seconds)
        return end if end > now else None


class KeyRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """That the gateway refuses a key."""

    reason: AccountReason
    detail: str
    since: datetime
    refused_at: datetime  # the latest

    def known(self, now: float, date: datetime) -> RefusedGatewayKey:
        """Return it as a process keeps it; `now` and `date` are the same moment."""

        def monotonic(then: datetime) -> float:
            return now - max((date - then).total_seconds(), 0.0)

        return RefusedGatewayKey(
            reason=self.reason,
            detail=self.detail,
            since=self.since,
            since_monotonic=monotonic(self.since),
            refused_at=monotonic(self.refused_at),
        )


class GatewayKeyRecord(SharedRecord, frozen=True, kw_only=True):
    """What is known of a gateway key."""

    limit: float
    advertised: float | None = None
    refused_level: float | None = None
    probe_after: int = PROBE_AFTER
    lone_refusals: int = 0
    closed_for: float = 0.0  # seconds
    is_half_open: bool = False
    refusal: KeyRefusal | None = None

    def apply(self, limiter: ConcurrencyLimiter, now: float, date: datetime) -> None:
        """Let a limiter know what another process learned."""
        limiter.limit = min(self.limit, limiter.ceiling)
        limiter.advertised = math.inf if self.advertised is None else self.advertised
        limiter.refused_level = self.refused_level
        limiter.probe_after, limiter.lone_refusals = self.probe_after, self.lone_refusals
        limiter.successes, limiter.is_probing = 0, False
        limiter.is_half_open = self.is_half_open
        left = self.left(self.closed_for, date)
        limiter.closed_until = now + left if left else 0.0

    def waiting(self, now: datetime) -> Waiting | None:
        """What callers see of a run that waits because its key is refused."""
        if self.refusal is None:
            return None
        return Waiting(
            reason=WaitReason.API_KEY_REFUSED,
            since=self.refusal.since,
            next_attempt_at=self.end_of(self.closed_for, now),
            detail=self.refusal.detail,
        )


def key_record(
    limiter: ConcurrencyLimiter,
    refused: RefusedGatewayKey | None,
    *,
    version: tuple[int, str],
    now: float,
    date: datetime,
) -> GatewayKeyRecord:
    """Describe what a process knows of a key; `now` and `date` are the same moment."""
    refusal = None
    if refused:
        refusal = KeyRefusal(
            reason=refused.reason,
            detail=refused.detail,
            since=refused.since,
            refused_at=date - timedelta(seconds=now - refused.refused_at),
        )
    return GatewayKeyRecord(
        number=version[0],
        writer=version[1],
        at=date,
        limit=limiter.limit,
        advertised=None if math.isinf(limiter.advertised) else limiter.advertised,
        refused_level=limiter.refused_level,
        probe_after=limiter.probe_after,
        lone_refusals=limiter.lone_refusals,
        closed_for=max(limiter.closed_until - now, 0.0),
        is_half_open=limiter.is_half_open,
        refusal=refusal,
    )


def limiter_of(
    record: GatewayKeyRecord | None, refused: RefusedGatewayKey | None, now: float, date: datetime
) -> ConcurrencyLimiter:
    """Return the limiter of a key that a process checks but has no run of."""
    limiter = ConcurrencyLimiter(ceiling=CEILING)
    if record:
        record.apply(limiter, now, date)
    limiter.closed_until = 0.0
    if refused:
        limiter.close(now, ACCOUNT_COOL_DOWN - timedelta(seconds=now - refused.refused_at))
    return limiter


class GatewayRecord(SharedRecord, frozen=True, kw_only=True):
    """The state of the circuit breaker."""

    since: datetime | None = None  # when it opened; None while it is closed
    cause: HealthSignal = HealthSignal.NONE
    probe_in: float = 0.0  # seconds until the next probe
    interval: float = 0.0  # between probes

    def schedule_probe(self, breaker: Breaker, now: float, date: datetime) -> None:
        """Let an open breaker probe when all others do."""
        if self.since is not None:
            breaker.opened_at = now - max((date - self.since).total_seconds(), 0.0)
        breaker.interval = self.interval
        breaker.last_probe_at = now
        breaker.next_probe_at = now + self.left(self.probe_in, date)


class StorageRecord(SharedRecord, frozen=True, kw_only=True):
    """Whether pages can be stored. It is shown to callers; each process finds out for itself."""

    since: datetime | None = None  # when a page could not be stored; None if one was since
    closed_for: float = 0.0  # seconds until the next page is tried

    def waiting(self, now: datetime) -> Waiting | None:
        if self.since is None:
            return None
        return storage_wait(self.since, self.end_of(self.closed_for, now))
