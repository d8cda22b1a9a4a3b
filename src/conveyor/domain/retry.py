"""Retries: how long to wait before something that failed is tried again."""

from datetime import timedelta
from zlib import crc32

import msgspec

from conveyor.domain.ids import TaskId


def backoff(failures: int, *, first: timedelta, longest: timedelta, factor: int = 2) -> timedelta:
    """The wait after `failures` in a row: `first`, then `factor` times longer after each.

    It never exceeds `longest`, however many failures there were.
    """
    growth = factor ** min(max(failures - 1, 0), 64)  # bounded, so that no huge number is made
    return first * growth if first <= longest / growth else longest


def spread(key: str) -> float:
    """A number from 0 to 1 that is always the same for a key.

    It spreads waits, so that tasks which failed together are not retried together. It is derived
    and not random, so that a decision can be repeated with the same result.
    """
    return crc32(key.encode()) / 2**32


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and after which wait, a task is tried again."""

    retries: int = 3  # after the first attempt
    first_delay: timedelta = timedelta(seconds=1)
    factor: int = 8  # with the first delay of 1 s: 1 s, 8 s, 64 s
    longest_delay: timedelta = timedelta(minutes=5)

    def delay(self, task_id: TaskId, attempts: int) -> timedelta:
        """The wait after attempt number `attempts` + 1, shortened by up to a half."""
        base = backoff(
            attempts + 1, first=self.first_delay, longest=self.longest_delay, factor=self.factor
        )
        return base * (1 - spread(f"{task_id}/{attempts}") / 2)
