"""Who gets how much when there is not enough for all."""

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from conveyor.domain.ids import CallerId, RunId

KEPT_FREE = 5  # one place in so many is for callers that hold nothing yet


class Want(msgspec.Struct, frozen=True):
    caller: CallerId
    tasks: int


def most_for_one(places: int) -> int:
    """How many of all places one caller may hold: not all, so that others find some free."""
    return places - places // KEPT_FREE


def share(
    wants: Mapping[RunId, Want],
    free: int,
    *,
    held: Mapping[CallerId, int] | None = None,
    most: int | None = None,
) -> dict[RunId, int]:
    """Divide free places so that callers hold as equally much as can be, then a caller's runs.

    What callers hold already counts, so that whoever comes late catches up as places become
    free; with `most`, no caller comes to hold more than that. Nobody gets more than asked for.
    The order of `wants` breaks ties: whoever shuffles it makes the remainder fair over time.
    """
    holds = held or {}
    by_caller: dict[CallerId, dict[RunId, int]] = defaultdict(dict)
    for run_id, want in wants.items():
        by_caller[want.caller][run_id] = want.tasks
    asked = {caller: sum(runs.values()) for caller, runs in by_caller.items()}
    if most is not None:
        asked = {who: max(min(n, most - holds.get(who, 0)), 0) for who, n in asked.items()}
    granted: dict[RunId, int] = {}
    for caller, places in _level(asked, holds, free).items():
        granted |= _level(by_caller[caller], {}, places)
    return {run_id: places for run_id, places in granted.items() if places}


K = TypeVar("K", CallerId, RunId)


def _level(asked: Mapping[K, int], held: Mapping[K, int], free: int) -> dict[K, int]:
    """Fill everybody's glass to one level, or to its brim where that is lower."""
    if sum(asked.values()) <= free:
        return dict(asked)
    low, high = 0, max((held.get(key, 0) + amount for key, amount in asked.items()), default=0)
    while low < high:  # the highest level that does not pour out more than there is
        middle = (low + high + 1) // 2
        if sum(_poured(asked, held, middle).values()) <= free:
            low = middle
        else:
            high = middle - 1
    granted = _poured(asked, held, low)
    left = free - sum(granted.values())
    for key, more in _poured(asked, held, low + 1).items():
        if left > 0 and more > granted[key]:
            granted[key] += 1
            left -= 1
    return granted


def _poured(asked: Mapping[K, int], held: Mapping[K, int], level: int) -> dict[K, int]:
    return {key: min(amount, max(level - held.get(key, 0), 0)) for key, amount in asked.items()}
