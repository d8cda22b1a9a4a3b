"""How hard an API key may be driven: learned from what the gateway says and refuses."""

import math
from dataclasses import dataclass
from datetime import timedelta

START = 20  # calls of a key of which nothing is known
EASING = 0.5  # seconds in which a burst of refusals counts as one
PATIENCE = 200  # answers at the highest level known to be good, before one more is tried
LONGEST_PATIENCE = 1_600  # when trying one more was refused again and again
FIRST_COOLING = timedelta(seconds=1)  # of a key that lets in not even a single call
LONGEST_COOLING = timedelta(minutes=1)  # when that happened again and again
BREAK = timedelta(seconds=30)  # for which a key that its account refuses is left alone


@dataclass(slots=True)
class Throttle:
    """How many calls a key may have under way, over all its jobs.

    It begins low and doubles with each round of calls that went well, until the gateway says that
    this is too much: then no more than what is still under way, for of a burst that was too large
    so many were let in. From there it is raised by one a round, up to what was refused, and stays
    there, but for one more now and then: if that is refused it goes back by one, and waits longer
    before the next try. So an account is used nearly to its limit, and seldom refuses. What the
    gateway tells of the limit is taken at its word, and bounds it. When a call is refused while no
    other is under way, the account is used up by others: then it is left alone for a while, twice
    as long each time, and tried with single calls.
    """

    most: float
    limit: float = float(START)
    bound: float = math.inf  # as the gateway tells it
    under_way: int = 0
    runs: int = 0  # that share the key
    eased_at: float = 0.0
    refused_at: float | None = None  # the lowest level known to be too much
    good: int = 0  # answers since the level was reached
    patience: int = PATIENCE
    is_trying: bool = False  # one more than is known to be good
    turned_away: int = 0  # single calls that were refused, less those that went well since
    served_from: float = -math.inf  # when the latest call began that the account did not refuse
    closed_until: float = 0.0  # the account or its block says: not now
    is_half_open: bool = False  # closed not long ago: one call at a time shows how it is

    def __post_init__(self) -> None:
        self.limit = min(self.limit, self.most)

    def room(self) -> int:
        return (1 if self.is_half_open else int(self.limit)) - self.under_way

    @property
    def is_crowded(self) -> bool:
        """Whether a call more of one run is a call less of another."""
        return self.runs > 1 and self.room() <= 1

    def told(self, limit: int) -> None:
        """The gateway says how many calls the key may have."""
        self.bound = max(float(limit), 1.0)
        highest = min(self.most, self.bound)
        self.limit = highest if self.refused_at is None else min(self.limit, highest)

    def refused(self, now: float) -> None:
        """A call was one too many, and is no longer under way."""
        self.good = 0
        if not self.under_way:  # others use the account: that says nothing of its limit
            self._cool_down(now)
            self.limit, self.refused_at, self.is_trying = 1.0, None, False
        elif self.is_trying:
            self.is_trying = False
            self.patience = min(self.patience * 2, LONGEST_PATIENCE)
            self.eased_at = now + EASING
            self.limit = max(self.limit - 1, 1.0)
        elif now >= self.eased_at or self.limit > self.under_way:
            self.limit = max(min(self.limit, float(self.under_way)), 1.0)
            self.refused_at = self.limit + 1

    def answered(self) -> None:
        """A call went well."""
        self.is_half_open = False
        self.turned_away = max(self.turned_away - 1, 0)
        highest = min(self.most, self.bound)
        if self.refused_at is None:
            self.limit = min(self.limit + 1, highest)
            return
        if self.limit + 1 < self.refused_at:
            self.limit = min(self.limit + 1 / self.limit, highest)
            return
        self.good += 1
        if self.is_trying and self.good > 2 * self.limit:
            self.is_trying = False  # a round and more went well: what was too much no longer is
            self.refused_at = None
            self.patience = PATIENCE
        elif self.good >= self.patience and not self.is_trying and self.limit + 1 <= highest:
            self.is_trying = True
            self.good = 0
            self.limit = float(int(self.limit) + 1)

    def close(self, now: float, wait: timedelta) -> None:
        """Leave the key alone for a while, then try it with a single call."""
        self.closed_until = max(self.closed_until, now + wait.total_seconds())
        self.is_half_open = True

    def _cool_down(self, now: float) -> None:
        doublings: int = 2 ** min(self.turned_away, 30)
        self.turned_away += 1
        self.close(now, min(FIRST_COOLING * doublings, LONGEST_COOLING))
