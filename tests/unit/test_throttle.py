"""How hard a key is driven: nearly to its account's limit, and seldom beyond."""

import heapq
import random
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

import pytest

from conveyor.domain.throttle import (
    FIRST_COOLING,
    LONGEST_COOLING,
    LONGEST_PATIENCE,
    PATIENCE,
    START,
    Throttle,
)

MOST = 500


@dataclass
class Account:
    """A gateway's account with room for so many calls at once, and a caller that wants all of it.

    Calls take a random time; those that are too many are refused quickly.
    """

    limit: int
    latency: float
    throttle: Throttle = field(default_factory=lambda: Throttle(most=MOST))
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
            while self.throttle.room() > 0:
                heapq.heappush(ends, self._call(next(numbers)))
            at, _, was_let_in = heapq.heappop(ends)
            self.used += self.active * (min(at, end) - self.now)
            self.now = at
            self._hang_up(was_let_in=was_let_in)

    _ends: list[tuple[float, int, bool]] = field(default_factory=list)

    def _call(self, number: int) -> tuple[float, int, bool]:
        self.throttle.under_way += 1
        self.calls += 1
        if self.active < self.limit:
            self.active += 1
            return self.now + self.dice.expovariate(1 / self.latency), number, True
        self.refused += 1
        return self.now + 0.05, number, False

    def _hang_up(self, *, was_let_in: bool) -> None:
        self.throttle.under_way -= 1
        if was_let_in:
            self.active -= 1
            self.throttle.answered()
            if self.tells:
                self.throttle.told(self.limit)
        else:
            self.throttle.refused(self.now)


@pytest.mark.parametrize("latency", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("limit", [5, 20, 50, 200])
def test_an_account_is_used_to_its_limit_and_seldom_refuses(limit: int, latency: float) -> None:
    account = Account(limit, latency)
    account.run(60)
    settling_in = account.refused
    assert settling_in <= max(limit, START) + 20, "a burst, and no hammering"

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
    assert small.refused <= START


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
    throttle = Throttle(most=MOST)
    assert throttle.room() == START
    for _ in range(START):
        throttle.answered()
    assert throttle.room() == 2 * START
    assert Throttle(most=3).room() == 3


def test_it_never_goes_below_one() -> None:
    throttle = Throttle(most=MOST)
    for second in range(50):
        throttle.refused(float(second))
    assert throttle.room() == 1


def test_a_try_that_is_refused_goes_back_by_one_and_waits_longer() -> None:
    throttle = Throttle(most=MOST, under_way=10)
    throttle.refused(0.0)
    assert throttle.limit == 10
    for _ in range(PATIENCE):
        throttle.answered()
    assert (throttle.limit, throttle.is_trying) == (11, True)
    throttle.refused(1.0)
    assert (throttle.limit, throttle.is_trying, throttle.patience) == (10, False, 2 * PATIENCE)
    for second in range(2, 9):
        for _ in range(throttle.patience):
            throttle.answered()
        throttle.refused(float(second))
    assert (throttle.limit, throttle.patience) == (10, LONGEST_PATIENCE)


def test_a_closed_key_is_tried_with_a_single_call() -> None:
    throttle = Throttle(most=MOST)
    throttle.close(10.0, timedelta(seconds=30))
    throttle.close(10.0, timedelta(seconds=5))
    assert (throttle.closed_until, throttle.room()) == (40.0, 1)
    throttle.under_way += 1
    assert throttle.room() == 0
    throttle.under_way -= 1
    throttle.answered()
    assert throttle.room() > 1


def test_a_key_that_lets_in_not_a_single_call_is_left_alone_for_longer_each_time() -> None:
    throttle, now, waits = Throttle(most=MOST), 0.0, []
    for _ in range(9):
        throttle.refused(now)
        assert throttle.room() == 1
        waits.append(throttle.closed_until - now)
        now = throttle.closed_until

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (waits[0], waits[-1]) == (
        FIRST_COOLING.total_seconds(),
        LONGEST_COOLING.total_seconds(),
    )


def test_a_refusal_at_a_quiet_moment_says_nothing_of_the_limit() -> None:
    """Others use the account then: once it lets calls in, it is found out anew, and soon."""
    told, untold = Throttle(most=MOST), Throttle(most=MOST)
    for throttle in (told, untold):
        throttle.refused(0.0)
        assert throttle.room() == 1
    told.answered()
    told.told(100)
    for _ in range(50):
        untold.answered()
    assert (told.room(), untold.room()) == (100, 51)


def test_a_call_refused_beside_others_closes_nothing() -> None:
    throttle = Throttle(most=MOST, under_way=1)
    throttle.refused(5.0)
    assert (throttle.closed_until, throttle.is_half_open, throttle.limit) == (0.0, False, 1)


def test_each_call_that_is_let_in_halves_the_next_cool_down() -> None:
    throttle = Throttle(most=MOST)
    for _ in range(4):
        throttle.refused(0.0)
    assert throttle.closed_until == 8
    throttle.answered()
    throttle.answered()

    throttle.refused(100.0)

    assert throttle.closed_until == 104
    for _ in range(9):
        throttle.answered()
    throttle.refused(200.0)
    assert throttle.closed_until == 201
