"""Token buckets and clocks that run back."""

from itertools import accumulate

import pytest

from conveyor.domain.concurrency import Bucket, take_one

RATE, BURST = 2.0, 5


@pytest.mark.parametrize("steps", [[1.0, -0.9], [0.5, -0.5], [0.1, -2.0, 2.0]])
def test_calls_that_overtake_each_other_refill_no_time_twice(steps: list[float]) -> None:
    moments = [*accumulate(steps * 20, initial=1_000.0)]
    bucket, granted = None, 0
    for moment in moments:
        bucket, allowance = take_one(bucket, moment, rate=RATE, burst=BURST)
        granted += allowance.granted
    assert granted <= BURST + RATE * (max(moments) - moments[0])


def test_a_clock_that_was_set_back_refills_from_there() -> None:
    bucket, _ = take_one(Bucket(0, 3_600), 0, rate=RATE, burst=BURST)
    _, allowance = take_one(bucket, 1, rate=RATE, burst=BURST)
    assert allowance.granted
