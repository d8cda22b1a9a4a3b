"""Waits grow from the first to the longest, and no further."""

from datetime import timedelta

import pytest

from conveyor.domain.retry import backoff

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("failures", "wait"), [(0, 1), (1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (10**6, 60)]
)
def test_each_failure_doubles_the_wait_up_to_the_longest(failures: int, wait: int) -> None:
    assert backoff(failures, first=SECOND, longest=MINUTE) == timedelta(seconds=wait)


@pytest.mark.parametrize(("failures", "wait"), [(1, 1), (2, 8), (3, 60), (10**9, 60)])
def test_the_factor_can_be_another(failures: int, wait: int) -> None:
    assert backoff(failures, first=SECOND, longest=MINUTE, factor=8) == timedelta(seconds=wait)


def test_a_first_wait_beyond_the_longest_is_cut() -> None:
    assert backoff(1, first=MINUTE, longest=SECOND) == SECOND
    assert backoff(9, first=timedelta(), longest=SECOND) == timedelta()
