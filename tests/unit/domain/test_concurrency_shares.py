"""Fair shares: never more than asked for, never less than there is, no caller at another's cost."""

import random
from collections import Counter
from collections.abc import Mapping
from itertools import permutations
from typing import TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conveyor.domain.concurrency import Demand, fair_shares, leaves_reserve
from conveyor.domain.ids import CallerId, RunId

CALLERS = [CallerId(name) for name in ("ann", "bob", "cid", "dan")]

wants = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=2).map(RunId),
    st.builds(Demand, st.sampled_from(CALLERS), st.integers(0, 30)),
    max_size=12,
)
free = st.integers(0, 200)


def by_caller(asked: Mapping[RunId, Demand], granted: Mapping[RunId, int]) -> Counter[CallerId]:
    places: Counter[CallerId] = Counter()
    for run_id, want in asked.items():
        places[want.caller] += granted.get(run_id, 0)
    return places


def asked_by_caller(asked: Mapping[RunId, Demand]) -> Counter[CallerId]:
    return by_caller(asked, {run_id: want.tasks for run_id, want in asked.items()})


Key = TypeVar("Key", CallerId, RunId)


def is_level(asked: Mapping[Key, int], granted: Mapping[Key, int]) -> bool:
    """A caller that did not get its whole demand has at most one less than any other."""
    most = max((granted.get(key, 0) for key in asked), default=0)
    return all(
        granted.get(key, 0) >= most - 1
        for key, amount in asked.items()
        if granted.get(key, 0) < amount
    )


def of_runs(*amounts: tuple[str, int]) -> dict[RunId, Demand]:
    """Runs named after their callers: "ann1" is one of ann's."""
    return {
        RunId(f"{caller}{n}"): Demand(CallerId(caller), tasks)
        for n, (caller, tasks) in enumerate(amounts, 1)
    }


@given(asked=wants, free=free)
def test_nobody_gets_more_than_was_asked_for(asked: dict[RunId, Demand], free: int) -> None:
    granted = fair_shares(asked, free)
    assert granted.keys() <= asked.keys()
    assert all(places <= asked[run_id].tasks for run_id, places in granted.items())


@given(asked=wants, free=free)
def test_every_free_place_is_used_that_somebody_wants(
    asked: dict[RunId, Demand], free: int
) -> None:
    wanted = sum(want.tasks for want in asked.values())
    assert sum(fair_shares(asked, free).values()) == min(wanted, free)


@given(asked=wants, free=free)
@example(asked=of_runs(("ann", 1), ("bob", 1), ("cid", 1)), free=1)
def test_callers_who_want_more_differ_by_one_place_at_most(
    asked: dict[RunId, Demand], free: int
) -> None:
    assert is_level(asked_by_caller(asked), by_caller(asked, fair_shares(asked, free)))


@given(asked=wants, free=free)
def test_a_callers_runs_that_want_more_differ_by_one_place_at_most(
    asked: dict[RunId, Demand], free: int
) -> None:
    granted = fair_shares(asked, free)
    for caller in CALLERS:
        runs = {run_id: want.tasks for run_id, want in asked.items() if want.caller == caller}
        assert is_level(runs, granted)


@given(asked=wants, free=free)
def test_only_runs_that_got_something_are_named(asked: dict[RunId, Demand], free: int) -> None:
    assert all(places > 0 for places in fair_shares(asked, free).values())


@given(asked=wants, free=free)
def test_one_place_more_takes_from_no_caller(asked: dict[RunId, Demand], free: int) -> None:
    fewer, more = (by_caller(asked, fair_shares(asked, places)) for places in (free, free + 1))
    assert all(more[caller] >= places for caller, places in fewer.items())


@given(asked=wants, free=free)
def test_the_same_wants_in_the_same_order_share_the_same(
    asked: dict[RunId, Demand], free: int
) -> None:
    assert fair_shares(asked, free) == fair_shares(dict(asked), free)


@given(asked=wants, free=free, seed=st.integers(0, 1000))
def test_the_order_moves_no_caller_by_more_than_one_place(
    asked: dict[RunId, Demand], free: int, seed: int
) -> None:
    items = list(asked.items())
    mixed = dict(random.Random(seed).sample(items, len(items)))
    one, other = (by_caller(asked, fair_shares(order, free)) for order in (asked, mixed))
    assert all(abs(one[caller] - other[caller]) <= 1 for caller in CALLERS)


def test_over_all_orders_the_remainder_is_fair() -> None:
    amounts = [("ann", 5), ("bob", 5), ("cid", 5)]
    places: Counter[CallerId] = Counter()
    for order in permutations(amounts):
        asked = of_runs(*order)
        places += by_caller(asked, fair_shares(asked, 4))

    assert places == {"ann": 8, "bob": 8, "cid": 8}


@pytest.mark.parametrize(
    ("asked", "free", "granted"),
    [
        ({}, 10, {}),
        (of_runs(("ann", 5)), 0, {}),
        (of_runs(("ann", 0)), 10, {}),
        (of_runs(("ann", 5)), 3, {"ann1": 3}),
        (of_runs(("ann", 5)), 10, {"ann1": 5}),
        # A caller with many runs gets no more than a caller with one.
        (of_runs(("ann", 9), ("ann", 9), ("ann", 9), ("bob", 9)), 6,
         {"ann1": 1, "ann2": 1, "ann3": 1, "bob4": 3}),
        # What one leaves goes to the others.
        (of_runs(("ann", 1), ("bob", 9), ("cid", 9)), 9, {"ann1": 1, "bob2": 4, "cid3": 4}),
        (of_runs(("ann", 1), ("ann", 9), ("bob", 2)), 10, {"ann1": 1, "ann2": 7, "bob3": 2}),
        # Of equals the first comes first.
        (of_runs(("ann", 5), ("bob", 5)), 3, {"ann1": 2, "bob2": 1}),
        (of_runs(("bob", 5), ("ann", 5)), 3, {"bob1": 2, "ann2": 1}),
    ],
)  # fmt: skip
def test_shares_by_example(
    asked: dict[RunId, Demand], free: int, granted: dict[RunId, int]
) -> None:
    assert fair_shares(asked, free) == granted


@given(asked=wants)
def test_with_room_for_all_everybody_gets_all(asked: dict[RunId, Demand]) -> None:
    room = sum(want.tasks for want in asked.values())
    assert fair_shares(asked, room) == {
        run_id: want.tasks for run_id, want in asked.items() if want.tasks
    }


def test_whoever_holds_least_catches_up() -> None:
    ann, bob = CALLERS[:2]
    asked = {RunId("a"): Demand(ann, 50), RunId("b"): Demand(bob, 50)}

    assert fair_shares(asked, 10, held={ann: 30}) == {RunId("b"): 10}
    assert fair_shares(asked, 10, held={ann: 4}) == {RunId("a"): 3, RunId("b"): 7}


@given(wants, free, st.dictionaries(st.sampled_from(CALLERS), st.integers(0, 40)))
def test_what_is_held_takes_nothing_from_what_is_free(
    asked: dict[RunId, Demand], places: int, held: dict[CallerId, int]
) -> None:
    granted = fair_shares(asked, places, held=held)
    wanted = sum(want.tasks for want in asked.values())
    assert sum(granted.values()) == min(places, wanted)
    assert all(granted[run_id] <= asked[run_id].tasks for run_id in granted)


@given(wants, free, st.dictionaries(st.sampled_from(CALLERS), st.integers(0, 40)))
def test_with_a_reserve_whoever_gets_a_place_leaves_enough_of_them(
    asked: dict[RunId, Demand], places: int, held: dict[CallerId, int]
) -> None:
    got = by_caller(asked, fair_shares(asked, places, held=held, reserve=True))
    free_left = places - got.total()
    assert all(n == 0 or leaves_reserve(held.get(who, 0) + n, free_left) for who, n in got.items())


@pytest.mark.parametrize("places", [1, 4, 5, 10, 500])
def test_callers_who_want_everything_leave_a_place_for_one_more(places: int) -> None:
    held: dict[CallerId, int] = {}
    for caller in CALLERS[:2]:
        asked = {RunId(caller): Demand(caller, 1_000)}
        for _ in range(3):  # asking again gets no more
            got = fair_shares(asked, places - sum(held.values()), held=held, reserve=True)
            held[caller] = held.get(caller, 0) + sum(got.values())

    left = places - sum(held.values())
    assert held[CALLERS[0]] == places - places // 5
    assert left == (places // 5) // 5
    if left:
        late = CALLERS[2]
        assert fair_shares({RunId(late): Demand(late, 1)}, left, held=held, reserve=True)
