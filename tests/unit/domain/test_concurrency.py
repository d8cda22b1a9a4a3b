"""How hard a key is driven: nearly to its account's limit, and seldom beyond."""

import heapq
import random
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

import pytest

from conveyor.domain.concurrency import (
    FIRST_COOL_DOWN,
    FIRST_LIMIT,
    LONGEST_COOL_DOWN,
    LONGEST_PROBE_AFTER,
    PROBE_AFTER,
    ConcurrencyLimiter,
)

MOST = 500


@dataclass
class Account:
    """A gateway's account with room for so many calls at once, and a caller that wants all of it.

    Calls take a random time; those that are too many are refused quickly.
    """

    limit: int
    latency: float
    limiter: ConcurrencyLimiter = field(default_factory=lambda: ConcurrencyLimiter(ceiling=MOST))
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    now: float = 0.0
    active: int = 0
    calls: int = 0
    refused: int = 0
    used: float = 0.0  # places times seconds
    tells: bool = False

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        self.calls = self.refused = 0
        self.used = 0.0
        numbers, ends = count(), self._ends
        while self.now < end:
            while self.limiter.room() > 0:
                heapq.heappush(ends, self._call(next(numbers)))
            at, _, was_let_in = heapq.heappop(ends)
            self.used += self.active * (min(at, end) - self.now)
            self.now = at
            self._hang_up(was_let_in=was_let_in)

    _ends: list[tuple[float, int, bool]] = field(default_factory=list)

    def _call(self, number: int) -> tuple[float, int, bool]:
        self.limiter.under_way += 1
        self.calls += 1
        if self.active < self.limit:
            self.active += 1
            return self.now + self.dice.expovariate(1 / self.latency), number, True
        self.refused += 1
        return self.now + 0.05, number, False

    def _hang_up(self, *, was_let_in: bool) -> None:
        self.limiter.under_way -= 1
        if was_let_in:
            self.active -= 1
            self.limiter.succeeded()
            if self.tells:
                self.limiter.advertise(self.limit)
        else:
            self.limiter.refused(self.now)


@pytest.mark.parametrize("latency", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("limit", [5, 20, 50, 200])
def test_an_account_is_used_to_its_limit_and_seldom_refuses(limit: int, latency: float) -> None:
    account = Account(limit, latency)
    account.run(60)
    settling_in = account.refused
    assert settling_in <= max(limit, FIRST_LIMIT) + 20, "a burst, and no hammering"

    account.run(600)

    assert account.used / (600 * limit) >= 0.95
    assert account.refused / account.calls < 0.01


def test_an_account_whose_limit_is_told_is_never_asked_for_more() -> None:
    account = Account(200, 1.0, tells=True)
    account.run(600)
    assert account.refused == 0
    assert account.used / (600 * 200) >= 0.95
    small = Account(5, 1.0, tells=True)
    small.run(60)
    assert small.refused <= FIRST_LIMIT


def test_a_limit_that_was_raised_is_found() -> None:
    account = Account(20, 0.2)
    account.run(120)
    account.limit = 100
    account.run(300)
    account.run(60)
    assert account.used / (60 * 100) >= 0.95


def test_a_limit_that_was_lowered_is_found() -> None:
    account = Account(100, 0.2)
    account.run(60)
    account.limit = 10
    account.run(60)
    account.run(120)
    assert account.refused / account.calls < 0.01
    assert account.used / (120 * 10) >= 0.95


def test_it_begins_low_and_doubles() -> None:
    limiter = ConcurrencyLimiter(ceiling=MOST)
    assert limiter.room() == FIRST_LIMIT
    for _ in range(FIRST_LIMIT):
        limiter.succeeded()
    assert limiter.room() == 2 * FIRST_LIMIT
    assert ConcurrencyLimiter(ceiling=3).room() == 3


def test_it_never_goes_below_one() -> None:
    limiter = ConcurrencyLimiter(ceiling=MOST)
    for second in range(50):
        limiter.refused(float(second))
    assert limiter.room() == 1


def test_a_try_that_is_refused_goes_back_by_one_and_waits_longer() -> None:
    limiter = ConcurrencyLimiter(ceiling=MOST, under_way=10)
    limiter.refused(0.0)
    assert limiter.limit == 10
    for _ in range(PROBE_AFTER):
        limiter.succeeded()
    assert (limiter.limit, limiter.is_probing) == (11, True)
    limiter.refused(1.0)
    assert (limiter.limit, limiter.is_probing, limiter.probe_after) == (10, False, 2 * PROBE_AFTER)
    for second in range(2, 9):
        for _ in range(limiter.probe_after):
            limiter.succeeded()
        limiter.refused(float(second))
    assert (limiter.limit, limiter.probe_after) == (10, LONGEST_PROBE_AFTER)


def test_a_closed_key_is_tried_with_a_single_call() -> None:
    limiter = ConcurrencyLimiter(ceiling=MOST)
    limiter.close(10.0, timedelta(seconds=30))
    limiter.close(10.0, timedelta(seconds=5))
    assert (limiter.closed_until, limiter.room()) == (40.0, 1)
    limiter.under_way += 1
    assert limiter.room() == 0
    limiter.under_way -= 1
    limiter.succeeded()
    assert limiter.room() > 1


def test_a_key_that_lets_in_not_a_single_call_is_left_alone_for_longer_each_time() -> None:
    limiter, now, waits = ConcurrencyLimiter(ceiling=MOST), 0.0, []
    for _ in range(9):
        limiter.refused(now)
        assert limiter.room() == 1
        waits.append(limiter.closed_until - now)
        now = limiter.closed_until

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (waits[0], waits[-1]) == (
        FIRST_COOL_DOWN.total_seconds(),
        LONGEST_COOL_DOWN.total_seconds(),
    )


def test_a_refusal_at_a_quiet_moment_says_nothing_of_the_limit() -> None:
    """Other users exhaust the account then: once calls are let in, the limit is learned again."""
    told, untold = ConcurrencyLimiter(ceiling=MOST), ConcurrencyLimiter(ceiling=MOST)
    for limiter in (told, untold):
        limiter.refused(0.0)
        assert limiter.room() == 1
    told.succeeded()
    told.advertise(100)
    for _ in range(50):
        untold.succeeded()
    assert (told.room(), untold.room()) == (100, 51)


def test_a_call_refused_beside_others_closes_nothing() -> None:
    limiter = ConcurrencyLimiter(ceiling=MOST, under_way=1)
    limiter.refused(5.0)
    assert (limiter.closed_until, limiter.is_half_open, limiter.limit) == (0.0, False, 1)


def test_each_call_that_is_let_in_halves_the_next_cool_down() -> None:
    limiter = ConcurrencyLimiter(ceiling=MOST)
    for _ in range(4):
        limiter.refused(0.0)
    assert limiter.closed_until == 8
    limiter.succeeded()
    limiter.succeeded()

    limiter.refused(100.0)

    assert limiter.closed_until == 104
    for _ in range(9):
        limiter.succeeded()
    limiter.refused(200.0)
    assert limiter.closed_until == 201
