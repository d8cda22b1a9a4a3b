"""How long to wait before something that failed is tried again."""

from datetime import timedelta


def backoff(failures: int, *, first: timedelta, longest: timedelta, factor: int = 2) -> timedelta:
    """The wait after `failures` in a row: `first`, then `factor` times longer after each more.

    It never exceeds `longest`, however many failures there were.
    """
    growth = factor ** min(max(failures - 1, 0), 64)  # bounded, so that no huge number is made
    return first * growth if first <= longest / growth else longest
