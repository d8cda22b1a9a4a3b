"""Limits on work: how much runs at once, and how often something may be tried.

- `fair_shares` divides the places of a process between callers and their runs.
- `ConcurrencyLimiter` learns how many calls a gateway key may have under way.
- `take_one` is the token bucket that limits how often a caller may call the API.
- `hidden_for` is the visibility delay of a queue message whose receive started no task.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import msgspec

from conveyor.domain.ids import CallerId, RunId, TaskId
from conveyor.domain.retry import backoff, spread
from conveyor.domain.task import Task

# Fair shares.

RESERVE = 5  # each caller leaves 1 in 5 of the places that other callers do not hold


class Demand(msgspec.Struct, frozen=True):
    """How many tasks of a run could start now."""

    caller: CallerId
    tasks: int


def leaves_reserve(held: int, free: int) -> bool:
    """Whether a caller that holds `held` places leaves enough free for callers that come later.

    Each caller leaves a fifth of the places that other callers do not hold. Alone, it leaves 100 of
    500. A second caller may take 80 of those, and leaves 20. So a caller that comes late finds a
    place even when the others could use all of them and their tasks take minutes.
    """
    return free >= (held + free) // RESERVE


def fair_shares(
    demands: Mapping[RunId, Demand],
    free: int,
    *,
    held: Mapping[CallerId, int] | None = None,
    reserve: bool = False,
) -> dict[RunId, int]:
    """Divide free places so that callers hold equally many, then a caller's share between its runs.

    Places that a caller already holds count, so a caller that comes late catches up as places
    become free. With `reserve` every caller leaves some free (`leaves_reserve`). No run gets more
    than its demand. The order of `demands` breaks ties: the dispatcher shuffles it, so that the
    remainder is fair over time.
    """
    by_caller: dict[CallerId, dict[RunId, int]] = defaultdict(dict)
    for run_id, demand in demands.items():
        by_caller[demand.caller][run_id] = demand.tasks
    totals = {caller: sum(runs.values()) for caller, runs in by_caller.items()}
    shares: dict[RunId, int] = {}
    for caller, places in _level(totals, held or {}, free, reserve=reserve).items():
        shares |= _level(by_caller[caller], {}, places)
    return {run_id: places for run_id, places in shares.items() if places}


K = TypeVar("K", CallerId, RunId)


def _level(
    demands: Mapping[K, int], held: Mapping[K, int], free: int, *, reserve: bool = False
) -> dict[K, int]:
    """Water-filling: raise every share equally until it meets its demand or the total is spent."""

    def fits(level: int, left: int) -> bool:
        return left >= 0 and (not reserve or leaves_reserve(level, left))

    low, high = 0, max((held.get(key, 0) + amount for key, amount in demands.items()), default=0)
    while low < high:  # binary search for the highest level that fits
        middle = (low + high + 1) // 2
        if fits(middle, free - sum(_filled(demands, held, middle).values())):
            low = middle
        else:
            high = middle - 1
    shares = _filled(demands, held, low)
    left = free - sum(shares.values())
    # The next level does not fit for all keys, but may fit for some: the first ones get one more.
    for key, more in _filled(demands, held, low + 1).items():
        if more > shares[key] and fits(low + 1, left - 1):
            shares[key] += 1
            left -= 1
    return shares


def _filled(demands: Mapping[K, int], held: Mapping[K, int], level: int) -> dict[K, int]:
    return {key: min(amount, max(level - held.get(key, 0), 0)) for key, amount in demands.items()}


# Calls with a gateway key.

FIRST_LIMIT = 20  # calls of a key of which nothing is known
BURST = 0.5  # seconds in which further refusals after a refused probe are ignored
PROBE_AFTER = 200  # successes at the highest level known to be good, before one more is tried
LONGEST_PROBE_AFTER = 1_600  # after several refused probes
FIRST_COOL_DOWN = timedelta(seconds=1)  # of a key for which even a single call is refused
LONGEST_COOL_DOWN = timedelta(minutes=1)
ACCOUNT_COOL_DOWN = timedelta(seconds=30)  # of a key that the gateway refuses altogether


@dataclass(slots=True)
class ConcurrencyLimiter:
    """How many calls a gateway key may have under way, over all its jobs.

    Where processes share coordination, the limit is that of all of them together.

    The limit is learned as in TCP's congestion control:

    | phase | while | the limit |
    |---|---|---|
    | slow start | no refusal is known | one more for each success: it doubles with each round of calls |
    | avoidance | below the refused level | one more for each round of calls |
    | steady | just below the refused level | unchanged; after `probe_after` successes one more is probed |
    | cool-down | a lone call was refused | no call for a while, then single calls |

    A refusal cuts the limit to the calls that are still under way: that many of the burst were
    accepted. A refused probe lowers the limit by one and doubles the wait for the next probe. A limit
    that the gateway advertises is used as it is. A refusal while no other call is under way means
    that other users of the account exhaust it. That says nothing about the limit, so the key cools
    down.

    | invariant | kept by |
    |---|---|
    | 1 <= limit <= min(ceiling, advertised) | every method |
    | `under_way` counts calls and claims about to become calls | `ActiveRun` |
    | limit < refused_level, but for the probe | `refused`, `succeeded` |
    """

    ceiling: float
    limit: float = float(FIRST_LIMIT)
    advertised: float = math.inf  # by the gateway
    under_way: int = 0
    elsewhere: int = 0  # calls under way in other processes, as last counted
    runs: int = 0  # active runs that share the key
    burst_until: float = 0.0
    refused_level: float | None = None  # the lowest level known to be too much
    successes: int = 0  # since the level was reached
    probe_after: int = PROBE_AFTER
    is_probing: bool = False  # the limit is one more than is known to be good
    lone_refusals: int = 0  # refusals of single calls, less the successes since
    served_from: float = -math.inf  # when the latest call began that the account did not refuse
    closed_until: float = 0.0  # no call begins before then
    is_half_open: bool = False  # closed lately: one call at a time until one succeeds

    def __post_init__(self) -> None:
        self.limit = min(self.limit, self.ceiling)

    @property
    def cap(self) -> int:
        """How many calls may be under way."""
        return 1 if self.is_half_open else int(self.limit)

    def room(self) -> int:
        """How many more calls may begin here; negative when the limit was just cut."""
        return self.cap - self.under_way

    @property
    def is_contended(self) -> bool:
        """Whether runs compete for the key: one more call of a run is one less of another."""
        return self.runs > 1 and self.room() <= 1

    def advertise(self, limit: int) -> None:
        """Use the limit that the gateway advertises."""
        self.advertised = max(float(limit), 1.0)
        highest = min(self.ceiling, self.advertised)
        # The advertised limit belongs to the account, which other users may share. So once a call
        # was refused, it only lowers the learned limit and never raises it.
        self.limit = highest if self.refused_level is None else min(self.limit, highest)

    def refused(self, now: float) -> None:
        """Record that a call was refused as one too many; it is no longer under way."""
        self.successes = 0
        under_way = self.under_way + self.elsewhere
        if not under_way:
            self._cool_down(now)
            self.limit, self.refused_level, self.is_probing = 1.0, None, False
        elif self.is_probing:
            self.is_probing = False
            self.probe_after = min(self.probe_after * 2, LONGEST_PROBE_AFTER)
            self.burst_until = now + BURST
            self.limit = max(self.limit - 1, 1.0)
        # The calls that a refused probe overtook are refused in the same burst. Their refusals say
        # nothing new, unless fewer calls than the limit are left under way.
        elif now >= self.burst_until or self.limit > under_way:
            self.limit = max(min(self.limit, float(under_way)), 1.0)
            self.refused_level = self.limit + 1

    def succeeded(self) -> None:
        """Record that a call was accepted and answered."""
        self.is_half_open = False
        self.lone_refusals = max(self.lone_refusals - 1, 0)
        highest = min(self.ceiling, self.advertised)
        if self.refused_level is None:
            self.limit = min(self.limit + 1, highest)
            return
        if self.limit + 1 < self.refused_level:
            self.limit = min(self.limit + 1 / self.limit, highest)
            return
        self.successes += 1
        if self.is_probing and self.successes > 2 * self.limit:
            # Two rounds of calls were accepted at this level: the account allows more than before.
            # Forgetting the refused level starts the fast growth of the slow start again.
            self.is_probing = False
            self.refused_level = None
            self.probe_after = PROBE_AFTER
        elif (
            self.successes >= self.probe_after and not self.is_probing and self.limit + 1 <= highest
        ):
            self.is_probing = True
            self.successes = 0
            self.limit = float(int(self.limit) + 1)

    def close(self, now: float, wait: timedelta) -> None:
        """Start no call for `wait`, then single calls until one succeeds."""
        self.closed_until = max(self.closed_until, now + wait.total_seconds())
        self.is_half_open = True

    def _cool_down(self, now: float) -> None:
        self.lone_refusals += 1
        wait = backoff(self.lone_refusals, first=FIRST_COOL_DOWN, longest=LONGEST_COOL_DOWN)
        self.close(now, wait)


# Requests of a caller: a token bucket that fills at a rate and holds at most a burst.


class Bucket(msgspec.Struct, frozen=True):
    """The tokens that were left at a moment."""

    tokens: float
    at: float  # monotonic time in seconds


class Allowance(msgspec.Struct, frozen=True):
    """Whether a token was granted, and what the caller may know about the next ones."""

    granted: bool
    left: int  # tokens
    next_in: float  # seconds until the next token; 0 while there is one
    full_in: float  # seconds until the bucket is full


def take_one(
    bucket: Bucket | None, now: float, *, rate: float, burst: int
) -> tuple[Bucket, Allowance]:
    """Take a token, if there is one. `None` is a new bucket, which is full.

    Calls may overtake each other, and the clocks of processes differ. So a moment before that of
    the bucket leaves it as it is: else the time in between would be refilled twice. If it is so far
    before that a bucket fills meanwhile, the clock was set back.
    """
    tokens, at = float(burst), now
    if bucket is not None:
        passed = max(now - bucket.at, 0.0)
        tokens = min(bucket.tokens + passed * rate, tokens)
        if bucket.at - now < burst / rate:
            at = max(now, bucket.at)
    granted = tokens >= 1
    left = tokens - 1 if granted else tokens
    return Bucket(left, at), allowance(left, granted=granted, rate=rate, burst=burst)


def allowance(tokens: float, *, granted: bool, rate: float, burst: int) -> Allowance:
    """Describe a bucket with so many tokens left."""
    return Allowance(
        granted=granted,
        left=math.floor(tokens),
        next_in=max(1 - tokens, 0.0) / rate,
        full_in=(burst - tokens) / rate,
    )


def is_full(bucket: Bucket, now: float, *, rate: float, burst: int) -> bool:
    """Whether the bucket equals a new one, so that it need not be kept."""
    return bucket.tokens + (now - bucket.at) * rate >= burst


# Bounced messages.

SHORTEST_HIDING = timedelta(seconds=5)
LONGEST_FUTILE_HIDING = timedelta(minutes=5)


def futile_receives(task: Task, receives: int) -> int:
    """How many receives of a task's message started no attempt, the present one included.

    The count of a message that replaced another starts again, so the result may be too low; it is
    at least 1.
    """
    return max(receives - task.attempts - task.lost, 1)


def hidden_for(task_id: TaskId, times: int) -> timedelta:
    """How long to hide a message after `times` receives that started no task: 5 s to 5 min.

    Queues count receives, and give up a message that has too many. Up to a quarter is taken off the
    delay, so that messages which were hidden together do not return together.
    """
    base = backoff(times, first=SHORTEST_HIDING, longest=LONGEST_FUTILE_HIDING)
    return base * (1 - spread(f"{task_id}/{times}") / 4)
