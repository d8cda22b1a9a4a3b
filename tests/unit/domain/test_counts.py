"""Counts add up, whatever the order and the grouping, and money stays whole."""

import random

from hypothesis import given
from hypothesis import strategies as st

from conveyor.domain.counts import COUNT_COLUMNS, NANO, ZERO, Counts, Spend, total
from conveyor.domain.failure import FailureReason

counts = st.builds(Counts, **{name: st.integers(0, 10**15) for name in COUNT_COLUMNS})


@given(parts=st.lists(counts, max_size=8), seed=st.integers(0, 1000))
def test_the_sum_is_the_same_in_any_order_and_grouping(parts: list[Counts], seed: int) -> None:
    mixed = random.Random(seed).sample(parts, len(parts))
    cut = seed % (len(parts) + 1)
    assert total(parts) == total(mixed) == total(parts[:cut]) + total(parts[cut:])
    for name in COUNT_COLUMNS:
        assert getattr(total(parts), name) == sum(getattr(part, name) for part in parts)


@given(one=counts)
def test_adding_nothing_changes_nothing(one: Counts) -> None:
    assert one + ZERO == ZERO + one == one


@given(one=counts)
def test_done_is_what_succeeded_and_what_failed(one: Counts) -> None:
    assert one.done == one.successful + one.failed
    assert one.failed == sum(one.reasons.values())


@given(one=counts)
def test_reasons_are_named_only_when_they_happened(one: Counts) -> None:
    assert all(count > 0 for count in one.reasons.values())
    assert one.reasons.keys() <= set(FailureReason)


def test_every_failure_reason_has_its_own_count() -> None:
    assert set(FailureReason) == set(COUNT_COLUMNS) - {"successful", "credits", "nanos"}
    for reason in FailureReason:
        assert Counts(**{reason: 2}).reasons == {reason: 2}


def test_of_no_parts_the_sum_is_zero() -> None:
    assert total([]) == ZERO
    assert (ZERO.done, ZERO.reasons, ZERO.spend) == (0, {}, Spend())


def test_money_is_exact_where_floats_are_not() -> None:
    tenth = Counts(nanos=NANO // 10)
    assert total([tenth] * 3).spend.dollars == 0.3
    assert sum([0.1] * 3) != 0.3


def test_spend_reports_credits_and_dollars() -> None:
    spend = Counts(credits=25, nanos=2_500_000).spend
    assert (spend.credits, spend.nanos, spend.dollars) == (25, 2_500_000, 0.0025)
