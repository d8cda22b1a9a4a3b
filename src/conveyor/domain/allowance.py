"""How often a caller may ask: a bucket of tokens that fills at a rate, and holds a burst."""

import math

import msgspec


class Bucket(msgspec.Struct, frozen=True):
    """What was left in it, and when, in seconds of a clock that does not jump."""

    tokens: float
    at: float


class Allowance(msgspec.Struct, frozen=True):
    """Whether one more was granted, and what a caller may know of the next."""

    granted: bool
    left: int
    next_in: float  # seconds until one is there again; 0 while there is
    full_in: float  # seconds until all of the burst is


def take_one(
    bucket: Bucket | None, now: float, *, rate: float, burst: int
) -> tuple[Bucket, Allowance]:
    """Take a token, if there is one; a bucket that nobody has taken from is full."""
    tokens = float(burst)
    if bucket is not None:
        passed = max(now - bucket.at, 0.0)
        tokens = min(bucket.tokens + passed * rate, tokens)
    granted = tokens >= 1
    left = tokens - 1 if granted else tokens
    return Bucket(left, now), Allowance(
        granted=granted,
        left=math.floor(left),
        next_in=max(1 - left, 0.0) / rate,
        full_in=(burst - left) / rate,
    )


def is_full(bucket: Bucket, now: float, *, rate: float, burst: int) -> bool:
    """Whether it is as good as none."""
    return bucket.tokens + (now - bucket.at) * rate >= burst
