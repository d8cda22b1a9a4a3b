"""Gateway keys as this process knows them: what calls showed of each, and its permits.

Where processes share limits, a call needs a permit of its gateway key beside that of its job. There are
as many as the limit of the key, over all processes. Permits that no call uses are in `KeyPermits`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.breaker import FAILURES, HealthSignal, RefusedGatewayKeys
from conveyor.domain.concurrency import (
    ACCOUNT_COOL_DOWN,
    FIRST_LIMIT,
    LONGEST_COOL_DOWN,
    ConcurrencyLimiter,
)
from conveyor.domain.task import AccountBlocked, AttemptFailed, Interrupted, Throttled
from conveyor.ports.clock import Clock
from conveyor.steps.shared.attempt import CallResult, Fetched

SHORT_WAIT = timedelta(seconds=5)  # a longer one means more than too many concurrent calls
WORTH_SHARING = 1.25  # times the limit that other processes know


@dataclass(slots=True)
class KeyPermits:
    """The permits of a gateway key that no call uses, where processes share its limit.

    A call needs one of these and one of its job. They belong to all runs of the key, because a run
    that kept them would keep the others from calling.
    """

    idle: list[str] = field(default_factory=list)
    pending: int = 0  # calls to start, of claims that the engine has not answered
    idle_of_jobs: int = 0  # idle permits of jobs, over all runs of the key
    # The limit was lowered, and more calls than that may be under way: a call begins only with a
    # permit that was reserved since.
    must_reserve: bool = False
    full_until: float = 0.0  # none was left lately: until then only idle ones are used
    limit_shared: float = FIRST_LIMIT  # the limit that other processes know

    @property
    def worth_sharing(self) -> float:
        """The limit that other processes should know of."""
        return max(self.limit_shared * WORTH_SHARING, self.limit_shared + 1)

    def free(self, grant_calls: int) -> int:
        """Idle permits that claims of so many calls may use: those of other claims are not free."""
        if self.must_reserve:
            return 0
        return max(len(self.idle) - (self.pending - grant_calls), 0)

    def take_surplus(self) -> list[str]:
        """Remove and return the permits for which there is no idle permit of a job."""
        self.idle, surplus = self.idle[: self.idle_of_jobs], self.idle[self.idle_of_jobs :]
        return surplus


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatewayKeyState:
    """What this process knows of a gateway key. Runs that use the same key share it."""

    digest: str
    limiter: ConcurrencyLimiter
    refused_keys: RefusedGatewayKeys
    clock: Clock
    permits: KeyPermits | None = None  # None if the limit is that of this process alone
    on_lesson: Callable[["GatewayKeyState"], None] | None = None  # something was learned
    on_growth: Callable[[], None] = lambda: None  # the limit grew

    def learn(self, result: CallResult, now: float, began_at: float) -> CallResult:
        """Record what a call shows about its key, and return the result that must be settled."""
        if self.on_lesson is None:
            return self._learn(result, now, began_at)
        known, limit, cap = self.lesson, self.limiter.limit, self.limiter.cap
        result = self._learn(result, now, began_at)
        if self.permits is not None and self.limiter.cap < cap:
            self.permits.must_reserve = True
        if self.lesson != known or self.limiter.limit < limit:
            self.on_lesson(self)
        elif self.permits is not None and self.limiter.limit >= self.permits.worth_sharing:
            self.on_growth()
        return result

    @property
    def lesson(self) -> tuple[object, ...]:
        """What other processes must know at once. That the limit grows is not part of it."""
        limiter = self.limiter
        return (
            limiter.advertised,
            limiter.refused_level,
            limiter.is_half_open,
            limiter.closed_until,
            self.refused_keys.get(self.digest),
        )

    def _learn(self, result: CallResult, now: float, began_at: float) -> CallResult:
        limiter = self.limiter
        match result:
            case Fetched(limit=limit):
                limiter.succeeded()
                if limit is not None:
                    limiter.advertise(limit)
            case AccountBlocked(spend=spend) if began_at < limiter.served_from:
                # A call that began later was served: the account has been paid since this refusal.
                return Interrupted(spend=spend)
            case AccountBlocked(reason, detail):
                self.refused_keys.refuse(self.digest, reason, detail, now, self.clock.now())
                limiter.close(now, ACCOUNT_COOL_DOWN)
                return result
            case Interrupted():
                return result
            case AttemptFailed(signal=signal) if signal in FAILURES:
                return result
            case AttemptFailed(
                signal=HealthSignal.NONE
            ):  # the call may not have reached the gateway
                limiter.succeeded()
                return result
            case Throttled(wait):
                limiter.refused(now)
                if wait > SHORT_WAIT:
                    limiter.close(now, min(wait, LONGEST_COOL_DOWN))
            case _:
                limiter.succeeded()
        # The gateway accepted the key. Calls end in any order, so only a later start counts.
        limiter.served_from = max(limiter.served_from, began_at)
        self.refused_keys.serve(self.digest, began_at)
        return result
