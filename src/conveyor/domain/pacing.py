"""Who gets how much when there is not enough for all."""

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from conveyor.domain.ids import CallerId, RunId


class Want(msgspec.Struct, frozen=True):
    caller: CallerId
    tasks: int


def share(wants: Mapping[RunId, Want], free: int) -> dict[RunId, int]:
    """Divide free places fairly between callers, then between each caller's runs.

    Nobody gets more than asked for; what one leaves goes to the others. The order of `wants`
    breaks ties, so whoever shuffles it makes the remainder fair over time.
    """
    by_caller: dict[CallerId, dict[RunId, int]] = defaultdict(dict)
    for run_id, want in wants.items():
        by_caller[want.caller][run_id] = want.tasks
    totals = {caller: sum(runs.values()) for caller, runs in by_caller.items()}
    granted: dict[RunId, int] = {}
    for caller, places in _level(totals, free).items():
        granted |= _level(by_caller[caller], places)
    return {run_id: places for run_id, places in granted.items() if places}


K = TypeVar("K", CallerId, RunId)


def _level(asked: Mapping[K, int], free: int) -> dict[K, int]:
    """Fill everybody's glass to one level, or to its brim where that is lower."""
    left = dict(sorted(asked.items(), key=lambda item: item[1]))
    granted: dict[K, int] = {}
    for waiting, (key, amount) in zip(range(len(left), 0, -1), left.items(), strict=True):
        granted[key] = min(amount, -(-free // waiting))
        free -= granted[key]
    return granted
